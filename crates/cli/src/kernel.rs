//! `memspill kernel install`: a Jupyter kernel that runs within a memory budget.
//!
//! It writes one file, `kernels/NAME/kernel.json`, where Jupyter looks for kernels: whole paths of memspill
//! and Python, so that it does not matter from where Jupyter is started. Jupyter removes it again
//! (`jupyter kernelspec remove NAME`).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::{Args, Subcommand};
use serde_json::json;

use crate::budget::Budget;
use crate::exit;
use crate::message::{plain, words};
use crate::output;

#[derive(Args, Debug)]
#[command(subcommand_required = true, arg_required_else_help = false)]
pub struct KernelArgs {
    #[command(subcommand)]
    command: KernelCommand,
}

#[derive(Subcommand, Debug)]
enum KernelCommand {
    /// Make a kernel for notebooks, whose Python runs within a memory budget
    #[command(after_help = EXAMPLES)]
    Install(InstallArgs),
}

const EXAMPLES: &str = "\
Examples:
  memspill kernel install -m 4G
  memspill kernel install -m 50% --python .venv/bin/python --name half
  jupyter kernelspec remove memspill-4g";

#[derive(Args, Debug)]
struct InstallArgs {
    /// Memory that the kernel and all that it starts may use; a size, a percentage or auto
    #[arg(short, long, value_name = "SIZE", allow_hyphen_values = true, value_parser = checked_budget)]
    memory_max: String,

    /// The Python that runs the cells; it needs ipykernel
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,

    /// The kernel's name for Jupyter [default: memspill-SIZE]
    #[arg(long, value_name = "NAME", value_parser = checked_name)]
    name: Option<String>,

    /// The name that notebooks show [default: Python 3 in SIZE (memspill)]
    #[arg(long, value_name = "TEXT")]
    display_name: Option<String>,

    /// Install in DIR/share/jupyter, such as the directory of a virtual environment [default: for this user]
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
}

/// As it was typed: `memspill run` reads it again.
fn checked_budget(text: &str) -> Result<String, String> {
    text.parse::<Budget>().map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// As Jupyter has it.
fn checked_name(name: &str) -> Result<String, String> {
    let is_right = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    match !name.is_empty() && !name.starts_with('.') && name.chars().all(is_right) {
        true => Ok(name.to_owned()),
        false => Err("a kernel's name is of letters, digits, '.', '_' and '-'".into()),
    }
}

/// Returns the exit code.
pub fn kernel(args: &KernelArgs) -> u8 {
    let KernelCommand::Install(args) = &args.command;
    match install(args) {
        Ok(said) => output::print(&said),
        Err(reason) => {
            eprintln!("memspill: {}", plain(&reason));
            exit::FAILED
        }
    }
}

fn install(args: &InstallArgs) -> Result<String, String> {
    let memspill =
        std::env::current_exe().map_err(|error| format!("where memspill is: {}", words(&error)))?;
    let python = program(&args.python)?;
    let has_ipykernel = Command::new(&python).args(["-c", "import ipykernel"]).stderr(Stdio::null()).status();
    if !has_ipykernel.is_ok_and(|status| status.success()) {
        let python = python.display();
        return Err(format!(
            "{python} has no ipykernel: {python} -m pip install ipykernel, or name another --python"
        ));
    }
    let name = args.name.clone().unwrap_or_else(|| default_name(&args.memory_max));
    let folder = folder(args.prefix.as_deref())?.join("kernels").join(&name);
    let file = folder.join("kernel.json");
    let spec = spec(&memspill, &args.memory_max, &python, args.display_name.as_deref());
    let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&file, spec));
    written.map_err(|error| format!("{}: {}", file.display(), words(&error)))?;
    Ok(format!(
        "{}\nNotebooks have it as {name}; jupyter kernelspec remove {name} removes it.\n",
        file.display()
    ))
}

/// Its whole path. Links are not followed: a virtual environment's Python is one.
fn program(name: &Path) -> Result<PathBuf, String> {
    let found = if name.components().count() > 1 {
        std::path::absolute(name).ok().filter(|path| path.is_file())
    } else {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&paths).map(|folder| folder.join(name)).find(|path| path.is_file())
    };
    found.ok_or_else(|| format!("{} is not there: name a Python with --python", name.display()))
}

/// Jupyter's folder, by its own rules.
fn folder(prefix: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(prefix) = prefix {
        let whole = std::path::absolute(prefix).map_err(|error| words(&error))?;
        return Ok(whole.join("share/jupyter"));
    }
    let named = |variable| std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
    named("JUPYTER_DATA_DIR")
        .or_else(|| Some(named("XDG_DATA_HOME")?.join("jupyter")))
        .or_else(|| Some(named("HOME")?.join(".local/share/jupyter")))
        .ok_or_else(|| "HOME is not set: say where with --prefix".to_owned())
}

fn default_name(budget: &str) -> String {
    format!("memspill-{}", budget.to_lowercase().trim_end_matches('%'))
}

fn spec(memspill: &Path, budget: &str, python: &Path, display_name: Option<&str>) -> String {
    let shown = display_name.map_or_else(|| format!("Python 3 in {budget} (memspill)"), str::to_owned);
    let (memspill, python) = (memspill.to_string_lossy(), python.to_string_lossy());
    let spec = json!({
        "display_name": shown,
        "language": "python",
        // Otherwise interrupts are signals, the second of which ends a run.
        "interrupt_mode": "message",
        "argv": [
            memspill, "run", "-m", budget, "--",
            python, "-m", "ipykernel_launcher", "-f", "{connection_file}",
        ],
    });
    format!("{spec:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(default_name("1.5G"), "memspill-1.5g");
        assert_eq!(default_name("50%"), "memspill-50");
        assert!(checked_name(&default_name("auto")).is_ok());
        for wrong in ["", "a/b", ".hidden", "a b"] {
            assert!(checked_name(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_python_is_not_what_its_link_leads_to() {
        assert!(program(Path::new("sh")).unwrap().is_absolute());
        assert!(program(Path::new("no-such-python")).unwrap_err().contains("--python"));
        assert!(program(Path::new("./no-such-python")).is_err());
    }
}
