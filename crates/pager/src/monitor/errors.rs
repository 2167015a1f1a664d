//! Errors of swap devices, said on stderr: one line for each device and kind. The statistics count them all.

use memspill_engine::engine::Engine;

/// Called now and then, and at the end of the run.
pub fn tell_device_errors(engine: &Engine) {
    for device in engine.devices().ever_added() {
        let name = &device.name;
        if let Some(error) = device.errors.tell_read() {
            eprintln!(
                "memspill: swap device {name} has a read error: {error}; \
                 access to a page that is lost gets SIGBUS"
            );
        }
        if let Some(error) = device.errors.tell_short() {
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
