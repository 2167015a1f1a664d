//! Sending and receiving the protocol's fixed-size messages, with descriptors.
#![allow(unsafe_code, reason = "plain-data structs seen as bytes, and descriptors out of control messages")]

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Messages of the protocol: plain data, any bit pattern valid.
///
/// # Safety
/// The type is repr(C), has no padding and no invalid values.
pub unsafe trait Message: Copy {}
macro_rules! messages { ($($t:ty),*) => { $(
    // SAFETY: repr(C) integers and arrays of them; sizes asserted in protocol.rs have no padding.
    unsafe impl Message for $t {}
)* } }
use memspill_common::protocol::{Command, Forked, Go, Hello, Prepared, Ready, Reply, Welcome};
messages!(Hello, Welcome, Ready, Go, Command, Reply, Prepared, Forked);

/// Never waits: what one peer does not take may not hold up the others.
pub fn send<T: Message>(socket: impl AsFd, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    // SAFETY: T is plain data without padding, and lives across the call.
    let bytes = unsafe { std::slice::from_raw_parts((message as *const T).cast::<u8>(), size_of::<T>()) };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// One message of exactly the expected size. UnexpectedEof: the peer is gone; InvalidData: it speaks another
/// protocol. Descriptors that came with it never become ours: to close a stranger's file may take as long as
/// the stranger likes.
pub fn receive<T: Message>(socket: impl AsFd) -> io::Result<T> {
    receive_with(socket, &mut [], RecvFlags::empty()).map(|(message, _)| message)
}

/// The same if it is there already. WouldBlock: it is not.
pub fn receive_now<T: Message>(socket: impl AsFd) -> io::Result<T> {
    receive_with(socket, &mut [], RecvFlags::DONTWAIT).map(|(message, _)| message)
}

/// The same with one descriptor, if there is one.
pub fn receive_now_with_fd<T: Message>(socket: impl AsFd) -> io::Result<(T, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    receive_with(socket, &mut space, RecvFlags::DONTWAIT)
}

fn receive_with<T: Message>(
    socket: impl AsFd,
    space: &mut [MaybeUninit<u8>],
    flags: RecvFlags,
) -> io::Result<(T, Option<OwnedFd>)> {
    let mut message = MaybeUninit::<T>::zeroed();
    let has_room = !space.is_empty();
    let mut control = RecvAncillaryBuffer::new(space);
    let received = loop {
        // SAFETY: zeroed plain data seen as bytes.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(message.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
        // TRUNC: the length is that of the packet, not of what had room here.
        let flags = flags | RecvFlags::CMSG_CLOEXEC | RecvFlags::TRUNC;
        match recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    match received.bytes {
        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
        bytes if bytes == size_of::<T>() => {}
        _ => return Err(io::ErrorKind::InvalidData.into()),
    }
    let mut fd = None;
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut rights) = ancillary {
            fd = fd.or_else(|| rights.next());
        }
    }
    if fd.is_none() && has_room && received.flags.contains(ReturnFlags::CTRUNC) {
        // It had one with it, and we could not have it.
        return Err(rustix::io::Errno::MFILE.into());
    }
    // SAFETY: any bit pattern is a valid T.
    Ok((unsafe { message.assume_init() }, fd))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    #[test]
    fn descriptors_are_taken_only_where_one_is_expected() {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        let closes = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let is_closed = |reader: &OwnedFd| rustix::io::read(reader, &mut [0u8; 1]) == Ok(0);
        for expected in [false, true] {
            let (reader, writer) = closes();
            send(&theirs, &Reply::default(), &[writer.as_fd(), writer.as_fd()]).unwrap();
            drop(writer);
            if expected {
                let (_, fd) = receive_now_with_fd::<Reply>(&ours).unwrap();
                assert!(fd.is_some() && !is_closed(&reader));
                drop(fd);
            } else {
                receive::<Reply>(&ours).unwrap();
            }
            assert!(is_closed(&reader), "one of two descriptors was kept");
        }
        assert_eq!(receive_now::<Reply>(&ours).err().map(|e| e.kind()), Some(io::ErrorKind::WouldBlock));
    }
}
