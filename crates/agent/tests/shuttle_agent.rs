//! The agent pages a process: its own code, and that of the supervisor which shares memory with it, under
//! schedules that are drawn.
//!
//! ```text
//!   as they are                                         in their places (checked/)
//!     agent: pages/, calls/, thread/, join/evictor.rs     the kernel            kernel.rs
//!     supervisor: port/agent/, control.rs                 pagers, a reclaimer   supervisor.rs
//!     both: common/                                       swap, other programs  pool.rs
//!     atomics by common/sync.rs                           the program           run.rs
//! ```
//!
//! Each thread of the program counts in a byte of its own in each page. No count may be lost or come back,
//! no call may meet a page that is away, nobody may get a signal for memory that he may access, or wait for
//! ever; no event may meet a page that is being taken out; and in the end both sides say the same of each
//! page.
//!
//! A *control* leaves out one rule (`common/src/rules.rs`), and must find what is wrong then: else the rule
//! would be idle, or the test blind. So far no schedule has shown a need of these: `first_delivered` in
//! `take_run`; that one thread installs a delivery, and notes how much of it; that nothing is noted while a
//! change is unread.
//!
//! Orders of memory are in `loom_in_use.rs`, forks in `fork_model.rs`. Not shown: pages that cannot be read,
//! a ring or bytes that lie, an mremap that grows, memory that runs out.
#![cfg(shuttle)]
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "of the agent's code only what pages its process is run"
)]
#![allow(unsafe_code, reason = "the agent's code, and memory that is shared with it")]

#[path = "checked/bursts.rs"]
mod bursts;
#[path = "../src/agent/calls/mod.rs"]
mod calls;
#[path = "checked/join.rs"]
mod join;
#[path = "checked/kernel.rs"]
mod kernel;
#[path = "../src/agent/machine/mod.rs"]
mod machine;
#[path = "../src/agent/pages/mod.rs"]
mod pages;
#[path = "checked/pool.rs"]
mod pool;
#[path = "checked/process/mod.rs"]
mod process;
#[path = "checked/run.rs"]
mod run;
#[path = "../src/agent/supervisor/mod.rs"]
mod supervisor;
#[path = "checked/supervisor.rs"]
mod supervisor_double;
#[path = "../src/agent/thread/mod.rs"]
mod thread;
#[path = "../../pager/src/times.rs"]
mod times;

use memspill_common as common;

pub const USER_END: u64 = 1 << 56;

use common::rules::Rule;
use kernel::PAGES;
use run::{COUNTING, Scene, Thread, finds, holds};
use supervisor_double::Supervisor;

// -- Pages leave and come back, by windows --

const CALLING: Scene = Scene { program: [|it| it.count(0..PAGES, 12), |it| it.calls(1, 40)], ..COUNTING };
const PROTECTING: Scene =
    Scene { program: [|it| it.count(0..1, 6), |it| it.protect_and_count(1, 4)], ..COUNTING };
const ONE_PAGE: Scene =
    Scene { program: [|it| it.count(0..1, 60), |it| it.count(0..1, 60)], away: None, ..COUNTING };
const CHANGING: Scene =
    Scene { program: [|it| it.empty_and_count(0, 3), |it| it.empty_and_count(1, 3)], ..COUNTING };
const EMPTYING: Scene = Scene { program: [|it| it.empty_and_count(1, 4), |it| it.look(1, 12)], ..COUNTING };
const RENEWING_OFTEN: Scene =
    Scene { program: [|it| it.count(0..1, 30), |it| it.renew_and_count(1, 10)], pagers: 2, ..COUNTING };
const RENEWING: Scene = Scene { closes: true, away: None, ..EMPTYING };
const CLOSING: Scene =
    Scene { program: [|it| it.discards(0, 4), |it| it.calls_on_emptied(0, 4)], closes: true, ..COUNTING };

// -- The link --

const LOCKED: Scene = Scene { guards_fail: true, ..COUNTING };
const COMING_BACK: Scene =
    Scene { program: [|it| it.count(0..2, 12), |it| it.count(0..2, 12)], pagers: 2, ..COUNTING };
const FAULTING: Scene = Scene {
    program: [|it| (0..PAGES).for_each(|page| it.look(page, 1)), |it| it.look(0, 1)],
    rounds: 0,
    ..COMING_BACK
};
const GIVEN_UP: Scene = Scene {
    program: [|it| it.empty_and_count(1, 1), |it| it.look(1, 2)],
    rounds: 0,
    away: Some([7, 7]),
    closes: true,
    ..COMING_BACK
};
const UNASKED: Scene = Scene { brings_unasked: true, ..COMING_BACK };
const EMPTIED_UNASKED: Scene = Scene { brings_unasked: true, pagers: 2, ..RENEWING };

// -- Registered memory --

const REGISTERED: Scene = Scene { is_registered: true, ..COUNTING };
const REGISTERED_ONE: Scene = Scene { is_registered: true, ..ONE_PAGE };
const CALLING_REGISTERED: Scene = Scene { is_registered: true, away: None, ..CALLING };
/// New memory is registered again and again.
const RENEWING_REGISTERED: Scene =
    Scene { program: [|it| it.count(0..1, 30), |it| it.renew_and_count(1, 6)], ..REGISTERED };
const CALLING_RENEWED: Scene =
    Scene { program: [|it| it.count(0..1, 30), |it| it.renew_and_call(1, 6)], ..REGISTERED };
const EMPTYING_REGISTERED: Scene =
    Scene { program: [|it| it.calls(0, 3), |it| it.empty_and_call(1, 3)], is_registered: true, ..COUNTING };

// -- Writes to what a fork has left shared --

const WRITING: Scene = Scene { protects: true, ..REGISTERED };
const CALLING_PROTECTED: Scene = Scene { protects: true, ..CALLING_REGISTERED };
const LOOKING_PROTECTED: Scene = Scene { protects: true, ..REGISTERED_ONE };
const EMPTYING_PROTECTED: Scene = Scene { protects: true, ..EMPTYING_REGISTERED };
const RENEWING_PROTECTED: Scene = Scene { protects: true, ..RENEWING_REGISTERED };
const FORBIDDING: Scene = Scene { protects: true, is_registered: true, ..PROTECTING };

// -- Threads read pages from the pool --

const READING: Scene = Scene {
    program: [|it| it.count(0..2, 8), |it| it.count(0..2, 8)],
    has_pool: true,
    others: Supervisor::be_others,
    ..COUNTING
};
const TWO_PAGERS: Scene = Scene { pagers: 2, ..READING };
const TWO_RECLAIMERS: Scene =
    Scene { program: [|it| it.count(0..2, 8), |it| it.count(0..2, 8)], reclaimers: 2, ..READING };
const READING_EMPTIED: Scene =
    Scene { program: [|it| it.empty_and_count(0, 3), |it| it.look(0, 6)], ..READING };
const MOVING: Scene = Scene { program: [|it| it.move_and_count(4, 0), |it| it.look(1, 4)], ..READING };
const MOVING_TWO: Scene =
    Scene { program: [|it| it.move_and_count(8, 20), |it| it.look(1, 8)], reclaimers: 2, ..MOVING };
/// Nobody brings the pages back but who moves them.
const MOVING_ALONE: Scene =
    Scene { program: [|it| it.move_and_count(8, 200), |_| ()], others: |_| (), ..MOVING_TWO };
const SWAPOFF: Scene = Scene { others: Supervisor::swap_off, ..READING };

#[test]
fn windows_no_count_is_lost_and_nobody_waits_for_ever() {
    holds(&[
        COUNTING,
        ONE_PAGE,
        CALLING,
        PROTECTING,
        CHANGING,
        EMPTYING,
        RENEWING,
        RENEWING_OFTEN,
        CLOSING,
        LOCKED,
    ]);
}

#[test]
fn link_no_count_is_lost_and_nothing_comes_back_of_what_was_given_up() {
    holds(&[COMING_BACK, FAULTING, GIVEN_UP, UNASKED, EMPTIED_UNASKED]);
}

#[test]
fn registered_no_call_meets_a_missing_page_and_no_count_is_lost() {
    holds(&[
        REGISTERED,
        REGISTERED_ONE,
        RENEWING_REGISTERED,
        CALLING_RENEWED,
        CALLING_REGISTERED,
        EMPTYING_REGISTERED,
    ]);
}

#[test]
fn write_protected_every_write_is_made_and_no_call_fails() {
    holds(&[
        WRITING,
        CALLING_PROTECTED,
        LOOKING_PROTECTED,
        EMPTYING_PROTECTED,
        RENEWING_PROTECTED,
        FORBIDDING,
    ]);
}

#[test]
fn pool_every_count_is_right() {
    holds(&[READING, TWO_PAGERS, TWO_RECLAIMERS, READING_EMPTIED, SWAPOFF]);
}

#[test]
fn pool_nothing_comes_back_of_what_has_moved() {
    holds(&[MOVING, MOVING_TWO, MOVING_ALONE]);
}

macro_rules! controls {
    ($($name:ident: $rule:ident, $scene:ident;)*) => {
        $(
            #[test]
            fn $name() {
                finds(Rule::$rule, $scene);
            }
        )*
    };
}

controls! {
    windows_control_fill_under_none: Window, COUNTING;
    windows_control_zap_under_none: None, COUNTING;
    windows_control_copy_under_read: StandStill, COUNTING;
    windows_control_one_owner: OneOwner, COUNTING;
    windows_control_same_prot: SameProt, PROTECTING;
    windows_control_as_before: AsBefore, COUNTING;
    windows_control_in_use: InUse, CALLING;
    windows_control_in_use_of_emptied: InUse, CLOSING;
    windows_control_mark_first: MarkFirst, CALLING;
    windows_control_hazard: Hazard, ONE_PAGE;
    windows_control_look_inside: LookInside, RENEWING;
    windows_control_new_prot: NewProt, PROTECTING;
    windows_control_give_back: GiveBack, PROTECTING;
    windows_control_ask_the_word: AskTheWord, COUNTING;
    windows_control_alone: Alone, PROTECTING;
    windows_control_wake: WakeForWord, COUNTING;
    windows_control_closed: GateClosed, RENEWING;
    windows_control_wait_for_inside: WaitForInside, EMPTYING;
    windows_control_last_wakes: LastWakes, EMPTYING;
    windows_control_one_changer: OneChanger, CHANGING;
    registering_control_mark_first: MarkMissingFirst, CALLING_RENEWED;
    registering_control_touch_kept: TouchKept, CALLING_RENEWED;
    registering_control_look_again: LookAgain, RENEWING_REGISTERED;
    registering_control_register_again: RegisterAgain, EMPTYING_REGISTERED;
    registering_control_alone: Alone, EMPTYING_REGISTERED;
    registering_control_in_use: InUse, CALLING_REGISTERED;
    registering_control_hazard: Hazard, REGISTERED_ONE;
    registering_control_closed: CloseMissing, CALLING_RENEWED;
    write_protected_control_say_so: SayProtected, CALLING_PROTECTED;
    write_protected_control_allow_first: AllowFirst, CALLING_PROTECTED;
    write_protected_control_bring: BringToWrite, CALLING_PROTECTED;
    write_protected_control_in_use: InUse, CALLING_PROTECTED;
    write_protected_control_forget_emptied: ForgetEmptied, EMPTYING_PROTECTED;
    link_control_announce: Announce, GIVEN_UP;
    link_control_install_before_change: InstallFirst, GIVEN_UP;
    link_control_install_unasked: InstallUnasked, UNASKED;
    link_control_seen_first: SeenFirst, FAULTING;
    link_control_count_first: CountFirst, FAULTING;
    link_control_room: Room, RENEWING;
    link_control_take_unchanged: TakeUnchanged, EMPTYING;
    link_control_commit: Commit, COUNTING;
    link_control_commit_last: CommitLast, LOCKED;
    link_control_writing: Writing, FAULTING;
    link_control_silence_first: SilenceFirst, FAULTING;
    link_control_let_write: LetWrite, RENEWING;
    link_control_deliver_unchanged: DeliverUnchanged, GIVEN_UP;
    link_control_deliver_locked: DeliverLocked, EMPTIED_UNASKED;
    link_control_abort: Abort, RENEWING_OFTEN;
    link_control_batch_lock: BatchLock, RENEWING;
    link_control_events_alone: EventsAlone, EMPTIED_UNASKED;
    link_control_wake_waiters: WakeWaiters, FAULTING;
    link_control_wake_resident: WakeResident, FAULTING;
    link_control_wanted: Wanted, COUNTING;
    link_control_cut: Cut, COUNTING;
    pool_control_look_again: SamePlace, READING;
    pool_control_delivered: Delivered, READING;
    pool_control_still_allowed: StillAllowed, SWAPOFF;
    pool_control_entry: Entry, READING;
    pool_control_noted_first: NotedFirst, MOVING;
    pool_control_drop_hints: DropHints, MOVING_TWO;
    pool_control_hints_first: HintsFirst, READING;
    pool_control_leave_entries: LeaveEntries, READING;
    pool_control_hint_unchanged: HintUnchanged, MOVING_ALONE;
    pool_control_hint_while_stored: HintWhileStored, TWO_RECLAIMERS;
    pool_control_noting: NoteOnce, TWO_PAGERS;
    pool_control_end_before_move: EndBeforeMove, SWAPOFF;
}
