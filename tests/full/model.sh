#!/usr/bin/env bash
# The rings and the directory of shared memory under a model checker, with more preemptions than ./test tries.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export RAILNET_MODEL_PREEMPTIONS=${RAILNET_MODEL_PREEMPTIONS:-4}
timeout 3600 cargo test --locked -p railnet-live --lib shared_memory::model
