//! `memspill-lab sim seeds`, in short: each setting of each table is measured, and the mechanisms show in
//! what they are about.

use memspill_sim::seeds::{self, Options};
use memspill_tables::{Cell, Form, Report, Row, Table, Unit};

/// Virtual milliseconds of each setting.
const MS: u64 = 2;

/// What it has been told: settings that have begun, and tables that were done.
#[derive(Default)]
struct Told {
    settings: usize,
    tables: usize,
}

impl seeds::Watch for Told {
    fn begins(&mut self, done: usize, total: usize, _: &str) {
        assert_eq!(done, self.settings);
        assert!(done < total);
        self.settings += 1;
    }

    fn has_table(&mut self, report: &Report) {
        self.tables += 1;
        assert_eq!(report.tables.len(), self.tables);
    }
}

fn report(first_seed: u64) -> Report {
    let options = Options { first_seed, seeds: 1, ms: MS, thread: None };
    let mut told = Told::default();
    let report = seeds::seeds(&options, "seeds".into(), &mut told);
    assert_eq!(report.tables.len(), told.tables + 1, "what was published comes last");
    report
}

fn table<'a>(report: &'a Report, id: &str) -> &'a Table {
    report.tables.iter().find(|table| table.id == id).unwrap_or_else(|| panic!("there is no table {id}"))
}

/// What was measured of a row.
fn of(table: &Table, row: &Row, key: &str) -> f64 {
    let column = table.column(key).unwrap_or_else(|| panic!("table {} has no {key}", table.id));
    let cell = row.cells[column].number();
    cell.unwrap_or_else(|| panic!("{} {}: no {key}", table.id, row.setting)).median
}

/// The figure `key` of the first setting of each group, and of the one named `other`, in the groups that have
/// it.
fn pairs(table: &Table, key: &str, other: &str) -> Vec<(f64, f64)> {
    let groups = table.groups().into_iter();
    let pairs: Vec<(f64, f64)> = groups
        .filter_map(|(_, rows)| {
            let other = rows.iter().find(|row| row.setting == other)?;
            Some((of(table, rows[0], key), of(table, other, key)))
        })
        .collect();
    assert!(!pairs.is_empty(), "table {} has no setting {other}", table.id);
    pairs
}

#[test]
fn every_setting_is_measured_and_the_mechanisms_show() {
    let report = report(1);
    for table in report.tables.iter().filter(|table| table.id != "figures") {
        let left_out = table.notes.iter().find(|note| note.contains("Not in this build"));
        assert_eq!(left_out, None, "table {}", table.id);
        for (group, rows) in table.groups() {
            assert!(rows.len() >= 2, "{}: {group}: nothing is compared", table.id);
            for row in rows {
                // In so short a time a slow device takes no batch, and a table of stores reads few pages
                // back.
                let rates =
                    ["accesses_per_s", "swap_in_per_s", "swap_out_per_s"].map(|key| of(table, row, key));
                let moves = rates[1].max(rates[2]);
                assert!(
                    rates[0] > 1000.0 && moves > 1000.0,
                    "{}: {group}: {}: {rates:?}",
                    table.id,
                    row.setting
                );
            }
        }
    }
    // Each old lock is known by its name, and waited for.
    let waited = |id, key| {
        let table = table(&report, id);
        let column = table.column(key).expect("it is a column of the table");
        let firsts = table.groups().into_iter().map(|(_, rows)| &rows[0].cells[column]);
        firsts.filter_map(Cell::number).any(|share| share.median > 0.001)
    };
    for (id, key) in [
        ("000", "trunk_waited_share"),
        ("000", "device_waited_share"),
        ("001", "trunk_waited_share"),
        ("001", "device_waited_share"),
        ("002", "cgroup_waited_share"),
    ] {
        assert!(waited(id, key), "{id}: nobody waits: {key}");
    }
    let apart = pairs(table(&report, "000"), "trunk_waited_share", "scan-base=per-cpu");
    assert!(apart.iter().all(|(shared, apart)| *shared > 1.5 * apart), "waits for trunks: {apart:?}");
    let name = "slot-batch=64 cache-batch=32 (unmaps in batches)";
    let batched = pairs(table(&report, "001"), "cluster_locks_per_page", name);
    // Pages come back one by one in both forms, and take locks of their own.
    let [fresh @ .., (single, some)] = &batched[..] else { panic!("{batched:?}") };
    let fewer = fresh.iter().all(|(single, batched)| *single > 30.0 * batched) && *single > some + 0.8;
    assert!(fewer, "locks a page: {batched:?}");
    let free = pairs(table(&report, "002"), "cgroup_locks_per_page", "cgroup-map=lock-free folio=4K");
    assert!(free.iter().all(|(locked, free)| *locked > 0.0 && *free == 0.0), "locks of the map: {free:?}");
    let auto = pairs(table(&report, "003"), "readahead_share", "readahead=auto folio=4K");
    let [(random, 0.0), (zipf, 0.0), (in_order, 0.0)] = auto[..] else { panic!("readahead: {auto:?}") };
    assert!(
        random < 0.3 && zipf < 0.3 && in_order > 0.8,
        "the kernel's readahead goes by its hits: {auto:?}"
    );
    let bypassed = pairs(table(&report, "003"), "cache_bypass_share", "readahead=auto folio=4K");
    assert!(bypassed.iter().all(|(always, auto)| *always == 0.0 && *auto > 0.8), "bypass: {bypassed:?}");
    each_published_figure_has_one_beside_it_and_a_verdict(table(&report, "figures"));
}

fn each_published_figure_has_one_beside_it_and_a_verdict(figures: &Table) {
    assert_eq!(figures.rows.len(), 22, "so many the threads have published");
    let document = include_str!("../../../docs/simulation.md");
    let words = |row: &Row, key| match &row.cells[figures.column(key).expect("a column")] {
        Cell::Words(words) => words.clone(),
        cell => cell.shown(Unit::Words),
    };
    for row in &figures.rows {
        of(figures, row, "here");
        assert!(["yes", "no"].contains(&words(row, "agrees").as_str()), "{}", row.setting);
        assert!(row.published.is_some(), "{}", row.setting);
        // The document says what was measured and published as we do.
        let said = [
            format!("| {} |", row.setting),
            format!("| {} |", row.published_text()),
            format!("| {} | {} |", words(row, "kernel"), words(row, "memspill")),
        ];
        let is_said = document.lines().any(|line| said.iter().all(|cells| line.contains(cells)));
        assert!(is_said, "scripts/seeds-table.sh has not put this into docs/simulation.md: {said:?}");
    }
}

#[test]
fn a_seed_makes_the_same_tables_each_time_and_two_differ() {
    let of = |seeds| {
        let options = Options { first_seed: 1, seeds, ms: 1, thread: Some("003".into()) };
        seeds::seeds(&options, "seeds".into(), &mut Told::default())
    };
    let two = of(2);
    assert_eq!(Form::Json.of(&two), Form::Json.of(&of(2)));
    let spreads = table(&two, "figures").rows.iter().filter_map(|row| row.cells[0].number());
    assert!(spreads.clone().all(|spread| spread.samples == 2));
    assert!(spreads.clone().any(|spread| spread.least < spread.most), "two seeds are not the same");
}
