//! The program `memspill-workload`: see the library, which is all of it.

use std::process::ExitCode;

use memspill_workloads::command::{self, Program};

fn main() -> ExitCode {
    command::main(&Program { name: "memspill-workload", prefix: &[] }, std::env::args_os().skip(1))
}
