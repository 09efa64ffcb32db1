#!/usr/bin/env bash
# A sweep as a job array of real Slurm on virtual nodes gives what the same sweep gives here, also where a task is killed; what is done
# is not done again.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

cargo build --locked --bin railnet || exit 1
railnet=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)/debug/railnet
bash tests/slurm/cluster.sh install
case $? in
    0) ;;
    77) echo 'left out: Slurm is not installed (apt-get install slurm-wlm munge)'; exit 77 ;;
    *) exit 1 ;;
esac

# Slurm's users read its folder: not one below a home.
dir=$(mktemp -d /tmp/railnet-sweep.XXXXXX)
trap 'bash tests/slurm/cluster.sh stop "$dir/cluster"; rm -rf "$dir"' EXIT
bash tests/slurm/cluster.sh start "$dir/cluster" 2 || exit 1
export SLURM_CONF=$dir/cluster/slurm.conf

failed=0
sweep() { # WORK [WORDS...]
    local work=$1
    shift
    timeout 240 "$railnet" sim "$dir/incast.toml" --sweep nic.control=dcqcn,swift --sweep seed=1,2 "$@" \
        ${work:+--on slurm --work "$work"}
}
# Long enough that a task can be caught.
cat >"$dir/incast.toml" <<'TEXT'
[fabric]
topology = { kind = "single-switch", hosts = 17 }
link     = { rate = "100Gbps", delay = "1us" }
[[traffic]]
kind  = "incast"
from  = "0..15"
to    = 16
bytes = "64MB"
TEXT
# Times of this machine are in no point of the table.
digests() { grep -o '"digest": *"[^"]*"' | sort; }
expect() { # NAME CONDITION...
    local name=$1
    shift
    if "$@"; then echo "ok    $name"; else echo "FAILED $name"; failed=1; fi
}

sweep '' --json "$dir/here.json" >/dev/null || failed=1
sweep "$dir/array" --json "$dir/array.json" >/dev/null 2>"$dir/array.err" || { cat "$dir/array.err"; failed=1; }
expect 'four points here' [ "$(digests <"$dir/here.json" | wc -l)" -eq 4 ]
expect 'the same four from the array' [ "$(digests <"$dir/array.json")" = "$(digests <"$dir/here.json")" ]

sweep "$dir/array" --json "$dir/again.json" >/dev/null 2>"$dir/again.err" || failed=1
expect 'what is done is not done again' grep -q '4 of 4 points are done' "$dir/again.err"
expect 'and is the same' [ "$(digests <"$dir/again.json")" = "$(digests <"$dir/here.json")" ]

# A task that dies: the first to come is killed as soon as it is seen.
(until pkill -KILL -o -f "railnet sim .*--work=$dir/killed --point="; do sleep 0.02; done) &
killer=$!
sweep "$dir/killed" --json "$dir/killed.json" >/dev/null 2>"$dir/killed.err" || { cat "$dir/killed.err"; failed=1; }
kill "$killer" 2>/dev/null && { echo 'FAILED no task was killed'; failed=1; }
expect 'a task that is killed costs its points another try' grep -q 'once more' "$dir/killed.err"
expect 'and its points are right' [ "$(digests <"$dir/killed.json")" = "$(digests <"$dir/here.json")" ]
exit "$failed"
