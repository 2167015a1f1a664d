/work/wt-swapoff/target-mut/release/deps/engine_model-b14a1b3d0d471e16.d: crates/engine/tests/engine_model.rs crates/engine/tests/common/mod.rs

/work/wt-swapoff/target-mut/release/deps/engine_model-b14a1b3d0d471e16: crates/engine/tests/engine_model.rs crates/engine/tests/common/mod.rs

crates/engine/tests/engine_model.rs:
crates/engine/tests/common/mod.rs:
