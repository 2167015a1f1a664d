/work/wt-swapoff/target-mut/release/deps/rand_xorshift-eca44b96a42368ac.d: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/rand_xorshift-0.5.0/src/lib.rs

/work/wt-swapoff/target-mut/release/deps/librand_xorshift-eca44b96a42368ac.rlib: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/rand_xorshift-0.5.0/src/lib.rs

/work/wt-swapoff/target-mut/release/deps/librand_xorshift-eca44b96a42368ac.rmeta: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/rand_xorshift-0.5.0/src/lib.rs

/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/rand_xorshift-0.5.0/src/lib.rs:
