#!/usr/bin/env bash
# A long storm of fabrics from a fresh seed. Each seed runs with packets as values and as bytes, which must agree.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

seeds=${FABRIC_STORM_SEEDS:-50000}
seed=${STORM_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
cargo build --release --locked --bin railnet
railnet=${CARGO_TARGET_DIR:-target}/release/railnet
echo "seed $seed; to repeat: STORM_SEED=$seed tests/full/fabric-storm.sh"
"$railnet" storm fabric --seeds "$seeds" --seed "$seed"
