#!/usr/bin/env bash
# Traces of runs, read with perfetto's own definitions (the package perfetto, in a virtual environment of its own).
set -eu -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! python3 -m venv "$work/venv" || ! "$work/venv/bin/pip" --quiet install perfetto protobuf; then
    echo 'Left out: the package perfetto cannot be installed here.'
    exit 77
fi
cargo build --quiet --release --locked --bin railnet
railnet=${CARGO_TARGET_DIR:-target}/release/railnet
for scenario in incast allreduce-2-nodes life-of-a-job-racks; do
    trace=$work/$scenario.pftrace
    timeout 300 "$railnet" sim "scenarios/$scenario.toml" --trace "$trace" >/dev/null
    "$work/venv/bin/python" tests/peers/trace_check.py "$trace"
done
trace=$work/calls.pftrace
timeout 300 "$railnet" perf all_reduce -n 2 -e 64K -f 8 --trace "$trace" >/dev/null
"$work/venv/bin/python" tests/peers/trace_check.py "$trace" calls
