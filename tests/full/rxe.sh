#!/usr/bin/env bash
# railnet pingpong, and RDMA programs on Railnet's verbs library, against the kernel's own Soft-RoCE (rdma_rxe) and its connection manager,
# as client and as server.
#
# Where this machine's kernel has rdma_rxe, and this is root: Soft-RoCE on one end of a virtual link, and Railnet, as
# nobody, in a network namespace on the other. With a machine that runs Soft-RoCE, say how to reach it instead:
#   RXE_PEER='ssh root@guest'   runs a command there
#   RXE_PEER_ADDRESS=10.77.0.2  its address, RXE_PEER_DEVICE its device (rxe0)
#   RXE_LOCAL_ADDRESS=10.77.0.1 the address of Railnet, RXE_LOCAL='ip netns exec x' what to run it with
#   RXE_PEER_ADDRESS6=fd77::2 RXE_LOCAL_ADDRESS6=fd77::1  the same over IPv6, where there is IPv6
#   RXE_MTU=4096                the largest path MTU of the link (1024)
set -u

skip() { echo "left out: $1"; exit 77; }

railnet=${RAILNET:-}
if [ -z "$railnet" ]; then
    cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
    cargo build --release --locked --bin railnet || exit 1
    railnet=$(cargo metadata --format-version 1 --no-deps --locked |
        sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/release/railnet
fi

namespace=railnet-rxe-$$
work=$(mktemp -d) || exit 1
peer_address=${RXE_PEER_ADDRESS:-10.214.7.1} local_address=${RXE_LOCAL_ADDRESS:-10.214.7.2}
peer_address6=${RXE_PEER_ADDRESS6:-} local_address6=${RXE_LOCAL_ADDRESS6:-}
device=${RXE_PEER_DEVICE:-rxe0} mtu=${RXE_MTU:-1024}
read -r -a peer <<<"${RXE_PEER:-bash -c}"
read -r -a local <<<"${RXE_LOCAL:-}"

clean_up() {
    rm -rf "$work"
    [ -n "${RXE_PEER:-}" ] && return
    rdma link delete "$device" 2>/dev/null
    ip netns delete "$namespace" 2>/dev/null
    ip link delete rn-rxe0 2>/dev/null
}
trap clean_up EXIT

make_link() {
    [ "$(id -u)" -eq 0 ] || skip 'a Soft-RoCE device needs root'
    for tool in ip rdma ibv_rc_pingpong setpriv; do
        command -v "$tool" >/dev/null || skip "there is no $tool (iproute2, ibverbs-utils, util-linux)"
    done
    modprobe rdma_rxe 2>/dev/null || skip 'this kernel has no rdma_rxe'
    device=rnrxe$$ mtu=4096 peer_address6=fd14::1 local_address6=fd14::2
    ip netns add "$namespace" &&
        ip link add rn-rxe0 mtu 4400 type veth peer name rn-rxe1 mtu 4400 netns "$namespace" &&
        ip address add "$peer_address/24" dev rn-rxe0 && ip link set rn-rxe0 up &&
        ip netns exec "$namespace" ip address add "$local_address/24" dev rn-rxe1 &&
        ip netns exec "$namespace" ip link set rn-rxe1 up ||
        skip 'the virtual link cannot be made'
    ip address add "$peer_address6/64" dev rn-rxe0 nodad &&
        ip netns exec "$namespace" ip address add "$local_address6/64" dev rn-rxe1 nodad ||
        peer_address6=
    rdma link add "$device" type rxe netdev rn-rxe0 || skip 'the Soft-RoCE device cannot be made'
    # No privilege is part of the claim.
    local=(ip netns exec "$namespace" setpriv --reuid=65534 --regid=65534 --clear-groups --)
}

# The index of an address in the peer's table of GIDs, which lists them in full.
find_gid() { # ADDRESS
    local wanted index
    case $1 in
        *:*) wanted=${1%%::*}:.*:0*${1##*::} ;;
        *) wanted=ffff:$(printf '%02x%02x:%02x%02x' ${1//./ }) ;;
    esac
    for index in 0 1 2 3 4 5 6 7; do
        if "${peer[@]}" "cat /sys/class/infiniband/$device/ports/1/gids/$index" 2>/dev/null |
            grep -qi "$wanted\$"; then
            echo "$index"
            return
        fi
    done
    return 1
}

failures=0
plays=0
sides='client server'
verdict() { # NAME STATUS
    plays=$((plays + 1))
    if [ "$2" -eq 0 ]; then echo "ok: $1"; return; fi
    failures=$((failures + 1))
    printf 'FAILED: %s\n-- railnet\n%s\n-- peer\n%s\n' "$1" "$(cat "$work/ours")" "$(cat "$work/theirs")"
}

as_client() { # OPTIONS OF BOTH... -- OPTIONS OF RAILNET...
    local shared=() status
    while [ $# -gt 0 ] && [ "$1" != -- ]; do shared+=("$1"); shift; done
    shift
    timeout 120 "${peer[@]}" "ibv_rc_pingpong -d $device -g $gid ${shared[*]}" >"$work/theirs" 2>&1 &
    # Where the peer starts slowly, nobody answers yet: Railnet tries for some seconds, and we for some more.
    # It waits at its IPv4 address, whatever its GID is.
    for _ in 1 2 3 4 5; do
        timeout 120 ${local[@]+"${local[@]}"} "$railnet" pingpong "${shared[@]}" --chk "$@" \
            --address "$own" "$peer_address" >"$work/ours" 2>&1
        status=$?
        grep -q 'is it started' "$work/ours" || break
    done
    wait $! || status=$?
    verdict "Railnet at $own is the client: ${shared[*]} $*" "$status"
}

as_server() { # OPTIONS OF BOTH... -- OPTIONS OF RAILNET...
    local shared=() status
    while [ $# -gt 0 ] && [ "$1" != -- ]; do shared+=("$1"); shift; done
    shift
    timeout 120 ${local[@]+"${local[@]}"} "$railnet" pingpong "${shared[@]}" "$@" >"$work/ours" 2>&1 &
    sleep 1
    timeout 120 "${peer[@]}" "ibv_rc_pingpong -d $device -g $gid ${shared[*]} $own" >"$work/theirs" 2>&1
    status=$?
    wait $! || status=$?
    verdict "Railnet at $own is the server: ${shared[*]} $*" "$status"
}

[ -n "${RXE_PEER:-}" ] || make_link
play() { # ADDRESS OF RAILNET, ADDRESS OF THE PEER
    own=$1
    gid=$(find_gid "$2") || skip "the peer has no RoCEv2 address $2 on $device"
    for play in as_client as_server; do
        $play -n 200 --
        $play -n 20 -s 1 --
        $play -n 20 -s 100000 -m 512 --
        $play -n 10 -s 1000000 -m "$mtu" --
        $play -n 50 -s 3000 -m 256 -r 16 --
        $play -n 100 --events --
        $play -n 100 -- --drop 0.03 --duplicate 0.03 --reorder 0.03 --delay 0.03 --corrupt 0.03
    done
}

# A program against the kernel's: the server there, then here. SERVER and CLIENT are command lines without the address, which clients get.
# As in: programs 'rping -s -a OWN' 'rping -c -a PEER' [OPTIONS OF railnet rdma exec...], with $own and $other set.
programs() {
    local server=$1 client=$2 status side meets=$other meets_here=$own program
    shift 2
    program=${server%% *}
    command -v "$program" >/dev/null || { echo "LEFT OUT: $program is not installed"; return; }
    "${peer[@]}" "command -v $program" >/dev/null 2>&1 || { echo "LEFT OUT: the peer has no $program"; return; }
    local theirs=
    case "$server" in
        ib_*-R*) ;;
        # These exchange their addresses over IPv4, whatever their GIDs are, and must be told the kernel's device.
        ib_*) theirs="-d $device -x $gid" meets=$peer_address meets_here=$local_address ;;
    esac
    local ours=(${local[@]+"${local[@]}"} "$railnet" rdma exec --address "$own" "$@" --)
    for side in $sides; do
        # shellcheck disable=SC2086 # command lines are words
        if [ "$side" = client ]; then
            # The limit there ends it, too, where the way to the peer is lost.
            "${peer[@]}" "timeout 110 ${server//OWN/$meets} $theirs" >"$work/theirs" 2>&1 &
        else
            timeout 120 "${ours[@]}" ${server//OWN/$meets_here} >"$work/ours" 2>&1 &
        fi
        # A client that comes before the server listens is refused, and comes again.
        for _ in {1..20}; do
            sleep 1
            # shellcheck disable=SC2086
            if [ "$side" = client ]; then
                timeout 100 "${ours[@]}" ${client//PEER/$meets} >"$work/ours" 2>&1
            else
                "${peer[@]}" "timeout 90 ${client//PEER/$meets_here} $theirs" >"$work/theirs" 2>&1
            fi
            status=$?
            [ "$status" -ne 0 ] && kill -0 $! 2>/dev/null || break
        done
        if [ "$status" -ne 0 ]; then
            kill $! 2>/dev/null
            [ "$side" = server ] || "${peer[@]}" "pkill -x $program" >/dev/null 2>&1
        fi
        wait $! || status=$?
        verdict "Railnet at $own is the $side: $client $*" "$status"
    done
}

run_programs() { # ADDRESS OF RAILNET, ADDRESS OF THE PEER
    local test size
    own=$1 other=$2
    gid=$(find_gid "$2") || return
    # By connection management.
    programs 'rping -s -V -C 10 -a OWN' 'rping -c -V -C 10 -a PEER'
    programs 'rping -s -V -C 5 -S 30000 -p 7175 -a OWN' 'rping -c -V -C 5 -S 30000 -p 7175 -a PEER'
    programs 'rping -s -V -C 10 -p 7176 -a OWN' 'rping -c -V -C 10 -p 7176 -a PEER' --drop 0.03 --reorder 0.03 --duplicate 0.03
    programs 'ucmatose -c 10 -p 7177 -b OWN' 'ucmatose -c 10 -p 7177 -s PEER'
    programs 'udaddy -c 5 -b OWN' 'udaddy -c 5 -s PEER'
    programs 'rstream -T v -S 3000 -C 20 -I 3 -p 7179 -b OWN' 'rstream -T v -S 3000 -C 20 -I 3 -p 7179 -s PEER'
    # By an exchange over TCP.
    for test in 'ib_write_bw -s 20000' 'ib_read_bw -s 20000' 'ib_send_bw -s 20000' ib_atomic_bw 'ib_write_lat -s 8' 'ib_read_lat -s 8' \
        'ib_send_lat -s 8' 'ib_write_bw -c UC -s 20000' 'ib_send_bw -c UD -s 1000' 'ib_write_bw -q 4 -s 20000' 'ib_write_bw -b -s 20000'; do
        # A second without an acknowledgement: the peer may be an emulated machine.
        programs "$test -F -n 50 -u 18" "$test -F -n 50 -u 18 PEER"
    done
    programs 'ib_write_bw -s 20000 -F -n 50' 'ib_write_bw -s 20000 -F -n 50 PEER' --drop 0.02 --corrupt 0.02
    case $1 in *:*) return ;; esac
    # These servers listen on IPv4.
    programs 'rdma_server -p 7178' 'rdma_client -p 7178 -s PEER'
    # perftest closes its first listener and opens the next while its client connects, which Linux's manager refuses where the client is
    # faster; Railnet's lets the request wait.
    sides=server
    programs 'ib_write_bw -R -s 20000 -F -n 50' 'ib_write_bw -R -s 20000 -F -n 50 PEER'
    sides='client server'
}

play "$local_address" "$peer_address"
if [ -n "$peer_address6" ]; then play "$local_address6" "$peer_address6"; fi
run_programs "$local_address" "$peer_address"
if [ -n "$peer_address6" ]; then run_programs "$local_address6" "$peer_address6"; fi
echo "$failures of $plays failed"
[ "$failures" -eq 0 ]
