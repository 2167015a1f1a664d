//! Errors of swap devices, said on stderr: one line for each device and kind, and for each change of a server
//! that a device is on. The statistics count them all.

use memspill_engine::backing::{Link, LinkState};
use memspill_engine::engine::Engine;

/// Called now and then, and at the end of the run.
pub fn tell_device_errors(engine: &Engine) {
    for device in engine.devices().ever_added() {
        let name = &device.name;
        let links = device.backing.links();
        for at in device.errors.tell_links(&links) {
            eprintln!("memspill: swap device {name}: {}", news(&links, at));
        }
        if let Some(error) = device.errors.tell_read() {
            eprintln!(
                "memspill: swap device {name} has a read error: {error}; \
                 access to a page that is lost gets SIGBUS"
            );
        }
        // A server that is away has a line of its own.
        if let Some(error) = device.errors.tell_short().filter(|_| links.is_empty()) {
            eprintln!(
                "memspill: swap device {name} cannot be used just now: {error}; \
                 nothing is lost, it is tried again"
            );
        }
        if let Some(error) = device.errors.tell_write() {
            eprintln!(
                "memspill: swap device {name} has a write error: {error}; \
                 pages that are not written stay in memory"
            );
        }
    }
}

/// What has become of a server.
fn news(links: &[Link], at: usize) -> String {
    let who = match (links.len(), at) {
        (1, _) => "its server",
        (_, 0) => "its first server",
        _ => "its second server",
    };
    let others_have_it = links.iter().enumerate().any(|(i, link)| i != at && link.state == LinkState::On);
    let (state, is_empty) = (links[at].state, links[at].is_empty);
    let rest = match state {
        LinkState::On => "is there again",
        LinkState::Filling => "is there again, and gets what it lacks",
        LinkState::Away | LinkState::Lost if others_have_it => "is away: the other one has all pages",
        LinkState::Away => "does not answer: programs that need a page there wait for it",
        LinkState::Lost if is_empty => "is back without what it held: access to a page there gets SIGBUS",
        LinkState::Lost => "has been away for too long (timeout=): access to a page there gets SIGBUS",
    };
    format!("{who} {rest}")
}
