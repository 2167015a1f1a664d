//! Newtypes for every number that must not be mixed up with another.
//!
//! Pages are 4 KiB. A virtual page number (`Vpn`) is an address divided by the page size. A slot is one page
//! of a swap device. Sizes that are not counts of pages are bytes and say so in their names.

/// log2 of the page size.
pub const PAGE_SHIFT: u32 = 12;
/// Bytes in one page.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;
/// Slots in one cluster (2 MiB), as the kernel has it (`SWAPFILE_CLUSTER` with THP swap).
pub const CLUSTER_SLOTS: u32 = 512;
/// The largest order: a folio of 2^9 pages fills a cluster.
pub const MAX_ORDER: u8 = 9;

/// One page of bytes, aligned for O_DIRECT and for UFFDIO_COPY.
#[derive(Clone, Copy)]
#[repr(C, align(4096))]
pub struct Page(pub [u8; PAGE_SIZE]);

impl Page {
    pub const ZERO: Page = Page([0; PAGE_SIZE]);
}

const _: () = assert!(size_of::<Page>() == PAGE_SIZE && align_of::<Page>() == PAGE_SIZE);

/// An owned run of pages: what is read into, and what UFFDIO_COPY copies from. It may have room for more,
/// which costs no memory until it is used.
pub type PageBuf = Vec<Page>;

/// A zeroed buffer of `pages` pages.
pub fn page_buf(pages: usize) -> PageBuf {
    vec![Page::ZERO; pages]
}

/// Let a buffer have `pages` pages at least; new ones are zeroed. Returns how many are new.
pub fn grow(buf: &mut PageBuf, pages: usize) -> usize {
    let before = buf.len();
    buf.resize(before.max(pages), Page::ZERO);
    buf.len() - before
}

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub $inner);
        impl $name {
            /// The number as an index into a table.
            pub fn index(self) -> usize { self.0 as usize }
        }
    };
}

unit!(/// A virtual page number: address >> PAGE_SHIFT.
    Vpn(u64));
unit!(/// A CPU, as an argument: the engine never asks which one it runs on.
    CpuId(u32));
unit!(/// A slot of one swap device: its offset in pages. Slot 0 is never handed out.
    SlotIndex(u32));
unit!(/// A cluster of a swap device: slot / CLUSTER_SLOTS.
    ClusterIndex(u32));
unit!(/// A memory group (kernel: memcg id). 0 means none.
    GroupId(u16));
unit!(/// An address space that the engine manages.
    SpaceId(u32));
unit!(/// A page of the swap cache: in the buffer of a batch, or read ahead.
    FrameId(u32));
unit!(/// log2 of a folio's size in pages.
    Order(u8));

impl SlotIndex {
    pub fn cluster(self) -> ClusterIndex {
        ClusterIndex(self.0 / CLUSTER_SLOTS)
    }
    /// Offset inside its cluster, 0..512.
    pub fn offset_in_cluster(self) -> usize {
        (self.0 % CLUSTER_SLOTS) as usize
    }
}

/// A bit of a frame's number: the page was read ahead (ahead.rs), and is in no batch's buffer.
const READ_AHEAD: u32 = 1 << (u32::BITS - 1);
/// Bits that are left to number the frames of each kind.
pub const FRAME_NUMBER_BITS: u32 = READ_AHEAD.trailing_zeros();

impl FrameId {
    pub fn of_read_ahead(number: u32) -> FrameId {
        assert!(number < READ_AHEAD, "pages that were read ahead fit into memory");
        FrameId(READ_AHEAD | number)
    }
    pub fn is_read_ahead(self) -> bool {
        self.0 & READ_AHEAD != 0
    }
    pub fn number_read_ahead(self) -> u32 {
        debug_assert!(self.is_read_ahead());
        self.0 & !READ_AHEAD
    }
}

impl Order {
    pub const ZERO: Order = Order(0);
    /// 2^order.
    pub fn pages(self) -> u32 {
        1 << self.0
    }
}

impl Vpn {
    pub fn from_addr(addr: u64) -> Vpn {
        Vpn(addr >> PAGE_SHIFT)
    }
    pub fn addr(self) -> u64 {
        self.0 << PAGE_SHIFT
    }
}
