"""Each check of form finds what is planted, and nothing in a project that is as it must be: self_test.py"""

import os
import tempfile
import unittest

import lines
import modules
import openings
import port
import references

GOOD = {
    "README.md": "# A\n\nSee [the map](ARCHITECTURE.md#the-map), `docs/use.md` and https://e.org/gone.rs.\n",
    "ARCHITECTURE.md": "# The map\n\n| a fault | `one/src/b.rs`, `deep.rs`; `find` in `one/src/b.rs` |\n",
    "docs/use.md": "A folder, `crates/one`, and a command:\n\n    run -- job.py && bash tests/run.sh\n",
    "tests/run.sh": "#!/bin/bash\n# All tests.\n",
    "crates/one/src/lib.rs": "//! A crate: `b.rs`, `rooms/*.rs`.\nmod a;\nmod b;\nmod rooms;\n",
    "crates/one/src/a.rs": "//! Above `b.rs`.\nuse crate::b::find;\nuse crate::{rooms::deep::{D, E as L}};\n",
    "crates/one/src/b.rs": """//! Below.
// crate::a is only spoken of here.
pub fn find<'a>(text: &'a str) -> char {
    if text == "crate::a::x" { '"' } else { '\\'' }
}
#[cfg(test)]
mod tests {
    use crate::a::Thing;
    fn crowd() { if true { crate::a::go() } }
}
#[cfg(test)]
use super::a;
""",
    "crates/one/src/rooms/mod.rs": "//! Rooms.\nmod deep;\npub(in crate::a) use deep::Deep;\n",
    "crates/one/src/rooms/deep.rs": "//! Deep.\nuse crate::b;\npub struct Deep;\n",
}


class Form(unittest.TestCase):
    def wrong(self, check, **planted):
        """All that `check` says of the good project with these files added or replaced ("__" is "/")."""
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**GOOD, **{to_path(name): text for name, text in planted.items()}}.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            return list(check(root))

    def found(self, check, *words, **planted):
        wrong = self.wrong(check, **planted)
        self.assertEqual(len(wrong), 1, wrong)
        for word in words:
            self.assertIn(word, wrong[0])

    def test_a_good_project_has_nothing_wrong(self):
        for check in (lines.check, modules.check, openings.check, port.check, references.check):
            self.assertEqual(self.wrong(check), [])

    def test_a_long_line_is_counted_in_characters(self):
        self.assertEqual(self.wrong(lines.check, x_rs="// " + "─" * 107 + "\n"), [])
        self.found(lines.check, "x.rs:2", "111 characters", x_rs="//\n// " + "─" * 108 + "\n")

    def test_only_an_address_may_make_a_line_too_long(self):
        self.assertEqual(self.wrong(lines.check, x_py="# https://e.org/" + "a" * 120), [])
        self.found(lines.check, "x.py:1", x_py="# " + "a b" * 40 + " https://e.org")

    def test_a_file_without_a_header_is_found(self):
        self.assertEqual(self.wrong(lines.check, x_sh="#!/bin/bash\n# What it does.\n", y_css="/* y */"), [])
        self.found(lines.check, "no header", x_sh="#!/bin/bash\nset -u\n")
        self.found(lines.check, "no header", x_rs="#![no_main]\n//! Too late.\n")
        self.found(lines.check, "no header", x_py="import os\n")

    def test_a_headless_opening_is_found(self):
        for planted in (
            "What waits there is woken.",
            "Of two pages the first goes.",
            "So that\n// one is free, it waits.",
            "It leaves. Whoever waits for it is\n// woken.",
            "Those of a child stay.",
        ):
            wrong = self.wrong(openings.check, crates__one__src__c_rs=f"//! A.\n\n// {planted}\n")
            self.assertEqual(len(wrong), 2, planted)
            self.assertTrue(wrong[0].startswith("crates/one/src/c.rs:3: "), wrong)
            self.assertIn("crates/one: 1 of", wrong[1])
        for planted in (
            {"x_sh": "# A.\n\ntrue # What waits is woken.\n"},
            {"x_py": '"""A.\n\nWhat waits is woken.\n"""\n'},
            {"docs__x_md": "# A\n\n- B. Where it is, it stays.\n"},
        ):
            self.assertEqual(len(self.wrong(openings.check, **planted)), 2, planted)

    def test_questions_and_labels_are_no_headless_openings(self):
        for good in (
            "What is it that is woken?",
            "Where a slot's bytes lie.",
            "What it does not do: decide, what is due.",
            "What it is, and where it goes.",
            "So the page stays.",
            "Of course it is.",
            "    What is, is.",
        ):
            wrong = self.wrong(openings.check, crates__one__src__c_rs=f"//! A.\n\n// {good}\n")
            self.assertEqual(wrong, [], good)

    def test_a_file_that_is_not_there_is_found(self):
        self.found(references.check, "x.md:1", "gone.rs", docs__x_md="In `gone.rs`.\n")
        self.found(references.check, "gone/src/b.rs", docs__x_md="In gone/src/b.rs.\n")
        self.found(references.check, "crates/gone", docs__x_md="In crates/gone\n")
        self.found(references.check, "gone_*.rs", docs__x_md="In `gone_*.rs`.\n")
        self.found(references.check, "gone.md", docs__x_md="See [it](gone.md).\n")
        self.found(references.check, "use.md#gone", docs__x_md="See [it](use.md#gone).\n")
        self.found(references.check, "gone.rs", crates__one__src__c_rs="//! As\n//! `gone.rs` does.\n")

    def test_a_file_of_another_crate_is_not_meant(self):
        two = {"crates__two__src__far_rs": "//! Far.\n"}
        self.found(references.check, "far.rs", "in one", crates__one__src__c_rs="//! See `far.rs`.\n", **two)
        self.assertEqual(self.wrong(references.check, docs__x_md="Crate two: far.rs.\n", **two), [])
        self.assertEqual(self.wrong(references.check, crates__one__src__c_rs="//! two's far.rs\n", **two), [])

    def test_a_function_that_is_not_there_is_found(self):
        self.found(references.check, "lost", docs__x_md="By `lost` in\n`one/src/b.rs`.\n")

    def test_a_question_about_the_kind_of_a_port_is_found(self):
        asks = "//! Faults.\nfn f() { if process.memory.port.is_agent() {} }\n"
        self.found(port.check, "f.rs:2", "port.is_agent(", crates__pager__src__f_rs=asks)
        knows = "//! Kinds.\nfn f() { by_agent; }\n"
        self.found(port.check, "a.rs:2", "by_agent", crates__pager__src__process__a_rs=knows)
        self.assertEqual(self.wrong(port.check, crates__pager__src__process__port__a_rs=knows), [])

    def test_modules_in_a_circle_are_found(self):
        self.found(modules.check, "a -> b", "b -> a", crates__one__src__b_rs="use crate::a;\n")
        self.found(modules.check, "3 modules", crates__one__src__b_rs="use super::{c, a::go};\n")
        after_a_test = "#[cfg(test)]\nuse x::y;\nfn f() { super::a::g() }"
        self.found(modules.check, "b -> a", crates__one__src__b_rs=after_a_test)

    def test_a_circle_below_a_root_inside_a_crate_is_found(self):
        self.found(
            modules.check, "crates/one/src/inner/main.rs", "2 modules", "far -> near", "near -> far",
            crates__one__src__inner__main_rs='//! A.\n#[path = "../far.rs"]\nmod far;\nmod near;\n',
            crates__one__src__far_rs="//! Far.\nuse crate::near::N;\n",
            crates__one__src__inner__near_rs="//! Near.\nuse super::far::F;\n",
        )

    def test_a_circle_in_a_room_is_found(self):
        self.found(
            modules.check, "3 modules", "b -> rooms\n", "rooms -> rooms::deep\n", "rooms::deep -> b",
            crates__one__src__b_rs="use crate::{x, rooms as halls};\n",
        )

    def test_a_room_and_what_is_in_it_are_two_modules(self):
        self.found(
            modules.check, "rooms -> rooms::deep", "rooms::deep -> rooms",
            crates__one__src__rooms__deep_rs="use super::Room;\n",
        )


def to_path(name):
    stem, ending = name.rsplit("_", 1)
    return f"{stem.replace('__', '/')}.{ending}"


if __name__ == "__main__":
    unittest.main()
