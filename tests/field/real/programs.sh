# Whole programs whose memory is of an uncommon kind, in half of what they take alone. Cases of
# field.sh --real.
CASES+=(boehm yjit zgc shared-array torch-loader joblib perl-forks opcache sbcl chromium firefox gdb strace
    valgrind postgres parallel-join notebook)

# needs PACKAGE COMMAND: skips the case where the command fails.
needs() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || { SKIP="apt-get install $package"; return 1; }
}
# script NAME: reads a script from the standard input; bin/NAME is what it is called then.
script() { cat >"bin/$1" && chmod 755 "bin/$1"; }
python() { needs "python3-$1" /usr/bin/python3 -c "import $1"; }

# A collector that protects its heap to see what is written.
case_boehm() {
    needs libgc-dev test -e /usr/include/gc.h || return 0
    same half -s 120 /usr/bin/env GC_ENABLE_INCREMENTAL=1 "$(build collector && echo "$WORK/bin/collector")"
}

# Code that is compiled at run time, in 128 MiB that are mostly read and executed.
case_yjit() {
    needs ruby ruby --yjit -e 1 || return 0
    same half -s 120 /usr/bin/env ruby --yjit -e \
        'def f(n) n < 2 ? n : f(n - 1) + f(n - 2) end
        a = (0...1_500_000).map { |i| "#{i}" * 3 }; p f(22), a.sum { |s| s.size }'
}

# A heap in a memfd, mapped several times.
case_zgc() {
    needs default-jdk-headless javac -version || return 0
    [ -e classes/Job.class ] || { mkdir -p classes && javac -d classes "$TESTS/programs/Job.java" &&
        chmod 755 classes; } || { no "javac fails"; return; }
    same half -s 240 /usr/bin/env java -XX:+UseZGC -Xmx260m -cp "$WORK/classes" Job 10
}

case_shared-array() {
    python numpy || return 0
    script shared-array <<'END'
#!/usr/bin/python3
import numpy as np
from multiprocessing import Process, shared_memory

def work(name, i, n):
    shared = shared_memory.SharedMemory(name)
    array = np.ndarray((n,), np.float64, buffer=shared.buf)
    array[i::2] = np.sqrt(array[i::2]) + i
    del array
    shared.close()

if __name__ == "__main__":
    n = 12_000_000
    shared = shared_memory.SharedMemory(create=True, size=n * 8)
    array = np.ndarray((n,), np.float64, buffer=shared.buf)
    array[:] = np.arange(n)
    workers = [Process(target=work, args=(shared.name, i, n)) for i in (0, 1)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
    print(array.sum())
    del array
    shared.close()
    shared.unlink()
END
    same half -s 120 "$WORK/bin/shared-array"
}

case_torch-loader() {
    python torch || return 0
    script torch-loader <<'END'
#!/usr/bin/python3
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i):
        return torch.rand(1_000_000, generator=torch.Generator().manual_seed(i))

if __name__ == "__main__":
    torch.set_num_threads(1)
    total, kept = 0.0, []
    for batch in DataLoader(Numbers(), batch_size=4, num_workers=2, prefetch_factor=4):
        total += batch.double().sum().item()
        if len(kept) < 10: kept.append(batch)
    print("%.4f" % total, "%.4f" % sum(k.double().sum().item() for k in kept))
END
    same half -s 240 "$WORK/bin/torch-loader"
}

case_joblib() {
    python sklearn || return 0
    script joblib <<'END'
#!/usr/bin/python3
import numpy as np
from joblib import Parallel, delayed

def part(array, i): return float((array[i::4] ** 2).sum())

if __name__ == "__main__":
    array = np.random.default_rng(4).random((400000, 30))
    parts = Parallel(n_jobs=2, max_nbytes="1M")(delayed(part)(array, i) for i in range(4))
    print([round(v, 3) for v in parts])
END
    same half -s 240 "$WORK/bin/joblib"
}

# Children that write all that they share with their parent.
case_perl-forks() {
    needs perl perl -e 1 || return 0
    script perl-forks <<'END'
#!/usr/bin/perl
my @t = map { { k => $_ } } 1 .. 400000;
for my $child (1 .. 3) {
    next if fork;
    $t[$_]{k}++ for 0 .. $#t;
    my $sum = 0;
    $sum += $_->{k} for @t;
    exit($sum == @t * (@t + 3) / 2 ? 0 : 1);
}
my $bad = 0;
while (wait > 0) { $bad++ if $? }
print "bad: $bad\n";
END
    same half -s 240 "$WORK/bin/perl-forks"
}

case_opcache() {
    needs "php-cli php-opcache" php -m || return 0
    same half -s 120 /usr/bin/env php -d opcache.enable_cli=1 -d opcache.memory_consumption=128 \
        -d memory_limit=-1 -r '$a = []; for ($i = 0; $i < 1500000; $i++) $a[] = "x$i"; echo count($a), "\n";'
}

# An image of which the heap is mapped.
case_sbcl() {
    needs sbcl sbcl --version || return 0
    same half -s 120 /usr/bin/env sbcl --noinform --no-userinit --eval \
        '(let ((x (loop for i below 1500000 collect (format nil "~a" i))))
           (print (reduce (function +) (mapcar (function length) x))) (terpri))' --quit
}

# With its sandbox as a normal user; root has to do without.
case_chromium() {
    needs chromium chromium --version || return 0
    local sandbox=--no-sandbox
    [ "$MODE" = kernel ] || sandbox=--disable-gpu
    cat >bin/page.html <<'END'
<pre id=p></pre><script>
let rows = [];
for (let i = 0; i < 400000; i++) rows.push("row " + i);
p.textContent = rows.reduce((sum, row) => sum + row.length, 0);
</script>
END
    script chromium <<'END'
#!/bin/bash
home=$(mktemp -d) || exit 2
HOME=$home timeout 150 chromium --headless "$1" --disable-gpu --disable-quic --no-first-run \
    --disable-background-networking --disable-component-update --disable-sync --user-data-dir="$home/data" \
    --dump-dom "file://$2" 2>/dev/null
code=$?
rm -rf "$home"
exit $code
END
    same half -s 180 "$WORK/bin/chromium" $sandbox "$WORK/bin/page.html"
}

case_firefox() {
    needs firefox-esr firefox-esr --version || return 0
    script firefox <<'END'
#!/bin/bash
home=$(mktemp -d) || exit 2
HOME=$home timeout 150 firefox-esr --headless --screenshot "$home/shot.png" "file://$1" >/dev/null 2>&1
[ -s "$home/shot.png" ] && echo "a picture"
rm -rf "$home"
END
    echo '<h1>page</h1>' >bin/plain.html
    same half -s 180 "$WORK/bin/firefox" "$WORK/bin/plain.html"
}

case_gdb() {
    needs gdb gdb --version && build walk || return 0
    script gdb <<'END'
#!/bin/bash
gdb -q -batch -ex run --args "$@" 2>&1 | sed 's/process [0-9]*/process N/'
END
    same 64M -s 60 "$WORK/bin/gdb" "$WORK/bin/walk" 8 1
}

case_strace() {
    needs strace strace -V || return 0
    same 64M -s 60 /usr/bin/env strace -f -o /dev/null /bin/sh -c 'seq 3 | sort -r; (exit 3); echo $?'
}

case_valgrind() {
    needs valgrind valgrind --version && build walk || return 0
    same 200M -s 120 /usr/bin/env valgrind -q "$WORK/bin/walk" 8 1
}

case_postgres() {
    [ "$MODE" = kernel ] || { SKIP="the case starts memspill by itself, under kernel"; return; }
    local said
    said=$(bash "$TESTS/programs/postgres.sh" "$MEMSPILL" "$WORK/postgres" 10 -m 64M) || no "$said"
    DID=$said
}

# The table of a parallel hash join is in /dev/shm.
case_parallel-join() {
    local folder
    folder=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
    needs postgresql test -x "${folder:-/nowhere}/postgres" || return 0
    script parallel-join <<'END'
#!/bin/bash
# parallel-join FOLDER-OF-POSTGRES: the server does not want to be root.
[ "$(id -u)" != 0 ] || exec setpriv --reuid 65534 --regid 65534 --clear-groups "$0" "$@"
PATH=$1:$PATH
home=$(mktemp -d /var/tmp/parallel-join.XXXXXX) && cd "$home" || exit 2
export PGHOST=$home PGUSER=someone PGDATABASE=postgres
initdb -D data -U someone -A trust --no-sync >/dev/null || exit 3
postgres -D data -k "$home" -h '' -c shared_buffers=16MB -c fsync=off -c work_mem=256MB -c autovacuum=off \
    -c jit=off >log 2>&1 &
server=$!
for _ in $(seq 300); do pg_isready -q && break; sleep 0.1; done
psql -qc "create table t as select i, md5(i::text) || md5((i + 1)::text) h from
    generate_series(1, 700000) i; analyze t"
psql -qAt -c "set enable_mergejoin = off; set max_parallel_workers_per_gather = 2;
    set parallel_setup_cost = 0; set parallel_tuple_cost = 0; set min_parallel_table_scan_size = 0" \
    -c "select count(*) from t a join t b on a.h = b.h"
pg_ctl -s -D data stop -m fast
wait $server
rm -rf "$home"
END
    same half -s 240 "$WORK/bin/parallel-join" "$folder"
}

case_notebook() {
    python ipykernel && python jupyter_client || return 0
    as_user() { "${AS[@]}" "$@"; }
    HOME=$WORK as_user /usr/bin/python3 "$TESTS/programs/notebook.py" "$MEMSPILL" >out 2>&1 ||
        no "$(tail -n 1 out)"
}
