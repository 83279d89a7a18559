#!/bin/sh
# files.sh PROGRAM VERSION: input and output files: -, pipes, links, devices, permissions and interrupts.
set -u
tested=''
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
data=$(dirname "$0")/../data
small=$data/small_snapshot.pickle
mode_of() { stat -c %a "$1"; }
left() {
  got=$(find "$work" -name '.weir-*')
  [ -z "$got" ] || fail "a temporary file is left: $got"
}

# ---- - is the standard input of every command ----
piped() {
  "$weir" "$@" - <"$input" >"$work/out" 2>"$work/err" || fail "$* from a file: exit code $?"
  # shellcheck disable=SC2002 # a pipe is what is tested
  cat "$input" | "$weir" "$@" - >"$work/out" 2>"$work/err" || fail "$* from a pipe: exit code $?"
}
said='standard input'
input=$small
piped summary
has out '^standard input: 1 device, '
piped summary --json
is_json_lines
piped explain
has out '^standard input: '
piped export --to csv
piped export --to json
is_json
piped whatif --conf ''
piped tune
piped replay
has out '^standard input: '
piped redact
"$weir" summary - <"$work/out" >"$work/out2" 2>"$work/err" || fail 'the redacted copy on the standard output'
run 1 summary - </dev/null
has err 'standard input: the file is empty$'
printf 'alloc 5\n' | "$weir" whatif --conf '' --cost - "$small" >"$work/out" 2>"$work/err" || fail '--cost -'

# A recording can come from a pipe as well, compressed or not.
said='a recording'
WEIR_DRIVER=soft WEIR_RECORD=$work/rings WEIR_RECORD_MB=4 "$weir" demo >"$work/out" 2>"$work/err" || fail 'demo'
ring=$(find "$work/rings" -name '*.ring' | head -n 1)
run 0 summary --json "$ring"
sed 's/"file": "[^"]*"//' "$work/out" >"$work/expected"
input=$ring
piped summary --json
sed 's/"file": "[^"]*"//' "$work/out" | cmp -s - "$work/expected" || fail 'a recording from a pipe is another one'
gzip -c "$ring" >"$work/ring.gz"
"$weir" summary --json "$work/ring.gz" >"$work/out" 2>"$work/err" || grep -q 'without zlib' "$work/err" ||
  fail 'a compressed recording'
head -c 1000 "$ring" | "$weir" summary - >"$work/out" 2>"$work/err" && fail 'half a header'
has err 'the data end in the header'

# ---- - is the standard output for every -o ----
run 0 export --to csv "$small"
cp "$work/out" "$work/expected.csv"
# Devices and links created by the test: a program that replaces them must not harm the machine.
ln -s /proc/self/fd/1 "$work/stdout"
for to in - "$work/stdout" /proc/self/fd/1; do
  run 0 export --to csv -o "$to" "$small"
  cmp -s "$work/out" "$work/expected.csv" || fail "another file through $to"
  "$weir" export --to csv -o "$to" "$small" 2>"$work/err" | cmp -s - "$work/expected.csv" || fail "another file, piped"
  run 0 redact --salt s -o "$to" "$small"
  "$weir" summary "$work/out" >"$work/out2" 2>"$work/err" || fail 'no copy on the standard output'
done
[ -L "$work/stdout" ] || fail 'the link to the standard output is none any more'
run 0 redact --salt s -o - "$small"
has err 'function names'
run 2 redact --json -o - "$small"
if "$weir" export --to sqlite -o "$work/db" "$small" >"$work/out" 2>"$work/err"; then
  run 0 export --to sqlite -o - "$small"
  head -c 15 "$work/out" | grep -q 'SQLite format 3' || fail 'no database on the standard output'
  size=$(wc -c <"$work/db")
  [ "$(wc -c <"$work/out")" -eq "$size" ] || fail 'another database'
fi
# A file that is already open is continued, not replaced.
{
  echo before
  "$weir" export --to csv -o "$work/stdout" "$small"
  echo after
} >"$work/all" 2>"$work/err"
[ "$(head -n 1 "$work/all") $(tail -n 1 "$work/all")" = 'before after' ] || fail 'the open file was replaced'

# ---- No output replaces an input, under whatever name ----
said='an output that is an input'
kept() {
  run 1 "$@"
  has err 'the output would overwrite the input$'
  cmp -s "$small" "$work/job.pickle" || fail "$*: the input is not what it was"
  empty out
}
cp "$small" "$work/job.pickle"
ln -s job.pickle "$work/job.link"
ln "$work/job.pickle" "$work/job.hard"
for name in job.pickle job.link job.hard; do
  kept view --no-open -o "$work/$name" "$work/job.pickle"
  kept view --no-open -o "$work/$name" "$small" "$work/job.pickle"
  kept plot -o "$work/$name" "$work/job.pickle"
  kept export --to json -o "$work/$name" "$work/job.pickle"
  kept export --to sqlite -o "$work/$name" "$work/job.pickle"
  kept whatif --conf '' --write "$work/$name" "$work/job.pickle"
  kept tune --save "$work/$name" "$work/job.pickle"
  kept redact -o "$work/$name" "$work/job.pickle"
done
# shellcheck disable=SC2094 # that is what is tested
kept plot -o "$work/job.pickle" - <"$work/job.pickle"
kept tune --save "$work/job.pickle" --costs "$work/job.pickle" "$small"
run 0 plot -o /dev/null "$work/job.pickle"

# ---- Links, permissions, devices ----
every() {
  for to in "$@"; do
    run 0 export --to csv -o "$to" "$small"
    run 0 redact --salt s -o "$to" "$small"
    run 0 export --to perfetto -o "$to" "$small"
    "$weir" export --to sqlite -o "$to" "$small" >"$work/out" 2>"$work/err" || grep -q 'without SQLite' "$work/err" ||
      fail "no database at $to"
  done
}
: >"$work/file"
chmod 604 "$work/file"
ln -s file "$work/link"
ln -s new "$work/dangling"
every "$work/file" "$work/link" "$work/dangling"
[ "$(mode_of "$work/file")" = 604 ] || fail "permissions are $(mode_of "$work/file")"
{ [ -L "$work/link" ] && [ -L "$work/dangling" ] && [ -f "$work/new" ]; } || fail 'a link is none any more'
if mknod "$work/null" c 1 3 2>/dev/null && { : >"$work/null"; } 2>/dev/null; then
  ln -s null "$work/nulls"
  every "$work/null" "$work/nulls"
  { [ -c "$work/null" ] && [ -L "$work/nulls" ]; } || fail 'a device is none any more'
fi
mkfifo "$work/fifo"
cat "$work/fifo" >"$work/read" &
run 0 export --to csv -o "$work/fifo" "$small"
wait
cmp -s "$work/read" "$work/expected.csv" || fail 'another file through a FIFO'
[ -p "$work/fifo" ] || fail 'a FIFO is none any more'
ln -s loop "$work/loop"
run 1 export --to csv -o "$work/loop" "$small"
has err 'loop: cannot write it: Too many levels of symbolic links'
run 1 export --to csv -o "$work" "$small"
has err 'Is a directory'
full=$work/full
mknod "$full" c 1 7 2>/dev/null && { : >"$full"; } 2>/dev/null || full=
[ "$(id -u)" -eq 0 ] || full=/dev/full
for form in csv json perfetto sqlite; do
  [ -w "$full" ] || continue
  run 1 export --to $form -o "$full" "$small"
  has err 'No space left\|without SQLite'
  hasnt err 'weir export: export:'
done
if [ -w "$full" ]; then
  run 1 redact -o "$full" "$small"
  [ -c "$full" ] || fail 'a device is none any more'
fi
left

# ---- Interrupted ----
# A database is written by path, so its temporary file has a name, and only the program can remove it.
if command -v python3 >/dev/null && "$weir" export --to sqlite -o "$work/db" "$small" 2>/dev/null; then
  mkdir "$work/interrupted"
  python3 - "$weir" "$work" >"$work/out" 2>"$work/err" <<'END' || fail 'interrupted'
import os, pickle, signal, subprocess, sys, time
weir, work = sys.argv[1:]
frames = [{"name": "f", "filename": "f.py", "line": i} for i in range(30)]
events = [{"action": "alloc", "addr": 512 * i, "size": 512, "stream": 0, "time_us": i, "frames": frames[: i % 30]}
          for i in range(150000)]
with open(work + "/long.pickle", "wb") as file:
    pickle.dump({"segments": [], "device_traces": [events]}, file)
for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
    for form in "sqlite", "csv":
        child = subprocess.Popen([weir, "export", "--to", form, "-o", work + "/interrupted/out", work + "/long.pickle"],
                                 preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        for _ in range(2000):
            if form == "csv" or os.listdir(work + "/interrupted"):
                break
            time.sleep(0.002)
        time.sleep(0.05)
        child.send_signal(number)
        assert child.wait() == -number, (number, form, child.returncode)
        assert os.listdir(work + "/interrupted") == [], (number, form)
END
  left
fi
exit "$failed"
