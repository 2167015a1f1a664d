//! Finds out whose data are in a file or on a block device, by the signatures that file systems, volume
//! managers, partition tables and others leave at known places.
//!
//! It names what a person has there. A medium without a known name may hold data all the same: whether its
//! bytes are zeros is another question (`medium.rs`).

use std::io;

/// First bytes of page 0 of a file that is memspill's.
pub const MARK: &[u8] = b"memspill swap file; its contents mean nothing without the process that wrote it\n";

/// The kernel's mark of a swap area, and where it is with pages of 4096 bytes.
const SWAP_AT: usize = 4086;
const SWAP: [&[u8]; 2] = [b"SWAPSPACE2", b"SWAP-SPACE"];

/// Signatures are within so many bytes of the start, ...
pub const HEAD_BYTES: usize = 1 << 20;
/// ... or of the end.
pub const TAIL_BYTES: usize = 1 << 20;

/// Places from the start: what it is, where, and the bytes there. The first that fits names it: what may have
/// the place of another inside it comes first.
const AT_START: &[(&str, usize, &[u8])] = &[
    ("btrfs", 0x10040, b"_BHRfS_M"),
    ("ISO 9660", 0x8001, b"CD001"),
    ("UDF", 0x8001, b"BEA01"),
    ("UDF", 0x8001, b"NSR0"),
    ("LUKS", 0, b"LUKS\xba\xbe"),
    ("LUKS", 0x4000, b"SKUL\xba\xbe"),
    ("LUKS", 0x8000, b"SKUL\xba\xbe"),
    ("LUKS", 0x10000, b"SKUL\xba\xbe"),
    ("LUKS", 0x20000, b"SKUL\xba\xbe"),
    ("LUKS", 0x40000, b"SKUL\xba\xbe"),
    ("LUKS", 0x80000, b"SKUL\xba\xbe"),
    ("LVM", 0, b"LABELONE"),
    ("LVM", 0x200, b"LABELONE"),
    ("LVM", 0x400, b"LABELONE"),
    ("LVM", 0x600, b"LABELONE"),
    ("Linux RAID (md)", 0, b"\xfc\x4e\x2b\xa9\x01\0\0\0"),
    ("Linux RAID (md)", 0x1000, b"\xfc\x4e\x2b\xa9\x01\0\0\0"),
    ("bcachefs", 0x1018, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
    ("bcache", 0x1018, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    ("VDO", 0, b"dmvdo001"),
    ("Ceph BlueStore", 0, b"bluestore block device"),
    ("GPT partitions", 0x200, b"EFI PART"),
    ("GPT partitions", 0x1000, b"EFI PART"),
    ("XFS", 0, b"XFSB"),
    ("F2FS", 0x400, b"\x10\x20\xf5\xf2"),
    ("EROFS", 0x400, b"\xe2\xe1\xf5\xe0"),
    ("squashfs", 0, b"hsqs"),
    ("squashfs", 0, b"sqsh"),
    ("cramfs", 0, b"\x45\x3d\xcd\x28"),
    ("NTFS", 3, b"NTFS    "),
    ("exFAT", 3, b"EXFAT   "),
    ("BitLocker", 3, b"-FVE-FS-"),
    ("FAT", 0x36, b"FAT1"),
    ("FAT", 0x52, b"FAT32   "),
    ("APFS", 0x20, b"NXSB"),
    ("JFS", 0x8000, b"JFS1"),
    ("ReiserFS", 0x10034, b"ReIsEr"),
    ("ReiserFS", 0x2034, b"ReIsEr"),
    ("GFS2", 0x10000, b"\x01\x16\x19\x70\0\0\0\x01"),
    ("OCFS2", 0x400, b"OCFSV2"),
    ("OCFS2", 0x800, b"OCFSV2"),
    ("OCFS2", 0x1000, b"OCFSV2"),
    ("OCFS2", 0x2000, b"OCFSV2"),
    ("UFS", 0x255c, b"\x54\x19\x01\0"),
    ("UFS", 0x1055c, b"\x19\x01\x54\x19"),
    ("a QCOW disk image", 0, b"QFI\xfb"),
    ("a VMDK disk image", 0, b"KDMV"),
    ("an SQLite database", 0, b"SQLite format 3\0"),
    ("a hibernated system", SWAP_AT, b"S1SUSPEND"),
    ("a hibernated system", SWAP_AT, b"S2SUSPEND"),
    ("a hibernated system", SWAP_AT, b"ULSUSPEND"),
    ("a hibernated system", SWAP_AT, b"LINHIB0001"),
    ("swap with larger pages", 0x1ff6, b"SWAPSPACE2"),
    ("swap with larger pages", 0x3ff6, b"SWAPSPACE2"),
    ("swap with larger pages", 0x7ff6, b"SWAPSPACE2"),
    ("swap with larger pages", 0xfff6, b"SWAPSPACE2"),
];

/// Short ones, which any data may have: they name what is there, and do not show that something is.
const SHORT: &[(&str, usize, &[u8])] = &[
    ("HFS+", 0x400, b"H+\0\x04"),
    ("HFS+", 0x400, b"HX\0\x05"),
    ("NILFS2", 0x406, b"\x34\x34"),
    ("Minix", 0x410, b"\x7f\x13"),
    ("Minix", 0x410, b"\x8f\x13"),
    ("Minix", 0x410, b"\x68\x24"),
    ("Minix", 0x410, b"\x78\x24"),
    ("Minix", 0x418, b"\x5a\x4d"),
    ("partitions (MBR)", 0x1fe, b"\x55\xaa"),
];

/// The signs by which its owner is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sign {
    Memspill,
    /// A swap area, which the kernel may use when memspill is done.
    Kernel,
}

/// The first and the last bytes, HEAD_BYTES and TAIL_BYTES or as many as there are.
pub struct Ends {
    pub head: Vec<u8>,
    pub tail: Vec<u8>,
    pub size_bytes: u64,
}

impl Ends {
    pub fn sign(&self) -> Option<Sign> {
        let swap = self.head.get(SWAP_AT..).unwrap_or_default();
        match () {
            () if self.head.starts_with(MARK) => Some(Sign::Memspill),
            () if SWAP.iter().any(|mark| swap.starts_with(mark)) => Some(Sign::Kernel),
            () => None,
        }
    }

    /// What other than swap is there for sure: its signature is long. It may have been made on what was
    /// swap before, and have left the mark of that.
    pub fn surely(&self) -> Option<&'static str> {
        let at_start = AT_START.iter().find(|(_, at, bytes)| self.has(*at, bytes));
        at_start
            .map(|(name, ..)| *name)
            .or_else(|| self.ext())
            .or_else(|| self.zfs())
            .or_else(|| self.at_end())
    }

    /// The name of what is there, if it has one.
    pub fn name(&self) -> Option<&'static str> {
        let short = || SHORT.iter().find(|(_, at, bytes)| self.has(*at, bytes)).map(|(name, ..)| *name);
        self.surely().or_else(short)
    }

    fn has(&self, at: usize, bytes: &[u8]) -> bool {
        self.head.get(at..).is_some_and(|there| there.starts_with(bytes))
    }

    fn number(&self, at: usize) -> u32 {
        let bytes = self.head.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_le_bytes)
    }

    /// Two bytes are its magic number; sizes beside them that make sense make it sure.
    fn ext(&self) -> Option<&'static str> {
        const HAS_JOURNAL: u32 = 4;
        // Extents, 64 bits, flexible block groups.
        const EXT4_ONLY: u32 = 0x40 | 0x80 | 0x200;
        let (block_shift, group_blocks) = (self.number(0x418), self.number(0x420));
        let is_ext = self.has(0x438, b"\x53\xef") && block_shift <= 6 && group_blocks > 0;
        is_ext.then(|| match (self.number(0x45c) & HAS_JOURNAL, self.number(0x460) & EXT4_ONLY) {
            (_, only) if only != 0 => "ext4",
            (0, _) => "ext2",
            _ => "ext3",
        })
    }

    /// One of its uberblocks, in the first of its labels.
    fn zfs(&self) -> Option<&'static str> {
        const MAGIC: [&[u8]; 2] = [b"\x0c\xb1\xba\0\0\0\0\0", b"\0\0\0\0\0\xba\xb1\x0c"];
        let mut places = (0x20000..0x40000).step_by(1024);
        places.any(|at| MAGIC.iter().any(|magic| self.has(at, magic))).then_some("ZFS")
    }

    fn at_end(&self) -> Option<&'static str> {
        let sectors = self.size_bytes / 512;
        let (md_1_0, md_0_90) =
            ((sectors.saturating_sub(16) & !7) * 512, (sectors & !127).saturating_sub(128) * 512);
        let md: &[u8] = b"\xfc\x4e\x2b\xa9";
        let places = [
            ("GPT partitions", self.size_bytes.saturating_sub(512), &b"EFI PART"[..]),
            ("GPT partitions", self.size_bytes.saturating_sub(4096), &b"EFI PART"[..]),
            ("Linux RAID (md)", md_1_0, md),
            ("Linux RAID (md)", md_0_90, md),
        ];
        let tail_at = self.size_bytes - self.tail.len() as u64;
        let has = |(_, at, bytes): &&(&str, u64, &[u8])| {
            let from_tail = at.checked_sub(tail_at).and_then(|at| self.tail.get(at as usize..));
            from_tail.is_some_and(|there| there.starts_with(bytes))
        };
        places.iter().find(has).map(|(name, ..)| *name)
    }
}

/// The end of the message that names what is there.
pub fn refusal(what: &str) -> io::Error {
    let text = format!(
        "holds {what}, which would be lost: name another file or device, or say that it may be lost with \
         overwrite: file:PATH,overwrite"
    );
    io::Error::new(io::ErrorKind::AlreadyExists, text)
}
