#!/bin/bash
# The table at the top of docs/simulation.md, made anew: seeds-table.sh [OPTION...] runs `memspill-lab sim
# seeds` with these options, and puts its table of the published figures between the marks, with the commit.
# The tests of crates/sim look whether the document has all figures, and what was measured of each.

set -eu
cd "$(dirname "$0")/.."
lab=target/release/memspill-lab document=docs/simulation.md
[ -x $lab ] || { echo "there is no $lab: cargo build --release" >&2; exit 2; }
new=$(mktemp)
trap 'rm -f "$new"' EXIT
{
    sed '/^<!-- figures -->$/q' $document
    $lab sim seeds --markdown "$@" | awk '
        /^    memspill-lab/ { sub(/^ +/, ""); command = $0 }
        /^## / { here = /What was published/ }
        here && /^\|/ { lines = lines $0 "\n" }
        here && /^- / { sub(/^- /, ""); said = $0 }
        END { print said " `" command "`, of commit '"$(git rev-parse --short=7 HEAD)"':\n\n" lines }'
    sed -n '/^<!-- end of figures -->$/,$p' $document
} >"$new"
cp "$new" $document
