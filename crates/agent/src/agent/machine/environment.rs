//! The program's environment, as it was when the program began.

use core::ffi::{CStr, c_char};

/// The value of a variable in the environment.
///
/// # Safety
/// `envp` is null or a null-terminated array of C strings that stay as they are.
pub unsafe fn find_variable(envp: *const *const c_char, name: &str) -> Option<&'static [u8]> {
    if envp.is_null() {
        return None;
    }
    let mut next = envp;
    loop {
        // SAFETY: `next` has not passed the terminating null pointer.
        let entry = unsafe { next.read() };
        if entry.is_null() {
            return None;
        }
        // SAFETY: the entries are C strings.
        let entry = unsafe { CStr::from_ptr(entry) }.to_bytes();
        let value = entry.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        if value.is_some() {
            return value;
        }
        // SAFETY: the entry was not the terminator, so there is one more.
        next = unsafe { next.add(1) };
    }
}
