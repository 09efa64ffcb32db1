#!/usr/bin/env bash
# Unmodified NCCL (that of PyTorch) over the software NIC, beside its own sockets, on a machine with an NVIDIA GPU. Several
# ranks share the GPU and take each other for different hosts.
#
#   tests/device/nccl.sh [FOLDER]       FOLDER holds railnet and its libraries (default: target/release)
#
# Prints a table, and fails if NCCL did not choose NET/IB or a result was wrong. The last table is in docs/rdma.md.
set -u -o pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(cd "${1:-$here/../../target/release}" && pwd) || exit 2
out=$(mktemp -d) || exit 1
rounds=${ROUNDS:-3} ranks=${RANKS:-2}

command -v nvidia-cuda-mps-control >/dev/null && nvidia-cuda-mps-control -d
trap 'echo quit | nvidia-cuda-mps-control >/dev/null 2>&1' EXIT

python3 -c 'import torch; print("torch", torch.__version__, "NCCL", ".".join(map(str, torch.cuda.nccl.version())))'
export NCCL_SOCKET_IFNAME=lo NCCL_NET_GDR_LEVEL=LOC RAILNET_RDMA_ADDRESSES=${RAILNET_RDMA_ADDRESSES:-127.0.0.1}

sockets() { NCCL_IB_DISABLE=1 timeout 120 python3 "$here/nccl_allreduce.py" "$ranks"; }
over_railnet() { # with more variables
    env NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET NCCL_DEBUG_FILE="$out/nccl.%p" "$@" \
        timeout 120 "$folder/railnet" rdma exec -- python3 "$here/nccl_allreduce.py" "$ranks"
}

status=0
for round in $(seq "$rounds"); do
    sockets >"$out/sockets.$round" || { echo 'error: NCCL over sockets failed'; status=1; }
    over_railnet >"$out/railnet.$round" || { echo 'error: NCCL over the software NIC failed'; status=1; }
    over_railnet NCCL_IB_QPS_PER_CONNECTION=4 >"$out/qps4.$round" || status=1
done
grep -h -m 1 'NET/IB : Using' "$out"/nccl.* | head -n 1 || { echo 'error: NCCL did not choose NET/IB'; status=1; }

python3 - "$out" <<'PYTHON' || status=1
import glob, json, statistics, sys
folder, wrong = sys.argv[1], 0
table = {}
for name in ("sockets", "railnet", "qps4"):
    for file in glob.glob(f"{folder}/{name}.*"):
        for line in open(file):
            row = json.loads(line)
            wrong += not row["right"]
            table.setdefault(row["bytes"], {}).setdefault(name, []).append(row["us"])
print(f"{'bytes':>10} {'sockets us':>12} {'railnet us':>12} {'4 QPs us':>12} {'sockets ÷ railnet':>18} {'with 4 QPs':>11}")
for size, row in sorted(table.items()):
    us = {name: statistics.median(values) for name, values in row.items()}
    cell = lambda name: f"{us[name]:.1f}" if name in us else "-"
    ratio = lambda name: f"{us['sockets'] / us[name]:.2f}" if name in us and "sockets" in us else "-"
    print(f"{size:>10} {cell('sockets'):>12} {cell('railnet'):>12} {cell('qps4'):>12} {ratio('railnet'):>18} {ratio('qps4'):>11}")
print("every result right" if table and not wrong else f"{wrong} wrong results")
sys.exit(bool(wrong) or not table)
PYTHON
[ "$status" -eq 0 ] || for file in "$out"/nccl.*; do echo "--- $file"; tail -n 40 "$file"; done
exit "$status"
