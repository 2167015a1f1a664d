//! Compiles the engine's sources for virtual CPUs: `sync.rs` looks at this cfg, nothing else does.

fn main() {
    println!("cargo::rustc-cfg=simulated");
    println!("cargo::rerun-if-changed=build.rs");
}
