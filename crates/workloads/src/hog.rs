//! Fresh memory at full speed, by every way in which programs get it; then everything is checked.

use std::mem::ManuallyDrop;
use std::thread;
use std::time::Duration;

use crate::args::Args;
use crate::contents::Stamp;
use crate::os::{self, Allocated, Huge, Mapping, Page, Protection};
use crate::report::{Failure, Meter, Outcome, expect};
use crate::rng::Rng;

pub const USAGE: &str =
    "--size S [--by mmap|malloc|brk|mprotect|mapfixed|all] [--step S (largest)] [--hold SECONDS]";

enum Piece {
    Mapped(Mapping),
    Allocated(Allocated),
    Break(ManuallyDrop<Mapping>),
    /// Pages of the one big reservation.
    Reserved {
        from: usize,
    },
}

#[derive(Clone, Copy)]
enum By {
    Mmap,
    Malloc,
    Brk,
    Mprotect,
    MapFixed,
}

pub fn run(args: &mut Args) -> Outcome {
    let common = args.common()?;
    let pages = args.pages("size", "64M")?;
    let largest = args.pages("step", "4M")?;
    let hold: f64 = args.number("hold", 0.0)?;
    let by = args.text("by", "mmap");
    args.finish()?;
    let kinds: &[By] = match by.as_str() {
        "mmap" => &[By::Mmap],
        "malloc" => &[By::Malloc],
        "brk" => &[By::Brk],
        "mprotect" => &[By::Mprotect],
        "mapfixed" => &[By::MapFixed],
        "all" => &[By::Mmap, By::Malloc, By::Brk, By::Mprotect, By::MapFixed],
        _ => return Err(Failure::Usage(format!("--by: '{by}' is unknown"))),
    };

    let mut reservation = Mapping::reserve(pages)?;
    let mut pieces: Vec<(Piece, usize)> = Vec::with_capacity(pages);
    let mut rng = Rng::new(common.seed, 0);
    let mut have = 0;
    let meter = Meter::start();
    while have < pages {
        let step = rng.between(1, largest).min(pages - have);
        let kind = kinds[pieces.len() % kinds.len()];
        let piece = match kind {
            By::Mmap => Piece::Mapped(Mapping::new(step, Huge::Default)?),
            By::Malloc => Piece::Allocated(Allocated::new(step)?),
            By::Brk => Piece::Break(os::break_step(step)?),
            By::Mprotect => {
                reservation.protect(have, step, Protection::ReadWrite)?;
                Piece::Reserved { from: have }
            }
            By::MapFixed => {
                reservation.replace(have, step)?;
                Piece::Reserved { from: have }
            }
        };
        pieces.push((piece, step));
        if let Some((piece, _)) = pieces.last() {
            for index in 0..step {
                Stamp::new(common.contents, common.seed, (have + index) as u64, 1).fill(page_of(
                    piece,
                    &reservation,
                    index,
                ));
            }
        }
        have += step;
    }
    let mut report = meter.report();
    thread::sleep(Duration::from_secs_f64(hold));
    let mut number = 0;
    for (piece, step) in &pieces {
        for index in 0..*step {
            let stamp = Stamp::new(common.contents, common.seed, number, 1);
            expect(
                stamp.check(page_of(piece, &reservation, index), common.check, 0),
                "checking all that was written",
            );
            number += 1;
        }
    }
    report.rate("pages", pages as u64);
    report.count("pieces", pieces.len() as u64);
    report.text("by", &by);
    Ok(report)
}

fn page_of<'a>(piece: &'a Piece, reservation: &'a Mapping, index: usize) -> &'a Page {
    match piece {
        Piece::Mapped(map) => map.page(index),
        Piece::Allocated(allocated) => allocated.page(index),
        Piece::Break(map) => map.page(index),
        Piece::Reserved { from } => reservation.page(from + index),
    }
}
