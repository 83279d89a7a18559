#!/bin/sh
# digest.sh PROGRAM VERSION: `weir digest` and `weir merge`. MAKE_RANK is a program that writes recordings.
set -u
tested=digest
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
data=$(dirname "$0")/../data
schema=$(dirname "$0")/../../docs/tools/digest.schema.json
checks=$(dirname "$0")/../support/check_schema.py

wrong 'FILE is missing'
wrong "--salt needs --redact" --salt x "$data/small_snapshot.pickle"
wrong "--schema takes no files" --schema "$data/small_snapshot.pickle"
run 1 "$work/missing"
empty out
run 1 "$data/make_big.py"
has err 'not a recording'

# The schema in the documentation is what the program prints, and holds for all that it writes.
run 0 --schema
is_json
cmp -s "$schema" "$work/out" || fail "another schema than docs/tools/digest.schema.json"
"$MAKE_RANK" 16 30000 5 3 >"$work/rank3.ring"
"$MAKE_RANK" 16 30000 5 4 out >"$work/rank4.ring"
run 0 "$work"/rank?.ring "$data/small_snapshot.pickle"
empty err
cp "$work/out" "$work/some.json"
if command -v python3 >/dev/null; then
  lines=$(python3 "$checks" "$schema" "$work/some.json") || fail "$lines"
  [ "$lines" = 3 ] || fail "$lines documents were checked, expected 3"
fi
has out '^{"weir_digest":1,"id":"[0-9a-f]*","rank":3,"device":0,'
has out '"ended":"closed"'
has out '"verdict":"out of memory"'
has out '"text":"attention (train.py:106)"'

# Steps are those of the phase, also behind the part of the history in which they are looked for.
run 0 "$work/rank3.ring"
has out '"source":"phases","name":"[0-9a-f]*","confidence":1000,"count":278,"width":8,"setup":7,"entry":\[7,871,1735,'
"$MAKE_RANK" 16 300000 99 1 >"$work/long.ring"
run 0 "$work/long.ring"
has out '"count":2777,"width":64,"setup":7,"entry":\[7,6919,13831,'

# A pipe, also a compressed one, has the same digest as the file, but for the name of the file.
without_name() { sed 's/"id":"[0-9a-f]*",//; s/"file":"[0-9a-f]*",//; s/,*{"name":"[0-9a-f]*","text":"[a-z.]*ring[.zst]*"}//'; }
run 0 "$work/long.ring"
without_name <"$work/out" >"$work/expected"
run 0 - <"$work/long.ring"
without_name <"$work/out" | cmp -s - "$work/expected" || fail "another digest from a file"
# shellcheck disable=SC2002 # a pipe is meant
cat "$work/long.ring" | "$weir" digest - >"$work/out" || fail 'no digest of a pipe'
without_name <"$work/out" | cmp -s - "$work/expected" || fail "another digest from a pipe"
if command -v zstd >/dev/null; then
  zstd -q "$work/long.ring"
  run 0 "$work/long.ring.zst"
  without_name <"$work/out" | cmp -s - "$work/expected" || fail "another digest of a compressed file"
  run 0 -o "$work/one.json.zst" "$work/rank3.ring"
  empty out
  zstd -dqc "$work/one.json.zst" | cmp -s - "$(head -n 1 "$work/some.json" >"$work/first" && echo "$work/first")" ||
    fail "another digest in a compressed file"
fi

# What the user says.
run 0 --rank 77 --role 'stage 2' "$work/rank3.ring"
has out '"rank":77,'
has out '"text":"stage 2"'
cp "$data/small_snapshot.pickle" "$work/job_rank12.pickle"
run 0 "$work/job_rank12.pickle"
has out '"rank":12,'

# Without texts.
run 0 --redact --role secret "$work/rank3.ring"
hasnt out '"text":'
hasnt out 'secret'
run 0 --redact --salt a "$work/rank3.ring"
cp "$work/out" "$work/salted"
run 0 --redact --salt a "$work/rank3.ring"
cmp -s "$work/out" "$work/salted" || fail "another digest with the same salt"

# One file that cannot be read does not keep the others from being read.
run 1 "$work/missing" "$work/rank3.ring"
has err 'missing'
has out '"rank":3,'

tested=merge
wrong 'DIGEST is missing'
mkdir "$work/ranks" "$work/empty"
for rank in 0 1 2 3 4 5; do
  "$MAKE_RANK" 6 20000 5 $rank | "$weir" digest - >"$work/ranks/$rank.json" || fail "no digest of rank $rank"
done
run 0 "$work/ranks"
empty err
cp "$work/out" "$work/all"
cat "$work"/ranks/?.json | cmp -s - "$work/all" || fail "the union is not all of them"
run 0 "$work"/ranks/5.json "$work"/ranks/3.json "$work"/ranks "$work"/ranks/0.json
cmp -s "$work/out" "$work/all" || fail "another union in another order"
run 0 -o "$work/a" "$work/ranks/4.json" "$work/ranks/1.json"
run 0 -o "$work/b" "$work/ranks/5.json" "$work/ranks/0.json" "$work/a"
cat "$work/ranks/2.json" "$work/ranks/3.json" | "$weir" merge "$work/b" - >"$work/out" || fail 'no union of a pipe'
cmp -s "$work/out" "$work/all" || fail "another union over another tree"
run 1 "$work/empty"
has err 'no file in this folder ends in .json'
run 1 -o "$work/b" "$work/b"
has err 'the output would overwrite the input'

# Files that are damaged, foreign or of another version are named, and the others are united.
head -c 5000 "$work/ranks/0.json" >"$work/ranks/a_cut.json"
sed 's/"weir_digest":1/"weir_digest":2/' "$work/ranks/1.json" >"$work/ranks/b_newer.json"
echo '{"a": 1}' >"$work/ranks/c_foreign.json"
: >"$work/ranks/d_empty.json"
sed 's/"rank":2,/"rank":2,"rank":2,/' "$work/ranks/2.json" >"$work/ranks/e_twice.json"
head -c 300000 /dev/zero | tr '\0' x >"$work/ranks/f_long.json"
cp "$data/bomb.zst" "$work/ranks/g_bomb.json.zst"
{ cat "$work/ranks/5.json" && echo x; } >"$work/ranks/h_half.json"
run 1 "$work/ranks"
cmp -s "$work/out" "$work/all" || fail "another union beside damaged files"
has err 'a_cut.json: line 1: it has no end: the file is incomplete'
has err 'b_newer.json: line 1, byte 16: a digest of version 2, this program reads version 1'
has err "c_foreign.json: line 1, byte 4: not a digest: expected 'weir_digest' first"
has err "e_twice.json: line 1, byte [0-9]*: 'rank' for the second time"
has err 'f_long.json: line 1: it has no end'
has err 'g_bomb.json.zst: '
has err 'h_half.json: line 2, byte 0: not a digest.*; the lines before it are used'
[ "$(wc -l <"$work/err")" = 7 ] || fail 'other messages'

# Thousands of bombs are refused as fast as they are opened.
bombs=200
[ "${WEIR_TEST_LONG:-0}" = 1 ] && bombs=10000
mkdir "$work/bombs"
i=0
while [ $i -lt $bombs ]; do
  ln "$data/bomb.zst" "$work/bombs/$i.json.zst" 2>/dev/null || cp "$data/bomb.zst" "$work/bombs/$i.json.zst"
  i=$((i + 1))
done
run 1 "$work/bombs" "$work/all"
cmp -s "$work/out" "$work/all" || fail "another union beside bombs"
[ "$(wc -l <"$work/err")" = $bombs ] || fail "not a message for each bomb"

run 0 --redact --salt a "$work/all"
hasnt out '"text":'
exit $failed
