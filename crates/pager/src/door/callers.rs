//! Who is in the exchange with the door: in the order of their coming, each with the time until which he has.
//!
//! Places are few. A process has one: its next connection takes the place of its last one. When all are
//! taken, the newcomer has the place of whoever has been silent for longest; those who are known keep theirs,
//! and if there are none but those, there is no room. What it does not do: any I/O. Dropping a caller closes
//! his socket.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub struct Callers<T> {
    by_number: BTreeMap<u64, Entry<T>>,
    next: u64,
    max: usize,
}

pub struct Entry<T> {
    pub pid: u32,
    pub until: Instant,
    /// He has said the token.
    pub is_known: bool,
    pub caller: T,
}

impl<T> Callers<T> {
    pub fn new(max: usize) -> Callers<T> {
        Callers { by_number: BTreeMap::new(), next: 0, max }
    }

    pub fn has_room(&self) -> bool {
        self.by_number.len() < self.max || self.silent_for_longest().is_some()
    }

    /// The number of the newcomer. There must be room.
    pub fn admit(&mut self, pid: u32, until: Instant, caller: T) -> u64 {
        self.by_number.retain(|_, entry| entry.pid != pid);
        if self.by_number.len() >= self.max {
            let silent = self.silent_for_longest().expect("there is room");
            self.by_number.remove(&silent);
        }
        let number = self.next;
        self.next += 1;
        self.by_number.insert(number, Entry { pid, until, is_known: false, caller });
        number
    }

    fn silent_for_longest(&self) -> Option<u64> {
        self.by_number.iter().find(|(_, entry)| !entry.is_known).map(|(number, _)| *number)
    }

    /// How many have said the token.
    pub fn known(&self) -> usize {
        self.by_number.values().filter(|entry| entry.is_known).count()
    }

    pub fn get(&mut self, number: u64) -> Option<&mut Entry<T>> {
        self.by_number.get_mut(&number)
    }

    pub fn take(&mut self, number: u64) -> Option<Entry<T>> {
        self.by_number.remove(&number)
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.by_number.values().map(|entry| entry.until).min()
    }

    /// All have so much more time.
    pub fn extend(&mut self, by: Duration) {
        self.by_number.values_mut().for_each(|entry| entry.until += by);
    }

    /// The numbers of those whose time is over.
    pub fn overdue(&self, now: Instant) -> Vec<u64> {
        self.by_number.iter().filter(|(_, entry)| entry.until <= now).map(|(number, _)| *number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names<T: Copy>(callers: &Callers<T>) -> Vec<T> {
        callers.by_number.values().map(|entry| entry.caller).collect()
    }

    #[test]
    fn a_process_has_one_place() {
        let (now, mut callers) = (Instant::now(), Callers::new(3));
        callers.admit(1, now, 'a');
        for _ in 0..64 {
            callers.admit(2, now, 'b');
        }
        callers.admit(3, now, 'c');
        assert_eq!(names(&callers), ['a', 'b', 'c']);
    }

    #[test]
    fn the_longest_silent_one_makes_room() {
        let (now, mut callers) = (Instant::now(), Callers::new(3));
        let first = callers.admit(1, now, 'a');
        callers.get(first).unwrap().is_known = true;
        callers.admit(2, now, 'b');
        callers.admit(3, now, 'c');
        assert!(callers.has_room());
        let last = callers.admit(4, now, 'd');
        assert_eq!(names(&callers), ['a', 'c', 'd']);
        for number in [2, last] {
            callers.get(number).unwrap().is_known = true;
        }
        assert!(!callers.has_room(), "those who are known keep their place");
        assert_eq!(callers.take(first).unwrap().caller, 'a');
        assert!(callers.has_room());
    }

    #[test]
    fn everybody_has_his_time() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut callers = Callers::new(3);
        assert_eq!(callers.next_deadline(), None);
        let first = callers.admit(1, now + second, 'a');
        let other = callers.admit(2, now + 2 * second, 'b');
        assert_eq!(callers.next_deadline(), Some(now + second));
        assert_eq!(callers.overdue(now), []);
        assert_eq!(callers.overdue(now + second), [first]);
        callers.get(first).unwrap().until = now + 3 * second;
        assert_eq!(callers.overdue(now + 2 * second), [other]);
        callers.extend(second);
        assert_eq!(callers.overdue(now + 2 * second), []);
        assert_eq!(callers.next_deadline(), Some(now + 3 * second));
    }
}
