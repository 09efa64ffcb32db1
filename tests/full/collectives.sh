#!/usr/bin/env bash
# 10,000 random collectives between real ranks over each conduit, every element of every result compared with a reference;
# over RoCEv2 with 5 % of packets lost, 5 % overtaken and 5 % damaged.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

worlds=${COLLECTIVES_SEEDS:-100}
seed=${STORM_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
cargo build --release --locked --bin railnet
railnet=${CARGO_TARGET_DIR:-target}/release/railnet
echo "seed $seed; to repeat: STORM_SEED=$seed tests/full/collectives.sh"
for conduit in shm tcp roce; do
    timeout 1800 "$railnet" storm live --conduit "$conduit" --seeds "$worlds" --calls 100 --seed "$seed"
done
