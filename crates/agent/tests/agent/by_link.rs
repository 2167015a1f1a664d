//! An agent without a userfaultfd: what its evictor says of the pages that it has taken
//! (`common/src/link.rs`).

use super::*;
use memspill_common::link::{CUT, FILE_BYTES, LINK_AT, Link, committed, committed_of, open};
use std::sync::atomic::AtomicU64;

/// As many as a program may lock.
const LOCKED_PAGES: u32 = 4;

struct Linked {
    socket: OwnedFd,
    control: Arc<ControlPage>,
    _bell: OwnedFd,
}

impl Linked {
    /// None: it cannot be done here, as the agent says.
    fn join(supervisor: &Supervisor) -> Option<Linked> {
        let (socket, hello) = supervisor.accept();
        assert_eq!(hello.kind, KIND_EXEC);
        let control = ControlPage::of_len(FILE_BYTES);
        let bell = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) };
        let fds = [control.fd.as_raw_fd(), bell.as_raw_fd()];
        send(&socket, &Welcome { magic: MAGIC, uffd_source: UFFD_LINK }, &fds);
        let (ready, _) = receive::<Ready>(&socket);
        if ready.errno != 0 {
            return None;
        }
        send(&socket, &Go { magic: MAGIC, errno: 0 }, &[]);
        Some(Linked { socket, control, _bell: bell })
    }

    fn take_word(&self) -> &AtomicU64 {
        let link = self.control.page.cast::<u8>().wrapping_add(LINK_AT).cast::<Link>();
        unsafe { AtomicU64::from_ptr(&raw mut (*link).take) }
    }

    /// Has pages taken out by a command that may do it as long as `take` says so: how many went, why no more,
    /// and what `take` says then.
    fn take(&self, seq: u32, addr: u64, pages: u32, take: u64) -> (u32, i32, u64) {
        let run = MoveRun { src_addr: addr, pages, staging: 0, moved: 77, errno: 77 };
        let run_at = unsafe { &raw mut (*self.control.page).runs[0] };
        unsafe { run_at.write_volatile(run) };
        self.take_word().store(take, Ordering::SeqCst);
        send(&self.socket, &Command { op: OP_MOVE, seq, arg: 1, arg2: 0 }, &[]);
        let (reply, _) = receive::<Reply>(&self.socket);
        assert_eq!(reply.seq, seq);
        let run = unsafe { run_at.read_volatile() };
        (run.moved, run.errno, self.take_word().load(Ordering::SeqCst))
    }
}

#[test]
fn what_is_said_to_be_taken_is_away() {
    let supervisor = supervisor!();
    let mut target = supervisor.run("locked");
    let linked = needed!(Linked::join(&supervisor), "paging by windows");
    let buffer = target.address("at");
    // Locked memory takes no guards: the pages stay, and nothing says that they went. A supervisor that cut
    // the command off here would count them as away.
    let (moved, errno, take) = linked.take(1, buffer, LOCKED_PAGES, open(1));
    assert_eq!((moved, errno, committed_of(take, 1)), (0, libc::ENOMEM, None));
    // A command that has been cut off takes nothing: the bytes are back where they were.
    let free = buffer + 2 * u64::from(LOCKED_PAGES) * PAGE;
    assert_eq!(linked.take(2, free, 8, CUT), (0, libc::ECANCELED, CUT));
    assert_eq!(linked.take(3, free, 8, open(2)), (0, libc::ECANCELED, open(2)));
    target.go();
    assert_eq!(target.line(), "good");
    // One that has not takes all.
    assert_eq!(linked.take(4, free, 8, open(4)), (8, 0, committed(4, 0, 8)));
}
