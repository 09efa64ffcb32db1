#!/usr/bin/env bash
# The wheel that `maturin build` makes: its name says which Linux it is for, and nothing in it asks for a newer one; every Python from 3.9
# on that is here installs it without a network and runs what it brings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../python"

venv=${RAILNET_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/railnet/venv}
if [ ! -x "$venv/bin/maturin" ]; then
    echo "skipped: $venv has no maturin: run ./test, or set RAILNET_VENV"
    exit 77
fi
if ! command -v objdump >/dev/null; then
    echo 'skipped: objdump (binutils) is needed to see which symbols a library asks for'
    exit 77
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

"$venv/bin/python" build_backend.py
CARGO_PROFILE_RELEASE_DEBUG=0 "$venv/bin/maturin" build --release --locked --out "$dir"
wheel=$(echo "$dir"/*.whl)
name=$(basename "$wheel")
glibc=$(sed -n 's/^railnet-[0-9.]*-cp39-abi3-.*manylinux_2_\([0-9]*\)_.*\.whl$/\1/p' <<<"$name")
if [ -z "$glibc" ]; then
    echo "FAILED $name is no wheel for Python 3.9 and later on many Linuxes"
    exit 1
fi
echo "ok    $name"

(cd "$dir" && "$venv/bin/python" -m zipfile -e "$wheel" unpacked)
for file in "$dir"/unpacked/railnet/_railnet*.so "$dir"/unpacked/railnet-*.data/scripts/{railnet,librailnet_verbs.so,librailnet_sysfs.so}; do
    newest=$(objdump -T "$file" | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -n 1)
    if [ "${newest#GLIBC_2.}" -gt "$glibc" ]; then
        echo "FAILED $(basename "$file") asks for $newest, and the wheel says 2.$glibc"
        exit 1
    fi
    echo "ok    $(basename "$file") asks for $newest at the most"
done

tried=0
for version in 9 10 11 12 13 14; do
    for python in "$(command -v "python3.$version" || true)" "$HOME"/.pyenv/versions/3."$version".*/bin/python; do
        [ -x "$python" ] && "$python" -c 'import ensurepip, venv' 2>/dev/null || continue
        rm -rf "$dir/venv"
        "$python" -m venv "$dir/venv"
        "$dir/venv/bin/pip" install -q --disable-pip-version-check --no-index "$wheel"
        (cd "$dir" && venv/bin/railnet --version >/dev/null && venv/bin/python - <<'PYTHON'
import railnet
run = railnet.simulate("life-of-a-job-small")
assert 0 < run.exposed < run.step_time
PYTHON
        )
        echo "ok    $("$python" --version)"
        tried=$((tried + 1))
        break
    done
done
[ "$tried" -gt 0 ] || { echo 'FAILED there is no Python that has venv'; exit 1; }
