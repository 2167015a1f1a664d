//! Random touching that never ends, for tests that kill it. Says "ready" on stdout when all is populated.

use std::io::Write;
use std::thread;

use crate::args::{Args, Common};
use crate::contents::Stamp;
use crate::os::{self, Mapping};
use crate::populate::populate;
use crate::report::{Failure, Outcome, expect};
use crate::rng::Rng;

pub const USAGE: &str = "--size S [--threads T] [--processes P]   (size and threads are each process's)";

pub fn run(args: &mut Args) -> Outcome {
    let common = args.common()?;
    let pages = args.pages("size", "64M")?;
    let threads: usize = args.number("threads", 1)?;
    let processes: usize = args.number("processes", 1)?;
    args.finish()?;
    let mut children = Vec::new();
    for _ in 1..processes {
        children.push(os::fork(|| spin(pages, threads, common).map_or(3, |()| 0))?);
    }
    spin(pages, threads, common)?;
    Err(Failure::Bad("it ended".into()))
}

fn spin(pages: usize, threads: usize, common: Common) -> std::io::Result<()> {
    let map = Mapping::new(pages, common.huge)?;
    populate(&map, &common);
    let mut out = std::io::stdout();
    out.write_all(b"ready\n")?;
    out.flush()?;
    thread::scope(|scope| {
        for number in 0..threads.max(1) {
            let map = &map;
            scope.spawn(move || {
                let mut rng = Rng::new(common.seed, number as u64);
                loop {
                    let index = rng.below(map.pages());
                    let stamp = Stamp::new(common.contents, common.seed, index as u64, 1);
                    expect(stamp.check(map.page(index), common.check, 0), "touching without end");
                    if rng.chance(4) {
                        // The same bytes again: dirty, and right for every other thread.
                        stamp.fill(map.page(index));
                    }
                }
            });
        }
    });
    Ok(())
}
