//! Errors of swap devices, said on stderr: one line for each device and kind, and for each change of a server
//! that a device is on. The statistics count them all.

use memspill_engine::backing::{Link, LinkState};
use memspill_engine::engine::{Engine, WaitForDevice};
use memspill_engine::errors::LinkNews;

/// Called now and then, and at the end of the run.
pub fn tell_device_errors(engine: &Engine) {
    for device in engine.devices().ever_added() {
        let name = &device.name;
        let links = device.backing.links();
        for (at, news) in device.errors.tell_links(&links) {
            if let Some(text) = text_of(&links, at, news, || engine.who_waits_for(device)) {
                eprintln!("memspill: swap device {name}: {text}");
            }
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

/// A line about a server, by its number.
fn text_of(
    links: &[Link],
    at: usize,
    news: LinkNews,
    who_waits: impl Fn() -> WaitForDevice,
) -> Option<String> {
    let who = match (links.len(), at) {
        (1, _) => "its server",
        (_, 0) => "its first server",
        _ => "its second server",
    };
    let others_have_it = links.iter().enumerate().any(|(i, link)| i != at && link.state == LinkState::On);
    let Link { state, since_ms, is_empty, ref refusal, .. } = links[at];
    let why = refusal.as_ref().map_or(String::new(), |why| format!(" {why};"));
    let rest = match (news, state) {
        (LinkNews::WrongPage, _) if links.len() == 1 => {
            "gave back something else than was written there: look at its disk and its memory".to_owned()
        }
        (LinkNews::WrongPage, _) => {
            "gave back something else than was written there: such pages are taken from the other one, and \
             written again"
                .to_owned()
        }
        (LinkNews::StillAway, _) => {
            let waiting = who_waits();
            // Of two that are away, one says it.
            if others_have_it || waiting.faults == 0 || links[..at].iter().any(is_away) {
                return None;
            }
            let is = if refusal.is_some() { "has been of no use" } else { "has not answered" };
            format!("{is} for {} s:{why} {}", since_ms / 1000, words_of(&waiting))
        }
        (LinkNews::Was(LinkState::Filling), LinkState::On) => "has all pages again".to_owned(),
        (_, LinkState::On) => "is there again".to_owned(),
        (LinkNews::Was(LinkState::On), LinkState::Filling) => {
            "does not take all pages: the other one has them".to_owned()
        }
        (_, LinkState::Filling) => "is there again, and gets what it lacks".to_owned(),
        (_, LinkState::Away | LinkState::Lost) => {
            let is = match state {
                LinkState::Lost if is_empty => "is back without what it held",
                _ if others_have_it && refusal.is_none() => "is away",
                LinkState::Lost if !others_have_it => "has been away for too long (timeout=)",
                _ if refusal.is_some() => "answers, and cannot be used",
                _ => "does not answer",
            };
            let then = match state {
                _ if others_have_it => "the other one has all pages".to_owned(),
                LinkState::Lost => "access to a page there gets SIGBUS".to_owned(),
                _ => words_of(&who_waits()),
            };
            format!("{is}:{why} {then}")
        }
    };
    Some(format!("{who} {rest}"))
}

fn is_away(link: &Link) -> bool {
    link.state == LinkState::Away
}

fn words_of(waiting: &WaitForDevice) -> String {
    let (programs, faults) = (waiting.programs, waiting.faults);
    let faults = if faults == 1 { "1 fault".to_owned() } else { format!("{faults} faults") };
    match programs {
        0 => "no program waits for a page there yet".to_owned(),
        1 => format!("1 program waits for pages there ({faults})"),
        _ => format!("{programs} programs wait for pages there ({faults})"),
    }
}
