#!/usr/bin/env bash
# A long storm from a fresh seed, with packets as values and as bytes: both must pass and give the same digest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

seeds=${STORM_SEEDS:-100000}
seed=${STORM_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
cargo build --release --locked --bin railnet
railnet=${CARGO_TARGET_DIR:-target}/release/railnet
echo "seed $seed; to repeat: STORM_SEED=$seed tests/full/storm.sh"
digests=()
for form in values bytes; do
    output=$("$railnet" storm nic --seeds "$seeds" --seed "$seed" --wire "$form") || { echo "$output"; exit 1; }
    echo "$form: $(grep -E '^(wall time|digest)' <<<"$output" | tr '\n' ' ')"
    digests+=("$(grep '^digest' <<<"$output")")
done
[ "${digests[0]}" = "${digests[1]}" ] || { echo 'the digests differ'; exit 1; }
