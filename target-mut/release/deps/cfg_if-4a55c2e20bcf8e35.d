/work/wt-swapoff/target-mut/release/deps/cfg_if-4a55c2e20bcf8e35.d: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/cfg-if-1.0.5/src/lib.rs

/work/wt-swapoff/target-mut/release/deps/libcfg_if-4a55c2e20bcf8e35.rlib: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/cfg-if-1.0.5/src/lib.rs

/work/wt-swapoff/target-mut/release/deps/libcfg_if-4a55c2e20bcf8e35.rmeta: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/cfg-if-1.0.5/src/lib.rs

/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/cfg-if-1.0.5/src/lib.rs:
