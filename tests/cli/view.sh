#!/bin/sh
# view.sh PROGRAM VERSION: `weir view`: a page with its data, a server for it, and errors that leave no page behind.
set -u
tested='view'
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
# shellcheck source-path=SCRIPTDIR source=../support/terminal.sh
. "$(dirname "$0")/../support/terminal.sh"
data=$(cd "$(dirname "$0")/../data" && pwd)
small=$data/small_snapshot.pickle

# A page of its own, so that the test does not need the one that is built with esbuild.
cat >"$work/page.html" <<'PAGE'
<!doctype html>
<html><head><title>A page for the test of weir view, with a first line that is long</title></head>
<body><p>It has the text "</body>" too.</p></body></html>
PAGE
page="$work/page.html"

run 0 --help
has out '^Usage: weir view \[OPTION...\] FILE \[FILE\]$'
wrong 'FILE is missing'

# ---- Files ----
run 0 --page "$page" -o "$work/small.html" "$small"
empty err
has out '/small.html$'
cp "$work/small.html" "$work/out"
count 1 '<script type="application/json" id="weir-index">{"version": 1, '
has out 'class="weir-chunk" data-chunk="0b0">[A-Za-z0-9+/]*=*</script>$'
has out '^</body></html>$'
hasnt out 'https\?://'
# The index is JSON in which nothing ends the script element, and names chunks that are there.
reads_json '
import base64, re, zlib
page = sys.stdin.read()
index = re.search("id=\"weir-index\">([^<]*)</script>", page).group(1)
index = json.loads(index)
chunks = dict(re.findall("data-chunk=\"([^\"]*)\">([^<]*)</script>", page))
for c in index["chunks"]:
    stored = base64.b64decode(chunks[c["name"]], validate=True)
    assert len(stored) == c["stored"]
    assert len(zlib.decompress(stored) if c["encoding"] == "deflate" else stored) == c["bytes"]
r = index["recordings"][0]
assert r["name"] == "small_snapshot.pickle" and r["entries"] == 40, r["entries"]
assert r["summary"]["devices"][0]["peak_live"] == r["peak"]["allocated"]'
# A build with the WebAssembly module puts the recording beside it, for what-if, unless it was told not to.
if grep -q 'id="weir-wasm"' "$work/out"; then
  reads_json '
import base64, re, zlib
encoding, text = re.search("id=\"weir-recording\" data-encoding=\"([a-z]*)\">([^<]*)<", sys.stdin.read()).groups()
stored = base64.b64decode(text, validate=True)
recording = zlib.decompress(stored) if encoding == "deflate" else stored
assert recording == open("'"$small"'", "rb").read()'
fi
run 0 --page "$page" --no-recording -o "$work/small.html" "$small"
cp "$work/small.html" "$work/out"
hasnt out 'id="weir-recording"'
# On standard output, and from standard input or another pipe, which cannot be read twice.
"$weir" view --page "$page" -o - - <"$small" >"$work/out" 2>"$work/err" || fail 'standard input'
empty err
has out '"name": "standard input"'
mkfifo "$work/pipe"
cat "$small" >"$work/pipe" &
"$weir" view --page "$page" -o - "$work/pipe" >"$work/out" 2>"$work/err" || fail 'a pipe'
wait
empty err
has out '"name": "pipe"'
hasnt out 'id="weir-recording"'
# Under its default name in the current folder; a file that is no page is not replaced.
mkdir "$work/cwd"
in_cwd() { (cd "$work/cwd" && "$weir" view --page "$page" "$small" >"$work/out" 2>"$work/err"); }
said='weir view (default name)'
for time in first again; do
  in_cwd || fail "$time"
  has out '/cwd/small_snapshot.html$'
done
echo mine >"$work/cwd/small_snapshot.html"
in_cwd && fail 'another file was replaced'
has err 'small_snapshot.html: there is such a file, and it is no page of weir view; -o names another'
[ "$(cat "$work/cwd/small_snapshot.html")" = mine ] || fail 'another file was replaced'

# ---- Data ----
run 0 --data -o "$work/small.view" "$small"
[ "$(head -c 8 "$work/small.view")" = WEIRVIEW ] || fail 'no view data'
run 0 --data -o "$work/two.view" "$small" "$small"
cp "$work/two.view" "$work/out"
has out '"1b0"'

# ---- Errors ----
run 1 --page "$page" -o "$work/no.html" "$work/missing"
empty out
has err '^weir view: .*/missing: '
head -c 5000 "$small" >"$work/cut.pickle"
run 1 --page "$page" -o "$work/no.html" "$work/cut.pickle"
empty out
has err 'cut.pickle.* byte [0-9]*'
[ ! -e "$work/no.html" ] || fail 'a page of a damaged file'
run 1 --page "$page" --device 7 -o "$work/no.html" "$small"
has err 'there is no device 7; valid: 0$'
[ ! -e "$work/no.html" ] || fail 'a page without the device'
printf '(dS"segments"\n(lsS"device_traces"\n(ls.' >"$work/nothing.pickle"
run 1 --page "$page" -o "$work/no.html" "$work/nothing.pickle"
has err 'nothing.pickle: there is no device 0: nothing was recorded$'
wrong 'only one of the two files can be the standard input' - -
run 1 --page "$small" -o "$work/no.html" "$small"
has err 'no HTML page'
wrong 'takes one file, or two to compare' "$small" "$small" "$small"
wrong 'writes no file' --serve -o "$work/no.html" "$small"
wrong 'takes a port' --serve=0 "$small"
wrong 'takes a port' --serve=http "$small"
wrong 'FILE is missing' --serve 8123

# ---- The page of the program ----
run_page() {
  "$weir" view -o "$work/own.html" "$small" >"$work/out" 2>"$work/err"
}
said='weir view -o own.html'
if run_page; then
  cp "$work/own.html" "$work/out"
  has out 'id="weir-index"'
  # The only addresses are the names of XML formats, which nothing loads.
  grep -a -o -e 'https\?://[^"` ]*' "$work/own.html" | grep -v '^http://www.w3.org/' >"$work/out"
  empty out
else
  has err 'install esbuild'
fi

# ---- The server ----
if ! command -v python3 >/dev/null; then
  echo 'waived: the server needs python3'
  exit "$failed"
fi
"$weir" view --page "$page" --serve "$small" >"$work/address" 2>"$work/err" &
server=$!
tries=0
while [ ! -s "$work/address" ] && [ $tries -lt 100 ]; do
  sleep 0.1
  tries=$((tries + 1))
done
said='weir view --serve'
cat >"$work/client.py" <<'CLIENT'
import http.client
import socket
import sys
from urllib.parse import urlsplit

url = urlsplit(open(sys.argv[1]).readline().strip())
expected = open(sys.argv[2], "rb").read()
path = url.path


def ask(target, headers=None, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", url.port, timeout=20)
    connection.request(method, target, headers=headers or {})
    response = connection.getresponse()
    return response, response.read()


idle = socket.create_connection(("127.0.0.1", url.port))  # browsers open connections that they do not use yet
response, body = ask(path)
assert response.status == 200 and b'<meta name="weir-data" content="view.bin">' in body, body
assert response.headers["Content-Type"].startswith("text/html")
assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
response, body = ask(path + "view.bin")
assert response.status == 200 and body == expected
assert response.headers["Accept-Ranges"] == "bytes"
for text, first, end in (("0-15", 0, 16), ("16-", 16, None), ("-10", len(expected) - 10, None), ("5-99999999", 5, None)):
    response, body = ask(path + "view.bin", {"Range": "bytes=" + text})
    assert response.status == 206 and body == expected[first:end], text
    assert response.headers["Content-Range"] == f"bytes {first}-{first + len(body) - 1}/{len(expected)}"
assert ask(path + "view.bin", {"Range": "bytes=99999999-"})[0].status == 416
response, body = ask(path + "view.bin", method="HEAD")
assert response.status == 200 and body == b"" and int(response.headers["Content-Length"]) == len(expected)
assert ask("/")[0].status == 404
assert ask("/view.bin")[0].status == 404
assert ask(path + "../view.bin")[0].status == 404
assert ask(path, method="POST")[0].status == 405
for host in ("example.com", "localhost.example.com", "127.0.0.1.example.com:80", "localhost:80x", ""):
    assert ask(path, {"Host": host})[0].status == 403, host
for host in ("localhost", "LOCALHOST:9", "127.0.0.1:8123", "[::1]:1"):
    assert ask(path, {"Host": host})[0].status == 200, host
# A long request, a request that is no text, and one that comes in pieces.
for request, status in ((b"GET / HTTP/1.1\r\nX: " + b"x" * 9000, b"431"), (b"GET /\0 HTTP/1.1\r\n\r\n", b"400")):
    with socket.create_connection(("127.0.0.1", url.port), timeout=20) as s:
        s.sendall(request)
        assert s.recv(100).split()[1] == status
with socket.create_connection(("127.0.0.1", url.port), timeout=20) as s:
    for byte in f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n":
        s.sendall(byte.encode())
    assert s.recv(100).startswith(b"HTTP/1.1 200 OK")
idle.close()
CLIENT
if [ -s "$work/address" ]; then
  python3 "$work/client.py" "$work/address" "$work/small.view" >"$work/out" 2>&1 || fail 'the server'
else
  fail 'no address'
fi
kill -INT "$server"
wait "$server"
code=$?
[ "$code" -eq 0 ] || fail "the server ended with $code"
empty err

# Without file descriptors for more connections the server waits, and ends on a signal.
said='weir view --serve, few file descriptors'
(
  # shellcheck disable=SC3045 # dash and bash have it
  ulimit -n 34
  exec "$weir" view --page "$page" --serve "$small" >"$work/few" 2>"$work/err"
) &
server=$!
tries=0
while [ ! -s "$work/few" ] && [ $tries -lt 100 ]; do
  sleep 0.1
  tries=$((tries + 1))
done
cat >"$work/crowd.py" <<'CROWD'
import os
import signal
import socket
import sys
import time
from urllib.parse import urlsplit


def stat():
    return open(f"/proc/{server}/stat").read().rpartition(")")[2].split()


def has_ended():
    try:
        return stat()[0] == "Z"
    except OSError:  # the shell has noticed
        return True


def seconds():
    return (int(stat()[11]) + int(stat()[12])) / os.sysconf("SC_CLK_TCK")


server = int(sys.argv[2])
url = urlsplit(open(sys.argv[1]).readline().strip())
crowd = [socket.create_connection(("127.0.0.1", url.port), timeout=20) for _ in range(40)]
time.sleep(0.2)
before = seconds()
time.sleep(1)
used = seconds() - before
os.kill(server, signal.SIGINT)
for _ in range(100):
    if has_ended():
        break
    time.sleep(0.1)
else:
    os.kill(server, signal.SIGKILL)
    sys.exit("the server does not end")
assert used < 0.3, used
CROWD
if [ -s "$work/few" ]; then
  python3 "$work/crowd.py" "$work/few" "$server" >"$work/out" 2>&1 || fail 'the server'
else
  fail 'no address'
  kill "$server"
fi
wait "$server"
code=$?
[ "$code" -eq 0 ] || fail "the server ended with $code"
said='weir view --serve, too few file descriptors'
(
  # shellcheck disable=SC3045
  ulimit -n 20
  exec timeout -s KILL 20 "$weir" view --page "$page" --serve "$small" >"$work/out" 2>"$work/err"
)
code=$?
[ "$code" -eq 1 ] || fail "the server ended with $code"
has err 'cannot wait for connections: Invalid argument'

# ---- A browser, which a process opens that was started before the sandbox ----
if command -v script >/dev/null 2>&1 && has_terminal; then
  mkdir "$work/desktop"
  # shellcheck disable=SC2016 # of the script
  printf '#!/bin/sh\necho "$1" >"%s/opened"\n' "$work" >"$work/desktop/xdg-open"
  chmod +x "$work/desktop/xdg-open"
  # on_desktop ARGUMENTS TENTHS: runs the command on a terminal with a display, and waits there for the browser: the end
  # of the terminal would end the process that opens it.
  on_desktop() {
    rm -f "$work/opened"
    DISPLAY=:0 PATH=$work/desktop:$PATH script -qec \
      "'$weir' view --page '$page' $1; for i in \$(seq $2); do [ -s '$work/opened' ] && break; sleep 0.1; done" /dev/null \
      >"$work/out" 2>&1 </dev/null
  }
  on_desktop "-o '$work/shown.html' '$small'" 200
  [ "$(cat "$work/opened" 2>/dev/null)" = "$(cd "$work" && pwd -P)/shown.html" ] || fail 'the page was not opened'
  on_desktop "-o '$work/none.html' '$work/missing.pickle'" 10
  [ ! -e "$work/opened" ] || fail 'a page that does not exist was opened'
fi
finish
