//! Sending and receiving the protocol's fixed-size messages, with descriptors.
#![allow(unsafe_code, reason = "plain-data structs seen as bytes, and descriptors out of control messages")]

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg,
    sendmsg,
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
use memspill_agent::protocol::{Command, Go, Hello, Ready, Reply, Welcome};
messages!(Hello, Welcome, Ready, Go, Command, Reply);

pub fn send<T: Message>(socket: impl AsFd, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    // SAFETY: T is plain data without padding, and lives across the call.
    let bytes = unsafe { std::slice::from_raw_parts((message as *const T).cast::<u8>(), size_of::<T>()) };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// One message of exactly the expected size. UnexpectedEof: the peer is gone; InvalidData: it speaks another protocol.
pub fn receive<T: Message>(socket: impl AsFd) -> io::Result<(T, Vec<OwnedFd>)> {
    let mut message = MaybeUninit::<T>::zeroed();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        // SAFETY: zeroed plain data seen as bytes.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(message.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
        // TRUNC: the length is that of the packet, not of what had room here.
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::TRUNC;
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
    let mut fds = Vec::new();
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = ancillary {
            fds.extend(rights);
        }
    }
    // SAFETY: any bit pattern is a valid T.
    Ok((unsafe { message.assume_init() }, fds))
}
