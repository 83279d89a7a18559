#!/bin/sh
# slurm.sh PROGRAM MAKE_RANK: adapters/cluster/slurm.sh on a Slurm of its own, on this machine: munged, slurmctld and
# slurmd. A task of the array is killed in the middle: its ranks are named as missing, and a second run has all.
set -u
weir=$1 make_rank=$2
script=$(cd "$(dirname "$0")/../../adapters/cluster" && pwd)/slurm.sh
checks=$(dirname "$0")/../support/check_ranks.py
PATH=$PATH:/usr/sbin:/sbin
waive() {
  echo "waived: $1"
  exit 77
}
[ "${WEIR_TEST_LONG:-0}" = 1 ] || waive 'WEIR_TEST_LONG is not 1'
for needed in munged slurmctld slurmd sbatch python3; do
  command -v $needed >/dev/null || waive "there is no $needed (Debian: slurmctld, slurmd, slurm-client, munge)"
done
[ "$(id -u)" = 0 ] || waive 'slurmd runs as root only'

work=$(mktemp -d)
started=
end() {
  for process in $started; do kill "$process" 2>/dev/null; done
  sleep 1
  for process in $started; do kill -9 "$process" 2>/dev/null; done
  rm -rf "$work"
}
trap end EXIT
fail() {
  echo "$1"
  for log in munged.log ctld.log slurmd.log out/ranks.log out/digest-1.log; do
    [ -f "$work/$log" ] && echo "-- $log" && tail -n 30 "$work/$log"
  done
  exit 1
}

mkdir "$work/spool" "$work/state" "$work/ranks"
chmod 755 "$work"
head -c 1024 /dev/urandom >"$work/key"
chmod 400 "$work/key"
node=$(hostname -s)
cat >"$work/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$node
SlurmUser=root
SlurmctldPort=$((20000 + $$ % 10000))
SlurmdPort=$((30000 + $$ % 10000))
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_min_interval=100000
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/ctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/ctld.log
SlurmdLogFile=$work/slurmd.log
NodeName=$node CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=$node Default=YES MaxTime=INFINITE State=UP
END
export SLURM_CONF="$work/slurm.conf"
munged --foreground --force --key-file="$work/key" --socket="$work/munge.socket" --pid-file="$work/munge.pid" \
  --log-file="$work/munged.log" --seed-file="$work/seed" 2>"$work/munged.err" &
started="$started $!"
sleep 1
slurmctld -D -f "$SLURM_CONF" >/dev/null 2>&1 &
started="$started $!"
slurmd -D -f "$SLURM_CONF" -N "$node" >/dev/null 2>&1 &
started="$started $!"

# wait_for SECONDS COMMAND...: until it succeeds.
wait_for() {
  left=$(($1 * 5))
  shift
  while ! "$@" >/dev/null 2>&1; do
    left=$((left - 1))
    [ $left -gt 0 ] || return 1
    sleep 0.2
  done
}
is_up() { sinfo -h -o %t | grep -q '^idle'; }
is_done() { [ -z "$(squeue -h)" ]; }
wait_for 60 is_up || fail 'Slurm does not start'

ranks=48
i=0
while [ $i -lt $ranks ]; do
  "$make_rank" $ranks 12000 21 $i >"$work/ranks/rank$i.ring"
  i=$((i + 1))
done
"$make_rank" $ranks 12000 21 truth >"$work/truth"
# As slow as with large recordings, so that a task can be killed in the middle.
# shellcheck disable=SC2016 # the script expands $1
printf '#!/bin/sh\n[ "$1" != digest ] || sleep 0.3\nexec "%s" "$@"\n' "$weir" >"$work/slow"
chmod +x "$work/slow"
export WEIR="$work/slow" RANKS=$ranks

"$script" "$work/ranks" "$work/out" 4 >"$work/job" || fail 'the job was not accepted'
has_begun() { [ "$(find "$work/out/digests" -name '*.json' | wc -l)" -ge 6 ]; }
wait_for 60 has_begun || fail 'no digest is made'
running=$(squeue -h -t R -o %i -n weir-digest | head -n 1)
scancel --signal=KILL --full "$running" || fail 'no task can be killed'
wait_for 120 is_done || fail 'the job does not end'
[ -f "$work/out/ranks.txt" ] || fail 'no answer after a task was killed'
lacking=$((ranks - $(find "$work/out/digests" -name '*.json' | wc -l)))
[ $lacking -gt 0 ] || fail 'no rank is missing, so nothing was killed in the middle'
grep -q "^  missing     $lacking rank" "$work/out/ranks.txt" || fail "$lacking missing ranks are not named"

"$script" "$work/ranks" "$work/out" 4 >"$work/job" || fail 'the second job was not accepted'
wait_for 120 is_done || fail 'the second job does not end'
grep -q missing "$work/out/ranks.txt" && fail 'ranks are missing after the second run'
"$weir" ranks --json "$work/out/job.json" >"$work/json"
python3 "$checks" "$work/truth" "$work/json" || fail 'another answer than was planted'
echo "killed task $running, $lacking ranks were missing, none after the second run"
