//! Paging by windows (`src/agent/pages/`) in real processes, with the store of `windows/store.c`: the
//! verifier, of which each rule that it rests on is left out once, to show that it would be found; what a
//! program sees of its own faults; and programs as they are, of which about half is always away: their output
//! must be the same. A test that lacks what it needs here says so and passes.

#![cfg(target_arch = "x86_64")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

mod program;
use program::doors::{ENV_DISPATCH, ENV_WINDOWS};
use program::{TEST_AGENT_SO, output, text};

struct Built {
    verify: PathBuf,
    cases: PathBuf,
    /// The program of `dispatch.rs`, whose pager is by windows.
    dispatch: PathBuf,
    agent: PathBuf,
    evictor: PathBuf,
}

/// The programs, compiled, or None where there is no C compiler, or the kernel lacks something.
fn built() -> Option<&'static Built> {
    static BUILT: OnceLock<Option<Built>> = OnceLock::new();
    BUILT.get_or_init(build).as_ref()
}

fn build() -> Option<Built> {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = |name| dir.join(name);
    let built = Built {
        verify: path("windows-verify"),
        cases: path("windows-cases"),
        dispatch: path("windows-dispatch"),
        agent: path("windows-agent.so"),
        evictor: path("windows-evictor.so"),
    };
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/windows");
    const DISPATCH: [&str; 5] = ["main.c", "lost.c", "calls.c", "signals.c", "threads.c"];
    let dispatch = DISPATCH.map(|name| format!("../dispatch/{name}"));
    let mut pager: Vec<&str> = dispatch.iter().map(String::as_str).collect();
    pager.push("pager.c");
    let shared = ["-shared", "-fPIC", "-fno-stack-protector"];
    for (files, out, flags) in [
        (&["verify.c"][..], &built.verify, &[][..]),
        (&["cases.c"], &built.cases, &[]),
        (&pager, &built.dispatch, &[]),
        (&["evictor.c"], &built.evictor, &shared),
    ] {
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-g", "-pthread"]).args(flags).arg("-o").arg(out);
        cc.arg(sources.join("store.c")).args(files.iter().map(|name| sources.join(name)));
        let Ok(status) = cc.status() else {
            eprintln!("SKIPPED: no C compiler (cc)");
            return None;
        };
        assert!(status.success(), "{files:?} do not compile");
    }
    std::fs::write(&built.agent, TEST_AGENT_SO).unwrap();
    let said = output(Command::new("true").env("LD_PRELOAD", &built.agent).envs(page(None)));
    if !said.stderr.is_empty() {
        eprintln!("SKIPPED: {}", text(&said.stderr));
        return None;
    }
    Some(built)
}

/// What switches it on.
fn page(without: Option<&'static str>) -> [(&'static str, &'static str); 2] {
    [(ENV_DISPATCH, "1"), (ENV_WINDOWS, without.unwrap_or("1"))]
}

/// One at a time: what is looked for are races, which the others would only slow down.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn paged(program: &Path, built: &Built, without: Option<&'static str>) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", &built.agent).envs(page(without));
    command
}

/// Runs the verifier: whether nothing was wrong, and what it says.
fn verify(args: &[&str], without: Option<&'static str>) -> Option<(bool, String)> {
    let built = built()?;
    let _turn = turn();
    let output = output(paged(&built.verify, built, without).args(args));
    let said = text(&output.stdout) + &text(&output.stderr);
    println!("{args:?}: {said}");
    Some((output.status.success() && said.contains(" 0 slots left, 0 wrong"), said))
}

/// In memory with markers, and in memory that is registered with a userfaultfd, where there is one.
fn holds(args: &[&str]) {
    holds_with(args, None);
    if can_register() {
        holds_with(args, REGISTERED);
    }
}

const REGISTERED: Option<&str> = Some("registered");

fn can_register() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let Some(built) = built() else { return false };
        let tried = output(Command::new("true").env("LD_PRELOAD", &built.agent).envs(page(REGISTERED)));
        if !tried.stderr.is_empty() {
            eprintln!("SKIPPED in registered memory: {}", text(&tried.stderr));
        }
        tried.stderr.is_empty()
    })
}

fn holds_with(args: &[&str], how: Option<&'static str>) {
    if let Some((is_right, said)) = verify(args, how) {
        assert!(is_right, "{said}");
        let count = |what: &str| -> u64 {
            let before = said.split(what).next().unwrap();
            before.rsplit(' ').next().unwrap_or("0").parse().unwrap_or(0)
        };
        assert!(count(" taken out") > 500 && count(" brought") > 500, "too little happened: {said}");
    }
}

#[test]
fn no_word_is_lost() {
    holds(&["1"]);
}

#[test]
fn no_word_is_lost_in_changes() {
    holds(&["1", "changes"]);
}

#[test]
fn no_word_is_lost_in_calls() {
    holds(&["1", "calls"]);
}

#[test]
fn no_word_is_lost_in_forks() {
    holds(&["1", "forks"]);
}

#[test]
fn no_word_is_lost_in_all_of_it_at_once() {
    holds(&["2", "changes", "calls", "forks"]);
}

#[test]
fn no_word_is_lost_in_huge_pages() {
    holds(&["1", "huge", "changes"]);
}

#[test]
fn no_word_is_lost_by_one_thread() {
    holds(&["1", "alone", "forks"]);
}

/// Runs until the verifier finds what is wrong: without the rule something is.
fn is_found(args: &[&str], without: &'static str) {
    for _ in 0..5 {
        match verify(args, Some(without)) {
            Some((true, _)) => {}
            Some((false, said)) => return println!("{said}"),
            None => return,
        }
    }
    panic!("{without} finds nothing");
}

#[test]
fn zapping_pages_that_can_be_read_is_found() {
    is_found(&["3"], "without-none");
}

#[test]
fn filling_pages_that_can_be_accessed_is_found() {
    is_found(&["2"], "without-window");
}

#[test]
fn taking_out_what_calls_use_is_found() {
    is_found(&["2", "calls"], "without-in-use");
}

/// As above, of calls that come without a trap.
#[test]
fn taking_out_what_calls_from_rewritten_sites_use_is_found() {
    let Some((_, said)) = verify(&["0.1", "calls"], None) else { return };
    if said.contains(" 0 sites") {
        return eprintln!("SKIPPED: this C library's write is not rewritten");
    }
    is_found(&["2", "calls"], "without-sites");
}

#[test]
fn a_program_sees_its_own_faults_and_changes_as_ever() {
    let Some(built) = built() else { return };
    let list = text(&output(&mut Command::new(&built.cases)).stdout);
    let names: Vec<&str> = list.lines().filter(|name| *name != "cost").collect();
    assert!(names.len() > 5);
    for (name, how) in names.iter().flat_map(|name| [(name, None), (name, REGISTERED)]) {
        if how.is_some() && !can_register() {
            continue;
        }
        let _turn = turn();
        let output = output(paged(&built.cases, built, how).arg(name));
        let said = text(&output.stdout) + &text(&output.stderr);
        let is_right = output.status.success() && said.ends_with("ok\n");
        assert!(is_right, "{name} {how:?}: {}\n{said}", output.status);
    }
}

/// The tests of the dispatch: calls that fail halfway, each line of the table, signals, threads and forks.
#[test]
fn calls_find_their_pages() {
    let Some(built) = built() else { return };
    let list = text(&output(&mut Command::new(&built.dispatch)).stdout);
    let names: Vec<&str> = list.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    assert!(names.len() > 20);
    for (name, how) in names.iter().flat_map(|name| [(name, None), (name, REGISTERED)]) {
        if how.is_some() && !can_register() {
            continue;
        }
        let _turn = turn();
        let output = output(paged(&built.dispatch, built, how).args([name, "armed"]));
        let said = text(&output.stdout) + &text(&output.stderr);
        let is_skipped = said.starts_with("SKIPPED");
        assert!(is_skipped || said.ends_with("ok\n"), "{name} {how:?}: {}\n{said}", output.status);
    }
}

/// Runs a command of the shell's as it is and paged; both must say the same.
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
    let _turn = turn();
    let mut said = Vec::new();
    let tally = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("windows-{}.tally", needs.join("-")));
    let _ = std::fs::remove_file(&tally);
    for is_paged in [false, true] {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("windows-{}", needs.join("-")));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        let mut command = Command::new("bash");
        command.args(["-c", script]).current_dir(&dir);
        if is_paged {
            // The last one begins first.
            let libraries = [&built.evictor, &built.agent].map(|path| path.to_str().unwrap()).join(" ");
            command.env("LD_PRELOAD", libraries).envs(page(None)).env("EVICTOR_TALLY", &tally);
        }
        let Output { status, stdout, stderr } = output(&mut command);
        said.push((status, text(&stdout), text(&stderr)));
    }
    assert_eq!(said[0], said[1]);
    assert!(said[0].0.success(), "{:?}", said[0]);
    let brought: u64 =
        std::fs::read_to_string(&tally).unwrap().lines().filter_map(|line| line.parse::<u64>().ok()).sum();
    println!("{needs:?}: {brought} pages brought");
    assert!(brought > 100, "only {brought} pages were away");
}

#[test]
fn bash_is_as_ever() {
    same(
        &["bash"],
        "for i in $(seq 200); do echo $((i * i)); done | cat | wc
        trap 'echo signal' USR1; (kill -USR1 $$); sleep 0.1 & wait $!; (exit 3); echo $?
        x=$(for i in $(seq 40); do /bin/echo $i; done); echo $x
        a=(); for i in $(seq 20000); do a[$i]=x$i; done
        for i in $(seq 1 7 20000); do echo ${a[$i]}; done | md5sum
        cat <(echo one) <(echo two); timeout 0.1 sleep 5; echo $?; echo three > file; cat < file",
    );
}

#[test]
#[ignore = "half a minute; bash and python stand for it"]
fn sort_and_gcc_are_as_ever() {
    same(
        &["sort", "gcc"],
        "seq 200000 | sort -R --random-source=/bin/sh | sort -n --parallel=2 -S 30M | sha256sum
        printf '#include <stdio.h>\\n#include <stdlib.h>\\nint main(){puts(\"compiled\");return 0;}' > a.c
        gcc -O2 -pipe -o a a.c && ./a",
    );
}

#[test]
fn python_is_as_ever() {
    same(
        &["python3"],
        "python3 -W ignore -c '
import subprocess, threading, os, signal, socket, multiprocessing, hashlib, select
print(subprocess.run([\"ls\", \"/\"], capture_output=True).stdout)
done = []
def add(i): done.append(hashlib.sha1(b\"x\" * i).hexdigest())
threads = [threading.Thread(target=add, args=(i,)) for i in range(30)]
[t.start() for t in threads]; [t.join() for t in threads]; print(sorted(done))
table = {i: str(i) * 3 for i in range(150000)}
print(sum(len(table[i * 7919 % 150000]) for i in range(150000)))
signal.signal(signal.SIGALRM, lambda *a: print(\"alarm\"))
import time; signal.setitimer(signal.ITIMER_REAL, 0.05); time.sleep(0.5)
a, b = socket.socketpair(); a.send(b\"hello\"); print(select.select([b], [], [], 1)[0] == [b], b.recv(10))
with multiprocessing.Pool(3) as pool: print(pool.map(abs, range(-50, 0)))
pid = os.fork()
if pid == 0: os._exit(5 if sum(len(v) for v in table.values()) == 2666670 else 6)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
'",
    );
}

#[test]
#[ignore = "half a minute; bash and python stand for it"]
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
#[ignore = "half a minute; bash and python stand for it"]
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
#[ignore = "half a minute; bash and python stand for it"]
fn redis_is_as_ever() {
    same(
        &["redis-server", "redis-cli"],
        "redis-server --port 0 --unixsocket $PWD/s --save '' --enable-debug-command yes > log 2>&1 &
        for i in $(seq 100); do redis-cli -s s ping > /dev/null 2>&1 && break; sleep 0.05; done
        redis-cli -s s debug populate 20000 > /dev/null; redis-cli -s s debug digest
        redis-cli -s s save; redis-cli -s s bgsave > /dev/null; sleep 1
        redis-cli -s s debug reload; redis-cli -s s debug digest; redis-cli -s s shutdown nosave; wait",
    );
}
