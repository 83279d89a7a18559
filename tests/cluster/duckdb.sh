#!/bin/sh
# duckdb.sh PROGRAM MAKE_RANK: DuckDB reads digests as they are, plain and compressed, and its sums are ours.
set -u
weir=$1 make_rank=$2
here=$(cd "$(dirname "$0")" && pwd)
waive() {
  echo "waived: $1"
  exit 77
}
[ "${WEIR_TEST_LONG:-0}" = 1 ] || waive 'WEIR_TEST_LONG is not 1'
for needed in node npm zstd; do
  command -v $needed >/dev/null || waive "there is no $needed"
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && npm install --no-audit --no-fund --silent @duckdb/node-api@1.5.6-r.1 >npm.log 2>&1) ||
  waive 'npm cannot install @duckdb/node-api, which needs a network'
mkdir "$work/ranks"
rank=0
while [ $rank -lt 24 ]; do
  "$make_rank" 24 20000 3 $rank | "$weir" digest -o "$work/ranks/$rank.json" - || exit 1
  rank=$((rank + 1))
done
"$weir" digest -o "$work/ranks/oom.json" "$here/../data/histories/capped_oom.pickle.zst" || exit 1
"$weir" merge -o "$work/job.json" "$work/ranks" && "$weir" merge -o "$work/job.json.zst" "$work/ranks" || exit 1
cp "$here/duckdb.mjs" "$work/"
cd "$work" && node duckdb.mjs job.json job.json.zst ranks
