//! Compiles the freestanding agent (`src/agent/`) into a shared object that the crate embeds.
//!
//! It cannot be an ordinary crate of the workspace: it needs `panic = "abort"` whatever the profile, no libc,
//! and link arguments of its own. So this script calls the compiler that cargo uses, for the target that
//! cargo builds for.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let dir = PathBuf::from("src/agent");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/doors.rs");
    println!("cargo::rustc-check-cfg=cfg(memspill_test)");
    println!("cargo::rerun-if-changed=../common/src");
    println!("cargo::rerun-if-changed=src/agent");

    let var = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    assert!(
        var("CARGO_CFG_TARGET_OS") == "linux" && var("CARGO_CFG_TARGET_ARCH") == "x86_64",
        "memspill's agent runs on Linux, on x86_64"
    );

    // Model checkers run the agent's sources as a part of their tests.
    if ["CARGO_CFG_LOOM", "CARGO_CFG_SHUTTLE"].iter().any(|cfg| env::var_os(cfg).is_some()) {
        let none = PathBuf::from(var("OUT_DIR")).join("libmemspill_agent.so");
        return std::fs::write(none, "").expect("an empty file in OUT_DIR");
    }

    // The agent is loaded by programs of the GNU C library, whichever memspill itself is linked with. So a
    // memspill for musl has the same agent as another.
    let target = var("TARGET").replace("-linux-musl", "-linux-gnu");
    let compiled = |name: &str, more: &[&str]| {
        let mut rustc = Command::new(var("RUSTC"));
        rustc
            .args(["--edition", "2024", "--crate-name", "memspill_agent", "--crate-type", "cdylib"])
            .args(["--check-cfg", "cfg(memspill_test, test, shuttle)"])
            .args(more)
            .args(["--target", &target])
            .args(["-C", "panic=abort", "-C", "opt-level=2", "-C", "codegen-units=1"])
            .args(["-C", "relocation-model=pic", "-C", "strip=symbols", "-C", "link-arg=-nostdlib"])
            // Everything is bound when it is loaded: a lazy binding would run the dynamic linker, on memory
            // that may be swapped out, in the thread that swaps out.
            .args(["-C", "link-arg=-Wl,-z,now", "-C", "link-arg=-Wl,-Bsymbolic"])
            // The entry point of a program without a loader (planted.rs).
            .args(["-C", "link-arg=-Wl,-e,memspill_begin"])
            .arg("-o")
            .arg(PathBuf::from(var("OUT_DIR")).join(name))
            .arg(dir.join("main.rs"));
        if let Ok(linker) = env::var("RUSTC_LINKER") {
            rustc.args(["-C", &format!("linker={linker}")]);
        }
        rustc.spawn().expect("rustc starts")
    };
    // The second one has the doors of this crate's own tests (doors.rs), and nothing else loads it.
    let agents = [
        compiled("libmemspill_agent.so", &[]),
        compiled("libmemspill_agent_test.so", &["--cfg", "memspill_test"]),
    ];
    for mut agent in agents {
        assert!(agent.wait().expect("rustc ends").success(), "the agent does not compile");
    }
}
