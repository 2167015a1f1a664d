//! `memspill completions SHELL`: what the shell needs to complete memspill's options, on stdout.
//!
//! Made from the definitions of the options (args.rs) by clap_complete; what is hidden from `--help` is
//! hidden here. Two things are added to what that crate makes. Values that are no path, such as sizes, do not
//! get names of files offered. Words after `--` are a command of its own, and are completed as they would be
//! without memspill; zsh does so already.

use clap::{Arg, Args, Command, ValueEnum, ValueHint};
use clap_complete::generate;
use clap_complete::shells;

use crate::output;

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// bash, zsh or fish
    #[arg(value_name = "SHELL", value_enum, hide_possible_values = true)]
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  memspill completions bash > ~/.local/share/bash-completion/completions/memspill
  memspill completions fish > ~/.config/fish/completions/memspill.fish
  memspill completions zsh > ~/.zfunc/_memspill     (a directory that is in your fpath)";

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// With `complete` of bash: where there is a package bash-completion, its function completes the arguments
/// of the command too; its name was changed in version 2.12.
const BASH_COMMAND: &str = r#"
# What follows -- is a command: it is completed as it is without memspill.
_memspill_or_command() {
    local at
    for ((at = 2; at < COMP_CWORD; at++)); do
        [[ ${COMP_WORDS[at]} == -- ]] || continue
        if declare -F _comp_command_offset >/dev/null; then
            _comp_command_offset $((at + 1))
        elif declare -F _command_offset >/dev/null; then
            _command_offset $((at + 1))
        elif ((COMP_CWORD == at + 1)); then
            COMPREPLY=($(compgen -c -- "$2"))
        fi
        return 0
    done
    _memspill "$@"
}
complete -F _memspill_or_command -o bashdefault -o default memspill
"#;

const FISH_COMMAND: &str = r#"
# What follows -- is a command: it is completed as it is without memspill.
function __fish_memspill_has_command
    contains -- -- (commandline -opc)
end
function __fish_memspill_command
    set -l words (commandline -opc)
    set -l after (math (contains -i -- -- $words) + 1)
    set -l command
    test $after -le (count $words)
    and set command (string escape -- $words[$after..])
    complete -C (string join ' ' -- $command (commandline -ct))
end
complete -c memspill -n __fish_memspill_has_command -x -a '(__fish_memspill_command)'
complete -c memspill -n '__fish_memspill_using_subcommand completions' -f -a 'bash zsh fish'
"#;

/// `cli` is the whole command line of memspill. Returns the exit code.
pub fn completions(args: &CompletionsArgs, cli: &Command) -> u8 {
    output::print(&script(args.shell, cli))
}

fn script(shell: Shell, cli: &Command) -> String {
    let mut command = shown(cli);
    let mut text = Vec::new();
    match shell {
        Shell::Bash => generate(shells::Bash, &mut command, "memspill", &mut text),
        Shell::Zsh => generate(shells::Zsh, &mut command, "memspill", &mut text),
        Shell::Fish => generate(shells::Fish, &mut command, "memspill", &mut text),
    }
    let mut text = String::from_utf8(text).expect("clap's names and help are text");
    text.push_str(match shell {
        Shell::Bash => BASH_COMMAND,
        Shell::Fish => FISH_COMMAND,
        Shell::Zsh => "",
    });
    text
}

/// The same command, of what `--help` shows. (clap_complete offers all options, hidden ones too.) clap keeps
/// names for as long as the process runs, so each name is leaked once.
fn shown(command: &Command) -> Command {
    let name: &'static str = command.get_name().to_owned().leak();
    let mut copy = Command::new(name)
        .disable_help_subcommand(true)
        .args(command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned().map(with_hint))
        .subcommands(command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(shown));
    if let Some(about) = command.get_about() {
        copy = copy.about(about.clone());
    }
    if command.get_version().is_some() {
        copy = copy.version(env!("CARGO_PKG_VERSION"));
    }
    copy
}

/// What a value is: without this, names of files are offered for a size.
fn with_hint(arg: Arg) -> Arg {
    let named = |name: &str| arg.get_value_names().is_some_and(|names| names.iter().any(|n| n == name));
    let hint = match arg.get_value_hint() {
        _ if arg.is_trailing_var_arg_set() => ValueHint::CommandWithArguments,
        ValueHint::AnyPath if named("DIR") => ValueHint::DirPath,
        ValueHint::Unknown if arg.get_action().takes_values() => ValueHint::Other,
        _ => return arg,
    };
    arg.value_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    /// Each option that `--help` shows is offered, and no other.
    #[test]
    fn what_help_shows_is_offered() {
        for shell in Shell::value_variants() {
            let text = script(*shell, &Cli::command());
            for offered in ["memory-max", "swap-dir", "on-thrash", "swapoff", "within", "doctor"] {
                assert!(text.contains(offered), "{shell:?} lacks {offered}");
            }
            for hidden in ["thrash-window", "holes"] {
                assert!(!text.contains(hidden), "{shell:?} offers {hidden}");
            }
        }
    }

    #[test]
    fn values_are_what_they_are() {
        let command = shown(&Cli::command());
        let run = command.find_subcommand("run").unwrap();
        let hint = |name: &str| {
            run.get_arguments().find(|arg| arg.get_id() == name).map(|arg| arg.get_value_hint()).unwrap()
        };
        assert_eq!(hint("memory_max"), ValueHint::Other);
        assert_eq!(hint("swap_dir"), ValueHint::DirPath);
        assert_eq!(hint("stats_json"), ValueHint::AnyPath);
        assert_eq!(hint("command"), ValueHint::CommandWithArguments);
    }
}
