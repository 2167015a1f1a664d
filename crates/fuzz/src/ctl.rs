//! The words between `memspill ctl` and a run, and how runs are found (`crates/ctl`).
//!
//! An input is read as a request, as a reply, as an address range, and as a line of /proc/net/unix.

use crate::{RAM_BYTES, assert_one_line};
use memspill_cli::devices::pool_alone_bytes;
use memspill_cli::spec;
use memspill_ctl::{Reply, Request, parse_range, run_of_line};

pub fn check(input: &[u8]) {
    match Request::decode(input) {
        Ok(request) => asked(&request),
        Err(error) => assert_one_line(&error),
    }
    match Reply::decode(input) {
        Ok(reply) => assert_eq!(reply.encode(), input, "{reply:?}"),
        Err(error) => assert_one_line(&error),
    }
    let text = String::from_utf8_lossy(input);
    match parse_range(&text) {
        Ok((from, to)) => {
            assert_address_range((from, to));
            assert_eq!(parse_range(&format!("{from:x}-{to:#x}")), Ok((from, to)));
        }
        Err(error) => assert_one_line(&error),
    }
    for line in text.lines() {
        if let Some(run) = run_of_line(line) {
            assert!(
                line.contains("memspill-ctl-") && line.contains(&run.pid.to_string()),
                "{line:?}: {run:?}"
            );
        }
    }
}

fn asked(request: &Request) {
    assert_eq!(Request::decode(&request.encode()).as_ref(), Ok(request));
    match request {
        Request::Pageout { ranges, .. } | Request::Cold { ranges, .. } => {
            ranges.iter().for_each(|range| assert_address_range(*range))
        }
        Request::Limit { bytes } => assert!(pool_alone_bytes(*bytes) <= *bytes),
        Request::Swapon { spec } => {
            let _ = spec::parse_with(spec, || RAM_BYTES).map_err(|error| assert_one_line(&error.to_string()));
        }
        Request::Sizes
        | Request::Stats { .. }
        | Request::Metrics
        | Request::Swaps
        | Request::Detach
        | Request::Swapoff { .. } => {}
    }
}

/// What x86-64 can have, with five levels of page tables.
fn assert_address_range((from, to): (u64, u64)) {
    assert!(from < to && to <= 1 << 57, "{from:x}-{to:x}");
}
