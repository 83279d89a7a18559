#!/bin/sh
# top.sh PROGRAM VERSION: what weir top shows of running processes, of none, and of pages that are no good. LIVE_JOB is
# a job to watch.
set -u
tested=top
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
# shellcheck source-path=SCRIPTDIR source=../support/terminal.sh
. "$(dirname "$0")/../support/terminal.sh"
WEIR_STATS_PAGE=$work/pages WEIR_DRIVER=soft
export WEIR_STATS_PAGE WEIR_DRIVER

run 0 --once
has out '0 processes'
has out 'No process of yours has Weir and a page'
run 1 --once 1073741824
has err 'there is no process 1073741824$'
run 1 --once $$
has err "process $$ publishes nothing: it has no Weir"
wrong "expected the id of a process, got 'init'" init
wrong 'standard input and output are no terminal'
run 0 --json
is_json

# ---- Jobs ----

# start NAME WORD...: starts a job that ends with its pipe; its id goes to the file NAME.
start() {
  name=$1
  shift
  mkfifo "$work/$name.in"
  "${LIVE_JOB:?}" "$@" <"$work/$name.in" >"$work/$name.out" 2>"$work/$name.err" &
  echo $! >"$work/$name"
}
start steady
start growing 1
exec 8>"$work/steady.in" 9>"$work/growing.in"
steady=$(cat "$work/steady") growing=$(cat "$work/growing")
for job in steady growing; do
  tries=0
  until grep -q ready "$work/$job.out" || [ "$tries" -eq 200 ]; do
    tries=$((tries + 1))
    sleep 0.1
  done
done

COLUMNS=80
run 0 --once
empty err
has out '2 processes, 2 devices'
count 2 ' weights  *30.00 MiB '
has out "^ *$steady live_job  *0 .* MiB .* MiB"
hasnt out "$(printf '\033')"
[ "$(awk 'length($0) > 80' "$work/out" | wc -l)" -eq 0 ] || fail 'a line is longer than the terminal'
run 0 --once --pools
count 2 ' default pool '
run 0 --once "$growing"
has out '1 process, 1 device'
hasnt out " $steady "
run 0 --json
reads_json "
v = json.load(sys.stdin)
assert [p['pid'] for p in v['processes']] == [$growing, $steady], 'the largest first'
p = v['processes'][1]
assert p['command'] == 'live_job' and not p['stale'] and not p['elsewhere'] and p['age_ms'] < 5000, p
device, *pools = p['accounts']
assert device['kind'] == 'device' and 30 << 20 <= device['allocated'] <= 66 << 20, device
assert device['allocated'] <= device['peak_allocated'] and device['peak_reserved'] >= device['reserved']
assert 'hard_limit' not in device and device['retries'] == 0 and device['allocations'] > 60
assert sum(p['reserved'] for p in pools) == device['reserved']
assert [p['allocated'] for p in pools if p['tag'] == 'weights'] == [30 << 20]
assert v['cards'][1]['ledger'][0]['bytes'] == device['reserved']
assert v['invalid'] == [] and v['left_out'] == 0
"

# ---- The ledger by itself ----

"$weir" info --memory >"$work/out" 2>"$work/err" || fail 'weir info --memory'
has out '^Device 0: a context takes 256.00 MiB, measured in a fresh process$'
has out "30.00 MiB  $steady weights, by the accounts of its allocators"
"$weir" info --memory --json >"$work/out" 2>"$work/err" || fail 'weir info --memory --json'
reads_json 'v = json.load(sys.stdin); assert v["context_bytes"] == [256 << 20] and len(v["cards"]) == 2'

# ---- The screen ----

# screen WORD...: runs weir top in a terminal of 24 lines and 80 columns, and runs the script on standard input with
# send(), until() and the terminal's file descriptor.
cat >"$work/screen.py" <<'PY'
import fcntl, os, pty, select, signal, struct, sys, termios, time
child, terminal = pty.fork()
if child == 0:
    os.environ.update(TERM="xterm")
    os.environ.pop("COLUMNS", None)
    os.execv(sys.argv[1], [sys.argv[1], "top", *sys.argv[2:]])
seen = b""
def size(columns, rows):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
def read(seconds):
    global seen
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ready, _, _ = select.select([terminal], [], [], 0.05)
        if ready:
            try:
                part = os.read(terminal, 65536)
            except OSError:
                return False
            if not part:
                return False
            seen += part
    return True
def until(text, seconds=10):
    end = time.monotonic() + seconds
    while text.encode() not in seen:
        assert time.monotonic() < end, (text, seen[-2000:])
        if not read(0.05):
            break
    assert text.encode() in seen, (text, seen[-2000:])
def send(keys):
    global seen
    seen = b""
    os.write(terminal, keys.encode())
def ended():
    while read(0.1):
        pass
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
before = termios.tcgetattr(terminal)
exec(sys.stdin.read())
PY
screen() { python3 "$work/screen.py" "$weir" "$@" >"$work/out" 2>"$work/err" || fail 'the screen is not as expected'; }

if has_terminal; then
  said='weir top in a terminal'
  screen --pools <<PY
until('default pool')
until('q quit')
assert '\033[?1049h'.encode() in seen and '\033[?25l'.encode() in seen
send('p'); until('weights'); read(0.3); assert b'default pool' not in seen, seen
send('s'); until('by allocated')
send('s'); until('by growth')
send('s'); until('by pid')
assert seen.index(b'$steady') < seen.index(b'$growing') if $steady > $growing else True
send('h'); until('SPLIT: free in segments')
send(' '); read(1.5)
send('c'); until('q quit'); assert b'its context' not in seen, seen
send('\033[B'); until('q quit')
size(40, 6); read(0.5); send('j'); until('q quit  s sort')
last = seen[seen.rindex(b'\033[H'):]
assert last.count(b'\r\n') == 5, last  # six lines, and none too many
assert all(len(line) <= 40 for line in last.decode().replace('\033[H', '').replace('\033[K', '').replace('\033[J', '')
    .replace('\033[1m', '').replace('\033[m', '').split('\r\n')), last
send('\x00\x1b[99~~~\x1bOP'); read(0.3)  # keys that mean nothing
size(300, 100); read(0.3); send('c'); until('its context')
send('q')
assert ended() == 0
assert seen.endswith(b'\033[?25h\033[?1049l'), seen[-100:]
PY
  screen <<PY
until('q quit')
os.kill(child, signal.SIGTERM)
assert ended() == 0 and b'\033[?1049l' in seen
PY
  screen "$growing" <<PY
until('q quit')
os.kill($growing, signal.SIGKILL)
code = ended()
assert code == 1 and b'\033[?1049l' in seen and b'there is no process' in seen.split(b'\033[?1049l')[1], seen[-300:]
PY
fi

# ---- A killed process is gone, a page that has ended is not shown, and damaged ones are named ----

said='weir top after a kill'
kill -9 "$growing" 2>/dev/null
wait "$growing" 2>/dev/null
[ "$(find "$work/pages" -type f | wc -l)" -eq 2 ] || fail 'the page of the killed process is not there'
page=$(basename "$work"/pages/*"-$steady-"*)
head -c 9000 "$work/pages/$page" >"$work/pages/$(printf 'a\033b').page"
printf 'nonsense' >"$work/pages/c.page"
mkdir "$work/pages/d.page"
run 0 --once
has out '1 process, 1 device'
has out 'a\\x1bb.page cannot be read: it is cut off'
has out 'd.page cannot be read: it is not a file'
run 0 --json
reads_json 'assert len(json.load(sys.stdin)["invalid"]) == 2'

# Pages that a thousand processes would have: this one's, again and again, and no others.
find "$work/pages" -mindepth 1 ! -name "$page" -exec rm -r {} +
number=0
while [ "$number" -lt 1100 ]; do
  ln "$work/pages/$page" "$work/pages/$number.page"
  number=$((number + 1))
done
run 0 --once
has out '1024 processes'
has out '77 pages more'
rm "$work"/pages/[0-9].page "$work"/pages/[0-9]?.page "$work"/pages/[0-9]??.page "$work"/pages/1???.page

# A stopped process is seen, and its figures have an age.
kill -STOP "$steady"
sleep 4
run 0 --once
has out 'these figures are [0-9]* s old: the process is stopped'
kill -CONT "$steady"

# ---- No page after the end ----

exec 8>&- 9>&-
wait "$steady" || fail 'the job has failed'
[ ! -e "$work/pages/$page" ] || fail 'the page is still there'

# ---- Off ----

said='a job without a page'
WEIR_STATS_PAGE=0
run 0 --once
has out '0 processes'
finish
