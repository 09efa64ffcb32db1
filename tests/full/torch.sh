#!/usr/bin/env bash
# The Python package's tests that take minutes, then PyTorch's own tests of a backend with Railnet as the backend.
# The venv is that of `./test`, which builds and installs the package first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../python/tests"

venv=${RAILNET_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/railnet/venv}
if ! "$venv/bin/python" -c 'import railnet.torch' 2>/dev/null; then
    echo "skipped: $venv has no PyTorch or no Railnet: run ./test, or set RAILNET_VENV"
    exit 77
fi
timeout 3600 "$venv/bin/pytest" -q -p no:cacheprovider --full .
timeout 3600 "$venv/bin/python" torch/upstream.py "$@"
