#!/usr/bin/env bash
# One rank that means another call: every difference, conduit and number of ranks, 0 to 10 s late.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
RAILNET_MISMATCH_FULL=1 timeout 3600 cargo test --locked -p railnet-live --test mismatch
