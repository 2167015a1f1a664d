//! Which windows the faults of one thread have (`src/agent/readahead/rows.rs`), and what of them comes
//! (`window.rs` there).

use memspill_common as common;
use memspill_common::link::LeftOut;

#[path = "../src/agent/readahead/rows.rs"]
mod rows;
#[path = "../src/agent/readahead/window.rs"]
mod window;

mod machine {
    pub mod sys {
        pub const PAGE: usize = 4096;
    }
}
use machine::sys;

/// Faults at these pages, each of which brings so many of its window, or all. The first and the last page of
/// the window of each.
fn windows(rows: &rows::Rows, faults: &[usize], brought: usize) -> Vec<(usize, usize)> {
    let window = |page: &usize| {
        let way = rows.find(page * sys::PAGE);
        rows.note(&way, way.pages.min(brought));
        (way.page(0) / sys::PAGE, way.page(way.pages - 1) / sys::PAGE)
    };
    faults.iter().map(window).collect()
}

const ALL: usize = usize::MAX;

#[test]
fn a_row_doubles_either_way() {
    let rows = rows::Rows::new();
    let up = [100, 101, 103, 107, 115, 131, 147];
    let expected = [(100, 100), (101, 102), (103, 106), (107, 114), (115, 130), (131, 146), (147, 162)];
    assert_eq!(windows(&rows, &up, ALL), expected);
    let down = [900, 899, 897, 893, 885, 869];
    let expected = [(900, 900), (899, 898), (897, 894), (893, 886), (885, 870), (869, 854)];
    assert_eq!(windows(&rows, &down, ALL), expected);
}

#[test]
fn a_row_passes_some_pages_that_are_there_and_does_not_turn() {
    let rows = rows::Rows::new();
    assert_eq!(windows(&rows, &[100, 109], ALL)[1], (109, 110));
    assert_eq!(windows(&rows, &[110], ALL), [(110, 110)], "behind what a row has brought");
    let rows = rows::Rows::new();
    assert_eq!(windows(&rows, &[100, 110], ALL)[1], (110, 110), "too far");
}

#[test]
fn a_row_grows_though_little_of_its_windows_is_brought() {
    let rows = rows::Rows::new();
    let expected = [(100, 100), (101, 102), (102, 105), (103, 110), (104, 119)];
    assert_eq!(windows(&rows, &[100, 101, 102, 103, 104], 1), expected);
}

#[test]
fn eight_rows_are_known_and_random_faults_have_none() {
    let rows = rows::Rows::new();
    let starts: Vec<usize> = (1..=8).map(|n| n * 1000).collect();
    windows(&rows, &starts, ALL);
    for start in &starts {
        assert_eq!(windows(&rows, &[start + 1], ALL), [(start + 1, start + 2)]);
    }
    windows(&rows, &[starts[0] + 3, 100_000], ALL);
    assert_eq!(windows(&rows, &[starts[1] + 3], ALL), [(2003, 2003)], "the one that was used least lately");
    assert_eq!(windows(&rows, &[starts[0] + 7], ALL), [(1007, 1014)]);
    let mut drawn = 1u64;
    let random: Vec<usize> = std::iter::repeat_with(|| {
        drawn = drawn.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (drawn >> 33) as usize % 1_000_000_000 + 100_000
    })
    .take(200)
    .collect();
    assert!(windows(&rows, &random, ALL).iter().zip(random).all(|(window, page)| *window == (page, page)));
}

const LIMITS: window::Limits = window::Limits { window_pages: 16, block_pages: 96, distrusted: 0 };

/// The way of a row of two faults or more that ends at this page, with a window of so many pages.
fn way(page: usize, pages: usize, is_down: bool) -> rows::Way {
    let rows = rows::Rows::new();
    let steps = pages.ilog2() as usize;
    let back = |n: usize| if is_down { page + n } else { page - n };
    windows(&rows, &(1..=steps).rev().map(back).collect::<Vec<_>>(), 1);
    let way = rows.find(page * sys::PAGE);
    assert_eq!((way.pages, way.is_down()), (pages, is_down));
    way
}

/// The pages that come if [first, end) are away, each in the slot of its own number; the pages left out of
/// 1000 windows.
fn comes(way: &rows::Way, limits: &window::Limits, away: std::ops::Range<usize>) -> (Vec<usize>, Vec<i16>) {
    let slot_of = |page: usize| away.contains(&(page / sys::PAGE)).then_some((page / sys::PAGE) as u64);
    let all: Vec<(usize, LeftOut)> =
        (0..1000).map(|number| window::wanted(way, limits, || number, &slot_of)).collect();
    let (left, whole): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, left)| *left != LeftOut::NONE);
    let mut pages: Vec<usize> = whole.into_iter().map(|(pages, _)| pages).collect();
    pages.dedup();
    let distances = left.iter().map(|(comes, left_out)| {
        let is_cut = *comes == usize::from(left_out.distance.unsigned_abs());
        assert!(is_cut || *comes == 1 && limits.distrusted != 0, "{comes} {left_out:?}");
        left_out.distance
    });
    (pages, distances.collect())
}

#[test]
fn one_window_in_32_ends_before_a_page_that_is_left_out() {
    for is_down in [false, true] {
        // 1003 is no part of a block that is all away.
        let (pages, left) = comes(&way(1003, 4, is_down), &LIMITS, 1000..1007);
        let signs = left.iter().map(|distance| distance.signum()).collect::<Vec<_>>();
        assert_eq!((pages, left.len()), (vec![4], 32));
        assert_eq!(signs, [if is_down { -1 } else { 1 }; 32]);
        assert!((1..4).all(|place| left.iter().any(|distance| distance.abs() == place)), "{left:?}");
    }
}

#[test]
fn what_is_not_worth_it_is_left_out_each_time() {
    let limits = window::Limits { distrusted: 1 << 2, ..LIMITS };
    let (pages, left) = comes(&way(1003, 4, false), &limits, 1000..1007);
    assert_eq!((pages, left.len()), (vec![], 1000));
    // Other sizes are judged by themselves.
    assert_eq!(comes(&way(1003, 8, false), &limits, 1000..1012).0, [8]);
    assert_eq!(comes(&way(1003, 4, false), &limits, 1000..1006).0, [3], "so few are away");
}

#[test]
fn a_row_brings_what_is_left_of_a_block_that_it_has_earned() {
    // 1024 begins a block of any size.
    let comes = |page, pages, is_down, limits, away| comes(&way(page, pages, is_down), limits, away).0;
    assert_eq!(comes(1030, 4, false, &LIMITS, 1030..2000), [10], "16 pages, of which it is the seventh");
    assert_eq!(comes(1030, 8, false, &LIMITS, 1030..2000), [26], "32 pages");
    assert_eq!(comes(1030, 16, false, &LIMITS, 1030..2000), [58], "64 pages");
    assert_eq!(comes(1030, 16, false, &LIMITS, 1030..1080), [26], "of 64 not all are away");
    assert_eq!(comes(1030, 2, false, &LIMITS, 1030..2000), [2], "none is earned");
    assert_eq!(comes(1080, 16, true, &LIMITS, 0..1081), [57]);
    let small = window::Limits { block_pages: 31, ..LIMITS };
    assert_eq!(comes(1030, 8, false, &small, 1030..2000), [10]);
    assert_eq!(comes(1030, 16, false, &small, 1030..2000), [16], "the window is more");
    let none = window::Limits { window_pages: 1, ..LIMITS };
    assert_eq!(comes(1030, 16, false, &none, 1030..2000), [1], "switched off");
}

#[test]
fn pages_whose_slots_are_not_in_a_row_left_apart() {
    let slots = |first: u64, step: u64| {
        move |page: usize| Some(first.wrapping_add(step.wrapping_mul((page / sys::PAGE - 1024) as u64)))
    };
    let way = way(1024, 8, false);
    let pages = |first, step| window::wanted(&way, &LIMITS, || 1, &slots(first, step)).0;
    assert_eq!([pages(4096, 1), pages(4097, 1), pages(4096, 2), pages(0, 0)], [32, 8, 8, 8]);
}
