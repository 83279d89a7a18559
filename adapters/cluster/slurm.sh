#!/bin/sh
# Digests and compares the recordings of a job on Slurm:
#
#     slurm.sh RECORDINGS OUT [TASKS [SBATCH_OPTION...]]
#
# Submits an array of TASKS tasks (16), each of which digests its part of the recordings (*.ring, *.pickle, and those
# compressed), and a last task that unites the digests and compares them, whatever became of the others. Prints the
# number of that last job. RECORDINGS and OUT are folders that all nodes have.
#
# OUT/ranks.txt has the answer. A task that is killed is started again by Slurm if its node failed; the ranks of one
# that is not are named as missing, and another run of this script does what is left. RANKS=N is the number of ranks of
# the job, if not all have a recording, and WEIR the program, if it is not in PATH.
set -eu

recordings=$1 out=$2
weir=${WEIR:-weir}

list() {
  find "$recordings" -maxdepth 1 -type f \( -name '*.ring' -o -name '*.ring.zst' -o -name '*.ring.gz' \
    -o -name '*.pickle' -o -name '*.pickle.zst' -o -name '*.pickle.gz' \) | sort
}

# A digest is put in place as a whole, so what is there is complete.
digest() {
  list | awk -v tasks="$SLURM_ARRAY_TASK_COUNT" -v task="$SLURM_ARRAY_TASK_ID" 'NR % tasks == task % tasks' |
    while read -r file; do
      to=$out/digests/$(basename "$file").json
      [ -s "$to" ] || "$weir" digest -o "$to" "$file" || echo "$file: no digest" >&2
    done
}

compare() {
  code=0
  "$weir" merge -o "$out/job.json" "$out/digests" || code=$?
  "$weir" ranks ${RANKS:+--ranks "$RANKS"} "$out/job.json" >"$out/ranks.txt.part" || [ $? -eq 3 ] || code=$?
  mv "$out/ranks.txt.part" "$out/ranks.txt"
  exit "$code"
}

case ${WEIR_TASK:-submit} in
digest) digest ;;
compare) compare ;;
*)
  tasks=${3:-16}
  shift "$(($# < 3 ? $# : 3))"
  mkdir -p "$out/digests"
  array=$(WEIR_TASK=digest sbatch --parsable --job-name=weir-digest --array="0-$((tasks - 1))" --requeue \
    --output="$out/digest-%a.log" "$@" "$0" "$recordings" "$out")
  WEIR_TASK=compare sbatch --parsable --job-name=weir-ranks --dependency="afterany:${array%%;*}" \
    --output="$out/ranks.log" "$@" "$0" "$recordings" "$out"
  ;;
esac
