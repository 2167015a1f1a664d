//! Where the supervisor listens, and what the name of its socket says of the run.

use core::cell::UnsafeCell;
use core::ffi::c_char;

use crate::common::protocol::{ENV_NAME, NAME_LATE, NAME_LATE_THEN_FREE};
use crate::common::sync::{AtomicU32, Ordering};
use crate::machine::environment::find_variable;
use crate::machine::sys;

/// Longest name of an abstract socket: `sun_path` less the leading NUL.
pub const NAME_MAX: usize = 107;
const TOKEN_LEN: usize = 32;

#[unsafe(link_section = ".data.hot")]
static IS_BY_AGENT: AtomicU32 = AtomicU32::new(0);

/// Where the supervisor listens. Written once, by the constructor, before any second thread can exist.
pub struct Address {
    pub name: [u8; NAME_MAX],
    pub name_len: usize,
    pub token: [u8; TOKEN_LEN],
}

struct Place(UnsafeCell<Address>);
// SAFETY: written before the process has a second thread, and only read afterwards.
unsafe impl Sync for Place {}

// In .data by force: zeros would land in .bss otherwise.
#[unsafe(link_section = ".data.hot")]
static ADDRESS: Place =
    Place(UnsafeCell::new(Address { name: [0; NAME_MAX], name_len: 0, token: [0; TOKEN_LEN] }));

/// Reads `MEMSPILL_AGENT=NAME:TOKEN`. Anything malformed counts as absent: false.
///
/// # Safety
/// As for `find_variable`; and the process has one thread, which has not asked for the address yet.
pub unsafe fn learn(envp: *const *const c_char) -> bool {
    // SAFETY: the caller's promise.
    let found = unsafe { find_variable(envp, ENV_NAME) }.and_then(parse);
    let is_known = found.is_some();
    if let Some(address) = found {
        // SAFETY: the caller's promise.
        unsafe { ADDRESS.0.get().write(address) };
    }
    is_known
}

pub fn address() -> &'static Address {
    // SAFETY: `learn` wrote it, before anything else of the agent ran.
    unsafe { &*ADDRESS.0.get() }
}

fn parse(value: &[u8]) -> Option<Address> {
    let name_len = value.len().checked_sub(TOKEN_LEN + 1)?;
    let (name, rest) = value.split_at_checked(name_len)?;
    let token: [u8; TOKEN_LEN] = rest.strip_prefix(b":")?.try_into().ok()?;
    let mut address = Address { name: [0; NAME_MAX], name_len, token };
    if name.is_empty() {
        return None;
    }
    address.name.get_mut(..name_len)?.copy_from_slice(name);
    Some(address)
}

/// Abstract sockets are known in one network namespace. The name of ours says in which:
/// `memspill-PID-INODE-...`.
pub fn is_elsewhere() -> bool {
    let theirs = number_in_name(2);
    theirs != 0 && sys::network_namespace().is_some_and(|ours| ours != theirs)
}

/// The supervisor's process, as it sees itself.
pub fn supervisor_pid() -> u64 {
    number_in_name(1)
}

/// Did the environment say where it listens?
pub fn knows_supervisor() -> bool {
    address().name_len != 0
}

/// May processes of this supervisor join late?
pub fn may_be_late() -> bool {
    is_name_with(NAME_LATE) || is_name_with(NAME_LATE_THEN_FREE)
}

/// May they, and are their calls trapped only until then?
pub fn is_then_free() -> bool {
    is_name_with(NAME_LATE_THEN_FREE) && !is_by_agent()
}

/// This program, and its forks, ask to be paged by their agent, in whatever mode the run is.
pub fn ask_for_agent() {
    IS_BY_AGENT.store(1, Ordering::Relaxed);
}

pub fn is_by_agent() -> bool {
    IS_BY_AGENT.load(Ordering::Relaxed) != 0
}

fn is_name_with(end: &str) -> bool {
    let address = address();
    address.name.get(..address.name_len).is_some_and(|name| name.ends_with(end.as_bytes()))
}

/// The number behind so many dashes of the name.
pub fn number_in_name(behind: usize) -> u64 {
    let address = address();
    let mut number = 0u64;
    let (mut dashes, mut at) = (0, 0);
    while let Some(byte) = address.name.get(at).filter(|_| at < address.name_len) {
        match byte {
            b'-' => dashes += 1,
            digit if dashes == behind => {
                number = number.wrapping_mul(10).wrapping_add(u64::from(digit.wrapping_sub(b'0')))
            }
            _ => {}
        }
        at += 1;
    }
    number
}
