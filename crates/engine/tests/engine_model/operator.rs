//! The operator's part in a history: devices come and go.

use super::*;

impl World {
    pub(super) fn swapon(&mut self, slots: u32, priority: i16) {
        let backing = MockBacking::new(slots, self.setup.synchronous, self.lost.clone());
        let backing = Arc::new(backing.discarding(self.setup.discard).rotating(self.setup.rotational));
        let map = Slots::new(slots, 1, false, self.engine.tuning());
        let engine = &self.engine;
        let places = engine.devices().len();
        let can = places < ENTRY_DEVICES_MAX || engine.devices().iter().any(Device::is_off);
        let gone: Vec<usize> = (0..places).filter(|place| engine.devices()[*place].is_off()).collect();
        let added = engine.swapon(Device::new("another".into(), priority, map, backing.clone()));
        assert_eq!(added.is_ok(), can);
        match added {
            Ok(place) if place < places => {
                assert!(places == ENTRY_DEVICES_MAX && gone.contains(&place), "place {place} was another's");
                let old = std::mem::replace(&mut self.backings[place], backing);
                assert!(old.is_closed() && old.is_empty());
            }
            Ok(_) => self.backings.push(backing),
            Err(_) => {}
        }
    }

    pub(super) fn swapoff(&mut self, device: usize) {
        let devices = self.engine.devices();
        let on = devices.iter().filter(|d| d.is_on()).count();
        let expected = match self.swapoff {
            None => Err(SwapoffError::Busy),
            _ if !devices[device].is_on() => Err(SwapoffError::NotOn),
            _ if on == 1 => Err(SwapoffError::LastDevice),
            _ => Ok(()),
        };
        assert_eq!(self.engine.swapoff_begin(device), expected);
        if expected.is_ok() {
            self.swapoff = None;
        }
    }

    pub(super) fn swapoff_steps(&mut self, steps: usize) {
        for _ in 0..steps {
            if self.swapoff.is_none()
                && let Step::End(result) = self.engine.swapoff_step(CPU, SWAPOFF_QUEUE)
            {
                self.swapoff = Some(result);
                let off =
                    self.engine.devices().iter().zip(&self.backings).filter(|(device, _)| device.is_off());
                off.for_each(|(device, backing)| {
                    assert!(device.slots.used_slots() == 0 && backing.is_closed())
                });
            }
        }
    }

    pub(super) fn swapoff_to_its_end(&mut self) -> Result<(), SwapoffError> {
        for _ in 0..10_000 {
            self.swapoff_steps(1);
            if let Some(result) = self.swapoff {
                return result;
            }
            self.make_progress();
            self.finish_writes();
        }
        panic!("a swapoff does not end");
    }
}
