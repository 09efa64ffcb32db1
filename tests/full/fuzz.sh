#!/usr/bin/env bash
# Damaged inputs for every parser and decoder, for longer than ./test does: FUZZ_ROUNDS each, from a fresh seed.
set -eu -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export FUZZ_ROUNDS=${FUZZ_ROUNDS:-100000}
export FUZZ_SEED=${FUZZ_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
echo "seed $FUZZ_SEED; to repeat: FUZZ_SEED=$FUZZ_SEED FUZZ_ROUNDS=$FUZZ_ROUNDS tests/full/fuzz.sh"
cargo test --locked -p railnet-cli --test all parsers
