#!/bin/sh
# metrics.sh PROGRAM VERSION: the metrics of running processes, in both formats, over HTTP, on a socket and in a file.
# LIVE_JOB is a job to watch. With promtool (Debian: prometheus) it also checks the text and the alerts, and in its long
# form a Prometheus of its own scrapes it.
set -u
tested=metrics
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
rules=$(cd "$(dirname "$0")/../../adapters/prometheus" && pwd)
WEIR_STATS_PAGE=$work/pages WEIR_DRIVER=soft RANK=3
PATH=$PATH:${PROMETHEUS_BIN:-/usr/bin}
export WEIR_STATS_PAGE WEIR_DRIVER RANK

wrong '--interval needs --textfile' --interval 3
run 0 --once
has out '^weir_processes 0$'
has out "^weir_build_info{version=\"$version\"} 1$"

# A job whose name has all that has to be escaped.
job=$work/'a"b\c
d'
cp "${LIVE_JOB:?}" "$job"
mkfifo "$work/in"
"$job" 1 <"$work/in" >"$work/ready" &
pid=$!
exec 9>"$work/in"
tries=0
until grep -q ready "$work/ready" || [ "$tries" -eq 200 ]; do
  tries=$((tries + 1))
  sleep 0.1
done

run 0 --once
empty err
cp "$work/out" "$work/text"
has out '^# TYPE weir_allocations_total counter$'
has out "^weir_process_info{pid=\"$pid\",command=\"a.\"b.*d 1\",rank=\"3\"} 1$"
has out "^weir_pool_allocated_bytes{pid=\"$pid\",device=\"0\",pool=\"private\",tag=\"weights\"} 31457280$"
has out "^weir_pool_reserved_bytes{pid=\"$pid\",device=\"0\",pool=\"default\",tag=\"\"} [1-9]"
hasnt out 'weir_hard_limit_bytes{'
[ -z "$(grep -v '^#' "$work/out" | sed 's/ [^ ]*$//' | sort | uniq -d)" ] || fail 'a series is there twice'
allocated=$(sed -n "s/^weir_allocated_bytes{.*} //p" "$work/out")
[ "$allocated" -ge 31457280 ] || fail "$allocated bytes are allocated"
if command -v promtool >/dev/null; then
  said='promtool check metrics'
  promtool check metrics <"$work/text" >"$work/out" 2>"$work/err" || fail 'it complains'
  empty out
  said='promtool test rules'
  (cd "$rules" && promtool check rules weir.rules.yml && promtool test rules weir.test.yml) >"$work/out" 2>&1 ||
    fail 'the alerts are wrong'
fi

# ---- HTTP ----

port=$((20000 + $$ % 20000))
"$weir" metrics --port $port >"$work/address" 2>"$work/err" &
server=$!
# get TYPE PATH [HEADER]: a response, without curl.
get() {
  python3 - "$port" "$@" >"$work/out" 2>"$work/err" <<'PY'
import http.client, sys, time
port, path, headers = int(sys.argv[1]), sys.argv[2], dict(word.split(': ') for word in sys.argv[3:])
for _ in range(100):
    try:
        c = http.client.HTTPConnection('127.0.0.1', port, timeout=20)
        c.request('GET', path, headers=headers)
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
r = c.getresponse()
print(r.status, r.getheader('Content-Type'))
print(r.read().decode(), end='')
PY
}
if command -v python3 >/dev/null; then
  said='GET /metrics'
  get /metrics
  has out '^200 text/plain; version=0.0.4; charset=utf-8$'
  has out '^weir_processes 1$'
  hasnt out '# EOF'
  get /metrics 'Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5'
  has out '^200 application/openmetrics-text; version=1.0.0'
  has out '^# TYPE weir_allocations counter$'
  has out '^weir_allocations_total{'
  has out '^# UNIT weir_allocated_bytes bytes$'
  [ "$(tail -n 1 "$work/out")" = '# EOF' ] || fail 'the end is missing'
  get /
  has out '^404 '
  get /metrics 'Host: evil.example'
  has out '^403 '
  has address "^http://localhost:$port/$"
fi
"$weir" metrics --port $port >"$work/out" 2>"$work/err"
[ $? -eq 1 ] || fail 'a second server on the same port'
has err "cannot listen on port $port"
kill $server
wait $server || fail 'the server did not end well'

said='weir metrics --socket'
"$weir" metrics --socket "$work/socket" >"$work/address" 2>"$work/err" &
server=$!
tries=0
until [ -S "$work/socket" ] || [ "$tries" -eq 100 ]; do
  tries=$((tries + 1))
  sleep 0.1
done
case $(ls -l "$work/socket") in
  srw-------*) ;;
  *) fail 'others can connect to the socket' ;;
esac
if command -v python3 >/dev/null; then
  python3 - "$work/socket" >"$work/out" <<'PY'
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(b'GET /metrics HTTP/1.1\r\nHost: any\r\n\r\n')
while part := s.recv(65536):
    sys.stdout.write(part.decode())
PY
  has out '^weir_processes 1'
fi
run 1 --socket "$work/socket"
has err 'Address already in use'
kill -9 $server
wait $server 2>/dev/null
rm "$work/address"
"$weir" metrics --socket "$work/socket" >"$work/address" 2>"$work/err" & # in place of the one that was left behind
server=$!
tries=0
until [ -s "$work/address" ] || [ "$tries" -eq 100 ]; do
  tries=$((tries + 1))
  sleep 0.1
done
kill $server
wait $server || fail 'it does not replace a socket that was left behind'
[ ! -e "$work/socket" ] || fail 'it leaves its socket behind'
echo precious >"$work/file"
run 1 --socket "$work/file"
[ "$(cat "$work/file")" = precious ] || fail 'it removed a file that is no socket'

# ---- A file ----

run 0 --textfile "$work/weir.prom" --once
empty out
grep -q '^weir_processes 1$' "$work/weir.prom" || fail 'the file has no metrics'
said='weir metrics --textfile'
"$weir" metrics --textfile "$work/tmp/again.prom" --interval 1 &
server=$!
sleep 1.5
rm -f "$work/tmp/again.prom"
sleep 1.5
kill $server
wait $server || fail 'it did not end well'
[ -s "$work/tmp/again.prom" ] || fail 'the file was not written again'
run 1 --textfile "$work/none/weir.prom" --once
has err 'cannot write it'

# ---- A real Prometheus ----

if [ "${WEIR_TEST_LONG:-0}" = 1 ] && command -v prometheus >/dev/null && command -v promtool >/dev/null; then
  said=prometheus
  "$weir" metrics --port $port >/dev/null &
  server=$!
  cat >"$work/prometheus.yml" <<YML
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: ['$rules/weir.rules.yml']
scrape_configs:
  - {job_name: weir, static_configs: [{targets: ['localhost:$port']}]}
YML
  prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/tsdb" \
    --web.listen-address="127.0.0.1:$((port + 1))" >"$work/prometheus.log" 2>&1 &
  prometheus=$!
  tries=0
  until promtool query instant "http://127.0.0.1:$((port + 1))" 'rate(weir_allocations_total[1m])' 2>/dev/null |
    grep -q "pid=\"$pid\"" || [ "$tries" -eq 60 ]; do
    tries=$((tries + 1))
    sleep 1
  done
  promtool query instant "http://127.0.0.1:$((port + 1))" 'up{job="weir"}' >"$work/out" 2>"$work/err"
  has out '=> 1 @'
  promtool query instant "http://127.0.0.1:$((port + 1))" 'rate(weir_allocations_total[1m])' >"$work/out" 2>"$work/err"
  has out "pid=\"$pid\""
  promtool query instant "http://127.0.0.1:$((port + 1))" 'scrape_samples_scraped' >"$work/out" 2>"$work/err"
  has out '=> [1-9][0-9]* @'
  kill $prometheus $server
  wait $prometheus $server 2>/dev/null
elif [ "${WEIR_TEST_LONG:-0}" = 1 ]; then
  echo 'there is no prometheus (Debian: prometheus): its part was left out'
fi

exec 9>&-
wait $pid || fail 'the job has failed'
exit $failed
