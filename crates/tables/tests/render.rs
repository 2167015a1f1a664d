//! Every form of one report with hostile text in it: nothing breaks out, nothing is lost, and JSON reads
//! back.

use memspill_tables::{Cell, Chart, Column, Drawn, Form, Published, Report, Row, Spread, Table, Unit, html};
use serde_json::Value;

const HOSTILE: &str = "a<b>&\"c\"|d,'e'\\\n</title><script>alert(1)</script>\u{1}é";

fn report() -> Report {
    let column = |key, name, unit| Column { key, name, unit, help: "what <is> \"counted\"" };
    let row = |group: &str, setting: &str, first: Cell, second: Cell| Row {
        group: group.into(),
        setting: setting.into(),
        cells: vec![first, second, Cell::Nothing, Cell::Words("here, \"there\"".into())],
        published: None,
        detail: false,
    };
    let spread = Spread { median: 2500.5, least: 2000.0, most: 3000.0, samples: 7 };
    let mut new = row(HOSTILE, "knob=new", Cell::Number(spread), Cell::once(0.159));
    new.published = Some(Published { text: "+3.85 % <sic>", change: Some(0.0385) });
    let mut hidden = row("tail", "hidden", Cell::once(1.0), Cell::once(f64::NAN));
    hidden.detail = true;
    Report {
        title: HOSTILE.into(),
        command: "memspill-lab sim seeds --html 'a b'".into(),
        machine: "a machine".into(),
        seed: Some(u64::MAX),
        notes: vec![HOSTILE.into()],
        tables: vec![Table {
            id: "000",
            title: "first | table".into(),
            row_name: "setting",
            columns: vec![
                column("rate_per_s", "rate", Unit::PerSecond),
                column("change", "change", Unit::Change),
                column("empty", "empty", Unit::Count),
                column("words", "words", Unit::Words),
            ],
            rows: vec![row(HOSTILE, "knob=old", Cell::once(2000.0), Cell::Nothing), new, hidden],
            notes: vec!["a note".into()],
            change: Some("change"),
            charts: vec![
                Chart::Bars { column: "rate_per_s", one_scale: false },
                Chart::Line { column: "rate_per_s" },
            ],
        }],
    }
}

#[test]
fn json_reads_back_whole() {
    let json: Value = serde_json::from_str(&Form::Json.of(&report())).unwrap();
    assert_eq!(json["schema"], 2);
    assert_eq!((&json["title"], &json["notes"][0]), (&HOSTILE.into(), &HOSTILE.into()));
    assert_eq!(json["seed"], u64::MAX);
    let table = &json["tables"][0];
    assert_eq!(table["columns"][0]["unit"], "1/s");
    let rows = table["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "the tail is for programs");
    assert_eq!(rows[1]["group"], HOSTILE);
    assert_eq!(
        rows[1]["cells"]["rate_per_s"],
        serde_json::json!({"median": 2500.5, "least": 2000, "most": 3000, "samples": 7})
    );
    assert_eq!(rows[1]["published"]["change"], 0.0385);
    assert_eq!(rows[0]["published"], Value::Null);
    assert_eq!(rows[0]["cells"]["change"], Value::Null);
    assert_eq!(rows[2]["cells"]["change"]["median"], Value::Null, "what is no number is null");
}

/// A reader of RFC 4180, to see that what was written is what is read.
fn csv_records(text: &str) -> Vec<Vec<String>> {
    let (mut records, mut record, mut field, mut quoted) = (Vec::new(), Vec::new(), String::new(), false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => field.push(chars.next().unwrap()),
            '"' => quoted = !quoted,
            ',' if !quoted => record.push(std::mem::take(&mut field)),
            '\n' if !quoted => {
                record.push(std::mem::take(&mut field));
                records.push(std::mem::take(&mut record));
            }
            c => field.push(c),
        }
    }
    assert!(!quoted && record.is_empty() && field.is_empty(), "the text ends between records");
    records
}

#[test]
fn csv_reads_back_with_ten_fields_in_each_record() {
    let records = csv_records(&Form::Csv.of(&report()));
    assert!(records.iter().all(|record| record.len() == 10), "{records:?}");
    let find = |setting: &str, metric: &str| {
        records.iter().find(|r| r[2] == setting && r[3] == metric).map(|r| r.as_slice())
    };
    let rate = find("knob=new", "rate_per_s").unwrap();
    assert_eq!(rate[..3], ["000", HOSTILE, "knob=new"]);
    assert_eq!(rate[4..], ["1/s", "2500.5", "2000", "3000", "7", ""]);
    assert_eq!(find("knob=new", "words").unwrap()[9], "here, \"there\"");
    assert_eq!(find("knob=new", "published").unwrap()[5], "0.0385");
    assert!(find("knob=old", "change").is_none(), "an empty cell has no record");
    assert_eq!(find("hidden", "change").unwrap()[5], "");
}

#[test]
fn markdown_rows_have_the_columns_of_the_head() {
    let text = Form::Markdown.of(&report());
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(rows.len(), 4, "head, ruler, two rows: {text}");
    let bars = |row: &str| row.replace("\\\\", "").replace("\\|", "").matches('|').count();
    assert!(rows.iter().all(|row| bars(row) == bars(rows[0])), "{rows:?}");
    assert!(!text.contains("<script>") && !text.contains("hidden"));
    assert!(rows[0].contains("| rate /s | change | published | words |"), "{}", rows[0]);
    assert!(rows[3].contains("| 2.50 k (2.00 k to 3.00 k) | +15.9 % | +3.85 % \\<sic\\> |"), "{}", rows[3]);
}

#[test]
fn text_lines_up_and_leaves_empty_columns_out() {
    let text = Form::Text.of(&report());
    assert!(!text.contains("empty") && !text.contains("hidden"));
    let line = |word: &str| text.lines().find(|line| line.contains(word)).unwrap();
    let end = |line: &str, word: &str| line[..line.find(word).unwrap() + word.len()].chars().count();
    assert_eq!(end(line("  rate  "), "rate"), end(line("knob=new"), "2.50 k"));
    assert_eq!(end(line("knob=old"), "2.00 k"), end(line("knob=new"), "2.50 k"));
}

#[test]
fn a_wide_table_goes_on_below() {
    let mut report = report();
    let table = &mut report.tables[0];
    let names =
        ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];
    table.columns = names.map(|name| Column { key: name, name, unit: Unit::Words, help: "" }).into();
    table.rows.iter_mut().for_each(|row| {
        row.group = "a group".into();
        row.cells = names.map(|name| Cell::Words(format!("twenty letters: {name}"))).into();
    });
    let text = Form::Text.of(&report);
    assert!(
        text.lines().skip(3).filter(|l| !l.contains("alert")).all(|l| l.chars().count() <= 118),
        "{text}"
    );
    assert!(text.matches("knob=new").count() > 1);
    assert!(names.iter().all(|name| text.matches(&format!("letters: {name}")).count() >= 2), "{text}");
}

/// Elements that are opened and not closed, in a page whose every `<` of text is escaped.
fn unclosed(page: &str) -> Vec<&str> {
    let mut open = Vec::new();
    for tag in page.split('<').skip(1) {
        let tag = &tag[..tag.find('>').expect("a tag ends")];
        let name = tag.trim_start_matches('/').split([' ', '\n']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "</{name}> closes what was opened last");
        } else if !tag.ends_with('/') && !matches!(name, "!DOCTYPE" | "meta") {
            open.push(name);
        }
    }
    open
}

#[test]
fn the_page_stands_by_itself() {
    let page = html(&report());
    assert!(page.starts_with("<!DOCTYPE html>"));
    assert_eq!(unclosed(&page), Vec::<&str>::new());
    assert!(!page.contains("<script") && !page.contains("</title><script"), "text stays text");
    for outside in ["http:", "https:", "src=", "href=", "url(", "@import", "NaN", "inf"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("prefers-color-scheme: dark"));
    assert_eq!(page.matches("<svg").count(), page.matches("<svg role=\"img\" aria-label=\"").count());
    assert_eq!(page.matches("<svg").count(), 2, "changes and one panel: a knob is no number, so no line");
    assert!(page.contains("+3.85 % &lt;sic&gt;") && page.contains("2.00 k to 3.00 k"));
    assert!(!page.contains("hidden"));
}

#[test]
fn a_line_needs_two_numbers() {
    let mut report = report();
    for (row, cpus) in report.tables[0].rows.iter_mut().zip(["1", "8", "64"]) {
        row.setting = cpus.into();
        row.detail = false;
    }
    let page = html(&report);
    assert_eq!(unclosed(&page), Vec::<&str>::new());
    assert!(page.contains("class=\"curve\"") && page.contains("class=\"proportion\""));
    assert!(
        page.contains("rate against setting. 1: 2.00 k/s. 8: 2.50 k/s. 64: 1/s."),
        "the picture in words"
    );
}

#[test]
fn the_same_report_gives_the_same_bytes() {
    for form in [Form::Text, Form::Json, Form::Csv, Form::Markdown] {
        assert_eq!(form.of(&report()), form.of(&report()));
    }
    assert_eq!(html(&report()), html(&report()));
}

#[test]
fn an_empty_table_says_its_notes() {
    let mut report = report();
    report.tables[0].rows.clear();
    for text in [Form::Text.of(&report), Form::Markdown.of(&report), html(&report)] {
        assert!(text.contains("a note"), "{text}");
    }
    serde_json::from_str::<Value>(&Form::Json.of(&report)).unwrap();
    assert_eq!(unclosed(&html(&report)), Vec::<&str>::new());
}

/// Rows that are moments, of which people see only the charts.
fn over_time(moments: &[&str]) -> Report {
    let mut report = report();
    let table = &mut report.tables[0];
    let row = table.rows[0].clone();
    table.rows = moments
        .iter()
        .map(|moment| Row { setting: moment.to_string(), group: String::new(), detail: true, ..row.clone() })
        .collect();
    table.columns[0].name = "a <b>";
    let columns = &["rate_per_s", "no such column"][..];
    let chart = |drawn, limit| Chart::Time { title: "over & over", columns, drawn, limit };
    table.charts = vec![chart(Drawn::Stacked, Some("rate_per_s")), chart(Drawn::Lines, None)];
    report
}

#[test]
fn charts_over_time_stand_without_their_table() {
    let page = html(&over_time(&["0.5", "1", "2.5"]));
    assert_eq!(unclosed(&page), Vec::<&str>::new());
    assert_eq!(page.matches("<svg").count(), 2);
    assert_eq!(page.matches("over &amp; over").count(), 2);
    assert!(page.contains("a &lt;b&gt;") && !page.contains("a <b>"));
    assert!(!page.contains("<table>"), "its rows are for the charts");
    assert!(page.contains("<title>1.0 s: a &lt;b&gt; 2.00 k/s"), "a pointer shows the values");
    assert_eq!((page.matches("class=\"limit\"").count(), page.matches("class=\"area s0\"").count()), (1, 1));
    for number in ["NaN", "inf"] {
        assert!(!page.contains(number), "{number}");
    }
}

#[test]
fn a_chart_over_time_needs_two_moments() {
    for moments in [&[][..], &["1"], &["soon", "later"], &["1", "NaN"]] {
        let page = html(&over_time(moments));
        assert!(!page.contains("class=\"scroll time\""), "{moments:?}");
        assert_eq!(unclosed(&page), Vec::<&str>::new());
    }
}

#[test]
fn columns_without_names_have_no_head() {
    let mut report = report();
    report.tables[0].columns.iter_mut().for_each(|column| column.name = "");
    let page = html(&report);
    assert_eq!(unclosed(&page), Vec::<&str>::new());
    assert!(!page.contains("<thead>") && !page.contains("<details>") && page.contains("<tbody>"));
}
