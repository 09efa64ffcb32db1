#!/usr/bin/env bash
# A Slurm cluster of virtual nodes on this machine, for tests: no systemd, nothing outside one folder.
#   cluster.sh install            Slurm and munge, where that needs no password; 77 where it cannot be done
#   cluster.sh start DIR [NODES]  starts it and waits until all nodes are idle
#   cluster.sh stop DIR           ends all of it and removes the folder
# Everything (configuration, key, spool, logs, process ids) is in DIR; SLURM_CONF=DIR/slurm.conf uses it.
set -euo pipefail

port=${SLURM_TEST_PORT:-18002}
cpus=4

install() {
    command -v srun slurmctld slurmd munged >/dev/null && return 0
    local as_root=()
    command -v apt-get >/dev/null || return 77
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>/dev/null || return 77
        as_root=(sudo -n)
    fi
    local apt=(${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -qq)
    echo 'Slurm is missing: installing it'
    timeout 120 "${apt[@]}" update && timeout 300 "${apt[@]}" install -y --no-install-recommends slurm-wlm munge >/dev/null || return 77
    command -v srun slurmctld slurmd munged >/dev/null || return 77
}

configure() { # DIR NODES
    local dir=$1 nodes=$2 node host
    host=$(hostname -s)
    mkdir -p "$dir"/{state,log,run,munge}
    chmod 755 "$dir" "$dir/munge"
    cat >"$dir/slurm.conf" <<TEXT
ClusterName=railnet-test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$dir/munge/socket
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=1,batch_sched_delay=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation=$dir/state
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdPidFile=$dir/run/slurmd.%n.pid
SlurmdSpoolDir=$dir/spool.%n
SlurmdLogFile=$dir/log/slurmd.%n.log
KillWait=5
TEXT
    for node in $(seq 1 "$nodes"); do
        mkdir -p "$dir/spool.n$node"
        echo "NodeName=n$node NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 100 + node)) CPUs=$cpus State=UNKNOWN"
    done >>"$dir/slurm.conf"
    echo 'PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES' >>"$dir/slurm.conf"
    # Where both versions of control groups are mounted, Slurm cannot choose by itself.
    printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' >"$dir/cgroup.conf"
}

start() { # DIR NODES
    local dir=$1 nodes=$2 node tries
    configure "$dir" "$nodes"
    export SLURM_CONF=$dir/slurm.conf
    (umask 077 && head -c 1024 /dev/urandom >"$dir/munge/key")
    munged --force --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/run/munged.pid" \
        --log-file="$dir/log/munged.log" --seed-file="$dir/munge/seed"
    slurmctld -c -f "$SLURM_CONF"
    for node in $(seq 1 "$nodes"); do slurmd -f "$SLURM_CONF" -N "n$node"; done
    for tries in $(seq 1 300); do
        [ "$(timeout 5 sinfo -h -t idle -o %D 2>/dev/null)" = "$nodes" ] && return 0
        sleep 0.1
    done
    echo "error: only $(timeout 5 sinfo -h -t idle -o %D 2>/dev/null || echo 0) of $nodes nodes are ready after 30 s"
    tail -n 5 "$dir"/log/*.log
    return 1
}

stop() { # DIR
    local dir=$1 pids=() pid signal tries
    export SLURM_CONF=$dir/slurm.conf
    mapfile -t pids < <(cat "$dir"/run/*.pid 2>/dev/null)
    timeout 10 scontrol shutdown >/dev/null 2>&1 || true
    for signal in 0 TERM KILL; do
        for tries in $(seq 1 50); do
            local left=()
            for pid in ${pids[@]+"${pids[@]}"}; do
                # Only what is ours: a number may have found another owner by now.
                grep -qE '^(slurmd|slurmctld|munged)$' "/proc/$pid/comm" 2>/dev/null || continue
                grep -q '^State:.*Z' "/proc/$pid/status" 2>/dev/null || left+=("$pid")
            done
            [ "${#left[@]}" -gt 0 ] || break 2
            [ "$tries" -gt 1 ] || kill -s "$signal" "${left[@]}" 2>/dev/null || true
            # munged knows nothing of Slurm's shutdown.
            [ "$signal" != 0 ] || [ "${#left[@]}" -gt 1 ] || break
            sleep 0.1
        done
    done
    rm -rf "$dir"
}

case "${1:-}" in
    install) install ;;
    start) start "$2" "${3:-2}" ;;
    stop) stop "$2" ;;
    *) sed -n '2,6p' "$0"; exit 2 ;;
esac
