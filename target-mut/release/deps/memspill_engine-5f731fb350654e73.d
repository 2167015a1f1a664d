/work/wt-swapoff/target-mut/release/deps/memspill_engine-5f731fb350654e73.d: crates/engine/src/lib.rs crates/engine/src/backing.rs crates/engine/src/cgroup_map.rs crates/engine/src/check.rs crates/engine/src/devices.rs crates/engine/src/engine.rs crates/engine/src/errors.rs crates/engine/src/gate.rs crates/engine/src/group.rs crates/engine/src/memory.rs crates/engine/src/readahead.rs crates/engine/src/reclaim/mod.rs crates/engine/src/reclaim/lru.rs crates/engine/src/reclaim/victim.rs crates/engine/src/slots/mod.rs crates/engine/src/slots/allocator.rs crates/engine/src/slots/cluster.rs crates/engine/src/slots/lazy.rs crates/engine/src/slots/lists.rs crates/engine/src/slots/percpu.rs crates/engine/src/slots/scan.rs crates/engine/src/slots/slot_word.rs crates/engine/src/space.rs crates/engine/src/stats.rs crates/engine/src/swap_in.rs crates/engine/src/swap_out.rs crates/engine/src/swapoff.rs crates/engine/src/sync.rs crates/engine/src/tuning.rs crates/engine/src/units.rs crates/engine/src/word.rs

/work/wt-swapoff/target-mut/release/deps/libmemspill_engine-5f731fb350654e73.rlib: crates/engine/src/lib.rs crates/engine/src/backing.rs crates/engine/src/cgroup_map.rs crates/engine/src/check.rs crates/engine/src/devices.rs crates/engine/src/engine.rs crates/engine/src/errors.rs crates/engine/src/gate.rs crates/engine/src/group.rs crates/engine/src/memory.rs crates/engine/src/readahead.rs crates/engine/src/reclaim/mod.rs crates/engine/src/reclaim/lru.rs crates/engine/src/reclaim/victim.rs crates/engine/src/slots/mod.rs crates/engine/src/slots/allocator.rs crates/engine/src/slots/cluster.rs crates/engine/src/slots/lazy.rs crates/engine/src/slots/lists.rs crates/engine/src/slots/percpu.rs crates/engine/src/slots/scan.rs crates/engine/src/slots/slot_word.rs crates/engine/src/space.rs crates/engine/src/stats.rs crates/engine/src/swap_in.rs crates/engine/src/swap_out.rs crates/engine/src/swapoff.rs crates/engine/src/sync.rs crates/engine/src/tuning.rs crates/engine/src/units.rs crates/engine/src/word.rs

/work/wt-swapoff/target-mut/release/deps/libmemspill_engine-5f731fb350654e73.rmeta: crates/engine/src/lib.rs crates/engine/src/backing.rs crates/engine/src/cgroup_map.rs crates/engine/src/check.rs crates/engine/src/devices.rs crates/engine/src/engine.rs crates/engine/src/errors.rs crates/engine/src/gate.rs crates/engine/src/group.rs crates/engine/src/memory.rs crates/engine/src/readahead.rs crates/engine/src/reclaim/mod.rs crates/engine/src/reclaim/lru.rs crates/engine/src/reclaim/victim.rs crates/engine/src/slots/mod.rs crates/engine/src/slots/allocator.rs crates/engine/src/slots/cluster.rs crates/engine/src/slots/lazy.rs crates/engine/src/slots/lists.rs crates/engine/src/slots/percpu.rs crates/engine/src/slots/scan.rs crates/engine/src/slots/slot_word.rs crates/engine/src/space.rs crates/engine/src/stats.rs crates/engine/src/swap_in.rs crates/engine/src/swap_out.rs crates/engine/src/swapoff.rs crates/engine/src/sync.rs crates/engine/src/tuning.rs crates/engine/src/units.rs crates/engine/src/word.rs

crates/engine/src/lib.rs:
crates/engine/src/backing.rs:
crates/engine/src/cgroup_map.rs:
crates/engine/src/check.rs:
crates/engine/src/devices.rs:
crates/engine/src/engine.rs:
crates/engine/src/errors.rs:
crates/engine/src/gate.rs:
crates/engine/src/group.rs:
crates/engine/src/memory.rs:
crates/engine/src/readahead.rs:
crates/engine/src/reclaim/mod.rs:
crates/engine/src/reclaim/lru.rs:
crates/engine/src/reclaim/victim.rs:
crates/engine/src/slots/mod.rs:
crates/engine/src/slots/allocator.rs:
crates/engine/src/slots/cluster.rs:
crates/engine/src/slots/lazy.rs:
crates/engine/src/slots/lists.rs:
crates/engine/src/slots/percpu.rs:
crates/engine/src/slots/scan.rs:
crates/engine/src/slots/slot_word.rs:
crates/engine/src/space.rs:
crates/engine/src/stats.rs:
crates/engine/src/swap_in.rs:
crates/engine/src/swap_out.rs:
crates/engine/src/swapoff.rs:
crates/engine/src/sync.rs:
crates/engine/src/tuning.rs:
crates/engine/src/units.rs:
crates/engine/src/word.rs:
