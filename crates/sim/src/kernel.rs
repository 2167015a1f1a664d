//! The kernel's part around the engine's, in simulations of the kernel: the lists of pages that each node
//! has, under one lock for all processes, and what it does for a fault beside swap.
//!
//! ```text
//!   fault   ─▶ its page is put on the list of the CPU's node, with the batch's others     a hold for a batch
//!   reclaim ─▶ 32 folios at a time leave the lists, before anything is unmapped           some holds for 32
//!           a line of a hold: the list's head; for each folio the one that it stands next to
//! ```
//!
//! Facts of each version stand with its constant. What it does not do: choose pages (the engine does).

use memspill_vcpu::{GuardedLines, Mutex};

/// What differs between versions and loads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    /// Folios that a CPU puts on a list in one hold: those that a fault brings.
    pub added: u32,
    /// Holds in which 32 folios are moved, of those that leave.
    pub moves: u32,
    /// One line counts what enters the swap cache and leaves it, under its locks, and the looks into it.
    pub counts_cache: bool,
    /// Nanoseconds that a fault takes beside swap: what the kernel does in that load, without waiting.
    pub fault_ns: u64,
}

/// Until 5.7 a page that is swapped in is put on the list when it is charged; new pages come to the active
/// list, and from there to the inactive one, before they leave; `swap_cache_info` is one line.
pub const OF_2020: Form = Form { added: 1, moves: 3, counts_cache: true, fault_ns: 0 };
/// Since 5.9 new pages come to the inactive list; PAGEVEC_SIZE.
pub const OF_2024: Form = Form { added: 15, moves: 1, counts_cache: false, fault_ns: 0 };

/// PAGEVEC_SIZE since 6.10.
pub const OF_2025: Form = Form { added: 31, ..OF_2024 };

/// Folios that reclaim takes off a list together: SWAP_CLUSTER_MAX.
const TAKEN: usize = 32;
/// Folios next to each other whose lines are told apart.
const NEIGHBOURS: usize = 128;

/// The lists of pages of one node.
struct NodeLru {
    head: GuardedLines,
    folios: GuardedLines,
    next: usize,
}

impl NodeLru {
    fn new() -> NodeLru {
        NodeLru { head: GuardedLines::new(1), folios: GuardedLines::new(NEIGHBOURS), next: 0 }
    }

    fn link(&mut self, folios: usize) {
        self.head.write(0);
        for _ in 0..folios {
            self.folios.write(self.next);
            self.next += 1;
        }
    }
}

pub struct Kernel {
    pub form: Form,
    cpus_per_node: u32,
    nodes: Vec<Mutex<NodeLru>>,
}

impl Kernel {
    pub fn new(form: Form, cpus: u32, cpus_per_node: u32) -> Kernel {
        let nodes = (0..cpus.div_ceil(cpus_per_node)).map(|_| Mutex::new(NodeLru::new())).collect();
        Kernel { form, cpus_per_node, nodes }
    }

    fn node(&self, cpu: u32) -> &Mutex<NodeLru> {
        &self.nodes[(cpu / self.cpus_per_node) as usize % self.nodes.len()]
    }

    /// A fault has brought a folio; `waiting` are those of this CPU that are on no list yet.
    pub fn add(&self, cpu: u32, waiting: &mut u32) {
        *waiting += 1;
        if *waiting >= self.form.added {
            self.node(cpu).lock().expect("lru").link(*waiting as usize);
            *waiting = 0;
        }
    }

    /// Reclaim takes so many folios off the lists, and puts back what it does not take out.
    pub fn isolate(&self, cpu: u32, folios: usize) {
        for first in (0..folios).step_by(TAKEN) {
            for _ in 0..self.form.moves {
                self.node(cpu).lock().expect("lru").link(TAKEN.min(folios - first));
            }
            self.node(cpu).lock().expect("lru").link(0);
        }
    }
}
