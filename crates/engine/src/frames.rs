//! Frames: the bytes of pages that have left their address space and are on the way to their slots (the data
//! of the swap cache). Such a frame is a page of the buffer of a batch; pages that were read ahead have
//! frames too (ahead.rs).
//!
//! The buffer is written once, by `Memory::take`, and then shared read-only by the thread that writes the
//! batch and by faults that take pages back.
//!
//! What it does not do: know which slot a page belongs to. The slot's word names the frame (slots/).

use crate::sync::{Apart, Arc, AtomicU64, Mutex, MutexGuard, Ordering, lock};
use crate::units::{CpuId, FRAME_NUMBER_BITS, FrameId, MAX_ORDER, PAGE_SIZE, Page, PageBuf, Vpn, grow};
use crate::word::SwapEntry;

/// Most pages taken out in one batch, unless the folios asked for are larger.
pub const BATCH_PAGES: usize = 128;

/// A page that was taken out, and its place in the batch's buffer.
#[derive(Clone, Copy)]
pub(crate) struct TakenPage {
    pub vpn: Vpn,
    pub place: usize,
}

/// A page of the swap cache: the frame that holds the bytes of a slot.
#[derive(Clone, Copy)]
pub(crate) struct CachedPage {
    pub entry: SwapEntry,
    pub frame: FrameId,
}

/// In parts: each CPU that takes batches has one, because each batch takes its lock about four times. A frame
/// id names batch, part and page: `number << 17 | part << 9 | page`.
pub(crate) struct Frames {
    parts: Box<[Apart<Mutex<FramesInner>>]>,
    /// Most pages of a buffer.
    batch_pages: usize,
    /// Pages of all buffers: with frames, spare, and being filled. The account reads it after each batch.
    buffer_pages: AtomicU64,
}

#[derive(Default)]
struct FramesInner {
    batches: Vec<Option<Batch>>,
    /// A free buffer, kept so that its pages need not be faulted in again. One: a CPU takes one batch at a
    /// time.
    spare: Option<PageBuf>,
}

struct Batch {
    buf: Arc<PageBuf>,
    /// Frames of this batch that are in the swap cache, or pinned there by a fault.
    frames: usize,
}

const FRAME_PAGE_BITS: u32 = 9;
const FRAME_PART_BITS: u32 = 8;
/// CPUs that have a part of their own; where there are more, they share.
const PARTS: usize = 1 << FRAME_PART_BITS;
const _: () = assert!(BATCH_PAGES <= 1 << FRAME_PAGE_BITS && MAX_ORDER as u32 <= FRAME_PAGE_BITS);

/// What a frame id names.
struct FrameParts {
    number: usize,
    part: usize,
    page: usize,
}

impl FrameParts {
    fn of(frame: FrameId) -> FrameParts {
        let bits = |from: u32, bits: u32| (frame.0 >> from) as usize & ((1 << bits) - 1);
        FrameParts {
            number: (frame.0 >> (FRAME_PART_BITS + FRAME_PAGE_BITS)) as usize,
            part: bits(FRAME_PAGE_BITS, FRAME_PART_BITS),
            page: bits(0, FRAME_PAGE_BITS),
        }
    }

    fn id(&self) -> FrameId {
        let number = u32::try_from(self.number)
            .ok()
            .filter(|n| *n < 1 << (FRAME_NUMBER_BITS - FRAME_PART_BITS - FRAME_PAGE_BITS));
        let number = number.expect("batches fit into memory");
        FrameId((number << FRAME_PART_BITS | self.part as u32) << FRAME_PAGE_BITS | self.page as u32)
    }
}

impl Frames {
    pub fn new(batch_pages: usize) -> Frames {
        let parts = (0..PARTS).map(|_| Apart::default()).collect();
        Frames { parts, batch_pages, buffer_pages: AtomicU64::new(0) }
    }

    fn part_of(&self, cpu: CpuId) -> usize {
        cpu.index() % PARTS
    }

    #[track_caller]
    fn lock_part(&self, part: usize) -> MutexGuard<'_, FramesInner> {
        lock(&self.parts[part].0)
    }

    /// Most pages of a batch.
    pub fn batch_pages(&self) -> usize {
        self.batch_pages
    }

    /// A buffer for a batch of so many pages. It has room for the largest batch, and takes the memory of the
    /// largest that it has held.
    pub fn take_buffer(&self, cpu: CpuId, pages: usize) -> PageBuf {
        assert!(pages <= self.batch_pages, "a batch of {pages} pages");
        let spare = self.lock_part(self.part_of(cpu)).spare.take();
        let mut buf = spare.unwrap_or_else(|| PageBuf::with_capacity(self.batch_pages));
        let more = grow(&mut buf, pages);
        if more > 0 {
            // Seldom: all CPUs read what lies on this line.
            self.buffer_pages.fetch_add(more as u64, Ordering::Relaxed);
        }
        buf
    }

    /// Publish a filled buffer of which `frames` pages will be in the swap cache; returns the frame of its
    /// page 0.
    pub fn publish(&self, cpu: CpuId, buf: PageBuf, frames: usize) -> FrameId {
        assert!(frames > 0);
        let part = self.part_of(cpu);
        let mut inner = self.lock_part(part);
        let number = match inner.batches.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                inner.batches.push(None);
                inner.batches.len() - 1
            }
        };
        inner.batches[number] = Some(Batch { buf: Arc::new(buf), frames });
        FrameParts { number, part, page: 0 }.id()
    }

    /// The buffers of frames that are all cached or pinned, and each page's place in its own.
    pub fn get_many(&self, frames: impl Iterator<Item = FrameId>) -> Vec<(Arc<PageBuf>, usize)> {
        let frames: Vec<FrameParts> = frames.map(FrameParts::of).collect();
        let mut pages = Vec::with_capacity(frames.len());
        for of_part in frames.chunk_by(|a, b| a.part == b.part) {
            let inner = self.lock_part(of_part[0].part);
            pages.extend(of_part.iter().map(|frame| (inner.batch(frame).buf.clone(), frame.page)));
        }
        pages
    }

    /// These frames are neither cached nor pinned any more.
    pub fn free_frames(&self, frames: &[FrameId]) {
        let frames: Vec<FrameParts> = frames.iter().copied().map(FrameParts::of).collect();
        for of_part in frames.chunk_by(|a, b| a.part == b.part) {
            let mut inner = self.lock_part(of_part[0].part);
            for frame in of_part {
                self.free_frame(&mut inner, frame);
            }
        }
    }

    fn free_frame(&self, inner: &mut FramesInner, frame: &FrameParts) {
        let slot = &mut inner.batches[frame.number];
        let batch = slot.as_mut().expect("a frame was freed twice");
        batch.frames -= 1;
        if batch.frames > 0 {
            return;
        }
        let buf = slot.take().expect("it was there").buf;
        // A thread may still be copying out of it: then the memory is freed when that thread is done.
        match Arc::try_unwrap(buf) {
            Ok(buf) => self.keep_or_drop(inner, buf),
            Err(buf) => self.count_out(&buf),
        }
    }

    /// Give back a buffer that was not published.
    pub fn give_back(&self, cpu: CpuId, buf: PageBuf) {
        self.keep_or_drop(&mut self.lock_part(self.part_of(cpu)), buf);
    }

    fn keep_or_drop(&self, inner: &mut FramesInner, buf: PageBuf) {
        if inner.spare.is_none() {
            inner.spare = Some(buf);
        } else {
            self.count_out(&buf);
        }
    }

    /// A buffer goes.
    fn count_out(&self, buf: &[Page]) {
        self.buffer_pages.fetch_sub(buf.len() as u64, Ordering::Relaxed);
    }

    /// Pages that are in the swap cache, or pinned there.
    pub fn in_use(&self) -> usize {
        let frames_in =
            |part| self.lock_part(part).batches.iter().flatten().map(|batch| batch.frames).sum::<usize>();
        (0..PARTS).map(frames_in).sum()
    }

    pub fn bytes(&self) -> u64 {
        self.buffer_pages.load(Ordering::Relaxed) * PAGE_SIZE as u64
    }
}

impl FramesInner {
    fn batch(&self, frame: &FrameParts) -> &Batch {
        self.batches[frame.number].as_ref().expect("a pinned frame has its batch")
    }
}

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use super::*;

    #[test]
    fn a_frame_finds_its_buffer_and_a_cpu_its_own_spare_one() {
        let frames = Frames::new(2);
        let cpus = [0, 1, 255, 257].map(CpuId);
        let first_frames = cpus.map(|cpu| {
            let mut buf = frames.take_buffer(cpu, 2);
            buf[1].0[0] = (cpu.0 as u8).wrapping_add(7);
            frames.publish(cpu, buf, 1)
        });
        assert_eq!(frames.bytes(), 4 * 2 * PAGE_SIZE as u64);
        let second = first_frames.map(|frame| FrameId(frame.0 + 1));
        let pages = frames.get_many(second.into_iter());
        assert_eq!(pages.iter().map(|(buf, at)| buf[*at].0[0]).collect::<Vec<_>>(), [7, 8, 6, 8]);
        drop(pages);
        frames.free_frames(&second);
        // 1 and 257 share a part, which keeps one of their two.
        assert_eq!((frames.in_use(), frames.bytes()), (0, 3 * 2 * PAGE_SIZE as u64));
        frames.give_back(CpuId(255), frames.take_buffer(CpuId(255), 1));
        assert_eq!(frames.bytes(), 3 * 2 * PAGE_SIZE as u64, "the spare one");
        let first = frames.take_buffer(CpuId(7), 1);
        assert_eq!(
            (first.len(), frames.bytes()),
            (1, 4 * 2 * PAGE_SIZE as u64 - PAGE_SIZE as u64),
            "no more than was asked for"
        );
        frames.give_back(CpuId(7), first);
        let grown = frames.take_buffer(CpuId(7), 2);
        assert_eq!((grown.len(), frames.bytes()), (2, 4 * 2 * PAGE_SIZE as u64));
        // A thread still reads what is freed: it does not count any more.
        let frame = frames.publish(CpuId(7), grown, 1);
        let reader = frames.get_many([frame].into_iter());
        frames.free_frames(&[frame]);
        assert_eq!((reader.len(), frames.bytes()), (1, 3 * 2 * PAGE_SIZE as u64));
    }
}
