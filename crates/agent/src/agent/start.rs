//! The agent begins, before the program does: by its constructor, or where a program without a loader begins
//! (`planted.rs`).

use core::ffi::{c_char, c_int};

use crate::common::protocol::KIND_EXEC;
use crate::hooks::{files, fork, malloc, open, own_thread, threads};
use crate::join::above::{self, Above};
use crate::join::handshake;
use crate::machine::sys;
use crate::programs::{exec, preload, readable, site};
use crate::supervisor::address;
use crate::thread::trapped;
use crate::trap;

/// What rooms below need of rooms above them.
static ABOVE: Above =
    Above { trap_calls: trap::arm, follow_forks: fork::install, stand_before_calls, each_function };

/// The same in a program that runs already, where threads are trapped one by one (`running.rs`).
static ABOVE_RUNNING: Above = Above {
    trap_calls: trap::running::take_over,
    follow_forks: fork::install,
    stand_before_calls,
    each_function,
};

pub fn hand_down_running() {
    above::hand_down(&ABOVE_RUNNING);
}

/// In the C library.
fn stand_before_calls() {
    let [brk, mmap] = malloc::places();
    site::rewrite_all(&[brk, mmap, exec::place()]);
}

fn each_function(tell: &mut dyn FnMut(usize)) {
    files::each_function(&mut *tell);
    tell(files::next_syscall());
}

type Constructor = unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char);

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: Constructor = constructor;

/// Runs when the dynamic linker has loaded everything, before `main`. The GNU C library passes what `main`
/// gets. Others pass nothing, and the registers hold anything: musl has the environment in a variable by now.
unsafe extern "C" fn constructor(_argc: c_int, _argv: *const *const c_char, passed: *const *const c_char) {
    let envp = match (sys::weak!("gnu_get_libc_version"), sys::weak!("__environ")) {
        (0, 0) => core::ptr::null(),
        // SAFETY: the C library's variable of this name, of a pointer.
        (0, place) => unsafe { (place as *const *const *const c_char).read() },
        _ => passed,
    };
    trapped::set_loaded();
    // SAFETY: an array of strings that ends with a null pointer, or null.
    unsafe { begin(envp) };
}

/// The program is about to begin: it joins, or is made ready to join late.
///
/// # Safety
/// As for `find_variable`; and the process has one thread.
pub unsafe fn begin(envp: *const *const c_char) {
    // Programs in valgrind are memory of valgrind's own process, a static program, which has its own agent.
    if sys::is_in_valgrind() {
        return;
    }
    above::hand_down(&ABOVE);
    open::find_next();
    files::find_next();
    own_thread::find_next();
    threads::note_thread();
    // SAFETY: the caller's promise.
    if unsafe { address::learn(envp) } {
        // SAFETY: as above.
        unsafe {
            readable::learn(envp);
            preload::learn(envp);
        }
        if !trap::program_begins() {
            handshake::join(KIND_EXEC);
        }
    }
    #[cfg(memspill_test)]
    // SAFETY: as above.
    unsafe {
        open_doors(envp);
    }
}

/// What a test has asked for by variables (`doors.rs`).
///
/// # Safety
/// As for `begin`.
#[cfg(memspill_test)]
unsafe fn open_doors(envp: *const *const c_char) {
    use crate::common::rules::{Rule, leave_out};
    use crate::doors::{ENV_DISPATCH, ENV_WINDOWS};
    use crate::machine::environment::find_variable;

    // SAFETY: the caller's promise.
    let (dispatch, windows) =
        unsafe { (find_variable(envp, ENV_DISPATCH), find_variable(envp, ENV_WINDOWS)) };
    if dispatch != Some(b"1") {
        return;
    }
    if let Some(asked) = windows {
        let left_out = match asked {
            b"without-none" => Some(Rule::None),
            b"without-window" => Some(Rule::Window),
            b"without-in-use" => Some(Rule::InUse),
            b"without-sites" => Some(Rule::Sites),
            _ => None,
        };
        leave_out(left_out);
        if crate::pages::start(asked == b"registered").is_err() {
            handshake::write_stderr_line("is not paged by windows: that is not possible here");
        }
    }
    if !trapped::is_armed() && trapped::prepare(0).and_then(|_| trap::arm()).is_err() {
        handshake::write_stderr_line("does not trap its system calls: that is not possible here");
    }
}
