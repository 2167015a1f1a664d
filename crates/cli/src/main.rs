//! The memspill command: see the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    memspill_cli::main()
}
