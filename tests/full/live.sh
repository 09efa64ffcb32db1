#!/usr/bin/env bash
# The quick comparison with MPI and Gloo, where they are installed: everyone starts, every result is right, nobody is busy
# out of turn, and data goes the way that was asked for. How fast it is, the table says; it decides nothing here.
set -u -o pipefail

skip() { echo "left out: $1"; exit 77; }

railnet=${RAILNET:-}
if [ -z "$railnet" ]; then
    cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
    cargo build --release --locked --bin railnet || exit 1
    railnet=$(cargo metadata --format-version 1 --no-deps --locked |
        sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/release/railnet
fi
python=${LIVE_PYTHON:-python3}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

command -v mpirun.openmpi >/dev/null || command -v mpiexec.hydra >/dev/null ||
    "$python" -c 'import torch' 2>/dev/null ||
    skip 'neither MPI (apt-get install openmpi-bin libopenmpi-dev mpich libmpich-dev) nor torch is installed'

failed=0
# compare NAME OPTIONS...: prints the table, and fails with the command or on a remark that spoils a comparison.
compare() {
    local name=$1
    shift
    if ! timeout 1500 "$railnet" bench live --quick --python "$python" "$@" >"$work/table" 2>&1; then
        echo "FAILED $name: $*"
        failed=1
    elif grep -E 'WRONG|this was not TCP|while others were measured|has ended|no answer' "$work/table"; then
        echo "FAILED $name: see above"
        failed=1
    else
        echo "ok    $name"
    fi
    cat "$work/table"
}
compare 'a core for each rank' --ranks 2
compare 'more ranks than cores' --ranks 4 --collectives all_reduce,alltoall --sizes 8B,128KiB,2MiB
compare 'beside a busy process' --loaded --ranks 2,4 --collectives all_reduce --sizes 8B,2MiB
if pgrep -f 'railnet-bench-[0-9]*/' >/dev/null; then
    echo 'FAILED: ranks are left over'
    pgrep -fa 'railnet-bench-[0-9]*/'
    failed=1
fi
exit "$failed"
