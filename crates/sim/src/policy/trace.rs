//! Traces: which pages are touched, in which order.
//!
//! ```text
//!   uniform         any page of twice the memory
//!   zipf THETA      2.17 memories, rank k in proportion to k^-THETA, ranks strewn
//!   loop N          N memories in order, round and round
//!   scan + zipf     zipf 1.0 of 1.5 memories; each fifth touch is the next page of a scan of 4 memories
//!   phases          0.7 memories at random for a while, then the next 0.7, then those after; and so on
//!   changing        zipf 1.0, a loop of 1.3 memories, zipf of other ranks, and so on
//!   merge sort      lines by pointers, as GNU sort has them: streams of them, text at random within runs
//!   collector       a graph is marked depth first, between the mutator's zipf 1.0 touches
//! ```
//!
//! They are functions of memory's size, their length and a seed, and the same on each machine.

use super::machine::{BLOCK_PAGES, Page};
use crate::zipf::{Exponent, Zipf};
use memspill_vcpu::random::Random;

#[derive(Clone, Debug)]
pub struct Trace {
    pub name: String,
    /// Above all pages that are touched.
    pub pages: u32,
    pub memory: u32,
    pub accesses: Vec<Page>,
}

/// All that are made here.
pub fn made(memory: u32, length: usize, seed: u64) -> Vec<Trace> {
    let trace = |name: &str, accesses: Vec<Page>| Trace {
        name: name.into(),
        pages: accesses.iter().max().map_or(1, |last| last + 1),
        memory,
        accesses,
    };
    let random = || Random::new(seed);
    vec![
        trace("uniform", uniform(times(memory, 200), length, &mut random())),
        trace("zipf 0.8", zipf(times(memory, 217), Exponent(4), length, &mut random())),
        trace("zipf 1.0", zipf(times(memory, 217), Exponent(5), length, &mut random())),
        trace("zipf 1.2", zipf(times(memory, 217), Exponent(6), length, &mut random())),
        trace("loop 1.2", looped(0, times(memory, 120), length)),
        trace("loop 2", looped(0, times(memory, 200), length)),
        trace("scan + zipf", scan_and_zipf(memory, length, &mut random())),
        trace("phases", phases(memory, length, &mut random())),
        trace("changing", changing(memory, length, &mut random())),
        trace("merge sort", merge_sort(memory, length, &mut random())),
        trace("collector", collector(memory, length, &mut random())),
    ]
}

fn times(memory: u32, percent: u64) -> u32 {
    (u64::from(memory) * percent / 100) as u32
}

fn uniform(pages: u32, length: usize, random: &mut Random) -> Vec<Page> {
    (0..length).map(|_| random.below(pages.into()) as Page).collect()
}

/// Ranks by their frequency, each with a page of its own.
struct Strewn {
    zipf: Zipf,
    places: Vec<Page>,
}

impl Strewn {
    fn new(pages: u32, exponent: Exponent, random: &mut Random) -> Strewn {
        let mut places: Vec<Page> = (0..pages).collect();
        for last in (1..places.len()).rev() {
            places.swap(last, random.below(last as u64 + 1) as usize);
        }
        Strewn { zipf: Zipf::new(pages.into(), exponent), places }
    }
    fn draw(&self, random: &mut Random) -> Page {
        self.places[self.zipf.rank(random)]
    }
}

fn zipf(pages: u32, exponent: Exponent, length: usize, random: &mut Random) -> Vec<Page> {
    let strewn = Strewn::new(pages, exponent, random);
    (0..length).map(|_| strewn.draw(random)).collect()
}

fn looped(first: Page, pages: u32, length: usize) -> Vec<Page> {
    (0..length).map(|i| first + (i % pages as usize) as Page).collect()
}

fn scan_and_zipf(memory: u32, length: usize, random: &mut Random) -> Vec<Page> {
    let hot = times(memory, 150);
    let strewn = Strewn::new(hot, Exponent(5), random);
    let mut scanned = 0;
    let mut touch = |i: usize| {
        if !i.is_multiple_of(5) {
            return strewn.draw(random);
        }
        scanned = (scanned + 1) % (4 * memory);
        hot + scanned
    };
    (0..length).map(&mut touch).collect()
}

fn phases(memory: u32, length: usize, random: &mut Random) -> Vec<Page> {
    let set = times(memory, 70);
    // Each page of a set about six times.
    let phase = 6 * set as usize;
    (0..length).map(|i| (i / phase % 3) as Page * set + random.below(set.into()) as Page).collect()
}

fn changing(memory: u32, length: usize, random: &mut Random) -> Vec<Page> {
    const STRETCHES: usize = 8;
    let stretch = length / STRETCHES;
    let mut accesses = Vec::with_capacity(length);
    for n in 0..STRETCHES {
        match n % 2 {
            0 => accesses.extend(zipf(times(memory, 217), Exponent(5), stretch, random)),
            _ => accesses.extend(looped(0, times(memory, 130), stretch)),
        }
    }
    accesses
}

/// Merges from the bottom up, from one array of pointers into another and back. A page of pointers names
/// 128 lines, of which each eighth is traced; the text has twice the pages of an array, and a line is
/// anywhere in the text of its run.
fn merge_sort(memory: u32, length: usize, random: &mut Random) -> Vec<Page> {
    const LINES: usize = 16;
    let array = times(memory, 50);
    let text = 2 * array;
    let mut accesses = Vec::with_capacity(length + 2 * LINES);
    let (mut from, mut to) = (0, array);
    let mut run = 64;
    while accesses.len() < length {
        let mut start = 0;
        while start < array && accesses.len() < length {
            let end = (start + 2 * run).min(array);
            for out in start..end {
                // Half of the lines come from each of the two runs.
                let place = (out - start) / 2;
                let second = (start + run + place).min(end - 1);
                for i in 0..LINES as u32 {
                    if i == 0 {
                        accesses.extend([from + start + place, from + second, to + out]);
                    }
                    let lines = u64::from(2 * (end - start));
                    accesses.push(2 * array + 2 * start + random.below(lines) as u32 % text);
                }
            }
            start = end;
        }
        (from, to) = (to, from);
        run = if run >= array { 64 } else { 2 * run };
    }
    accesses.truncate(length);
    accesses
}

/// A page holds objects that name some of the same neighbourhood and now and then one far away.
fn collector(memory: u32, length: usize, random: &mut Random) -> Vec<Page> {
    const OBJECTS: u32 = 8;
    let pages = times(memory, 150);
    let near = u64::from(4 * BLOCK_PAGES * OBJECTS);
    let objects = pages * OBJECTS;
    let names: Vec<[u32; 2]> = (0..objects)
        .map(|object| {
            let close = (u64::from(object) + random.below(near)) % u64::from(objects);
            let far = random.below(objects.into());
            [close as u32, if random.one_in(8) { far as u32 } else { (object + 1) % objects }]
        })
        .collect();
    let strewn = Strewn::new(pages, Exponent(5), random);
    let mut accesses = Vec::with_capacity(length);
    let mut marked = vec![false; objects as usize];
    while accesses.len() < length {
        accesses.extend((0..2 * pages).map(|_| strewn.draw(random)));
        marked.fill(false);
        let mut stack = vec![0u32];
        while let Some(object) = stack.pop() {
            if std::mem::replace(&mut marked[object as usize], true) {
                continue;
            }
            accesses.push(object / OBJECTS);
            stack.extend(names[object as usize]);
        }
    }
    accesses.truncate(length);
    accesses
}
