//! The swap devices: which there are, which of them take pages, and in which order.
//!
//! ```text
//!   swap entry: device, 4 bits ──▶ place 0..16 ──▶ number 0..255 ──▶ Device      two loads, no lock
//!                                      changes when a device     written once, and there until the end
//!                                      that is off is replaced
//!
//!   order   63  60          7   4 3    0
//!          ┌──────┬─────────┬─────┬─────┐    all places, each once: first those that take pages, by
//!          │ last │   ...   │ 2nd │ 1st │    descending priority, of equals the older first; one load
//!          └──────┴─────────┴─────┴─────┘    gives it whole
//!
//!   swapon             swapoff begins             no slot in use: retired
//!   ───────▶ ON ─────────────────────▶ LEAVING ───────────────────────────▶ OFF
//!             ▲                           │ aborted, no room elsewhere, pages that cannot be read
//!             └───────────────────────────┘
//! ```
//!
//! A device that is off has no slot in use, and its backing is closed. It keeps its place, so that its name
//! and state can still be shown, until a swapon finds no other place: then the device that went off first is
//! replaced. Replacing it is safe for two kinds of threads:
//!
//! * *A thread that holds the device* (it walks all devices, or is in the middle of an allocation) goes on
//!   with the device that is off. Readers keep no count that would tell when the last of them has gone, so a
//!   `Device` is never freed: it only cannot be found any more. It still takes a few tables
//!   (`Engine::table_bytes` counts them), hence at most 255 swapons.
//! * *A thread that holds an entry* and looks its device up again finds the same one: an entry comes with a
//!   reference to the slot, or with its frame in the swap cache, and as long as there is one of those the
//!   device is not off (`Slots::retire`).
//!
//! The CPUs' hints of a device (slots/percpu.rs) need not be cleared when it leaves: they hold no slot back.
//!
//! What it does not do: move pages (swapoff.rs).

use crate::backing::{Backing, Chore, QueueId};
use crate::errors::DeviceErrors;
use crate::readahead::HitWindow;
use crate::slots::Slots;
use crate::slots::lazy::Once;
use crate::sync::{Arc, AtomicBool, AtomicU8, AtomicU32, AtomicU64, Mutex, Ordering, lock};
use crate::word::ENTRY_DEVICES_MAX;

/// A swap device: slots, and where their bytes are kept.
pub struct Device {
    pub name: String,
    pub priority: i16,
    pub slots: Slots,
    pub backing: Arc<dyn Backing>,
    /// The backing had no room for a page: no slots are allocated here until one is freed or a write
    /// succeeds.
    pub full: AtomicBool,
    pub errors: DeviceErrors,
    /// The window by slots, if the device turns: pages are read ahead by it.
    pub(crate) window: HitWindow,
    state: AtomicU8,
    /// When it went off, as a count of changes of state.
    off_since: AtomicU32,
}

/// Devices that can ever be added.
pub const SWAPONS_MAX: usize = 255;
/// No device has been at this place.
const NONE: u8 = SWAPONS_MAX as u8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceState {
    /// Takes pages.
    On = 0,
    /// A swapoff is under way: gives pages, takes none.
    Leaving = 1,
    /// Has no slots, and a backing that is closed.
    Off = 2,
}

/// Clusters discarded by one call of `maintain`.
const DISCARD_CLUSTERS: usize = 16;

impl Device {
    pub fn new(name: String, priority: i16, mut slots: Slots, backing: Arc<dyn Backing>) -> Device {
        if backing.properties().discard {
            let backing = backing.clone();
            slots = slots.discarding(move |cluster| _ = backing.housekeep(Chore::DiscardCluster(cluster)));
        }
        if !backing.properties().in_rows {
            slots = slots.packing();
        }
        let (full, errors) = (AtomicBool::new(false), DeviceErrors::default());
        let state = AtomicU8::new(DeviceState::On as u8);
        let (window, off_since) = (HitWindow::default(), AtomicU32::new(0));
        Device { name, priority, slots, backing, full, errors, window, state, off_since }
    }

    /// Background work, as `Chore::Maintain`: discards what waits for it.
    pub fn maintain(&self, queue: QueueId) -> bool {
        let more = self.discard_waiting();
        self.backing.housekeep(Chore::Maintain { queue }) || more
    }

    /// True if more clusters may wait to be discarded.
    pub(crate) fn discard_waiting(&self) -> bool {
        self.slots.discard_waiting(DISCARD_CLUSTERS)
    }

    /// A slot was freed, or a write has succeeded, so the backing has room again. Every fault may call this,
    /// so the flag is stored only where it changes.
    pub(crate) fn note_room(&self) {
        if self.full.load(Ordering::Relaxed) {
            self.full.store(false, Ordering::Relaxed);
        }
    }

    pub(crate) fn takes_pages(&self) -> bool {
        self.is_on() && !self.full.load(Ordering::Relaxed) && !self.errors.is_failing()
    }

    pub fn state(&self) -> DeviceState {
        match self.state.load(Ordering::Acquire) {
            0 => DeviceState::On,
            1 => DeviceState::Leaving,
            _ => DeviceState::Off,
        }
    }
    pub fn is_on(&self) -> bool {
        self.state() == DeviceState::On
    }
    pub fn is_off(&self) -> bool {
        self.state() == DeviceState::Off
    }
}

/// See the module's header.
pub struct Devices {
    /// In the order in which they were added.
    all: Box<[Once<Box<Device>>]>,
    /// The number of the device at each place.
    places: [AtomicU8; ENTRY_DEVICES_MAX],
    order: AtomicU64,
    /// Held by whoever adds a device or changes a state: changes so far.
    changes: Mutex<u32>,
}

/// No place is left, or no number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyDevices;

impl std::fmt::Display for TooManyDevices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at most {ENTRY_DEVICES_MAX} swap devices at a time, and {SWAPONS_MAX} in a run")
    }
}

const NIBBLE: u32 = 4;
const _: () = assert!(ENTRY_DEVICES_MAX as u32 * NIBBLE == u64::BITS && ENTRY_DEVICES_MAX == 1 << NIBBLE);

/// The order word of a permutation of the places.
fn packed(places: impl Iterator<Item = usize>) -> u64 {
    places.enumerate().fold(0, |word, (rank, place)| word | (place as u64) << (rank as u32 * NIBBLE))
}

fn unpacked(order: u64) -> impl Iterator<Item = usize> {
    (0..ENTRY_DEVICES_MAX as u32)
        .map(move |rank| (order >> (rank * NIBBLE)) as usize & (ENTRY_DEVICES_MAX - 1))
}

impl Devices {
    /// The first places go by descending priority.
    pub(crate) fn new(mut devices: Vec<Device>) -> Devices {
        devices.sort_by_key(|d| std::cmp::Reverse(d.priority));
        let all = Devices {
            all: (0..SWAPONS_MAX).map(|_| Once::new()).collect(),
            places: std::array::from_fn(|_| AtomicU8::new(NONE)),
            order: AtomicU64::new(packed(0..ENTRY_DEVICES_MAX)),
            changes: Mutex::new(0),
        };
        for device in devices {
            all.add(device).expect("no more devices than an entry can name");
        }
        all
    }

    /// The device takes pages from now on. Returns its place.
    pub(crate) fn add(&self, device: Device) -> Result<usize, TooManyDevices> {
        let _changes = lock(&self.changes);
        let gone = |place: &usize| self[*place].is_off();
        let oldest_gone = || {
            (0..self.len()).filter(gone).min_by_key(|place| self[*place].off_since.load(Ordering::Relaxed))
        };
        let place = Some(self.len())
            .filter(|place| *place < ENTRY_DEVICES_MAX)
            .or_else(oldest_gone)
            .ok_or(TooManyDevices)?;
        let number = self.ever_added().count();
        self.all.get(number).ok_or(TooManyDevices)?.get_or_make(|| Box::new(device));
        self.places[place].store(number as u8, Ordering::Release);
        self.store_order();
        Ok(place)
    }

    pub(crate) fn set_state(&self, place: usize, state: DeviceState) {
        let mut changes = lock(&self.changes);
        *changes += 1;
        self[place].off_since.store(*changes, Ordering::Relaxed);
        self[place].state.store(state as u8, Ordering::Release);
        self.store_order();
    }

    /// Recompute the order word from the states and priorities.
    fn store_order(&self) {
        let rank = |place: &usize| match self.get(*place) {
            Some(device) if device.is_on() => (0, std::cmp::Reverse(device.priority)),
            _ => (1, std::cmp::Reverse(0)),
        };
        let mut places: Vec<usize> = (0..ENTRY_DEVICES_MAX).collect();
        places.sort_by_key(rank);
        self.order.store(packed(places.into_iter()), Ordering::Release);
    }

    /// Places of the devices that take pages, in the order in which they are asked.
    pub(crate) fn takers(&self) -> impl Iterator<Item = usize> {
        let order = self.order.load(Ordering::Acquire);
        unpacked(order).filter(|place| self.get(*place).is_some_and(Device::is_on))
    }

    pub fn get(&self, place: usize) -> Option<&Device> {
        let number = self.places.get(place)?.load(Ordering::Acquire);
        Some(&**self.all.get(usize::from(number))?.get()?)
    }

    /// By place: those that are on or leaving, and the last ones that went off.
    pub fn iter(&self) -> impl Iterator<Item = &Device> {
        (0..ENTRY_DEVICES_MAX).map_while(|place| self.get(place))
    }

    /// All that were ever added, the oldest first: for sums over the whole run.
    pub fn ever_added(&self) -> impl Iterator<Item = &Device> {
        self.all.iter().map_while(|device| Some(&**device.get()?))
    }

    pub fn len(&self) -> usize {
        self.iter().count()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl std::ops::Index<usize> for Devices {
    type Output = Device;
    fn index(&self, place: usize) -> &Device {
        self.get(place).expect("an entry names a device that was added")
    }
}

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use super::*;
    use crate::testing::blank::BlankDevice;
    use crate::tuning::Tuning;

    fn device(priority: i16) -> Device {
        let slots = Slots::new(1024, 1, false, &Tuning::default());
        Device::new(format!("priority {priority}"), priority, slots, Arc::new(BlankDevice::new(1024)))
    }

    fn takers(devices: &Devices) -> Vec<usize> {
        devices.takers().collect()
    }

    #[test]
    fn an_order_is_a_permutation() {
        let places = [3, 1, 2, 0, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4];
        assert!(unpacked(packed(places.into_iter())).eq(places));
        assert_eq!(packed(0..ENTRY_DEVICES_MAX), 0xfedc_ba98_7654_3210);
    }

    #[test]
    fn takers_go_by_priority_and_then_by_age() {
        let devices = Devices::new(vec![device(-1), device(7)]);
        assert_eq!(devices.iter().map(|d| d.priority).collect::<Vec<_>>(), [7, -1]);
        assert_eq!((devices.add(device(100)), devices.add(device(7))), (Ok(2), Ok(3)));
        assert_eq!(takers(&devices), [2, 0, 3, 1]);
        devices.set_state(0, DeviceState::Leaving);
        assert_eq!(takers(&devices), [2, 3, 1]);
        devices.set_state(0, DeviceState::On);
        assert_eq!(takers(&devices), [2, 0, 3, 1]);
        devices.set_state(2, DeviceState::Off);
        assert_eq!((takers(&devices), devices.len()), (vec![0, 3, 1], 4));
    }

    #[test]
    fn the_place_of_the_device_that_went_off_first_is_used_again() {
        let devices = Devices::new((0..15).map(device).collect());
        let held = &devices[7];
        for place in [7, 3] {
            devices.set_state(place, DeviceState::Off);
        }
        assert_eq!((devices.add(device(1)), devices.add(device(99))), (Ok(15), Ok(7)));
        assert_eq!((devices[7].priority, held.priority, held.is_off()), (99, 7, true));
        assert_eq!((devices.add(device(1)), devices.add(device(1))), (Ok(3), Err(TooManyDevices)));
        assert_eq!((devices.iter().count(), devices.ever_added().count(), takers(&devices)[0]), (16, 18, 7));
    }

    #[test]
    fn devices_have_an_end() {
        let devices = Devices::new(vec![device(0)]);
        for n in 1..SWAPONS_MAX {
            let place = devices.add(device(0)).expect("a number is left");
            assert_eq!(place, if n < 16 { n } else { 1 + (n - 1) % 15 });
            devices.set_state(place, DeviceState::Off);
        }
        assert_eq!(devices.add(device(0)), Err(TooManyDevices));
    }
}
