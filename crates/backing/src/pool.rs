//! Where compressed pages lie: an allocator for objects of 1 to 4096 bytes (kernel: zsmalloc).
//!
//! ```text
//!  size classes, 32 bytes apart         chunks: 1 to 8 pages, cut into equal objects
//!  ┌────┐
//!  │  32│──▶ nonfull [chunk, chunk]    ┌──────┬──────┬──────┬──────┬──────┬─┐
//!  │  64│                              │ obj 0│ obj 1│ obj 2│ obj 3│ obj 4│ │ ◀─ the end: little waste
//!  │  ..│                              └──────┴──────┴──────┴──────┴──────┴─┘
//!  │4096│    one mutex for each class     objects may cross page borders: chunks are contiguous addresses
//!  └────┘
//!        page runs ◀── segments of 256 MiB of addresses; an emptied chunk is given back by MADV_DONTNEED
//! ```
//!
//! *Memory comes from large mappings and goes back page by page*, because a general allocator keeps what is
//! freed in the middle of its heap: the supervisor's resident set would never go down. A few emptied chunks
//! are kept warm, since giving back costs a system call and a TLB shootdown; they count as held.
//!
//! *Handles* are 36 bits: page number of the chunk and number of the object in it. The class follows from the
//! length, which the caller keeps with the handle. There is no allocation and no header for each object; 4
//! bytes beside the chunk name the owner (its slot), which is what makes compaction possible.
//!
//! *Reading takes no lock.* [`Pool::copy_out`] copies the words of the object, which another thread may free
//! and reuse meanwhile. The caller then checks that its table still has the handle:
//!
//! ```text
//!   reader                         mover (writeback, compaction)     whoever reuses the memory
//!   w = word.load(Acquire)         word.compare_exchange(w, ...)     alloc(), after free() by the class lock
//!   copy, relaxed                  free(handle of w)                 fence(Release)
//!   fence(Acquire)                                                   copy in, relaxed
//!   word.load() == w ? bytes are good : start again
//! ```
//!
//! If the copy saw one byte of the reuse, the two fences order the reader's second load after the mover's
//! exchange, and it starts again. Copying costs about 0.1 µs a page against 1 µs of decompression.
//!
//! *Compaction* ([`Pool::compact`]) empties the sparsest chunk of a class into the others. It holds the
//! class's mutex for each move, so that the object cannot be freed under it. An object is copied only when
//! its owner's word names it: before that its bytes may still be on their way in ([`Pool::store`] has no lock
//! then), and a copy made too early would be published as soon as the word names the object.
//!
//! Lock order: class, then page runs. What it does not do: compress, know slots as more than an owner's
//! number.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock};

use memspill_engine::sync::lock;
use memspill_engine::units::PAGE_SIZE;

use crate::arena::{Mapping, PartOf, ZeroTable};
use crate::pool_file::{PoolFile, ROOMS, offset_of};

/// Distance of the size classes, in bytes. 32 loses 16 bytes an object on average; 64 lost 1.6 % on 2 KiB
/// objects.
const CLASS_STEP: usize = 32;
/// The largest chunk, in pages.
const CHUNK_PAGES_MAX: usize = 8;
/// The most objects in a chunk: two words of bitmap.
const CHUNK_OBJECTS_MAX: usize = 128;
/// log2 of the pages in a segment of address space (256 MiB).
const SEGMENT_SHIFT: u32 = 16;
/// log2 of the pages that handles can address (1 TiB of compressed pages).
const POOL_PAGES_SHIFT: u32 = 28;
/// Pages of emptied chunks that stay resident for the next chunk.
const WARM_PAGES_MAX: usize = 64;

/// Where an object lies. Packed into 36 bits by [`Handle::to_bits`]:
///
/// ```text
///   35            8 7        0
///   ┌──────────────┬──────────┐
///   │ page of chunk│ object   │
///   └──────────────┴──────────┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle {
    page: u32,
    object: u8,
}

impl Handle {
    /// Bits in a packed handle.
    pub const BITS: u32 = POOL_PAGES_SHIFT + 8;

    /// As the low [`Handle::BITS`] bits of a word.
    pub fn to_bits(self) -> u64 {
        u64::from(self.page) << 8 | u64::from(self.object)
    }

    /// Back from the low [`Handle::BITS`] bits.
    pub fn from_bits(bits: u64) -> Handle {
        debug_assert!(bits < 1 << Handle::BITS);
        Handle { page: (bits >> 8) as u32, object: bits as u8 }
    }
}

const _: () = assert!(Handle::BITS == 36);

/// The shape of a class: objects of `object_bytes`, `objects` of them in a chunk of `pages`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    object_bytes: u32,
    pages: u8,
    objects: u8,
}

/// The fewest pages that lose at most 1 % at the end of the chunk, else those that lose least.
fn shape_for(object_bytes: usize) -> Shape {
    let mut best = (1, f64::MAX);
    for pages in 1..=CHUNK_PAGES_MAX {
        let bytes = pages * PAGE_SIZE;
        let objects = bytes / object_bytes;
        if objects > CHUNK_OBJECTS_MAX {
            break;
        }
        let waste = (bytes % object_bytes) as f64 / bytes as f64;
        if waste < best.1 {
            best = (pages, waste);
        }
        if waste <= 0.01 {
            break;
        }
    }
    let objects = best.0 * PAGE_SIZE / object_bytes;
    Shape { object_bytes: object_bytes as u32, pages: best.0 as u8, objects: objects as u8 }
}

/// Classes that would cut their chunks into as many objects are one class (of the larger size), as in
/// zsmalloc: fewer classes have fewer half-filled chunks.
fn shapes() -> (Vec<Shape>, [u8; PAGE_SIZE / CLASS_STEP]) {
    let mut shapes: Vec<Shape> = Vec::new();
    let mut class_of_step = [0u8; PAGE_SIZE / CLASS_STEP];
    for step in (0..PAGE_SIZE / CLASS_STEP).rev() {
        let shape = shape_for((step + 1) * CLASS_STEP);
        let same = |last: &&Shape| last.pages == shape.pages && last.objects == shape.objects;
        if shapes.last().filter(same).is_none() {
            shapes.push(shape);
        }
        class_of_step[step] = (shapes.len() - 1) as u8;
    }
    (shapes, class_of_step)
}

/// For objects of 1 to 4096 bytes, in steps of `CLASS_STEP`, the room that each has.
pub(crate) fn rooms_bytes() -> [u16; ROOMS] {
    let (shapes, class_of_step) = shapes();
    class_of_step.map(|class| shapes[usize::from(class)].object_bytes as u16)
}

/// One chunk of a class. 32 bytes, plus 4 for each object in `Class::owners`.
struct Chunk {
    /// Bit i set: object i is free.
    free: [u64; 2],
    page: u32,
    /// Place in `Class::nonfull`, or `NOT_LISTED`.
    listed_at: u32,
    free_count: u32,
}

const NOT_LISTED: u32 = u32::MAX;

#[derive(Default)]
struct Class {
    chunks: Vec<Chunk>,
    /// Places in `chunks` that hold no chunk.
    unused: Vec<u32>,
    /// Chunks with a free object, in no order.
    nonfull: Vec<u32>,
    /// `chunks.len() * objects` owners.
    owners: Vec<u32>,
    free_objects: u64,
    live_chunks: u64,
    /// Where in `nonfull` the next sample starts.
    sampled_from: usize,
}

impl Class {
    /// Take a free object of chunk `id`.
    fn take(&mut self, id: u32, shape: Shape, owner: u32) -> Handle {
        let chunk = &mut self.chunks[id as usize];
        let half = usize::from(chunk.free[0] == 0);
        let object = half as u32 * 64 + chunk.free[half].trailing_zeros();
        assert!(object < u32::from(shape.objects), "a chunk on the list has no free object");
        chunk.free[half] &= chunk.free[half] - 1;
        chunk.free_count -= 1;
        self.free_objects -= 1;
        let page = chunk.page;
        if chunk.free_count == 0 {
            self.unlist(id);
        }
        self.owners[id as usize * usize::from(shape.objects) + object as usize] = owner;
        Handle { page, object: object as u8 }
    }

    /// Mark an object free. True if its chunk holds nothing any more.
    fn put(&mut self, id: u32, shape: Shape, object: u8) -> bool {
        assert!(object < shape.objects, "object {object} is outside its chunk");
        let chunk = &mut self.chunks[id as usize];
        let bit = 1u64 << (object % 64);
        let word = &mut chunk.free[usize::from(object / 64)];
        assert!(*word & bit == 0, "double free of a pool object");
        *word |= bit;
        chunk.free_count += 1;
        self.free_objects += 1;
        if chunk.listed_at == NOT_LISTED {
            chunk.listed_at = self.nonfull.len() as u32;
            self.nonfull.push(id);
        }
        self.chunks[id as usize].free_count == u32::from(shape.objects)
    }

    /// The chunk of the greatest `key` in a sample of the nonfull ones: the list is in no order, and a walk
    /// over all of it would hold the lock for long.
    fn sample(&self, key: impl Fn(&Chunk) -> u32) -> u32 {
        let len = self.nonfull.len();
        let ids = (0..len.min(64)).map(|step| self.nonfull[(self.sampled_from + step) % len]);
        ids.max_by_key(|id| key(&self.chunks[*id as usize])).expect("there is a nonfull chunk")
    }

    fn unlist(&mut self, id: u32) {
        let at = std::mem::replace(&mut self.chunks[id as usize].listed_at, NOT_LISTED) as usize;
        self.nonfull.swap_remove(at);
        if let Some(&moved) = self.nonfull.get(at) {
            self.chunks[moved as usize].listed_at = at as u32;
        }
    }

    /// Forget an empty chunk; returns its first page.
    fn remove(&mut self, id: u32, shape: Shape) -> u32 {
        self.unlist(id);
        self.free_objects -= u64::from(shape.objects);
        self.live_chunks -= 1;
        let page = self.chunks[id as usize].page;
        if self.live_chunks == 0 {
            *self = Class::default();
        } else {
            self.unused.push(id);
        }
        page
    }

    fn meta_bytes(&self) -> u64 {
        (self.chunks.len() * size_of::<Chunk>()
            + (self.unused.len() + self.nonfull.len() + self.owners.len()) * size_of::<u32>()) as u64
    }
}

/// One class on cache lines of its own.
#[repr(align(128))]
struct ClassSlot(Mutex<Class>);

struct Segment {
    data: Mapping,
    /// For the first page of each chunk: its place in `Class::chunks`.
    chunk_of_page: ZeroTable,
}

/// Runs of pages that belong to no chunk, by length.
#[derive(Default)]
struct PageRuns {
    /// Still resident.
    warm: [Vec<u32>; CHUNK_PAGES_MAX + 1],
    warm_pages: usize,
    /// Runs taken and given so far, and what that was at the last `trim_if_idle`.
    traffic: u64,
    traffic_seen: u64,
    /// Given back.
    cold: [Vec<u32>; CHUNK_PAGES_MAX + 1],
    /// Pages from here on have never been used.
    next_page: u32,
}

/// The pool had no room within the limit it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolFull;

/// See the module's header. All methods may be called from several threads at once.
pub struct Pool {
    shapes: Vec<Shape>,
    class_of_step: [u8; PAGE_SIZE / CLASS_STEP],
    classes: Box<[ClassSlot]>,
    /// Boxed: a pool of some MiB has one of 4096, and would pay for all of them.
    segments: Box<[OnceLock<Box<Segment>>]>,
    runs: Mutex<PageRuns>,
    /// Pages of chunks and warm runs.
    resident_pages: AtomicU64,
    /// Bytes of `Class` tables.
    meta_bytes: AtomicU64,
    /// Where its memory is, if others read it.
    file: Option<Arc<PoolFile>>,
}

impl Default for Pool {
    fn default() -> Self {
        Pool::new(None)
    }
}

impl Pool {
    /// An empty pool, in private memory or in a file. Address space is taken as it grows, 256 MiB at a time.
    pub fn new(file: Option<Arc<PoolFile>>) -> Pool {
        let (shapes, class_of_step) = shapes();
        Pool {
            file,
            classes: shapes.iter().map(|_| ClassSlot(Mutex::new(Class::default()))).collect(),
            shapes,
            class_of_step,
            segments: (0..1usize << (POOL_PAGES_SHIFT - SEGMENT_SHIFT)).map(|_| OnceLock::new()).collect(),
            runs: Mutex::new(PageRuns::default()),
            resident_pages: AtomicU64::new(0),
            meta_bytes: AtomicU64::new(0),
        }
    }

    /// Bytes of RAM held: chunks (the ends and the free objects included), warm runs, tables.
    pub fn ram_bytes(&self) -> u64 {
        // 4 bytes of `chunk_of_page` for a page: 0.1 %, counted here rather than walked.
        let pages = self.resident_pages.load(Ordering::Relaxed);
        pages * (PAGE_SIZE as u64 + 4) + self.meta_bytes.load(Ordering::Relaxed)
    }

    /// The part of these that lies in the pool's file, if it has one.
    pub fn page_bytes(&self) -> u64 {
        self.resident_pages.load(Ordering::Relaxed) * PAGE_SIZE as u64
    }

    /// The part of these that is not objects.
    pub fn table_bytes(&self) -> u64 {
        4 * self.resident_pages.load(Ordering::Relaxed) + self.meta_bytes.load(Ordering::Relaxed)
    }

    fn class_of(&self, len_bytes: usize) -> usize {
        assert!((1..=PAGE_SIZE).contains(&len_bytes), "objects are 1 to 4096 bytes, not {len_bytes}");
        usize::from(self.class_of_step[(len_bytes - 1) / CLASS_STEP])
    }

    fn segment(&self, page: u32) -> &Segment {
        self.segments[(page >> SEGMENT_SHIFT) as usize].get().expect("a handle names memory never mapped")
    }

    fn chunk_id(&self, page: u32) -> u32 {
        let within = page as usize % (1 << SEGMENT_SHIFT);
        self.segment(page).chunk_of_page.half(within).load(Ordering::Relaxed)
    }

    /// The words of an object, the last one partly beyond `len_bytes`.
    fn words(&self, handle: Handle, len_bytes: usize) -> &[AtomicU64] {
        let shape = self.shapes[self.class_of(len_bytes)];
        let page = handle.page as usize % (1 << SEGMENT_SHIFT);
        let start = (page * PAGE_SIZE + usize::from(handle.object) * shape.object_bytes as usize) / 8;
        &self.segment(handle.page).data.words()[start..start + len_bytes.div_ceil(8)]
    }

    /// Store `bytes` (1 to 4096) for `owner`. If that needs a new chunk, the pool may hold `limit_bytes` of
    /// RAM.
    pub fn store(&self, owner: u32, bytes: &[u8], limit_bytes: u64) -> Result<Handle, PoolFull> {
        let class = self.class_of(bytes.len());
        let handle = self.alloc(class, owner, limit_bytes)?;
        #[cfg(test)]
        crate::ram::tests::between(crate::ram::tests::Moment::ObjectTaken);
        // See the module's header: orders the reader's second look at its word after the free of what was
        // here.
        fence(Ordering::Release);
        let words = self.words(handle, bytes.len());
        let (whole, rest) = bytes.as_chunks::<8>();
        for (word, chunk) in words.iter().zip(whole) {
            word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            words[whole.len()].store(u64::from_ne_bytes(last), Ordering::Relaxed);
        }
        Ok(handle)
    }

    /// Copy an object into `out`, whose length is the object's. The bytes are good only if the caller then
    /// finds, after an acquire fence, that the object was not freed meanwhile.
    pub fn copy_out(&self, handle: Handle, out: &mut [u8]) {
        let words = self.words(handle, out.len());
        let (whole, rest) = out.as_chunks_mut::<8>();
        for (chunk, word) in whole.iter_mut().zip(words) {
            *chunk = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        if !rest.is_empty() {
            let last = words[whole.len()].load(Ordering::Relaxed).to_ne_bytes();
            let len = rest.len();
            rest.copy_from_slice(&last[..len]);
        }
    }

    /// Free an object of `len_bytes`. Each object is freed once: a second time panics.
    pub fn free(&self, handle: Handle, len_bytes: usize) {
        let class_index = self.class_of(len_bytes);
        let shape = self.shapes[class_index];
        let mut class = lock(&self.classes[class_index].0);
        let id = self.chunk_id(handle.page);
        assert!(class.chunks[id as usize].page == handle.page, "a handle names no chunk of its class");
        if class.put(id, shape, handle.object) {
            self.drop_chunk(&mut class, id, shape);
        }
    }

    fn drop_chunk(&self, class: &mut Class, id: u32, shape: Shape) {
        let meta_before = class.meta_bytes();
        let page = class.remove(id, shape);
        self.meta_bytes.fetch_sub(meta_before.wrapping_sub(class.meta_bytes()), Ordering::Relaxed);
        self.give_run(page, usize::from(shape.pages));
    }

    fn alloc(&self, class_index: usize, owner: u32, limit_bytes: u64) -> Result<Handle, PoolFull> {
        let shape = self.shapes[class_index];
        let mut class = lock(&self.classes[class_index].0);
        let id = match class.nonfull.last() {
            Some(&id) => id,
            None => self.add_chunk(&mut class, shape, limit_bytes)?,
        };
        Ok(class.take(id, shape, owner))
    }

    fn add_chunk(&self, class: &mut Class, shape: Shape, limit_bytes: u64) -> Result<u32, PoolFull> {
        let page = self.take_run(usize::from(shape.pages), limit_bytes)?;
        let meta_before = class.meta_bytes();
        let objects = usize::from(shape.objects);
        let id = class.unused.pop().unwrap_or_else(|| {
            class.chunks.push(Chunk { free: [0; 2], page: 0, listed_at: NOT_LISTED, free_count: 0 });
            class.owners.resize(class.chunks.len() * objects, 0);
            class.chunks.len() as u32 - 1
        });
        let all = u128::MAX >> (128 - objects);
        class.chunks[id as usize] = Chunk {
            free: [all as u64, (all >> 64) as u64],
            page,
            listed_at: class.nonfull.len() as u32,
            free_count: objects as u32,
        };
        class.nonfull.push(id);
        class.free_objects += objects as u64;
        class.live_chunks += 1;
        self.meta_bytes.fetch_add(class.meta_bytes().wrapping_sub(meta_before), Ordering::Relaxed);
        let within = page as usize % (1 << SEGMENT_SHIFT);
        self.segment(page).chunk_of_page.half_to_write(within).store(id, Ordering::Relaxed);
        Ok(id)
    }

    /// Pages for a chunk: warm ones if there are, else given-back ones, else new address space.
    fn take_run(&self, pages: usize, limit_bytes: u64) -> Result<u32, PoolFull> {
        let mut runs = lock(&self.runs);
        runs.traffic += 1;
        if let Some(page) = runs.warm[pages].pop() {
            runs.warm_pages -= pages;
            return Ok(page);
        }
        let new_bytes = (pages * PAGE_SIZE) as u64;
        if self.ram_bytes() + new_bytes > limit_bytes {
            self.cool(&mut runs, 0);
            if self.ram_bytes() + new_bytes > limit_bytes {
                return Err(PoolFull);
            }
        }
        // A longer cold run is cut up before new address space is taken.
        let found = (pages..=CHUNK_PAGES_MAX).find_map(|len| runs.cold[len].pop().map(|page| (page, len)));
        let page = match found {
            Some((page, len)) => {
                if len > pages {
                    runs.cold[len - pages].push(page + pages as u32);
                }
                page
            }
            None => self.new_run(&mut runs, pages)?,
        };
        self.resident_pages.fetch_add(pages as u64, Ordering::Relaxed);
        Ok(page)
    }

    fn new_run(&self, runs: &mut PageRuns, pages: usize) -> Result<u32, PoolFull> {
        // A chunk lies in one segment: what is left of the last one is used for shorter runs.
        let left = (1 << SEGMENT_SHIFT) - runs.next_page as usize % (1 << SEGMENT_SHIFT);
        if left < pages {
            let rest = runs.next_page;
            runs.cold[left].push(rest);
            runs.next_page += left as u32;
        }
        let page = runs.next_page;
        let Some(slot) = self.segments.get((page >> SEGMENT_SHIFT) as usize) else {
            return Err(PoolFull);
        };
        if slot.get().is_none() {
            let part = self.file.as_ref().map(|file| PartOf { file: file.fd(), offset: offset_of(page) });
            let data = Mapping::of(part, PAGE_SIZE << SEGMENT_SHIFT).map_err(|_| PoolFull)?;
            let chunk_of_page = ZeroTable::new(4 << SEGMENT_SHIFT).map_err(|_| PoolFull)?;
            let _ = slot.set(Box::new(Segment { data, chunk_of_page }));
        }
        runs.next_page += pages as u32;
        Ok(page)
    }

    fn give_run(&self, page: u32, pages: usize) {
        let mut runs = lock(&self.runs);
        runs.traffic += 1;
        runs.warm[pages].push(page);
        runs.warm_pages += pages;
        if runs.warm_pages > WARM_PAGES_MAX {
            self.cool(&mut runs, WARM_PAGES_MAX / 2);
        }
    }

    /// Give warm runs back until at most `keep_pages` are left.
    fn cool(&self, runs: &mut PageRuns, keep_pages: usize) {
        for len in (1..=CHUNK_PAGES_MAX).rev() {
            while runs.warm_pages > keep_pages
                && let Some(page) = runs.warm[len].pop()
            {
                let start = page as usize % (1 << SEGMENT_SHIFT) * PAGE_SIZE;
                self.segment(page).data.release(start..start + len * PAGE_SIZE);
                runs.cold[len].push(page);
                runs.warm_pages -= len;
                self.resident_pages.fetch_sub(len as u64, Ordering::Relaxed);
            }
        }
    }

    /// Give the warm pages back if no chunk has come or gone since the last call of this.
    pub fn trim_if_idle(&self) {
        let mut runs = lock(&self.runs);
        if runs.traffic == runs.traffic_seen {
            self.cool(&mut runs, 0);
        }
        runs.traffic_seen = runs.traffic;
    }

    /// Give every warm page back to the system.
    pub fn trim(&self) {
        self.cool(&mut lock(&self.runs), 0);
    }

    /// Empty sparse chunks into others of their class, moving about `objects_max` objects. For each of them
    /// `relocate(owner, from, to, copy)` is asked: if the owner's word names `from`, it calls `copy`, then
    /// exchanges that very word for one that names `to`, and says whether it could. Returns the objects
    /// moved; 0 when nothing is worth it.
    ///
    /// A class is worth it when more than a sixteenth of its objects are free, and a chunk in it is at most
    /// three quarters full. (An eighth and half left 13 % over the compressed bytes after churn; this leaves
    /// 9 to 10 %, and a move costs some 0.3 µs off the fault path.)
    pub fn compact(
        &self,
        objects_max: usize,
        mut relocate: impl FnMut(u32, Handle, Handle, &dyn Fn()) -> bool,
    ) -> usize {
        let mut moved = 0;
        for (class_index, slot) in self.classes.iter().enumerate() {
            while moved < objects_max {
                let step = self.compact_chunk(&slot.0, self.shapes[class_index], &mut relocate);
                if step == 0 {
                    break;
                }
                moved += step;
            }
        }
        moved
    }

    fn compact_chunk(
        &self,
        class: &Mutex<Class>,
        shape: Shape,
        relocate: &mut impl FnMut(u32, Handle, Handle, &dyn Fn()) -> bool,
    ) -> usize {
        let objects = u64::from(shape.objects);
        let mut class = lock(class);
        if objects < 2 || class.free_objects * 16 <= class.live_chunks * objects || class.nonfull.len() < 2 {
            return 0;
        }
        // Another part of the list each time: an object that cannot be moved now must not hold up the others.
        class.sampled_from = (class.sampled_from + 37) % class.nonfull.len();
        let from = class.sample(|chunk| chunk.free_count);
        let chunk = &class.chunks[from as usize];
        let used = objects - u64::from(chunk.free_count);
        if used * 4 > objects * 3 || class.free_objects - u64::from(chunk.free_count) < used {
            return 0;
        }
        let (page, free) = (chunk.page, u128::from(chunk.free[1]) << 64 | u128::from(chunk.free[0]));
        // Off the list while its objects look for another place.
        class.unlist(from);
        let mut moved = Vec::with_capacity(used as usize);
        for object in (0..shape.objects).filter(|object| free >> object & 1 == 0) {
            if class.nonfull.is_empty() {
                break;
            }
            // The fullest: every move makes full chunks fuller, so that this ends.
            let into = class.sample(|chunk| u32::MAX - chunk.free_count);
            let owner = class.owners[from as usize * usize::from(shape.objects) + usize::from(object)];
            let old = Handle { page, object };
            let new = class.take(into, shape, owner);
            // As in `store`.
            fence(Ordering::Release);
            let copy = || {
                let object_bytes = shape.object_bytes as usize;
                for (source, target) in
                    self.words(old, object_bytes).iter().zip(self.words(new, object_bytes))
                {
                    target.store(source.load(Ordering::Relaxed), Ordering::Relaxed);
                }
            };
            if relocate(owner, old, new, &copy) {
                moved.push(object);
            } else {
                // Being stored, freed or written back: it stays with the thread that does so.
                class.put(into, shape, new.object);
            }
        }
        // Back on the list: it had free objects before (it was found there).
        class.chunks[from as usize].listed_at = class.nonfull.len() as u32;
        class.nonfull.push(from);
        let mut empty = false;
        for object in &moved {
            empty = class.put(from, shape, *object);
        }
        if empty {
            self.drop_chunk(&mut class, from, shape);
        }
        moved.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_fits_its_class() {
        let pool = Pool::default();
        for len in 1..=PAGE_SIZE {
            let shape = pool.shapes[pool.class_of(len)];
            assert!(shape.object_bytes as usize >= len);
            assert!(
                usize::from(shape.objects) * shape.object_bytes as usize
                    <= usize::from(shape.pages) * PAGE_SIZE
            );
            assert!(usize::from(shape.objects) <= CHUNK_OBJECTS_MAX);
        }
        assert_eq!(pool.shapes[pool.class_of(4096)], Shape { object_bytes: 4096, pages: 1, objects: 1 });
    }

    #[test]
    fn bytes_survive_and_memory_returns() {
        let pool = Pool::default();
        let mut live = Vec::new();
        for round in 0..3u32 {
            for i in 0..3000u32 {
                let len = 1 + (i as usize * 37 + round as usize * 11) % 4096;
                let bytes: Vec<u8> = (0..len).map(|at| (at as u32 ^ i ^ round) as u8).collect();
                live.push((pool.store(i, &bytes, u64::MAX).unwrap(), bytes));
            }
            for (handle, bytes) in &live {
                let mut back = vec![0; bytes.len()];
                pool.copy_out(*handle, &mut back);
                assert_eq!(&back, bytes);
            }
            // Every second one goes, then the rest.
            let mut index = 0;
            live.retain(|(handle, bytes)| {
                index += 1;
                if index % 2 == 0 {
                    pool.free(*handle, bytes.len());
                }
                index % 2 != 0
            });
            for (handle, bytes) in live.drain(..) {
                pool.free(handle, bytes.len());
            }
        }
        pool.trim();
        assert_eq!(pool.ram_bytes(), 0);
    }

    #[test]
    #[should_panic(expected = "double free")]
    fn double_free_is_caught() {
        let pool = Pool::default();
        let first = pool.store(1, &[1; 100], u64::MAX).unwrap();
        let _second = pool.store(2, &[2; 100], u64::MAX).unwrap();
        pool.free(first, 100);
        pool.free(first, 100);
    }

    #[test]
    fn limit_holds_and_room_returns() {
        let pool = Pool::default();
        let limit_bytes = 1 << 20;
        let mut live = Vec::new();
        while let Ok(handle) = pool.store(0, &[5; 1000], limit_bytes) {
            live.push(handle);
        }
        assert!(pool.ram_bytes() <= limit_bytes);
        assert!(live.len() > 900, "only {} objects of 1000 bytes in 1 MiB", live.len());
        for handle in live.drain(..) {
            pool.free(handle, 1000);
        }
        pool.store(0, &[5; 4096], limit_bytes).unwrap();
    }

    #[test]
    fn compaction_gives_sparse_chunks_back_and_keeps_bytes() {
        let pool = Pool::default();
        let body = |i: u32| -> Vec<u8> { (0..700u32).map(|at| (at * 3 + i) as u8).collect() };
        let mut table: Vec<Option<Handle>> =
            (0..4000).map(|i| Some(pool.store(i, &body(i), u64::MAX).unwrap())).collect();
        let full = pool.ram_bytes();
        for (_, held) in table.iter_mut().enumerate().filter(|(i, _)| i % 5 != 0) {
            pool.free(held.take().unwrap(), 700);
        }
        pool.trim();
        assert!(pool.ram_bytes() > full * 9 / 10, "without compaction the chunks stay");
        let mut asked = 0;
        while pool.compact(100, |owner, from, to, copy| {
            let held = table[owner as usize].as_mut().unwrap();
            assert_eq!(*held, from, "the owner is the one who stored it");
            // Some are held by their owner's thread for a moment, and must stay where they are.
            asked += 1;
            let may = asked % 9 != 0;
            if may {
                copy();
                *held = to;
            }
            may
        }) > 0
        {}
        pool.trim();
        assert!(pool.ram_bytes() < full / 2, "{} of {full} bytes after compaction", pool.ram_bytes());
        for (i, handle) in table.iter().enumerate().filter_map(|(i, handle)| handle.map(|h| (i, h))) {
            let mut back = vec![0; 700];
            pool.copy_out(handle, &mut back);
            assert_eq!(back, body(i as u32));
            pool.free(handle, 700);
        }
        pool.trim();
        assert_eq!(pool.ram_bytes(), 0);
    }
}
