#!/bin/bash
# Budgets inside Python programs: the wheel in a virtual environment, with numpy 1.24, 1.26 and 2, pandas,
# joblib, SciPy, scikit-learn, torch. Arrays are several times the budget, and every value is checked
# (library/cases.py). Needs pip, the packages' index, cargo, and for torch Debian's python3-torch. Not in
# tests/run.sh.

HELP="usage: tests/python.sh [--python BIN] [NAME...]
  --python BIN  [default: python3]
  --list        names of the cases"
. "$(dirname "$0")/common.sh"

ALL=(arrays outside threads system_calls forks misuse limit pandas everything no_child cell joblib scipy
    scikit_learn numpy1 torch)
PYTHON=python3
VENV_ARGS=
option() {
    case $1 in
    --list) echo "${ALL[*]}"; exit ;;
    --python) PYTHON=$2; TAKEN=2 ;;
    *) return 1 ;;
    esac
}
parse_options "$@"

# environment NAME PACKAGE...: a virtual environment with these and the wheel; made once.
environment() {
    local folder=$WORK/$1
    shift
    [ -e "$folder/done" ] && return
    if [ ! -e "$WORK/wheel" ]; then
        "$PYTHON" -m pip wheel -q --no-deps -w "$WORK/wheel" "$REPO" >"$WORK/err" 2>&1 ||
            { WHY="pip wheel: $(tail -n 1 "$WORK/err")"; return 1; }
    fi
    "$PYTHON" -m venv $VENV_ARGS "$folder" &&
        "$folder/bin/pip" install -q "$@" "$WORK"/wheel/memspill-*.whl >"$WORK/err" 2>&1 ||
        { WHY="pip install $*: $(tail -n 1 "$WORK/err")"; return 1; }
    touch "$folder/done"
}

# in_python ENVIRONMENT CASE
in_python() {
    local code
    (cd "$WORK" && timeout 300 "$WORK/$1/bin/python" "$TESTS/library/cases.py" "$2" >"$WORK/out" 2>&1)
    code=$?
    [ $code = 0 ] || { WHY="$2 ends with $code: $(tail -n 1 "$WORK/out")"; return 1; }
}

TWO=(numpy==2.4.6 pandas==3.1.1 ipython==9.18.1 joblib==1.6.0)
for case in arrays outside threads system_calls forks misuse limit pandas everything no_child cell joblib; do
    eval "case_$case() { environment two \"\${TWO[@]}\" && in_python two $case; }"
done
case_numpy1() {
    local case
    environment one numpy==1.26.4 pandas==2.3.3 || return
    for case in arrays threads system_calls pandas; do
        in_python one $case || return
    done
}

case_scipy() { environment sci "${SCI[@]}" && in_python sci scipy; }
case_scikit_learn() { environment sci "${SCI[@]}" && in_python sci scikit_learn; }
SCI=(numpy==2.4.6 scipy==1.17.1 scikit-learn==1.9.1)
case_torch() {
    /usr/bin/python3 -c "import torch" 2>/dev/null || { SKIP="needs Debian's python3-torch"; return; }
    PYTHON=/usr/bin/python3 VENV_ARGS=--system-site-packages environment torch && in_python torch torch
}

run_cases "${ALL[@]}"
