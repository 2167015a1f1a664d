//! include/memspill.h says what `src/c.rs` has. With MEMSPILL_WRITE_HEADER=1 in its environment this test
//! writes it.

#[test]
fn the_header_is_up_to_date() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let made = cbindgen::Builder::new()
        .with_config(config)
        .with_src(folder.join("src/c.rs"))
        .with_src(folder.join("src/arena.rs"))
        .generate()
        .unwrap();
    let mut text = Vec::new();
    made.write(&mut text);
    let text = String::from_utf8(text).unwrap();
    let header = folder.join("include/memspill.h");
    if std::env::var_os("MEMSPILL_WRITE_HEADER").is_some() {
        std::fs::write(&header, &text).unwrap();
    }
    let kept = std::fs::read_to_string(header).unwrap_or_default();
    assert!(kept == text, "stale: MEMSPILL_WRITE_HEADER=1 cargo test -p memspill-arena --test header");
}
