#!/bin/sh
# scripts.sh FOLDER: the output of scripts/setup and scripts/test, with stand-ins for apt-get, cmake and ctest. FOLDER
# is the project.
set -u
project=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
# shellcheck source-path=SCRIPTDIR source=../support/terminal.sh
. "$project/tests/support/terminal.sh"

fail() {
  failed=1
  echo "$said: $1"
  sed 's/^/  out: /' "$work/out"
  sed 's/^/  err: /' "$work/err"
}
# expect CODE COMMAND...
expect() {
  code=$1
  shift
  "$@" >"$work/out" 2>"$work/err"
  got=$?
  [ $got -eq "$code" ] || fail "exit code $got, expected $code"
}
has() { grep -q -e "$2" "$work/$1" || fail "no '$2' on $1"; }
hasnt() { ! grep -q -e "$2" "$work/$1" || fail "'$2' on $1"; }
lines() { [ "$(wc -l <"$work/$2")" -le "$1" ] || fail "more than $1 lines on $2"; }

APT_GET=$work/apt-get
# A machine with only the basic commands, and a verbose apt-get.
mkdir "$work/bin"
for name in sh mktemp sleep cat rm sed date dirname setsid env; do
  found=$(command -v $name) && ln -s "$found" "$work/bin/$name"
done
printf '#!/bin/sh\necho 0\n' >"$work/bin/id"
cat >"$work/bin/apt-get" <<'END'
#!/bin/sh
echo "$@" >>"$APT_GET"
[ -s "${SAID:-/dev/null}" ] || echo unannounced >>"$APT_GET"
n=0
while [ $n -lt 400 ]; do echo "Setting up package $n"; n=$((n + 1)); done
for word in "$@"; do [ "$word" != "${REFUSED:-}" ] || { echo "E: Unable to locate package $word"; exit 100; }; done
END
chmod +x "$work/bin/id" "$work/bin/apt-get"

said='scripts/setup'
expect 0 env -i PATH="$work/bin" APT_GET="$APT_GET" SAID="$work/out" "$project/scripts/setup" build
lines 1 out
lines 0 err
has out '^Installing Debian packages.*(WEIR_SETUP=no prevents it): .*gcc .*cmake .* [0-9]* s$'
[ -s "$work/apt-get" ] || fail 'apt-get did not run'
! grep -q '^unannounced$' "$work/apt-get" || fail 'apt-get ran before the line that says so'
: >"$work/apt-get"
said='scripts/setup, WEIR_SETUP=no'
expect 1 env -i PATH="$work/bin" APT_GET="$APT_GET" WEIR_SETUP=no "$project/scripts/setup" build
lines 0 out
has err '^  apt-get update && apt-get install .*gcc .*cmake'
[ ! -s "$work/apt-get" ] || fail 'apt-get ran'
said='scripts/setup, a package that is not needed is missing'
expect 0 env -i PATH="$work/bin" APT_GET="$APT_GET" REFUSED=systemtap-sdt-dev "$project/scripts/setup" build
lines 1 out
has err '^Continuing without optional packages: .*systemtap-sdt-dev'
said='scripts/setup, a package that is needed is missing'
expect 1 env -i PATH="$work/bin" APT_GET="$APT_GET" REFUSED=cmake "$project/scripts/setup" build
has err '^Setting up package 399$'
has err '^E: Unable to locate package cmake$'
has err '^These packages could not be installed: .*cmake'
said='scripts/setup deb'
expect 0 env -i PATH="$work/bin" APT_GET="$APT_GET" REFUSED=esbuild "$project/scripts/setup" deb
has out '^Installing .*dpkg-dev .*debhelper .*python3-dev .*esbuild .* [0-9]* s$'
has err '^Continuing without optional packages: .*esbuild'
hasnt err 'debhelper'
printf '#!/bin/sh\necho 1000\n' >"$work/bin/id"
said='scripts/setup, not as root'
expect 1 env -i PATH="$work/bin" "$project/scripts/setup" build
has err 'sudo apt-get update && sudo apt-get install .*gcc'

# A copy of the scripts, with stand-ins for the programs that they run.
mkdir "$work/copy" "$work/tools"
cp -r "$project/scripts" "$work/copy/scripts"
cat >"$work/tools/cmake" <<'END'
#!/bin/sh
[ "$1" != --preset ] || exit 0
echo '[1/2] Building C object a.o'
[ -z "${BROKEN:-}" ] || { echo 'FAILED: b.o'; echo 'b.c:1: error: no'; exit 1; }
END
cat >"$work/tools/ctest" <<'END'
#!/bin/sh
folder=$2
case " $* " in *' -N '*) echo 'Total Tests: 3'; exit 0 ;; esac
mkdir -p "$folder/Testing/Temporary"
echo 'waived: there is no GPU' >"$folder/Testing/Temporary/LastTest.log"
echo '    Start 1: base.good'
echo '1/3 Test #1: base.good ........   Passed    0.01 sec'
echo '    Start 2: base.bad'
echo '2/3 Test #2: base.bad .........***Failed    0.02 sec'
echo 'what went wrong'
echo '    Start 3: base.gone'
echo '3/3 Test #3: base.gone ........***Skipped   0.00 sec'
echo
echo '66% tests passed, 1 tests failed out of 3'
END
echo '#!/bin/sh' >"$work/tools/clang"
chmod +x "$work/tools/cmake" "$work/tools/ctest" "$work/tools/clang"
PATH=$work/tools:$PATH
export PATH

said='scripts/test debug'
expect 1 "$work/copy/scripts/test" debug
has out '^1 stage: debug; about .* on [0-9]* cores*$'
has out '^== debug, 1 of 1: .*; about '
has out 'base.bad'
has out '^what went wrong$'
hasnt out 'base.good'
hasnt out 'Building C object'
has out '^  1 waived: there is no GPU$'
has out '^  debug: base.bad$'
[ "$(tail -n 1 "$work/out")" = '1 passed, 1 failed, 1 skipped' ] || fail 'another last line'
said='scripts/test clang'
expect 0 "$work/copy/scripts/test" clang
[ "$(tail -n 1 "$work/out")" = '1 passed, 0 failed, 0 skipped' ] || fail 'another last line'
lines 12 out
said='scripts/test, with a build that fails'
expect 1 env BROKEN=1 "$work/copy/scripts/test" debug strict
has out '^FAILED: b.o$'
has out '^b.c:1: error: no$'
hasnt out 'Building C object'
[ "$(tail -n 1 "$work/out")" = '0 passed, 2 failed, 0 skipped' ] || fail 'another last line'
said='scripts/test, a stage that does not exist'
expect 2 "$work/copy/scripts/test" debug what
has err "unknown stage 'what'"

# An interrupt ends all started processes.
said='an interrupt'
cat >"$work/tools/cmake" <<'END'
#!/bin/sh
[ "$1" != --preset ] || exit 0
echo $$ >"$STARTED"
exec sleep 60
END
: >"$work/out"
: >"$work/err"
STARTED=$work/started setsid "$work/copy/scripts/test" debug >"$work/out" 2>"$work/err" &
script=$!
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  [ -s "$work/started" ] && break
  sleep 0.3
done
kill -TERM $script
wait $script
[ $? -eq 130 ] || fail 'another exit code than 130'
sleep 0.3
# An ended process may still be a zombie.
case $(sed -n 's/^State:\t\(.\).*/\1/p' "/proc/$(cat "$work/started")/status" 2>/dev/null) in
  '' | Z) ;;
  *)
    fail 'the build goes on'
    kill "$(cat "$work/started")"
    ;;
esac

# On a terminal: one line that is overwritten.
if has_terminal; then
  said='on a terminal'
  cat >"$work/terminal.py" <<'END'
import os, pty, sys
code = pty.spawn(sys.argv[1:])
sys.exit(os.waitstatus_to_exitcode(code))
END
  cat >"$work/quiet" <<END
. "$project/scripts/quiet.sh"
quietly 'Doing it' "$work/log" sh -c 'echo hidden; sleep 1; exit \$0' "\$1"
END
  expect 0 env TERM=xterm python3 "$work/terminal.py" sh "$work/quiet" 0
  has out 'Doing it .* [0-9]* s'
  hasnt out hidden
  expect 3 env TERM=xterm python3 "$work/terminal.py" sh "$work/quiet" 3
  has out 'failed'
  has out hidden
fi
finish
