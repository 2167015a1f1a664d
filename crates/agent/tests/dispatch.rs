//! The dispatch (`src/agent/trap/`) in real processes: what is lost without it, by the program in
//! `dispatch/`, which pages a part of its own memory (with the dispatch it runs in `windows.rs`); and
//! programs as they are, whose output must be the same with their calls trapped. A test that lacks what it
//! needs here says so and passes.

#![cfg(target_arch = "x86_64")]
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks, reason = "test code: one system call")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use memspill_agent::AGENT_SO;
use memspill_common::call_table::CALLS;

mod program;
use program::doors::{ENV_DISPATCH, ENV_WINDOWS};
use program::{TEST_AGENT_SO, output, text};

const SOURCES: [&str; 6] = ["main.c", "pager.c", "lost.c", "calls.c", "signals.c", "threads.c"];

/// Calls of the table that are not made here: they would change the machine, or need what is not there.
const NOT_MADE: [&str; 13] = [
    "ptrace",
    "reboot",
    "init_module",
    "finit_module",
    "kexec_file_load",
    "fsconfig",
    "fanotify_mark",
    // The kernel touches later what they name.
    "set_tid_address",
    "set_robust_list",
    "rseq",
    // Locked memory cannot be taken out for the second try.
    "mlock",
    "mlock2",
    // In `masks`.
    "rt_sigsuspend",
];

struct Built {
    program: PathBuf,
    agent: PathBuf,
}

/// The compiled program and the agent as a file, or None where there is no C compiler, or no dispatch.
fn built() -> Option<&'static Built> {
    static BUILT: OnceLock<Option<Built>> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            const PR_SET_SYSCALL_USER_DISPATCH: i32 = 59;
            if unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0) } != 0 {
                eprintln!("SKIPPED: no Syscall User Dispatch");
                return None;
            }
            let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
            let (program, agent) = (dir.join("dispatch-target"), dir.join("dispatch-agent.so"));
            let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dispatch");
            let mut cc = Command::new("cc");
            cc.args(["-O1", "-g", "-pthread", "-o"]).arg(&program);
            cc.args(SOURCES.map(|name| sources.join(name)));
            let Ok(status) = cc.status() else {
                eprintln!("SKIPPED: no C compiler (cc)");
                return None;
            };
            assert!(status.success(), "the program does not compile");
            std::fs::write(&agent, TEST_AGENT_SO).unwrap();
            Some(Built { program, agent })
        })
        .as_ref()
}

/// Has a command run with its system calls trapped.
fn trap(command: &mut Command, agent: &Path) {
    command.env("LD_PRELOAD", agent).env(ENV_DISPATCH, "1");
}

/// Runs a test of the program: what it says.
fn say(built: &Built, name: &str) -> String {
    let output = output(Command::new(&built.program).arg(name));
    let mut said = text(&output.stdout);
    if !output.status.success() {
        said += &format!("{}\n", output.status);
    }
    said
}

/// Without the dispatch: else that nothing is lost with it (`windows.rs`) would show nothing.
#[test]
fn something_is_lost_in_calls_that_fail_halfway() {
    let Some(built) = built() else { return };
    let list = text(&Command::new(&built.program).output().unwrap().stdout);
    let names: Vec<&str> = list.lines().filter_map(|line| line.strip_prefix("lost ")).collect();
    assert!(!names.is_empty());
    for name in names {
        let said = say(built, name);
        assert!(said.starts_with("SKIPPED") || !said.ends_with("ok\n"), "{name} holds without the dispatch");
    }
}

#[test]
fn each_line_of_the_table_names_what_its_call_touches() {
    let Some(built) = built() else { return };
    let said = say(built, "table");
    if said.starts_with("SKIPPED") {
        return;
    }
    let rows: BTreeSet<&str> = said.lines().filter_map(|line| line.strip_prefix("row ")).collect();
    for call in CALLS.iter().filter(|call| !call.pointers.is_empty()) {
        let is_made = rows.contains(call.name);
        assert!(is_made || NOT_MADE.contains(&call.name), "{} is in the table, and not made", call.name);
    }
    let failed = said.lines().filter(|line| line.ends_with("without")).count();
    assert!(failed > 150, "only {failed} calls fail where nothing is brought:\n{said}");
}

#[test]
fn the_table_is_in_order() {
    assert!(CALLS.is_sorted_by(|a, b| a.number < b.number));
    assert!(CALLS.iter().all(|call| call.pointers.iter().all(|pointer| pointer.arg < 6)));
}

/// Runs a command of the shell's as it is and trapped; both must say the same.
fn same(needs: &[&str], script: &str) {
    let Some(built) = built() else { return };
    let is_there = |name: &&str| {
        let found = Command::new("sh").args(["-c", "command -v \"$0\"", name]).output().unwrap();
        found.status.success()
    };
    if !needs.iter().all(is_there) {
        eprintln!("SKIPPED: not all of {needs:?} are here");
        return;
    }
    let mut said = Vec::new();
    for trapped in [false, true] {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("dispatch-{}", needs.join("-")));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        let mut command = Command::new("bash");
        command.args(["-c", script]).current_dir(&dir);
        if trapped {
            trap(&mut command, &built.agent);
        }
        let Output { status, stdout, stderr } = output(&mut command);
        said.push((status, text(&stdout), text(&stderr)));
    }
    assert_eq!(said[0], said[1]);
    assert!(said[0].0.success(), "{:?}", said[0]);
}

#[test]
fn bash_is_as_ever() {
    same(
        &["bash"],
        "for i in $(seq 200); do echo $((i * i)); done | cat | wc
        trap 'echo signal' USR1; (kill -USR1 $$); sleep 0.1 & wait $!; (exit 3); echo $?
        x=$(for i in $(seq 40); do /bin/echo $i; done); echo $x
        cat <(echo one) <(echo two); timeout 0.1 sleep 5; echo $?; echo three > file; cat < file",
    );
}

#[test]
fn sort_and_gcc_are_as_ever() {
    same(
        &["sort", "gcc"],
        "seq 300000 | sort -R --random-source=/bin/sh | sort -n --parallel=2 -S 3M | sha256sum
        printf '#include <stdio.h>\\n#include <stdlib.h>\\nint main(){puts(\"compiled\");return 0;}' > a.c
        gcc -O2 -pipe -o a a.c && ./a",
    );
}

#[test]
fn python_is_as_ever() {
    same(
        &["python3"],
        "python3 -c '
import subprocess, threading, os, signal, socket, multiprocessing, hashlib, select
print(subprocess.run([\"ls\", \"/\"], capture_output=True).stdout)
done = []
def add(i): done.append(hashlib.sha1(b\"x\" * i).hexdigest())
threads = [threading.Thread(target=add, args=(i,)) for i in range(30)]
[t.start() for t in threads]; [t.join() for t in threads]; print(sorted(done))
signal.signal(signal.SIGALRM, lambda *a: print(\"alarm\"))
import time; signal.setitimer(signal.ITIMER_REAL, 0.05); time.sleep(0.5)
a, b = socket.socketpair(); a.send(b\"hello\"); print(select.select([b], [], [], 1)[0] == [b], b.recv(10))
with multiprocessing.Pool(3) as pool: print(pool.map(abs, range(-50, 0)))
pid = os.fork()
if pid == 0: os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
'",
    );
}

#[test]
fn node_is_as_ever() {
    same(
        &["node"],
        "node -e '
const fs = require(\"fs\"), cp = require(\"child_process\"), crypto = require(\"crypto\");
const m = new Map(); for (let i = 0; i < 200000; i++) m.set(i, \"v\" + i);
let s = 0; for (const v of m.values()) s += v.length; console.log(s);
fs.writeFileSync(\"f\", \"text\".repeat(100000)); console.log(fs.readFileSync(\"f\").length);
console.log(cp.execSync(\"echo child\").toString());
crypto.pbkdf2(\"a\", \"b\", 1000, 20, \"sha1\", (e, k) => { console.log(k.toString(\"hex\"));
  setTimeout(() => console.log(\"timer\"), 20); });
'",
    );
}

#[test]
fn java_is_as_ever() {
    same(
        &["java", "javac"],
        "cat > A.java <<'EOF'
import java.util.*;
public class A {
    public static void main(String[] a) throws Exception {
        Map<Integer, String> m = new HashMap<>();
        for (int i = 0; i < 200000; i++) m.put(i, \"v\" + i);
        System.gc();
        Thread[] t = new Thread[8];
        long[] sums = new long[8];
        for (int i = 0; i < 8; i++) { int n = i; t[i] = new Thread(() -> {
            for (int k = 0; k < 200000; k++) sums[n] += m.get(k).length() * n; }); t[i].start(); }
        for (Thread x : t) x.join();
        System.out.println(Arrays.toString(sums));
        try { Object o = null; o.hashCode(); } catch (NullPointerException e) { System.out.println(1); }
        Process p = new ProcessBuilder(\"echo\", \"child\").inheritIO().start();
        System.out.println(p.waitFor());
    }
}
EOF
        javac A.java && java -Xmx200m A",
    );
}

#[test]
fn redis_is_as_ever() {
    same(
        &["redis-server", "redis-cli"],
        "redis-server --port 0 --unixsocket $PWD/s --save '' --daemonize no > log 2>&1 &
        for i in $(seq 100); do redis-cli -s s ping > /dev/null 2>&1 && break; sleep 0.05; done
        redis-cli -s s debug populate 20000 > /dev/null; redis-cli -s s debug digest
        redis-cli -s s save; redis-cli -s s bgsave > /dev/null; sleep 0.5
        redis-cli -s s debug reload; redis-cli -s s debug digest; redis-cli -s s shutdown nosave; wait",
    );
}

/// Whether all of the calls of `doors.rs` are ENOSYS, in a process with this agent and its variables.
fn has_no_doors(agent: &[u8]) -> bool {
    const ASK: &str = "import ctypes, sys
call = ctypes.CDLL(None, use_errno=True).syscall
answers = {(call(n, 0, 0, 0), ctypes.get_errno()) for n in range(0x6d73, 0x6d79)}
sys.exit(answers != {(-1, 38)})";
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("doors-agent-{}.so", agent.len()));
    std::fs::write(&file, agent).unwrap();
    let mut python = Command::new("python3");
    python.args(["-c", ASK]).env("LD_PRELOAD", &file).envs([(ENV_DISPATCH, "1"), (ENV_WINDOWS, "1")]);
    output(&mut python).status.success()
}

#[test]
fn the_agent_that_is_shipped_has_no_doors() {
    if built().is_none() || Command::new("python3").arg("-V").output().is_err() {
        eprintln!("SKIPPED: no dispatch, or no python3");
        return;
    }
    assert!(has_no_doors(AGENT_SO));
    assert!(!has_no_doors(TEST_AGENT_SO), "the control: theirs are open");
}
