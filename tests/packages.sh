#!/bin/bash
# What people install, tried: man pages, completions in real shells, the Debian package, the Python wheel; and
# recipes of docs/places.md that need nothing of others.
#
# `wheel` builds with pip and maturin, `notebook` uses jupyter_client and ipykernel, of the Python that
# --python names (pip install maturin jupyter_client ipykernel); both are not in tests/run.sh. `deb` installs
# the package and removes it again, as root, where none of that name is installed.

HELP="usage: tests/packages.sh [--memspill BIN] [--python BIN] [NAME...]
  --python BIN  a Python with what wheel and notebook need [default: python3]
  --list        names of the cases"
. "$(dirname "$0")/common.sh"

ALL=(reference man completions-bash completions-zsh completions-fish deb make ninja wheel notebook)
PYTHON=python3
option() {
    case $1 in
    --list) echo "${ALL[*]}"; exit ;;
    --python) PYTHON=$2; TAKEN=2 ;;
    *) return 1 ;;
    esac
}
parse_options "$@"
PATH=$(dirname "$MEMSPILL"):$PATH
JOB='rows = [str(i) * 45 for i in range(10**6)]; print(sum(r.count("7") for r in rows))'
BUDGET=(--memory-max 100M)

no() { WHY=$1; return 1; }
# is RIGHT COMMAND...: it prints that.
is() {
    local right=$1 found
    shift
    found=$(timeout 120 "$@" 2>"$WORK/err") || no "$* ends with $?: $(tail -n 1 "$WORK/err")" || return
    [ "$found" = "$right" ] || no "$* prints ${found:0:100}"
}

case_reference() {
    WHY=$("$PYTHON" "$REPO/tests/reference.py" "$MEMSPILL" --check) || no "$WHY"
}

case_man() {
    command -v mandoc >/dev/null || { SKIP="no mandoc"; return; }
    local page pages faults name
    "$MEMSPILL" man "$WORK/man1" || no "memspill man ends with $?" || return
    pages=("$WORK"/man1/*.1)
    [ ${#pages[@]} -gt 12 ] || no "only ${#pages[@]} pages" || return
    for page in "${pages[@]}"; do
        # A date would make each build's pages others.
        faults=$(mandoc -Tlint -Wwarning "$page" | grep -v 'missing date')
        [ -z "$faults" ] || no "$faults" || return
    done
    # The page has everything that --help has: each option, and what stands below them.
    mandoc -Tutf8 "$WORK/man1/memspill-run.1" | col -b >"$WORK/run.txt"
    for name in $("$MEMSPILL" run --help | grep -oE '^ +(-., )?--[a-z-]+' | grep -oE -- '--[a-z-]+'); do
        grep -q -- "$name" "$WORK/run.txt" || no "memspill-run(1) has no $name" || return
    done
    grep -q 'make -j8' "$WORK/run.txt" || no "memspill-run(1) has no examples"
}

completions() { # SHELL SCRIPT
    command -v "$1" >/dev/null || { SKIP="no $1"; return; }
    [ "$1" != bash ] || [ -e /usr/share/bash-completion/bash_completion ] ||
        { SKIP="no bash-completion"; return; }
    "$MEMSPILL" completions "$1" >"$WORK/$2" || no "memspill completions $1 ends with $?" || return
    mkdir -p "$WORK/here" && touch "$WORK/here/unusual-name"
    WHY=$(cd "$WORK/here" && timeout 200 python3 "$TESTS/programs/complete.py" "$1" "$WORK/$2" \
        'memspill doc' doctor \
        'memspill run --mem' --memory-max \
        'memspill run --on-full ' grow \
        'memspill ctl swapo' swapoff \
        'memspill run --stats-json unus' unusual-name \
        'memspill run -m 1G -- mktem' mktemp \
        'memspill size -- cat unus' unusual-name 2>&1)
}
case_completions-bash() { completions bash memspill.bash; }
case_completions-zsh() { completions zsh _memspill; }
case_completions-fish() { completions fish memspill.fish; }

case_deb() {
    command -v dpkg-shlibdeps >/dev/null && command -v strip >/dev/null || { SKIP="no dpkg-dev"; return; }
    local package again files file
    package=$("$REPO/scripts/package-deb.sh" "$MEMSPILL" "$WORK/deb" 2>"$WORK/err" | head -n 1)
    [ -s "$package" ] || no "no package: $(tail -n 1 "$WORK/err")" || return
    again=$("$REPO/scripts/package-deb.sh" "$MEMSPILL" "$WORK/again" 2>"$WORK/err" | head -n 1)
    cmp "$package" "$again" || no "made again, it is another one" || return
    if command -v lintian >/dev/null; then
        file=$(lintian --allow-root --fail-on error,warning "$package" 2>&1) || no "$file" || return
    fi
    [ "$(id -u)" = 0 ] || { SKIP="made; to install it takes root"; return; }
    ! dpkg-query -W memspill >/dev/null 2>&1 || { SKIP="made; a package memspill is installed"; return; }
    [ ! -e /usr/bin/memspill ] || { SKIP="made; there is a /usr/bin/memspill"; return; }
    dpkg -i "$package" >"$WORK/err" 2>&1 ||
        { no "dpkg -i: $(tail -n 1 "$WORK/err")"; dpkg -r memspill; return 1; }
    mapfile -t files < <(dpkg -L memspill)
    is 27000000 /usr/bin/memspill run "${BUDGET[@]}" -- /usr/bin/python3 -c "$JOB"
    for file in man/man1/memspill-run.1.gz bash-completion/completions/memspill \
        zsh/vendor-completions/_memspill fish/vendor_completions.d/memspill.fish; do
        # A machine may be told to leave out documents (dpkg.cfg).
        [[ " ${files[*]} " == *" /usr/share/$file "* ]] || WHY="$file is not in it"
    done
    dpkg -r memspill >"$WORK/err" 2>&1 || WHY="dpkg -r: $(tail -n 1 "$WORK/err")"
    for file in "${files[@]}"; do
        [[ $file != *memspill* ]] || [ ! -e "$file" ] || WHY="$file is left behind"
    done
    [ -z "$WHY" ]
}

GROWS='python3 -c "x = [bytes([i % 251]) * 4096 + b\"%d\" % i for i in range(30000)]; print(len(x))"'
case_make() {
    command -v make >/dev/null || { SKIP="no make"; return; }
    printf 'SHELL = memspill\n.SHELLFLAGS = run -m 64M -- sh -c\nall: a b\na b:\n\t@%s >$@\n' \
        "$GROWS" >"$WORK/Makefile"
    (cd "$WORK" && is "" make -j2 &&
        is "" memspill run -m 128M -- make -B -j2 SHELL=/bin/sh .SHELLFLAGS=-c) ||
        no "$(tail -n 1 "$WORK/err")" || return
    is $'30000\n30000' cat "$WORK/a" "$WORK/b"
}
case_ninja() {
    command -v ninja >/dev/null || { SKIP="no ninja"; return; }
    printf 'rule run\n  command = memspill run -m 64M -- %s >$out\nbuild c: run\nbuild d: run\n' \
        "$GROWS" >"$WORK/build.ninja"
    timeout 120 ninja -C "$WORK" >"$WORK/err" 2>&1 || no "$(tail -n 1 "$WORK/err")" || return
    is $'30000\n30000' cat "$WORK/c" "$WORK/d"
}

case_wheel() {
    "$PYTHON" -c 'import maturin' 2>/dev/null || { SKIP="no maturin, see --python"; return; }
    local wheel scripts=$WORK/venv/bin way
    # Without isolation pip takes the maturin that is there, whose program has to be in PATH.
    PATH=$(dirname "$(command -v "$PYTHON")"):$PATH "$PYTHON" -m pip wheel --no-deps --no-build-isolation \
        -w "$WORK/wheel" "$REPO" >"$WORK/err" 2>&1 || no "pip wheel: $(tail -n 1 "$WORK/err")" || return
    wheel=("$WORK"/wheel/memspill-*.whl)
    "$PYTHON" -m venv "$WORK/venv" || no "no venv" || return
    # In a virtual environment, and in a directory of its own.
    "$scripts/pip" install -q --no-index "${wheel[0]}" || no "pip install failed" || return
    is 27000000 "$scripts/memspill" run "${BUDGET[@]}" -- python3 -c "$JOB" || return
    is 27000000 "$scripts/python" -m memspill run "${BUDGET[@]}" -- python3 -c "$JOB" || return
    "$scripts/python" -m memspill run -m 64M -- sh -c 'exit 7'
    way=$?
    [ $way = 7 ] || no "python -m memspill ends with $way instead of 7" || return
    "$scripts/python" -c 'from memspill._library import library; library()' || no "no library" || return
    "$scripts/pip" uninstall -q -y memspill
    [ ! -e "$scripts/memspill" ] || no "pip uninstall leaves the command" || return
    "$scripts/pip" install -q --no-index --target "$WORK/target" "${wheel[0]}" || no "pip --target" || return
    is 27000000 env PYTHONPATH="$WORK/target" "$scripts/python" -m memspill run "${BUDGET[@]}" -- \
        python3 -c "$JOB"
}

case_notebook() {
    "$PYTHON" -c 'import jupyter_client, ipykernel' 2>/dev/null ||
        { SKIP="no jupyter_client, ipykernel: see --python"; return; }
    WHY=$(timeout 300 "$PYTHON" "$TESTS/programs/notebook.py" "$MEMSPILL" 2>&1 | grep -v IPKernelApp)
    [ -z "$WHY" ]
}

run_cases "${ALL[@]}"
