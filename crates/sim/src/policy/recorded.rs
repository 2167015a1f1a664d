//! A recording of `memspill run --record` as a trace: its faults are taken for all touches that there were.
//!
//! Pages are numbered anew without gaps, but for those of a block that were never touched.

use super::machine::{BLOCK_PAGES, Page};
use super::trace::Trace;
use memspill_engine_sim::fault_trace;
use std::collections::BTreeMap;

/// `fits_percent`: memory holds so much of the pages that the recording touches.
pub fn trace(name: &str, bytes: &[u8], fits_percent: u32) -> Result<Trace, String> {
    let touches = || fault_trace::read(bytes).map_err(|e| format!("{name}: {e}"));
    let block_of = |touch: &fault_trace::Touch| (touch.space.0, touch.vpn.0 / u64::from(BLOCK_PAGES));
    let mut blocks: BTreeMap<(u32, u64), Page> = touches()?.map(|touch| (block_of(&touch), 0)).collect();
    let fits = |blocks: usize| u32::try_from(blocks).ok()?.checked_mul(BLOCK_PAGES);
    let pages =
        fits(blocks.len()).ok_or_else(|| format!("{name}: more pages than this simulation can number"))?;
    blocks.values_mut().enumerate().for_each(|(i, number)| *number = i as u32 * BLOCK_PAGES);
    let page = |touch: fault_trace::Touch| blocks[&block_of(&touch)] + touch.vpn.0 as u32 % BLOCK_PAGES;
    let accesses: Vec<Page> = touches()?.map(page).collect();
    let mut touched = vec![false; pages as usize];
    accesses.iter().for_each(|page| touched[*page as usize] = true);
    let touched = touched.iter().filter(|touched| **touched).count() as u64;
    let memory = (touched * u64::from(fits_percent) / 100) as u32;
    match memory {
        0..MEMORY_LEAST => Err(format!(
            "{name}: {touched} pages were touched, of which {fits_percent} % are too few; record a longer run"
        )),
        _ => Ok(Trace { name: name.into(), pages, memory, accesses }),
    }
}

/// Pages of memory below which shares of it are no numbers.
pub const MEMORY_LEAST: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use memspill_engine_sim::fault_trace::{HEADER, Touch};
    use memspill_engine_sim::units::{SpaceId, Vpn};

    #[test]
    fn pages_of_a_block_stay_together() {
        let mut bytes = HEADER.to_vec();
        let mut add = |space, vpn| {
            bytes.extend(Touch { space: SpaceId(space), vpn: Vpn(vpn), write: false }.to_bytes())
        };
        (0..3000).for_each(|vpn| add(1, 0x7f00_0000 + vpn));
        (0..16).for_each(|vpn| add(2, 0x7f00_0005 + vpn));
        let trace = trace("a", &bytes, 50).unwrap();
        // The last 11 pages of one block and the first five of another.
        assert_eq!((trace.memory, trace.pages), (1508, 3008 + 32));
        assert_eq!(trace.accesses[..3000], (0..3000).collect::<Vec<_>>());
        assert_eq!(trace.accesses[3000..], (3008 + 5..3008 + 21).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_no_recording_is_said() {
        let error = |bytes: &[u8]| trace("x.rec", bytes, 50).expect_err("an error");
        assert!(error(b"ELF").starts_with("x.rec: this is no recording"));
        assert!(error(&HEADER).contains("0 pages were touched"));
    }
}
