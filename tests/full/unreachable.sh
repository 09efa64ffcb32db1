#!/usr/bin/env bash
# A host whose link is cut is reported after the heartbeat timeout plus a grace period, and only the majority continues.
# Three hosts are network namespaces on a bridge, which needs root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if [ "$(id -u)" -ne 0 ] || ! ip netns add railnet-probe 2>/dev/null; then
    echo 'left out: network namespaces need root'
    exit 77
fi
ip netns del railnet-probe

test=$(cargo test --locked -p railnet-live --test survivors --no-run --message-format=json 2>/dev/null |
    sed -n 's/.*"executable":"\([^"]*survivors[^"]*\)".*/\1/p' | tail -1)
out=$(mktemp -d)
pids=()
clean() {
    for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
    for rank in 0 1 2; do ip netns del "railnet$rank" 2>/dev/null || true; done
    ip link del railnet-br 2>/dev/null || true
    rm -r "$out"
}
trap clean EXIT

ip link add railnet-br type bridge
ip link set railnet-br up
for rank in 0 1 2; do
    ip netns add "railnet$rank"
    ip link add "rnv$rank" type veth peer name eth0 netns "railnet$rank"
    ip link set "rnv$rank" master railnet-br up
    ip -n "railnet$rank" addr add "10.213.0.$((rank + 1))/24" dev eth0
    ip -n "railnet$rank" link set eth0 up
    ip -n "railnet$rank" link set lo up
done
for rank in 0 1 2; do
    ip netns exec "railnet$rank" env RAILNET_RANK=$rank RAILNET_WORLD_SIZE=3 RAILNET_RENDEZVOUS=10.213.0.1:29400 \
        RAILNET_CONDUIT=tcp RAILNET_SILENCE=3s RAILNET_TIMEOUT=60s \
        "$test" --ignored --exact rank --nocapture >"$out/$rank" 2>&1 &
    pids+=($!)
done
for _ in $(seq 100); do
    [ "$(cat "$out"/? | grep -c '^ready')" -eq 3 ] && break
    sleep 0.1
done
sleep 0.5
# The bridge end goes down: both sides keep their addresses and hear nothing more.
ip link set rnv2 nomaster
cut=$SECONDS
reported=
while [ $((SECONDS - cut)) -lt 40 ]; do
    [ -z "$reported" ] && grep -q 'rank 2 is lost' "$out/0" && reported=$((SECONDS - cut))
    [ "$(grep -l '^2 continue' "$out/0" "$out/1" | wc -l)" -eq 2 ] && grep -q '^ends: ' "$out/2" && break
    sleep 0.1
done
head -c 2000 "$out"/?
echo "reported after ${reported:-never} s, over after $((SECONDS - cut)) s"
[ -n "$reported" ] && [ "$reported" -le 6 ]
grep -q '^2 continue' "$out/0"
grep -q '^2 continue' "$out/1"
grep -q '^ends: rank 2 of 3 ranks answered: a quorum' "$out/2"
