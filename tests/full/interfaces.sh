#!/usr/bin/env bash
# Hosts with two networks each: ranks meet under every launcher's variables, listen at the address that leads to the rendezvous
# and nowhere else, tell of each other, and find each other again after a loss. Hosts are network namespaces on two bridges, which needs root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if [ "$(id -u)" -ne 0 ] || ! ip netns add railnet-probe 2>/dev/null; then
    echo 'left out: network namespaces need root'
    exit 77
fi
ip netns del railnet-probe

test=$(cargo test --locked -p railnet-live --test survivors --no-run --message-format=json 2>/dev/null |
    sed -n 's/.*"executable":"\([^"]*survivors[^"]*\)".*/\1/p' | tail -1)
cargo build --locked --bin railnet
railnet_command=${CARGO_TARGET_DIR:-$PWD/target}/debug/railnet
out=$(mktemp -d)
pids=()
stop() {
    for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
    { wait; } 2>/dev/null || true
    pids=()
}
clean() {
    stop
    for host in 0 1 2; do
        ip netns del "railnet$host" 2>/dev/null || true
        rm -rf "/etc/netns/railnet$host"
    done
    for net in 0 1; do ip link del "railnet-br$net" 2>/dev/null || true; done
    rm -r "$out"
}
trap clean EXIT

for net in 0 1; do
    ip link add "railnet-br$net" type bridge
    ip link set "railnet-br$net" up
done
for host in 0 1 2; do
    ip netns add "railnet$host"
    ip -n "railnet$host" link set lo up
    for net in 0 1; do
        ip link add "rnv$host$net" type veth peer name "eth$net" netns "railnet$host"
        ip link set "rnv$host$net" master "railnet-br$net" up
        ip -n "railnet$host" addr add "10.21$((4 + net)).0.$((host + 1))/24" dev "eth$net"
        ip -n "railnet$host" link set "eth$net" up
    done
    mkdir -p "/etc/netns/railnet$host"
done

# names HOST LINE...: what a host knows of names.
names() {
    local host=$1
    shift
    printf '%s\n' '127.0.0.1 localhost' "$@" >"/etc/netns/railnet$host/hosts"
}

# expect RANK TEXT: waits for a line of a rank.
expect() {
    for _ in $(seq 300); do
        grep -qs "^$2" "$out/$1" && return
        sleep 0.1
    done
    echo "FAILED: rank $1 never said '$2':"
    head -c 2000 "$out"/?
    exit 1
}

# listeners HOST RANK: the addresses at which a rank listens.
listeners() {
    ip netns exec "railnet$1" ss -Hltnp | grep "pid=${inner[$2]}," | awk '{print $4}' | sed 's/:[0-9]*$//' | sort -u | paste -sd' '
}

# status HOST RANKS: `railnet status`, asked on one host, has the ranks of all.
status() {
    local found
    for _ in 1 2 3; do
        found=$(ip netns exec "railnet$1" "$railnet_command" status --json | grep -c '"is_here":') || true
        [ "$found" -eq "$2" ] && return
    done
    echo "FAILED: railnet status on host $1 has $found of $2 ranks"
    exit 1
}

# check NAME "HOST ..." "ADDRESS ..." VARIABLES...: ranks on these hosts, and where each is to listen ("-": not looked at). In
# VARIABLES @ is the rank, and # the number of its host from 1 on.
check() {
    local name=$1 rank host address found conduit
    local -a hosts addresses
    read -ra hosts <<<"$2"
    read -ra addresses <<<"$3"
    shift 3
    for conduit in tcp roce; do
        inner=()
        for rank in "${!hosts[@]}"; do
            host=${hosts[$rank]}
            local variables=("${@//@/$rank}")
            variables=("${variables[@]//\#/$((host + 1))}")
            ip netns exec "railnet$host" env "${variables[@]}" RAILNET_CONDUIT=$conduit RAILNET_TIMEOUT=30s RAILNET_SILENCE=3s \
                "$test" --ignored --exact rank --nocapture >"$out/$rank" 2>&1 &
            pids+=($!)
            inner+=($!)
        done
        for rank in "${!hosts[@]}"; do expect "$rank" ready; done
        for rank in "${!hosts[@]}"; do
            address=${addresses[$rank]}
            found=$(listeners "${hosts[$rank]}" "$rank")
            if [ "$address" != - ] && [ "$found" != "$address" ]; then
                echo "FAILED $name over $conduit: rank $rank listens at '$found', not at $address only"
                exit 1
            fi
        done
        status 2 "${#hosts[@]}"
        # Rank 0 is lost, and the others meet at another one.
        kill -9 "${inner[0]}"
        { wait "${inner[0]}"; } 2>/dev/null || true
        for rank in "${!hosts[@]}"; do [ "$rank" = 0 ] || expect "$rank" "$((${#hosts[@]} - 1)) continue"; done
        stop
        echo "ok    $name over $conduit"
    done
}

railnet=(RAILNET_RANK=@ RAILNET_WORLD_SIZE=3)
torchrun=(RANK=@ WORLD_SIZE=3 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=@ TORCHELASTIC_RUN_ID=x MASTER_PORT=29500)
first='10.214.0.1 10.214.0.2 10.214.0.3'
for host in 0 1 2; do names $host '10.214.0.1 hub'; done
check 'an address' '0 1 2' "$first" "${railnet[@]}" RAILNET_RENDEZVOUS=10.214.0.1:29400
check 'the other network' '0 1 2' '10.215.0.1 10.215.0.2 10.215.0.3' "${railnet[@]}" RAILNET_RENDEZVOUS=10.215.0.1:29400
check 'RAILNET_BIND' '0 1 2' '10.215.0.1 10.215.0.2 10.215.0.3' "${railnet[@]}" RAILNET_RENDEZVOUS=10.215.0.1:29400 \
    'RAILNET_BIND=10.215.0.#'
check 'RAILNET_BIND, all addresses' '0 1 2' '0.0.0.0 0.0.0.0 0.0.0.0' "${railnet[@]}" RAILNET_RENDEZVOUS=10.214.0.1:29400 \
    RAILNET_BIND=0.0.0.0
check 'torchrun, a name' '0 1 2' "$first" "${torchrun[@]}" MASTER_ADDR=hub
check 'srun, a name' '0 1 2' "$first" SLURM_PROCID=@ SLURM_STEP_NUM_TASKS=3 SLURM_NTASKS=3 SLURM_LOCALID=0 \
    'SLURM_STEP_TASKS_PER_NODE=1(x3)' SLURM_NODEID=@ SLURM_JOB_ID=7 SLURM_STEP_ID=0 'SLURM_STEP_NODELIST=hub,b,c'
check 'mpirun, a name' '0 1 2' "$first" OMPI_COMM_WORLD_RANK=@ OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=0 \
    OMPI_COMM_WORLD_LOCAL_SIZE=1 MASTER_ADDR=hub
for host in 0 1 2; do names $host '10.214.0.1 hub' '10.215.0.1 hub'; done
check 'a name with two addresses' '0 1 2' '- - -' "${torchrun[@]}" MASTER_ADDR=hub
# As Debian names a host itself; the last rank is on the host of rank 0, and knows no other address of it.
names 0 '127.0.1.1 hub'
for host in 1 2; do names $host '10.214.0.1 hub'; done
check 'a name that is a loopback address at home' '0 1 2 0' '10.214.0.1 10.214.0.2 10.214.0.3 *' RANK=@ WORLD_SIZE=4 \
    'LOCAL_RANK=@' LOCAL_WORLD_SIZE=4 GROUP_RANK=0 TORCHELASTIC_RUN_ID=x MASTER_PORT=29500 MASTER_ADDR=hub
