# What browsers and their sandboxes do. Cases of field.sh.
CASES+=(gs gs_at_once alone alone_late zygote)

case_gs() { same 24M gsbase 40 && left 4096; }

# In processes that have just begun.
case_gs_at_once() {
    local one=$WORK/bin/gsbase
    build gsbase && same 64M sh -c "for k in 1 2 3; do $one 2 || exit; done; $one 3 & wait"
}

case_alone() { same 64M alone; }

# Programs that a shell starts join when they wait.
case_alone_late() { build alone && same 64M sh -c "$WORK/bin/alone; $WORK/bin/alone"; }

case_zygote() { same 24M zygote 40 && left 4096; }
