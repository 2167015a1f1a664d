//! Where virtual time was lost: by lock (named by the type that it guards), by atomic, and by what locks
//! guard (both named by where they are used).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::Location;

/// What happened at one place.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    pub uses: u64,
    /// Uses that queued for the lock or the line.
    pub waits: u64,
    pub wait_ns: u64,
    /// Time in which the line came from another CPU.
    pub move_ns: u64,
    /// Time for which a lock was held.
    pub held_ns: u64,
}

impl Counts {
    pub fn lost_ns(&self) -> u64 {
        self.wait_ns + self.move_ns
    }
    fn add(&mut self, other: &Counts) {
        self.uses += other.uses;
        self.waits += other.waits;
        self.wait_ns += other.wait_ns;
        self.move_ns += other.move_ns;
        self.held_ns += other.held_ns;
    }
}

/// A line of the report: a lock over all its call sites, or one place where an atomic, a count or data is
/// used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub name: String,
    /// The call site that lost most.
    pub worst_site: String,
    pub counts: Counts,
}

/// The kind of plain data under a lock.
pub(crate) const DATA: &str = "data";

/// Both are known by address while counting; names are made for the report only.
type Key = (&'static str, &'static Location<'static>);

#[derive(Default)]
pub struct Profile {
    counts: HashMap<(usize, usize), (Key, Counts), BuildHasherDefault<AddressHasher>>,
}

impl Profile {
    /// `kind`: the type that a lock guards; empty for an atomic; `DATA`.
    pub fn at(&mut self, kind: &'static str, site: &'static Location<'static>) -> &mut Counts {
        let key = (kind.as_ptr() as usize, std::ptr::from_ref(site) as usize);
        &mut self.counts.entry(key).or_insert_with(|| ((kind, site), Counts::default())).1
    }

    /// By time lost, most first; names decide between equals.
    pub fn report(&self) -> Vec<Entry> {
        let mut sites: Vec<(String, String, Counts)> = self
            .counts
            .values()
            .map(|((kind, site), counts)| {
                let site = site_name(site);
                let name = match *kind {
                    "" => format!("atomic {site}"),
                    DATA => format!("data {site}"),
                    kind => format!("lock {}", short(kind)),
                };
                (name, site, *counts)
            })
            .collect();
        sites.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        let mut entries: Vec<(Entry, u64)> = Vec::new();
        for (name, site, counts) in sites {
            let lost = counts.lost_ns();
            match entries.last_mut() {
                Some((entry, worst)) if entry.name == name => {
                    entry.counts.add(&counts);
                    if lost > *worst {
                        (entry.worst_site, *worst) = (site, lost);
                    }
                }
                _ => entries.push((Entry { name, worst_site: site, counts }, lost)),
            }
        }
        let mut entries: Vec<Entry> = entries.into_iter().map(|(entry, _)| entry).collect();
        entries.sort_by(|a, b| b.counts.lost_ns().cmp(&a.counts.lost_ns()).then_with(|| a.name.cmp(&b.name)));
        entries
    }
}

/// `slots/cluster.rs:120`: without the way to the sources, which differs between machines.
fn site_name(site: &Location<'_>) -> String {
    let file = site.file().rsplit("src/").next().expect("rsplit gives at least one part");
    format!("{file}:{}", site.line())
}

/// A type's name without the modules: `[Word; 512]`.
fn short(name: &str) -> String {
    let mut out = String::new();
    for part in name.split_inclusive(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')) {
        out.push_str(part.rsplit("::").next().expect("rsplit gives at least one part"));
    }
    out
}

/// Addresses are spread well enough by one multiplication; the table is only looked up, and sorted before it
/// is shown.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_usize(usize::from(*byte)));
    }
    fn write_usize(&mut self, value: usize) {
        self.0 = (self.0.rotate_left(23) ^ value as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short() {
        assert_eq!(short("[memspill_engine_sim::word::Word; 512]"), "[Word; 512]");
        assert_eq!(short("alloc::vec::Vec<a::b::Arc<c::Space>>"), "Vec<Arc<Space>>");
    }

    #[test]
    fn a_lock_is_the_sum_of_its_sites_and_losses_come_first() {
        let mut profile = Profile::default();
        profile.at("a::Lists", Location::caller()).wait_ns = 5;
        profile.at("a::Lists", Location::caller()).wait_ns = 7;
        profile.at("", Location::caller()).wait_ns = 11;
        let report = profile.report();
        assert_eq!((report[0].name.as_str(), report[0].counts.wait_ns), ("lock Lists", 12));
        assert_eq!(report[1].counts.wait_ns, 11);
        assert!(report[0].worst_site.starts_with("profile.rs:"));
    }
}
