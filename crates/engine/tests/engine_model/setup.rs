//! The differences between runs of the model: the devices, and every knob.

use super::*;

/// The differences between runs of the model: the devices, and every knob.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    /// Slots and priority of each device.
    pub devices: Vec<(u32, i16)>,
    pub tuning: Tuning,
    pub synchronous: bool,
    pub discard: bool,
    pub rotational: bool,
    pub limit_pages: u64,
    /// The first space and its even children are in a group of their own: its maximum, and what it may have
    /// of swap.
    pub group: Option<(u64, u64)>,
}

pub(super) fn setup() -> impl Strategy<Value = Setup> {
    let devices = prop_oneof![
        3 => Just(vec![(8192, 0)]),
        2 => Just(vec![(8192, 0), (8192, 0)]),
        2 => Just(vec![(150, 5), (8192, 0)]),
        1 => Just(vec![(250, 0)]),
    ];
    let group = prop_oneof![
        2 => Just(None),
        1 => Just(Some((200, u64::MAX))),
        1 => Just(Some((150, 220))),
        1 => Just(Some((10_000, 300))),
    ];
    // Under the larger one a chunk can be in memory whole.
    let limit_pages = prop_oneof![2 => Just(LIMIT_PAGES), 1 => Just(600)];
    let kind = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.3));
    (devices, tuning(), kind, limit_pages, group).prop_map(|(devices, tuning, kind, limit_pages, group)| {
        let (synchronous, discard, rotational) = kind;
        Setup { devices, tuning, synchronous, discard, rotational, limit_pages, group }
    })
}

/// All knobs at whatever they take; what is cold together leaves together half of the time.
fn tuning() -> impl Strategy<Value = Tuning> {
    let numbers = prop::collection::vec(any::<u32>(), KNOBS.len());
    prop_oneof![1 => Just(None), 3 => (numbers, any::<bool>()).prop_map(Some)].prop_map(|drawn| match drawn {
        None => Tuning::default(),
        Some((numbers, auto)) => {
            let mut numbers = numbers.into_iter();
            let tuning = Tuning::drawn(|| numbers.next().expect("a number for each knob"));
            if auto { Tuning { folio: FolioSize::Auto, ..tuning } } else { tuning }
        }
    })
}

pub(super) fn make_engine(
    setup: &Setup,
    cpus: u32,
    lost: &Arc<Lost>,
) -> (Arc<Engine>, Vec<Arc<MockBacking>>) {
    let tuning = &setup.tuning;
    let backings: Vec<Arc<MockBacking>> = setup
        .devices
        .iter()
        .map(|(slots, _)| {
            let backing = MockBacking::new(*slots, setup.synchronous, lost.clone());
            Arc::new(backing.discarding(setup.discard).rotating(setup.rotational))
        })
        .collect();
    let devices = setup.devices.iter().zip(&backings).enumerate().map(|(i, ((slots, priority), backing))| {
        let map = Slots::new(*slots, cpus, false, tuning);
        Device::new(format!("device {i}"), *priority, map, backing.clone())
    });
    let mut groups = vec![GroupConfig::root(setup.limit_pages * PAGE_SIZE as u64)];
    groups.extend(setup.group.map(|(max_pages, swap_max_pages)| GroupConfig {
        name: "inner".into(),
        parent: Some(0),
        swap_max_pages,
        ..GroupConfig::root(max_pages * PAGE_SIZE as u64)
    }));
    let engine = Engine::with_groups(devices.collect(), &groups, tuning.clone());
    (Arc::new(engine), backings)
}

pub(super) fn one_device() -> Setup {
    Setup {
        devices: vec![(8192, 0)],
        tuning: Tuning::default(),
        synchronous: false,
        discard: false,
        rotational: false,
        limit_pages: LIMIT_PAGES,
        group: None,
    }
}

/// Two devices, the first of which takes the first pages.
pub(super) fn two_devices(slots: [u32; 2]) -> Setup {
    Setup { devices: vec![(slots[0], 5), (slots[1], 0)], ..one_device() }
}

pub(super) fn reading_ahead(readahead: Readahead) -> Setup {
    Setup { tuning: Tuning { readahead, ..Tuning::default() }, ..one_device() }
}
