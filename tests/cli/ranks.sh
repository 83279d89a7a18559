#!/bin/sh
# ranks.sh PROGRAM VERSION: `weir ranks` on synthetic jobs. MAKE_RANK is a program that writes their recordings.
set -u
tested=ranks
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
data=$(dirname "$0")/../data
checks=$(dirname "$0")/../support/check_ranks.py

wrong 'DIGEST is missing'
wrong '--distance takes a number from 1 to 99' --distance 0 x
run 1 "$work/missing"
has err 'missing'
run 1 "$data/small_snapshot.pickle"
has err 'not a digest'

# make RANKS ENTRIES SEED FOLDER: the digests of a job, and what was planted in FOLDER.truth.
make() {
  mkdir "$4"
  "$MAKE_RANK" "$1" "$2" "$3" truth >"$4.truth"
  # shellcheck disable=SC2016 # the inner shell expands the variables
  seq 0 $(($1 - 1)) | RANKS=$1 ENTRIES=$2 SEED=$3 TO=$4 WEIR=$weir xargs -P 2 -I{} sh -c \
    '"$MAKE_RANK" $RANKS $ENTRIES $SEED {} | "$WEIR" digest -o "$TO/{}.json" -' || fail 'no digests'
}

# Everything that was planted is named, and nothing else, whatever the seed.
sizes='64:20000:2'
[ "${WEIR_TEST_LONG:-0}" = 1 ] && sizes="$sizes 64:9000:1 96:15000:3 512:20000:4 1000:40000:5 1000:40000:6 2000:10000:7"
for size in $sizes; do
  entries=${size#*:}
  make "${size%%:*}" "${entries%:*}" "${size##*:}" "$work/job"
  run 3 --json "$work/job"
  empty err
  is_json
  if command -v python3 >/dev/null; then
    python3 "$checks" "$work/job.truth" "$work/out" >"$work/checked" 2>&1 || fail "$size: $(cat "$work/checked")"
  fi
  # The same of their union, in one file.
  cp "$work/out" "$work/of_folder"
  "$weir" merge -o "$work/job.json" "$work/job"
  run 3 --json "$work/job.json" "$work/job"
  cmp -s "$work/out" "$work/of_folder" || fail 'another answer for the union, and twice the same'
  [ "$size" = 64:20000:2 ] && mv "$work/job" "$work/kept" && mv "$work/job.truth" "$work/kept.truth"
  rm -rf "$work/job" "$work/job.truth"
done

# In words.
job=$work/kept
run 3 --list 100 "$job"
has out '^64 digests$'
has out 'pipeline stage 0 of 4, expert shard 0 of 2: ranks 0-12/2'
has out 'differs in expert_weight (train.py:104)$'
while read -r rank kind stack _; do
  case $kind in
  divergence) has out "^    rank $rank from rank [0-9]* in step [0-9]* to [0-9]*, entry [0-9]* to [0-9]*$" ;;
  leak) has out " by $stack (train.py:[0-9]*), usual are 0 bytes, growing since step [0-9]* to [0-9]*$" ;;
  outlier) has out "^    rank $rank (pipeline stage" ;;
  esac
done <"$job.truth"
has out 'all ranks fit into [0-9.]* GiB as recorded (rank [0-9]* needs most)'
hasnt out 'ran out'
hasnt out 'missing'

# The page, if this build has one.
"$weir" ranks --page "$work/ranks.html" "$job" >"$work/out" 2>"$work/err"
if grep -q 'this build of Weir has no page' "$work/err"; then
  [ ! -e "$work/ranks.html" ] || fail 'a page without a template'
else
  empty err
  grep -q '<script type="application/json" id="weir-ranks">{"digests": 64, ' "$work/ranks.html" || fail 'no data in the page'
  grep -q '"map": {"columns": [0-9]*, "steps": 4, "most": [0-9]*, "rows": \[{"rank": 0, ' "$work/ranks.html" || fail 'no map'
fi

# Digests without texts have the same answer, with hashes.
"$weir" merge --redact -o "$work/redacted.json" "$job"
run 3 "$work/redacted.json"
has out 'usual are 0 bytes, growing since step'
hasnt out 'train.py'

# A rank that is not there, and one that ran out of memory.
rm "$job/7.json"
"$MAKE_RANK" 64 20000 2 9 out | "$weir" digest -o "$job/9.json" -
run 3 --ranks 66 "$job"
has out '^  missing     3 ranks: 7 64-65$'
has out '^  ran out     rank 9 first, at step 91: a request of 8.00 GiB by workspace (train.py:116)$'
has out '^              ranks 0-6,8,10-63 went on for up to 0.0[0-9]* s$'
run 3 --json "$job"
has out '"missing": \[7\]'
has out '"out_of_memory": \[{"rank": 9, '

# One that is damaged is named, and the others are compared.
echo '{"weir_digest":1}' >"$job/broken.json"
run 1 "$job"
has err 'broken.json: line 1'
has out '^63 digests$'

# With the recordings: the request that differs, and what other settings would do.
mkdir "$work/recordings"
"$MAKE_RANK" 32 9000 4 truth >"$work/truth"
for rank in $(seq 0 31); do
  "$MAKE_RANK" 32 9000 4 "$rank" >"$work/recordings/$rank.ring"
done
"$weir" digest -o "$work/some.json" "$work"/recordings/*.ring
parts=$(sed -n 's/ divergence .*//p' "$work/truth")
run 3 --recordings "$work/recordings" --conf expandable_segments:True "$work/some.json"
empty err
has out "^    rank $parts from rank [0-9]* in step"
has out '^                it has a request of 512 bytes at entry [0-9]* by check_finite (train.py:119), the other has a request of .* by gradient'
has out ': reserves [0-9.]* GiB, fits into [0-9.]* GiB; with expandable_segments:True reserves [0-9.]* GiB, fits into'
has out '^              the smallest card on which these ranks fit has [0-9.]* GiB, and with the other settings [0-9.]* GiB'
run 3 --recordings "$work/recordings" --json "$work/some.json"
has out '"request": {"kind": "alloc", "entry": [0-9]*, "bytes": 512, "stack": "check_finite (train.py:119)"}'
rm "$work/recordings/$parts.ring"
run 3 --recordings "$work/recordings" "$work/some.json"
has out "^    rank $parts from rank"
hasnt out 'it has a request'
echo damaged >"$work/recordings/$parts.ring"
run 3 --recordings "$work/recordings" "$work/some.json"
has err 'cannot be read or replayed, the last one: .*not a recording'
run 1 --recordings "$work/recordings" --conf no_such_key:1 "$work/some.json"
wrong '--conf needs --recordings' --conf expandable_segments:True "$work/some.json"

# Ranks that are all different have no classes, and a single one nothing to be compared with.
run 0 "$job/0.json"
has out 'none: no rank is like enough others'
"$weir" digest "$data/histories/pools.pickle.zst" "$data/histories/emptied.pickle.zst" >"$work/other.json" 2>/dev/null &&
  { run 0 "$work/other.json" && has out 'none: no rank is like enough others'; }

# A tenth of the goal: a thousand ranks of 100,000 entries in a minute on two cores.
if [ "${WEIR_TEST_LONG:-0}" = 1 ]; then
  begin=$(date +%s)
  make 1000 100000 11 "$work/large"
  "$weir" merge -o "$work/large.json" "$work/large"
  run 3 --json "$work/large.json"
  python3 "$checks" "$work/large.truth" "$work/out" || fail 'the large job'
  seconds=$(($(date +%s) - begin))
  echo "1,000 ranks of 100,000 entries: $seconds s"
  [ $seconds -le 60 ] || fail "$seconds s for a thousand ranks, at most 60"
fi
exit $failed
