#!/usr/bin/env bash
# Starts a real Slurm with several nodes on this machine: munged, slurmctld, and one slurmd per node. For the tests, and for
# trying out `submit` without a cluster.
#
#   tests/slurm/cluster.sh start [FOLDER] [NODES]     starts it (default: 6 nodes) and prints how to use it
#   tests/slurm/cluster.sh stop [FOLDER]              stops it and all its jobs
#   tests/slurm/cluster.sh node FOLDER NAME           starts the slurmd of one node again
#
# FOLDER holds configuration, state, logs and keys. The machine's own Slurm and munge, if any, are not touched.
# Exits 77 with the reason if Slurm is not installed or cannot run. Needs: slurmctld slurmd slurm-client munge. With
# slurmdbd and mariadb-server-core `sacct` works, too.
#
# Every node has 2 CPUs and 2 fake GPUs; the last node has 4 of each. Jobs in the partition `all` preempt those in
# `scavenge`, after a warning of 30 s, and in `scavenge-now`, without warning.
set -euo pipefail
command=${1:-} folder=$(realpath -m "${2:-/tmp/simplescale-slurm}") nodes=${3:-6}
port=${SIMPLESCALE_SLURM_PORT:-17400}
export SLURM_CONF=$folder/slurm.conf PATH=$PATH:/usr/sbin:/sbin

skip() {
  echo "SKIPPED: $*" >&2
  stop  # the daemons that have started already
  exit 77
}

write_configuration() {
  local i size device
  rm -f "$folder/gres.conf"
  cat >"$SLURM_CONF" <<CONF
ClusterName=simplescale
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPort=$port
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/%n.log
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/$( (($(nproc) > 1)) && echo affinity || echo none)
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
JobCompType=jobcomp/filetxt
JobCompLoc=$folder/jobs.txt
JobRequeue=1
ReturnToService=2
SlurmdTimeout=6
KillWait=20
InactiveLimit=0
MinJobAge=600
OverTimeLimit=0
MessageTimeout=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
SchedulerParameters=sched_interval=1,sched_min_interval=0,default_queue_depth=50,bf_interval=1
CONF
  for ((i = 1; i <= nodes; ++i)); do
    size=$((i < nodes || nodes == 1 ? 2 : 4))
    echo "NodeName=node$i NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$((port + i)) CPUs=$size Gres=gpu:$size State=UNKNOWN"
    for device in /dev/{null,zero,full,random}; do
      ((size-- > 0)) && echo "NodeName=node$i Name=gpu File=$device"
    done >>"$folder/gres.conf" || true
  done >>"$SLURM_CONF"
  local partition="Nodes=node[1-$nodes] MaxTime=INFINITE OverSubscribe=NO State=UP"
  cat >>"$SLURM_CONF" <<CONF
PartitionName=all Default=YES PriorityTier=10 PreemptMode=OFF $partition
PartitionName=scavenge PriorityTier=1 PreemptMode=REQUEUE GraceTime=30 $partition
PartitionName=scavenge-now PriorityTier=1 PreemptMode=REQUEUE GraceTime=0 $partition
CONF
  if has_accounting; then
    cat >>"$SLURM_CONF" <<CONF
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePass=$folder/munge.socket
AccountingStoragePort=$((port + 91))
CONF
  fi
}

has_accounting() {
  local program
  for program in slurmdbd mariadbd sacctmgr; do command -v "$program" >/dev/null || return 1; done
}

# Starts slurmdbd with a private database. The database has no users; its socket is in a folder that only this user may
# enter.
start_accounting() {
  has_accounting || { echo "no sacct: apt-get install slurmdbd mariadb-server-core" >&2; return 0; }
  mkdir -m 700 -p "$folder/mysql"
  export MYSQL_UNIX_PORT=$folder/mysql/socket
  setsid mariadbd --no-defaults --datadir="$folder/mysql" --socket="$MYSQL_UNIX_PORT" --skip-networking --skip-grant-tables \
    --user="$(id -un)" --pid-file="$folder/mysql.pid" --innodb-buffer-pool-size=16M --innodb-log-file-size=8M \
    --innodb-flush-log-at-trx-commit=0 \
    </dev/null >"$folder/mysql.log" 2>&1 &
  await mariadbd test -S "$MYSQL_UNIX_PORT"
  (umask 077 && cat >"$folder/slurmdbd.conf" <<CONF
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
DbdHost=localhost
DbdPort=$((port + 91))
SlurmUser=$(id -un)
LogFile=$folder/slurmdbd.log
PidFile=$folder/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=$(id -un)
StorageLoc=slurm
CONF
  )
  setsid slurmdbd </dev/null >/dev/null 2>&1 || skip "slurmdbd does not start; see $folder/slurmdbd.log"
  await slurmdbd sacctmgr --immediate add cluster simplescale
}

# await WHAT COMMAND...: repeats the command until it succeeds, at most 20 s.
await() {
  local what=$1 end=$((SECONDS + 20))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || { tail -n 5 "$folder"/*.log >&2 || true; skip "$what does not start; see $folder"; }
    sleep 0.1
  done
}

all_idle() { [[ $(sinfo --noheader --Node --partition=all --format=%T | grep -c '^idle$') == "$nodes" ]]; }

start_node() { setsid slurmd -N "$1" </dev/null >/dev/null 2>&1; }

start() {
  local program i
  for program in munged slurmctld slurmd srun sbatch scontrol; do
    command -v "$program" >/dev/null || skip "no $program; apt-get install slurmctld slurmd slurm-client munge"
  done
  [[ ! -e $folder/slurmctld.pid ]] || stop
  mkdir -p "$folder/state"
  chmod 755 "$folder"
  (umask 077 && head -c 128 /dev/urandom >"$folder/munge.key")
  write_configuration
  munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
    --log-file="$folder/munged.log" --seed-file="$folder/munge.seed" --num-threads=2 ||
    skip "munged does not start; see $folder/munged.log"
  start_accounting
  setsid slurmctld -c </dev/null >/dev/null 2>&1 || skip "slurmctld does not start; see $folder/slurmctld.log"
  await slurmctld scontrol ping
  for ((i = 1; i <= nodes; ++i)); do
    mkdir -p "$folder/spool-node$i"
    start_node "node$i" || skip "slurmd does not start; see $folder/node$i.log"
  done
  await "a node" all_idle
  echo "export SLURM_CONF=$SLURM_CONF"
}

# runs PID: true if the process runs. A zombie does not count: in some containers no process reaps it.
runs() {
  local state
  state=$(ps -o stat= -p "$1") && [[ $state != Z* ]]
}

# end_process FILE: ends the daemon of a pid file.
end_process() {
  local pid name
  pid=$(cat "$1" 2>/dev/null) || return 0
  name=$(ps -o comm= -p "$pid" 2>/dev/null) || return 0
  [[ $name =~ ^(munged|slurm|mariadbd) ]] || return 0  # the pid has been reused by another process
  kill "$pid" 2>/dev/null || true
  for _ in {1..50}; do
    runs "$pid" || return 0
    sleep 0.1
  done
  kill -9 "$pid" 2>/dev/null || true
}

stop() {
  local file
  if scontrol ping >/dev/null 2>&1; then
    squeue --noheader --format=%A | xargs -r scancel --signal=KILL --full 2>/dev/null || true
    squeue --noheader --format=%A | xargs -r scancel 2>/dev/null || true
    for _ in {1..50}; do
      [[ -n $(squeue --noheader 2>/dev/null) ]] || break
      sleep 0.1
    done
  fi
  for file in "$folder"/node*.pid "$folder/slurmctld.pid" "$folder/slurmdbd.pid" "$folder/mysql.pid" "$folder/munged.pid"; do end_process "$file"; done
  rm -f "$folder"/*.pid
}

case $command in
  start) start ;;
  stop) stop ;;
  node) start_node "$3" ;;
  *) sed -n '2,16s/^# \{0,1\}//p' "$0" >&2; exit 64 ;;
esac
