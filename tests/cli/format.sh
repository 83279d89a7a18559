#!/bin/sh
# format.sh PROGRAM VERSION: the format of output: units, the width of the terminal, commands to paste.
set -u
tested=
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
# shellcheck source-path=SCRIPTDIR source=../support/terminal.sh
. "$(dirname "$0")/../support/terminal.sh"
data=$(cd "$(dirname "$0")/../data" && pwd)
case $weir in /*) ;; *) weir=$PWD/$weir ;; esac
plain=$data/small_snapshot.pickle
commands='demo diff digest explain export help info leaks lint merge ranks redact replay summary tune view whatif'

# Units: a value is at least 1 of its unit, and less than 1024.
WEIR_DRIVER=soft WEIR_SOFT_MEMORY=1GiB run 0 demo
has out ', 1\.00 GiB$'
hasnt out '1024\.00'
WEIR_DRIVER=soft WEIR_SOFT_MEMORY=1073741823 run 0 info
has out 'of 1\.00 GiB$'
hasnt out '1024\.00'

# The list of keys is complete.
run 1 lint no_such_key_at_all:1
has out 'allowed: backend, .*, pinned_free_catch_all$'
run 1 lint --json no_such_key_at_all:1
has out 'allowed: backend, .*, pinned_free_catch_all"'

# fits WIDTH: all lines fit, except commands and words that cannot be broken.
fits() {
  wide=$(grep -v -e " weir [a-z]* .*$(basename "$plain")" -e 'ALLOC_CONF=' "$work/out" | awk -v w="$1" 'length > w' | grep ' .* ' | head -n 3)
  [ -z "$wide" ] || fail "more than $1 columns: $wide"
}
for width in 60 80 100; do
  for command in "summary $plain" "explain --at end $plain" "lint no_such_key_at_all:1" "info" "--help"; do
    # shellcheck disable=SC2086 # words are meant
    COLUMNS=$width run "$(case $command in lint*) echo 1 ;; *) echo 0 ;; esac)" $command
    fits $width
    hasnt out ' $'
  done
  for command in $commands; do
    COLUMNS=$width run 0 "$command" --help
    fits $width
  done
done
# Folded text has all of its words and no others.
for command in "summary $plain" "explain --at end $plain" "export --help" --help; do
  # shellcheck disable=SC2086 # words are meant
  run 0 $command
  tr -s '[:space:]' '\n' <"$work/out" >"$work/whole"
  # shellcheck disable=SC2086
  COLUMNS=47 run 0 $command
  tr -s '[:space:]' '\n' <"$work/out" >"$work/folded"
  cmp -s "$work/whole" "$work/folded" || fail "folded, it has other words"
done
# Continuation lines are indented to the text of their line.
COLUMNS=60 run 0 export --help
has out '^                    [^ ]'
# Widths below 40 columns count as 40; an invalid number counts as unset; in a pipe that is 120.
for width in 1 39; do
  COLUMNS=$width run 0 --help
  cp "$work/out" "$work/narrow"
  COLUMNS=40 run 0 --help
  cmp -s "$work/out" "$work/narrow" || fail "$width columns are not taken as 40"
done
COLUMNS=x run 1 lint no_such_key_at_all:1
fits 120
COLUMNS=120 run 1 lint no_such_key_at_all:1
fits 120
has out '^....................................................................................................'
# JSON is not folded.
COLUMNS=60 run 1 lint --json no_such_key_at_all:1
count 1 .
is_json

# The width of a terminal is detected, and no line is wider.
if has_terminal; then
  said='on a terminal of 66 columns'
  cat >"$work/terminal.py" <<'END'
import fcntl, os, pty, struct, sys, termios
leader, follower = pty.openpty()
fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 66, 0, 0))
if os.fork() == 0:
    os.close(leader)
    os.dup2(follower, 1)
    os.environ.pop("COLUMNS", None)
    os.environ["TERM"] = "dumb"
    os.execv(sys.argv[1], sys.argv[1:])
os.close(follower)
text = b""
while True:
    try:
        part = os.read(leader, 65536)
    except OSError:
        break
    if not part:
        break
    text += part
os.wait()
sys.stdout.write(text.decode().replace("\r\n", "\n"))
END
  python3 "$work/terminal.py" "$weir" --help >"$work/out" 2>"$work/err" || fail "it failed"
  fits 66
  [ "$(awk 'length > m { m = length } END { print m + 0 }' "$work/out")" -gt 60 ] || fail "the width is not used"
  python3 "$work/terminal.py" "$weir" summary "$plain" >"$work/out" 2>"$work/err" || fail "it failed"
  has out '^  next: '
  fits 66
fi

# Commands can be pasted: the program is found, and names are quoted.
mkdir "$work/a folder"
for name in plain.pickle 'a file.pickle' "it's \$HOME \"and\" \\.pickle" '-x.pickle' "$(printf 'new\nline\t.pickle')"; do
  cp "$plain" "$work/a folder/$name"
  said="summary of '$name'"
  (cd "$work/a folder" && "$weir" summary -- "$name") >"$work/out" 2>"$work/err" || fail "it failed"
  next=$(sed -n 's/^  next: //p' "$work/out")
  case $next in 'weir explain '*) ;; *) fail "the next command is '$next'" ;; esac
  (cd "$work/a folder" && bash -c "$next") >"$work/out" 2>"$work/err" || fail "'$next' cannot be pasted"
  [ "$(printf %s "$next" | tr -d '[:print:]' | wc -c)" -eq 0 ] || fail "'$next' has control characters"
done
# If PATH does not lead to this program, its path is used, quoted as well.
ln -s "$weir" "$work/a folder/weir"
said='the path of the program'
(cd "$work" && PATH=/usr/bin:/bin "$work/a folder/weir" summary "$plain") >"$work/out" 2>"$work/err" || fail "it failed"
next=$(sed -n 's/^  next: //p' "$work/out")
case $next in "'$work/a folder/weir' explain "*) ;; *) fail "the next command is '$next'" ;; esac
(cd "$work" && PATH=/usr/bin:/bin bash -c "$next") >"$work/out" 2>"$work/err" || fail "'$next' cannot be pasted"
PATH=/usr/bin:/bin "$weir" --what >"$work/out" 2>"$work/err"
has err "(see '.*/weir --help')\$"

# Every command has a complete help text, and `weir help` prints the same.
for command in $commands; do
  run 0 "$command" --help
  has out "^Usage: weir $command"
  has out '^ *-h, --help  '
  has out '^Exit codes: 0 '
  hasnt out "$(printf '\033')"
  cp "$work/out" "$work/own"
  run 0 help "$command"
  cmp -s "$work/out" "$work/own" || fail "'weir $command --help' has another text"
  run 0 --help
  has out "^  $command  *[a-z]"
done

finish
