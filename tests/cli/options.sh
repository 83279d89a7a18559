#!/bin/sh
# options.sh PROGRAM VERSION: option parsing, which is the same for all commands; the help texts, the manual pages and
# the completion contain every option.
set -u
tested=
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
data=$(cd "$(dirname "$0")/../data" && pwd)
file=$data/small_snapshot.pickle

# A value follows its option or an '='; a long option may be abbreviated; -- ends the options; they may follow
# arguments.
run 0 export --to=csv --table=frames "$file"
cp "$work/out" "$work/frames"
for line in "--to csv --table frames $file" "$file --to csv --tab frames" "--to csv --table frames -o - -- $file" \
  "--to csv --table frames -o- $file" "--to json --to csv --table frames $file"; do
  # shellcheck disable=SC2086 # words are meant
  run 0 export $line
  cmp -s "$work/out" "$work/frames" || fail 'it has another output'
done

# Every error names the command, the option and the value found, and refers to the help.
says() {
  text=$1
  shift
  run 2 "$@"
  empty out
  [ "$(cat "$work/err")" = "weir $text (see 'weir ${text%%:*} --help')" ] || fail "expected 'weir $text (see ...)'"
}
says "replay: unknown option '--x'" replay --x "$file"
says "replay: unknown option '-x'" replay -x "$file"
says "replay: unknown option '-x'" replay -xh "$file"
says "replay: --memory needs a value" replay "$file" --memory
says "export: -o needs a value" export "$file" -o
says "replay: --memory takes a size such as 80GiB, up to 64.00 TiB (got 'x')" replay --memory x "$file"
says "replay: --fraction takes a number above 0 and up to 1 (got '2')" replay --memory 1GiB --fraction 2 "$file"
says "replay: --fraction needs --memory" replay --fraction 0.5 "$file"
says "replay: --device takes a number (got '1x')" replay --device 1x "$file"
says "replay: --device takes a number (got '99999999999')" replay --device 99999999999 "$file"
says "replay: --check takes no value (got '--check=yes')" replay --check=yes "$file"
says "replay: FILE is missing" replay --check
says "tune: --threads takes a number from 1 to 256 (got '')" tune --threads '' "$file"
says "export: --to takes json, sqlite, csv, perfetto, collapsed or speedscope (got 'xml')" export --to xml "$file"
says "export: --to is missing: json, sqlite, csv, perfetto, collapsed or speedscope" export "$file"
says "whatif: --conf SETTINGS or --guard MODE is missing" whatif "$file"
says "explain: takes only one FILE (got 'other' as well)" explain "$file" other
says "explain: --at takes oom, peak, end or the number of an entry (got 'noon')" explain --at noon "$file"
says "info: takes no arguments (got 'now')" info now

# The help of a command lists every option that its usage in the source declares, and each of them is accepted.
for command in summary explain info lint replay whatif tune export redact demo help; do
  # shellcheck disable=SC2086 # words are meant
  run 0 $command --help
  options=$(sed -n 's/^  \(-., \)\{0,1\}--\([a-z-]*\)  *.*/\2/p' "$work/out")
  [ -n "$options" ] || fail 'it lists no options'
  for option in $options; do
    # shellcheck disable=SC2086
    "$weir" $command "--$option" --help >"$work/out" 2>"$work/err"
    hasnt err 'unknown option'
  done
done

exit "$failed"
