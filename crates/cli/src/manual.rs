//! `memspill man DIR`: the man pages, one for each subcommand, from the definitions of the options (args.rs).
//!
//! clap_mangen makes all sections but the last: what stands below the options in `--help` is tables and
//! examples, whose lines must stay as they are. The crate fills lines into paragraphs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::exit;
use crate::message::words;

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ManArgs {
    /// Where to: made if it is not there
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  memspill man ~/.local/share/man/man1 && man memspill-run";

/// `cli` is the whole command line of memspill. Returns the exit code.
pub fn man(args: &ManArgs, cli: Command) -> u8 {
    match write_pages(&args.dir, cli) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("memspill: cannot write man pages to {}: {}", args.dir.display(), words(&error));
            exit::FAILED
        }
    }
}

fn write_pages(dir: &Path, cli: Command) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let mut command = cli.disable_help_subcommand(true);
    command.build();
    for (name, page) in pages(&command)? {
        fs::write(dir.join(name), page)?;
    }
    Ok(())
}

/// File name and text of the page of `command`, and of all that are below it and not hidden.
fn pages(command: &Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    // No date, so that the same sources make the same pages. It is written as it stands here: with an empty
    // one the rest of its line would move up.
    let source = concat!("memspill ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).date("\"\"").source(source).manual("");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|sub| !sub.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    last_sections(command).to_writer(&mut page)?;
    let mut pages = vec![(man.get_filename(), page)];
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        pages.extend(self::pages(sub)?);
    }
    Ok(pages)
}

/// What stands below the options in `--help`: notes, and examples; then the page of all of memspill.
fn last_sections(command: &Command) -> Roff {
    let mut roff = Roff::default();
    let text = command.get_after_help().map(|text| text.to_string()).unwrap_or_default();
    let (notes, examples) = match text.split_once("Examples:\n") {
        Some((notes, examples)) => (notes, examples),
        None => (&text[..], ""),
    };
    for (heading, text) in [("NOTES", notes), ("EXAMPLES", examples)] {
        if text.trim().is_empty() {
            continue;
        }
        roff.control("SH", [heading]);
        roff.control("nf", []);
        for line in text.trim_end().lines() {
            roff.text([roman(line)]);
        }
        roff.control("fi", []);
    }
    if command.get_name() != "memspill" {
        roff.control("SH", ["SEE ALSO"]);
        roff.text([bold("memspill"), roman("(1)")]);
    }
    roff
}
