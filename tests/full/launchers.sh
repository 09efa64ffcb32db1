#!/usr/bin/env bash
# Ranks meet and do an AllReduce under every launcher that is here: railnet run, the variables of torchrun, real Slurm on virtual nodes (srun,
# sbatch, railnet submit), Open MPI, MPICH. What is not installed and cannot be without a password is left out and said.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

cargo build --locked --bin railnet || exit 1
cargo build --locked -p railnet --example hello || exit 1
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)/debug
railnet=$target/railnet hello=$target/examples/hello
failed=0 left_out=()
# A node's name in the shell that runs this must not decide who a rank is.
unset RANK WORLD_SIZE LOCAL_RANK GROUP_RANK SLURM_PROCID SLURM_STEP_ID

# check NAME RANKS GROUPS COMMAND...: every rank says once that all have met, in so many host groups.
check() {
    local name=$1 ranks=$2 groups=$3 output status rank
    shift 3
    output=$(timeout 60 "$@" 2>&1)
    status=$?
    for rank in $(seq 0 $((ranks - 1))); do
        if [ "$(grep -c "rank $rank of $ranks by .*: all met in $groups host groups\\?," <<<"$output")" -ne 1 ]; then
            status=1
        fi
    done
    if [ "$status" -eq 0 ]; then
        echo "ok    $name: $ranks ranks, host groups: $groups"
    else
        printf 'FAILED %s (status %d)\n%s\n' "$name" "$status" "$output"
        failed=1
    fi
}

torchrun_ranks() { # what torchrun sets, for two nodes of two ranks
    local rank statuses=0 pids=()
    for rank in 0 1 2 3; do
        RANK=$rank WORLD_SIZE=4 LOCAL_RANK=$((rank % 2)) LOCAL_WORLD_SIZE=2 GROUP_RANK=$((rank / 2)) \
            MASTER_ADDR=localhost MASTER_PORT=29500 TORCHELASTIC_RUN_ID=test-$$ "$hello" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || statuses=1; done
    return "$statuses"
}
export -f torchrun_ranks
export hello

check 'railnet run' 4 1 "$railnet" run -n 4 -- "$hello"
check 'railnet run, two nodes' 5 2 "$railnet" run -n 5 --nodes 2 -- "$hello"
check "torchrun's variables" 4 2 bash -c torchrun_ranks
if ! command -v torchrun >/dev/null; then
    left_out+=('torchrun itself: not installed')
elif timeout 60 torchrun --nproc_per_node 1 --no_python true >/dev/null 2>&1; then
    check torchrun 2 1 torchrun --nproc_per_node 2 --no_python "$hello"
else
    left_out+=('torchrun itself: the one that is installed cannot start anything')
fi

# PyTorch over Railnet, where `./test` has installed both: a shell that starts a rank, or nothing.
venv=${RAILNET_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/railnet/venv}
torch_rank=
if "$venv/bin/python" -c 'import railnet.torch' 2>/dev/null; then
    torch_rank=$(mktemp)
    cat >"$torch_rank" <<'PYTHON'
import torch
import torch.distributed as dist
import railnet.torch

dist.init_process_group("railnet")
ones = torch.ones(3)
dist.all_reduce(ones)
if ones.tolist() == [dist.get_world_size()] * 3:
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} by PyTorch: all met in 1 host groups", flush=True)
dist.destroy_process_group()
PYTHON
else
    left_out+=("PyTorch: $venv has it not, or not Railnet (./test installs both)")
fi

if command -v mpirun.openmpi >/dev/null || { command -v mpirun >/dev/null && mpirun --version 2>/dev/null | grep -q 'Open MPI'; }; then
    mpirun=$(command -v mpirun.openmpi || command -v mpirun)
    [ -z "$torch_rank" ] || check 'Open MPI, PyTorch' 2 1 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        "$mpirun" --oversubscribe -n 2 "$venv/bin/python" "$torch_rank"
    check 'Open MPI' 3 1 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        "$mpirun" --oversubscribe -n 3 "$hello"
else
    left_out+=('Open MPI: not installed (apt-get install openmpi-bin)')
fi
if command -v mpiexec.hydra >/dev/null || command -v mpirun.mpich >/dev/null; then
    check MPICH 3 1 "$(command -v mpiexec.hydra || command -v mpirun.mpich)" -n 3 "$hello"
else
    left_out+=('MPICH: not installed (apt-get install mpich)')
fi

slurm() {
    dir=$(mktemp -d "${TMPDIR:-/tmp}/railnet-slurm.XXXXXX")
    trap 'bash tests/slurm/cluster.sh stop "$dir"' EXIT
    if ! bash tests/slurm/cluster.sh start "$dir" 4; then
        failed=1
        return
    fi
    export SLURM_CONF=$dir/slurm.conf
    check 'srun, one node' 3 1 timeout 40 srun --time=1 -N1 -n3 "$hello"
    [ -z "$torch_rank" ] || check 'srun, PyTorch' 4 1 timeout 58 srun --time=1 -N2 -n4 "$venv/bin/python" "$torch_rank"
    check 'srun, four nodes' 8 4 timeout 40 srun --time=1 -N4 --ntasks-per-node=2 "$hello"
    check 'srun, uneven' 5 2 timeout 40 srun --time=1 -N2 -n5 "$hello"
    check 'srun, ranks dealt out in turn' 6 3 timeout 40 srun --time=1 -N3 -n6 --distribution=cyclic "$hello"
    # Two steps at once: two meetings on one host.
    check 'srun, beside another' 2 2 bash -c 'timeout 40 srun --time=1 -N2 -n2 "$hello" >/dev/null & timeout 40 srun --time=1 -N2 -n2 "$hello"; status=$?; wait $! && exit $status'
    cat >"$dir/job.toml" <<TEXT
[launch]
program        = ["$hello"]
nodes          = 3
ranks_per_node = 2
time           = "1min"
output         = "$dir/job.out"
options        = ["--wait"]
TEXT
    check 'railnet submit' 6 3 bash -c "'$railnet' submit '$dir/job.toml' && cat '$dir/job.out'"
    # What programs with env:// read.
    cat >"$dir/env.toml" <<'TEXT'
[launch]
program        = 'getent hosts "$MASTER_ADDR" >/dev/null && echo "rank $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, port ${MASTER_PORT:+set}"'
nodes          = 2
ranks_per_node = 2
time           = "1min"
options        = ["--wait"]
TEXT
    echo "output = \"$dir/env.out\"" >>"$dir/env.toml"
    if "$railnet" submit "$dir/env.toml" >/dev/null && [ "$(sort "$dir/env.out")" = "$(
        printf 'rank %d of 4, %d of 2, port set\n' 0 0 1 1 2 0 3 1
    )" ]; then
        echo 'ok    railnet submit, env://'
    else
        echo 'FAILED railnet submit, env://'
        cat "$dir/env.out" || true
        failed=1
    fi
    # A rank that is lost takes the job with it, soon.
    local began=$SECONDS
    if timeout 40 srun --time=1 --kill-on-bad-exit=1 -N2 -n2 bash -c '[ "$SLURM_PROCID" = 0 ] || exit 3; exec "$hello"' >"$dir/lost" 2>&1; then
        echo 'FAILED srun with a rank that ends: it should fail'
        failed=1
    elif [ $((SECONDS - began)) -gt 20 ]; then
        echo 'FAILED srun with a rank that ends: it took too long'
        failed=1
    else
        echo 'ok    srun with a rank that ends: all end'
    fi
    check 'railnet run inside a batch job' 2 1 timeout 40 srun --time=1 -N1 -n1 "$railnet" run -n 2 -- "$hello"
}

bash tests/slurm/cluster.sh install
case $? in
    0) slurm ;;
    77) left_out+=('Slurm: not installed (apt-get install slurm-wlm munge)') ;;
    *) failed=1 ;;
esac

[ -z "$torch_rank" ] || rm -f "$torch_rank"
for note in ${left_out[@]+"${left_out[@]}"}; do echo "left out: $note"; done
exit "$failed"
