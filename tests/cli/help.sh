#!/bin/sh
# help.sh PROGRAM VERSION: manual pages and shell completion.
set -u
tested=help
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
commands='summary explain leaks diff info lint top metrics record replay whatif tune export redact demo help'

# ---- Manual pages ----

mkdir "$work/man"
run 0 --man-pages "$work/man"
empty out
empty err
for command in $commands; do
  [ -s "$work/man/weir-$command.1" ] || fail "no weir-$command.1"
done
[ -s "$work/man/weir.1" ] || fail 'no weir.1'
[ -s "$work/man/weir-environment.7" ] || fail 'no weir-environment.7'
run 1 --man-pages "$work/none"
has err "^weir help: .*/none/weir.1: cannot write it: No such file"
run 2 --man-pages "$work/man" replay
run 2 --completion fish
has err "(got 'fish')"

# The same page on standard output.
run 0 --man explain
cmp -s "$work/out" "$work/man/weir-explain.1" || fail 'it is not weir-explain.1'
run 0 --man environment
cmp -s "$work/out" "$work/man/weir-environment.7" || fail 'it is not weir-environment.7'

# A page has all options of the help text, and roff reports no problems.
for command in $commands; do
  run 0 "$command"
  options=$(sed -n 's/^  \(-., \)\{0,1\}\(--[a-z-]*\).*/\2/p' "$work/out" | sed 's/-/\\\\-/g')
  run 0 --man "$command"
  has out '^\.SH "EXIT STATUS"$'
  for option in $options; do has out "^\\.B .*$option"; done
done
# Both have all values that an option accepts, in columns.
for by in 'stack   *by the code that allocated' 'size   *by requested size' 'stream  *by stream' 'pool   *by pool' \
  'auto   *by stack if' 'class   *weights' 'time   *time since the first entry' 'entries  *history entries' \
  'memory   *[a-z]' 'fragmentation  [a-z]'; do
  run 0 plot
  has out "^ *$by"
  run 0 --man plot
  has out "^\\.B ${by%% *}$"
done
for command in $commands plot view; do
  run 0 "$command"
  hasnt out '(null)'
done
run 0 export
columns=$(sed -n 's/^\( *\(json\|collapsed\|speedscope\)  *\)[a-z].*/\1/p' "$work/out" | awk '{ print length($0) }' | sort -u | wc -l)
[ "$columns" -eq 1 ] || fail 'the descriptions of formats are not in one column'
run 0 tune
has out 'one object for each file (tune: one for all'
for page in "$work"/man/*; do
  said="$(basename "$page")"
  if command -v groff >/dev/null; then
    groff -man -Tutf8 -ww -z "$page" >"$work/out" 2>&1
    empty out
  fi
  if command -v mandoc >/dev/null; then
    mandoc -T lint -W error "$page" >"$work/out" 2>&1 || fail 'mandoc finds errors'
  fi
done

# ---- Examples ----

# They run as they are shown, and manual pages have them.
mkdir "$work/examples"
for name in job oom rank0 rank1; do
  cp "$(dirname "$0")/../data/small_snapshot.pickle" "$work/examples/$name.pickle"
done
echo 'CUDA out of memory. Tried to allocate 1.00 GiB.' >"$work/examples/train.log"
for command in explain whatif tune redact; do
  run 0 --man "$command"
  has out '^\.SH EXAMPLES$'
  count "$("$weir" "$command" --help | sed '1,/^Examples:$/d' | wc -l)" "^weir $command "
  "$weir" "$command" --help | sed '1,/^Examples:$/d' >"$work/lines"
  [ -s "$work/lines" ] || fail 'no examples'
  while read -r line; do
    said=$line
    (cd "$work/examples" && PATH=$(dirname "$weir"):$PATH && eval "$line") >"$work/out" 2>"$work/err" </dev/null ||
      fail "exit code $?"
  done <"$work/lines"
done

# ---- Completion ----

run 0 --completion bash
if ! command -v bash >/dev/null; then
  exit "$failed"
fi
cp "$work/out" "$work/completion"
mkdir "$work/files" "$work/files/folder"
: >"$work/files/a file.pickle"
: >"$work/files/job.pickle"
# completes 'EXPECTED' WORD...: what bash offers for the last word, on one line.
completes() {
  expected=$1
  shift
  said="completion of '$*'"
  (cd "$work/files" && bash -c '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _weir; printf "%s\n" "${COMPREPLY[@]}"' \
    "$work/completion" "$@") >"$work/out" 2>"$work/err"
  empty err
  got=$(sort "$work/out" | tr '\n' ' ')
  [ "$got" = "$expected " ] || fail "expected '$expected'"
}
completes 'demo diff digest explain export help info leaks lint merge metrics plot ranks record redact replay summary top tune view whatif' weir ''
completes 'record redact replay' weir re
completes '--help --version' weir -
completes '--help --version' weir --
completes '--check --conf --costs --device --force --fraction --help --json --json-fd --memory' weir replay -
completes '--check' weir replay file --ch
completes 'a file.pickle folder job.pickle' weir replay ''
completes 'job.pickle' weir replay --check j
completes 'collapsed csv json perfetto speedscope sqlite' weir export --to ''
completes 'perfetto' weir export --to = p
completes 'collapsed csv json perfetto speedscope sqlite' weir export --to =
completes 'a file.pickle' weir export -o a
completes '' weir export --device ''
completes 'events' weir export --to csv --table e
completes 'stack,size' weir diff --by stack,si
completes '' weir info ''
completes 'environment explain export' weir help e

# Every option of the help text is offered.
for command in $commands; do
  # shellcheck disable=SC2086 # words are meant
  run 0 $command
  # shellcheck disable=SC2086
  completes "$(sed -n 's/^  \(-., \)\{0,1\}\(--[a-z-]*\).*/\2/p' "$work/out" | sort | tr '\n' ' ' | sed 's/ $//')" weir $command -
done

exit "$failed"
