//! Rules that a test can leave out, to see that it finds what is wrong then: a test that finds nothing wrong
//! shows little, as long as it finds nothing wrong without the rule either. Each rule holds in
//! what ships, and nobody is asked.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Rule {
    /// Pages are zapped, and get their markers, while they have no protection.
    None = 1,
    /// Pages are filled while they have no protection, where there are several threads.
    Window,
    /// What calls in progress use stays.
    InUse,
    /// So does what those use that come from rewritten sites (`trap/rewrite.rs`).
    Sites,

    // The gate (`pages/gate.rs`).
    /// Nobody enters while somebody changes mappings, or waits to.
    GateClosed,
    /// A thread that changes mappings is alone.
    Alone,
    /// One at a time changes them.
    OneChanger,
    /// He waits until nobody is inside.
    WaitForInside,
    /// The last one inside wakes him.
    LastWakes,

    // Words, and pages that leave and come back (`pages/table.rs`, `evict.rs`, `run.rs`, `fault.rs`).
    /// A page that leaves or comes back has one owner.
    OneOwner,
    /// He wakes whoever waits for it.
    WakeForWord,
    /// Nobody can write to pages that are copied.
    StandStill,
    /// Pages have the protection of their mapping afterwards.
    GiveBack,
    /// Pages that come back together have the same protection.
    SameProt,
    /// Pages that are away get the new protection of their mapping.
    NewProt,
    /// A page that was away before it was marked is away afterwards.
    AsBefore,
    /// Pages are marked before it is looked who uses them.
    MarkFirst,
    /// A page stays on which a thread looks whether its fault is the program's own.
    Hazard,
    /// It does so inside the gate.
    LookInside,
    /// The protection that is in the word says whether the fault of a page that is away is the program's.
    AskTheWord,

    // Registered memory (`pages/holes/registered.rs`).
    /// Missing pages are marked before they are registered.
    MarkMissingFirst,
    /// What calls use is touched before.
    TouchKept,
    /// It is looked once more what is missing, when it is registered.
    LookAgain,
    /// A missing page has a word that says so.
    CloseMissing,
    /// Emptied pages go through the same.
    RegisterAgain,

    // Writes to what a fork has left shared (`pages/write_protect.rs`).
    /// A protected page has a word that says so, until the protection is taken off.
    SayProtected,
    AllowFirst,
    /// A call that writes takes it off before.
    BringToWrite,
    /// A page that is emptied is protected no more.
    ForgetEmptied,

    // The agent's side of the link (`pages/supervisor.rs`, `channel.rs`, `join/evictor.rs`).
    /// A change says so before anything else, and installs what was delivered.
    Announce,
    InstallFirst,
    /// Pages that nobody has asked for are installed too.
    InstallUnasked,
    /// A thread remembers what the futex was before it looks at its page.
    SeenFirst,
    /// It is counted among those who wait before it asks.
    CountFirst,
    /// One thread writes into the ring, and none into a full one.
    Writing,
    Room,
    /// Nothing is taken out while a change is unread.
    TakeUnchanged,
    /// The evictor may be cut off, and says what has gone when nothing can fail any more.
    Commit,
    CommitLast,

    // The supervisor's side (`port/agent/` of the pager).
    /// The bell is silenced before messages are read.
    SilenceFirst,
    /// A thread that waits for room in the ring is woken.
    LetWrite,
    /// Nothing is delivered while a change is unread, at which the deliverer looks with the lock.
    DeliverUnchanged,
    DeliverLocked,
    /// Nothing is taken out from before events are read until they are followed.
    Abort,
    /// Events wait for the batch that is under way, and are followed alone in the engine's gate.
    BatchLock,
    EventsAlone,
    /// A thread that waits for a page is woken when it is there, also if it was there before.
    WakeWaiters,
    WakeResident,
    /// A fault on a page that is being taken out is served afterwards.
    Wanted,
    /// A command that is not answered is cut off.
    Cut,

    // Pages that threads read from the pool (`pages/from_pool.rs`, `notes.rs`).
    /// A page's place in the pool is looked at once more when it was read.
    SamePlace,
    /// Then no delivery has it, and it is still allowed.
    Delivered,
    StillAllowed,
    /// It is noted for the supervisor.
    Entry,
    /// A change waits until all such notes are read, and drops hints.
    NotedFirst,
    DropHints,
    /// The evictor reads hints before it takes anything, and leaves what is noted.
    HintsFirst,
    LeaveEntries,
    /// No hint is told while a change is unread, nor when the slot may be another page's.
    HintUnchanged,
    HintWhileStored,
    /// A page is noted once.
    NoteOnce,
    /// Threads are kept from reading before slots move.
    EndBeforeMove,
}

#[cfg(not(any(memspill_test, shuttle)))]
pub const fn holds(_: Rule) -> bool {
    true
}

#[cfg(any(memspill_test, shuttle))]
pub use left_out::{holds, leave_out};

#[cfg(any(memspill_test, shuttle))]
mod left_out {
    use super::Rule;
    // No step of what a model checker checks.
    use core::sync::atomic::{AtomicU32, Ordering};

    /// In .data by force: this is not to be swapped out.
    #[cfg_attr(memspill_test, unsafe(link_section = ".data"))]
    static LEFT_OUT: AtomicU32 = AtomicU32::new(0);

    pub fn leave_out(rule: Option<Rule>) {
        LEFT_OUT.store(rule.map_or(0, |rule| rule as u32), Ordering::SeqCst);
    }

    pub fn holds(rule: Rule) -> bool {
        LEFT_OUT.load(Ordering::Relaxed) != rule as u32
    }
}
