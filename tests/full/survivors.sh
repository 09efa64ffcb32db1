#!/usr/bin/env bash
# Agreements against the simulated adversary from a fresh seed, then rounds of real ranks of which some are killed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

seeds=${STORM_SEEDS:-100000}
export STORM_SEED=${STORM_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
export RAILNET_KILL_ROUNDS=${RAILNET_KILL_ROUNDS:-300}
cargo build --release --locked --bin railnet
echo "seed $STORM_SEED; to repeat: STORM_SEED=$STORM_SEED tests/full/survivors.sh"
"${CARGO_TARGET_DIR:-target}/release/railnet" storm control --seeds "$seeds" --seed "$STORM_SEED"
timeout 3600 cargo test --locked -p railnet-live --test survivors -- --exact random_kills_leave_one_membership
