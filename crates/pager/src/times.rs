//! What waits for what, how long, and why: all times of the pager.
//!
//! Nobody waits without a limit for something that a program, a person or a disk decides, but for those two:
//! the main thread waits for the command, and at the end for writes to swap files that have a name.
//!
//! ```text
//!   who                     for what                                 how long         then
//!   a reclaimer             an evictor's reply, with the batch lock  EVICTOR_ANSWERS  cut off, and set aside
//!   a reclaimer             an evictor that another one uses         EVICTOR_TURN     another is picked
//!   a reclaimer             a process that cannot answer             not at all       aside: LOOK_ASIDE
//!   a pager                 the MOVE lock, inside the gate           MOVE_LOCK        MOVE_LOCK_AGAIN
//!   a pager                 the rest of a change's events            CHANGE_ENDS      a fork is hopeless
//!   a pager, door, monitor  the batch lock, inside the gate          as a reclaimer's reply
//!   whoever fills, reads    the gate                                 as the batch lock
//!   a fault without room    a batch                                  ROOM_*, the policy see below
//!   a fault of a thrasher   the swap token                           a turn (token.rs) served, once
//!   a thread with advice    room for pages that are wanted           AHEAD_GIVEN_UP   they are not brought
//!                           an evictor that is late                  PAGEOUT_GIVEN_UP its pages stay
//!   the same                a device's read                          until the run ends
//!   a fork                  room for copies                          FORK_ROOM        it is made
//!   the door                an exchange with an agent                EXCHANGE_ENDS    the agent is refused
//!   the main thread         processes that it has killed             TREE_ENDS        the guardian has them
//!   the monitor             its next round                           ROUND_*          it counts again
//!   the monitor             changes under way at a registration      EARLIER_CHANGES  another round adopts
//!   --check                 whoever is at work                       QUIET_POINT      the next time
//!   ctl, either side        the other one                            CTL_*            it gives up
//!   the budget's keeper     its next look                            BUDGET_LOOK      it looks again
//! ```
//!
//! Not here: what a step is expected to cost (`process/finder.rs`), and what the kernel counts (ticks of CPU
//! time).

use std::sync::OnceLock;
use std::time::{Duration, Instant};

const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}
const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
const fn s(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// µs since the first call.
pub fn now_us() -> u64 {
    us_of(Instant::now())
}

/// The same of a moment that was noted since then.
pub fn us_of(moment: Instant) -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    moment.saturating_duration_since(*START.get_or_init(Instant::now)).as_micros() as u64 + 1
}

// Evictors.

/// An evictor that has not answered for so long is not waited for. It answers within microseconds; on a
/// machine where everything is slow it may be only late, which costs two system calls more. But whoever waits
/// has events and faults of that process wait with him.
pub const EVICTOR_ANSWERS: Duration = ms(200);
/// One that could run and gets no CPU is waited for twice as long the next time, up to this.
pub const EVICTOR_ANSWERS_MOST: Duration = ms(6400);
/// A reply that is awaited for so long may never come: it is looked at whether the thread stands still.
pub const EVICTOR_LOOKED_AT: Duration = ms(10);
/// An evictor that keeps another reclaimer waiting for this long belongs to a process that is slow to answer.
pub const EVICTOR_TURN: Duration = EVICTOR_ANSWERS;
/// The door waits so long for an evictor that others use, before a fork. Else the fork asks again.
pub const FORK_TURN: Duration = ms(5);
/// So long the evictor's turn is kept for these until they have come again.
pub const TURN_IS_KEPT: Duration = ms(20);
/// The door waits so long for a change that was under way when a fork ended: whoever is in the middle of it
/// may have to wait for a CPU, and the child is lost without it.
pub const FORK_SETTLES: Duration = CHANGE_ENDS;
/// A process holds what it has in memory for a fork that long; then it is held no more, and its child is
/// lost.
pub const FORK_ENDS: Duration = s(10);
/// A fork waits so long until there is room for copies of what it leaves shared; then it is made all the
/// same. (100 MiB leave in half a second.)
pub const FORK_ROOM: Duration = s(3);
/// One that waits asks each ms. A thread that has not asked for so long waits no more.
pub const FORK_ASKS_AGAIN: Duration = ms(50);
/// Processes that stand still are looked at this often, while reclaim is at work: a look reads /proc.
pub const LOOK_ASIDE: Duration = ms(10);

// Events and faults.

/// The evictor holds the MOVE lock for one system call, of µs. Far longer: it stands still inside.
pub const MOVE_LOCK: Duration = ms(20);
/// A waiter for the MOVE lock looks again after this long: the other side may have ended, or lie.
pub const MOVE_LOCK_STEP: Duration = ms(1);
/// A pager that did not get the MOVE lock comes back so much later; others have faults too.
pub const MOVE_LOCK_AGAIN: Duration = ms(1);
/// A thread that is in the middle of a change runs again within this time, unless its process is frozen.
pub const CHANGE_ENDS: Duration = s(1);
/// Between two looks whether a change has ended: whoever is in the middle of one needs a CPU.
pub const CHANGE_STEP: Duration = us(20);
/// A process that is to join an object of shared memory is asked again for so long while something in it
/// changes.
pub const JOIN_ASKED: Duration = ms(2);
/// Changes of a process are held up for so long, before a batch, until those that have begun are followed.
pub const CHANGES_HELD: Duration = ms(5);
/// The child of a fork that was killed while it waited for its first fault is gone within this time.
pub const CHILD_ENDS: Duration = ms(100);
pub const CHILD_STEP: Duration = ms(1);
/// A fill that met an event waits for the changing thread to run: that is soon, and nothing announces it.
pub const PUT_OFF_AGAIN: Duration = us(100);
/// Whether a fault that is held back for the swap token may be served now is looked at so often.
pub const HELD_AGAIN: Duration = ms(1);
/// The system had no page for a fill, or no memory for a read. The fault comes again, not at once.
pub const NO_MEMORY: Duration = ms(1);
/// A pager that is at work for this long may wait for a batch of a process that stands still.
pub const PAGER_STUCK: Duration = ms(10);

// Reclaim.

/// A reclaimer that nobody calls looks around this often.
pub const RECLAIM_IDLE: Duration = ms(200);
/// Between two batches of which the first had no page: what is busy or shared becomes free within this time.
pub const RECLAIM_STEP: Duration = ms(2);
/// Pages that could not be written are tried again after this long: a failing device may take its time for
/// each error.
pub const WRITE_AGAIN: Duration = ms(100);
/// Linger (reclaim/spin.rs) for as long as faults keep coming at least this often, ...
pub const LINGER_FAULTS: Duration = us(100);
/// ... unless giving the CPU away takes this long: then somebody else wanted it.
pub const LINGER_ELSEWHERE: Duration = us(10);

// No room: how long nothing moves, while a fault waits, before something is done about it.

/// Before pools in RAM have to give room, which costs no more than I/O, and before those are waited for that
/// stand still.
pub const ROOM_FROM_POOLS: Duration = ms(100);
/// The swap is full, and the tree is killed: it cannot be taken back.
pub const ROOM_FULL_KILL: Duration = s(2);
/// The same where a device has servers: one that has not answered for 5 s is known to be away.
pub const ROOM_SERVERS_KILL: Duration = s(8);
/// The swap is full, and the budget grows, which takes nothing from the program: it may be small steps, many
/// of them.
pub const ROOM_FULL_GROW: Duration = ms(200);
/// The swap has room, and yet nothing moves. Longer: pages that are busy with events and forks come free
/// again.
pub const ROOM_STUCK: Duration = s(10);
/// The same while a process has no CPU to run on, which passes.
pub const ROOM_NO_CPU: Duration = s(60);
/// One that does not answer and may go on by itself is told of after this long.
pub const SILENCE_TOLD: Duration = s(2);

// Who keeps memory (reclaim/fairness.rs).

/// How often it is looked at who gets on: /proc counts CPU time in ticks of 10 ms.
pub const PROGRESS_LOOK: Duration = ms(200);

// Memory that may not be written (opened.rs).

/// A reclaimer waits so long for the main thread, which may be at work on something else.
pub const OPEN_ASKED: Duration = ms(50);
/// A process whose threads do not all stand within this time goes on, and its pages stay for now.
pub const OPEN_STANDS: Duration = ms(50);
/// So long such memory can be written at most. It takes one to three ms.
pub const OPEN_MOST: Duration = s(2);

// Advice of programs (advice.rs).

/// A thread that follows advice looks this often whether the run is over.
pub const ADVICE_IDLE: Duration = ms(200);
/// Pages that are wanted, but for which there is no room: reclaim makes some within this time.
pub const AHEAD_AGAIN: Duration = ms(1);
/// Pages for which there was no room for so long are not brought: they come with their faults.
pub const AHEAD_GIVEN_UP: Duration = ms(500);
/// Pages that are to leave stay if their process could not be asked for so long, for it lacks CPU.
pub const PAGEOUT_GIVEN_UP: Duration = ms(5000);

// The door.

/// From connect to Go. A child of a fork may have to wait for memory meanwhile; a process that is stopped has
/// no time.
pub const EXCHANGE_ENDS: Duration = s(30);
/// Whether the exec of a static program has failed, of which only a thread tells that goes on: soon, or after
/// it was stopped.
pub const TRACEES_LOOK: Duration = ms(1);
pub const TRACEES_NEW: Duration = ms(50);
pub const TRACEES_LOOK_OLD: Duration = ms(50);
/// The door is shut for this long when there is no descriptor or no memory for the next caller.
pub const DOOR_SHUT: Duration = ms(50);
/// A command with its loader in it and nothing else is known only by the time that passes without an agent.
pub const COMMAND_UNLOADED: Duration = s(10);
/// A command without a loader gets none, but it may be a launcher that becomes another program at once.
pub const COMMAND_STATIC: Duration = ms(500);
/// The agent is in the command, but constructors of other libraries may run before it.
pub const COMMAND_UNCONNECTED: Duration = s(60);
/// The main thread looks this often whether the command is managed: while it is, ...
pub const COMMAND_LOOK: Duration = ms(500);
/// ... when it has just started or called exec, which is when it may have lost its agent, ...
pub const COMMAND_LOOK_NEW: Duration = ms(5);
/// ... and later, until it is managed.
pub const COMMAND_LOOK_OLD: Duration = ms(100);
/// How long a command is new.
pub const COMMAND_NEW: Duration = s(1);

// `memspill ctl`.

/// The run: a caller that says nothing for so long is let go.
pub const CTL_REQUEST: Duration = s(5);
/// It is looked this often whether the budget is to change.
pub const BUDGET_LOOK: Duration = s(1);
/// It is looked this often whether the pool's share of the budget is to change.
pub const POOL_SHARE_LOOK: Duration = ms(250);
/// A request that takes long says how far it is this often.
pub const CTL_TELLS: Duration = ms(200);
/// It is looked this often whether what is over a lower budget has left.
pub const LIMIT_LOOK: Duration = ms(5);
/// Usage that has not become less for so long is not waited for any more.
pub const LIMIT_STUCK: Duration = s(3);
/// A swapoff whose read is under way waits for it in steps of this: its caller may have gone.
pub const SWAPOFF_READ: Duration = ms(2);
/// The listening socket has failed: a pause before the next accept.
pub const CTL_ACCEPT_AGAIN: Duration = ms(100);

// The end.

/// Killed processes end within this time, or are not waited for: they are frozen, or wait in the kernel.
pub const TREE_ENDS: Duration = s(2);
/// A process that is in the midst of a fork, or joins, is let go within this time, or stays attached.
pub const DETACH_LEAVES: Duration = s(20);
/// Such a process is tried again after this pause at most.
pub const DETACH_AGAIN: Duration = ms(100);
/// Processes that have the agent and have not joined are waited for so long when all others were let go.
pub const DETACH_JOINS: Duration = s(5);
/// How often it is said how much of what comes back is back.
pub const DETACH_SAYS: Duration = s(10);
/// When the process that was attached to has ended, or is let go, and no other has been there for so long,
/// the run ends. Whoever has asked for it is told within this time.
pub const ATTACHED_ENDS: Duration = ms(200);
/// The tree is killed again and again, in such steps: a process may fork while we look.
pub const KILL_STEP: Duration = ms(2);
/// A child of ours that was killed is looked at in such steps.
pub const KILLED_STEP: Duration = us(200);
/// The guardian kills in steps that grow up to this: one that is frozen ends when it is thawed.
pub const GUARDIAN_STEP_MAX: Duration = ms(200);
/// The guardian looks again for so long where it finds nobody and the machine makes processes all the time.
pub const GUARDIAN_SURE: Duration = ms(500);
/// The guardian looks this often whether its parent is still the supervisor, whatever signals it gets.
pub const GUARDIAN_LOOK: Duration = s(60);

// Signals (signals.rs, second_signal.rs).

/// Two that come within this time are one.
pub const SIGNALS_SAME: Duration = ms(100);
/// Two ^C within this time are meant for memspill.
pub const SIGNALS_QUICK: Duration = s(2);
/// A terminal sends ^C to the command and to us at once: the command takes it within this time, or not.
pub const SIGNAL_TAKEN: Duration = ms(100);
pub const SIGNAL_TAKEN_STEP: Duration = ms(5);
/// After the second signal: the tree is killed again and again for this long at most.
pub const SECOND_KILLS: Duration = ms(600);
/// After the second signal: the main thread has until then to end the run in order.
pub const SECOND_ENDS: Duration = ms(900);

// The monitor. From one round to the next it waits for as long as the room that is left could take to fill.

/// No less than this, ...
pub const ROUND_MIN: Duration = ms(1);
/// ... and no more: however much room there is, a round also finds processes that have ended.
pub const ROUND_MAX: Duration = ms(40);
/// While memory is tight: three times as long as a round takes, but no less than this, ...
pub const ROUND_TIGHT: Duration = ms(2);
/// ... and no more, unless the round itself took longer.
pub const ROUND_TIGHT_MAX: Duration = ms(10);

/// A forked child introduces its agent within this time, or has none.
pub const AGENT_JOINS: Duration = s(2);
/// The memory of a child without an agent counts as memory that stays, after this long. More than
/// AGENT_JOINS: where many fork at once, joining takes a while, and a kill cannot be taken back.
pub const AGENT_GIVEN_UP: Duration = s(10);
/// A small process that is younger than this may end soon, however many of them there are.
pub const PROCESS_YOUNG: Duration = ms(100);
/// One that is younger than this may not have begun its work, where CPUs are short.
pub const PROCESS_BEGINS: Duration = s(1);
/// Changes that were under way when ranges were registered have ended within this time, or the ranges are
/// looked at again later.
pub const EARLIER_CHANGES: Duration = ms(100);
pub const EARLIER_CHANGES_STEP: Duration = us(50);
/// All of a process is looked through again so many times later than the last time took, where that found
/// nothing, ...
pub const WALK_PAUSE: u32 = 100;
/// ... and not later than this.
pub const WALK_PAUSE_MAX: Duration = ms(200);
/// Memory that is shared since a fork is measured this often while it changes, and the tenth part of the time
/// at most: the walk costs tens of ns a page.
pub const SHARED_LOOK: Duration = ms(10);
/// The same where nothing tells that it changes, and the hundredth part of the time.
pub const SHARED_LOOK_ANYWAY: Duration = ms(200);
/// A thread that has begun a change of the address space waits with its event after so long, unless it
/// copies the address space for a fork.
pub const CALL_SHOWS: Duration = ms(100);
/// A call whose event was read has ended by then, and so has its thread's part in it.
pub const CALL_ENDS: Duration = s(1);
/// Shared memory of a process that is younger than this is not looked for: it may end soon.
pub const SHARED_YOUNG: Duration = ms(20);
/// Shared memory is looked for this often where nothing tells that there is more or less of it, ...
pub const SHARED_COUNT: Duration = s(1);
/// ... and the table of mounts this often.
pub const SHARED_MOUNTS: Duration = s(2);
/// Shared memory that is not swapped takes much of the budget for this long, and a line says so: shorter
/// where it is about to become managed.
pub const SHARED_TOLD: Duration = s(1);
/// It is looked this often who has managed shared memory mapped, and whether it may leave.
pub const SHARED_OBJECTS_LOOK: Duration = s(1);
/// The same, once a process is seen that may be a stranger: most are about to be known.
pub const STRANGERS_LOOK: Duration = ms(100);
/// Calls on files of shared memory are over in a moment, or are not waited for.
pub const FILE_CALLS: Duration = us(500);
/// A file whose pages were brought back because of how it is used is managed again after this long; each time
/// it takes twice as long.
pub const FILE_AGAIN: Duration = s(1);
/// A file that is given back makes progress within this time, or cannot be brought back.
pub const GIVING_BACK: Duration = s(10);
/// A tmpfs without room for a page that is to come back is waited for this long.
pub const TMPFS_FULL: Duration = s(5);
/// The largest size of the engine's tables is noted this often.
pub const TABLES_LOOK: Duration = ms(100);
/// It is looked this often how much time is lost to waiting for memory.
pub const STALLS_LOOK: Duration = ms(100);
/// It is looked this often whether faults come often, so that idle CPUs are kept awake, ...
pub const AWAKE_LOOK: Duration = ms(100);
/// ... until they have come seldom for so long.
pub const AWAKE_ENDS: Duration = s(1);
/// The lists of each address space are tidied this often.
pub const SPACES_TIDIED: Duration = s(2);
/// All memory is searched for guards that came without the C library this often: some ns a page.
pub const GUARDS_LOOK: Duration = s(1);
/// Memory that cannot be moved out is too much for this long, and the tree is killed. It is for ms whenever
/// memory is filled or adopted.
pub const UNMANAGED_KILL: Duration = s(2);
/// The same where the budget grows, which takes nothing from the program.
pub const UNMANAGED_GROW: Duration = ms(300);

// `--check`.

pub const CHECK_EVERY: Duration = s(1);
/// How long work may be held up for a quiet point.
pub const QUIET_POINT: Duration = ms(50);
pub const QUIET_STEP: Duration = us(100);
