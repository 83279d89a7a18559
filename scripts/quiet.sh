# Functions that show one line instead of a command's long output. To be sourced.
# shellcheck shell=sh

# start_quiet LOG COMMAND...: runs the command in the background with its output in LOG, and sets quiet_pid. An
# interrupt ends it and all its children.
quiet_pid=
start_quiet() {
  quiet_log=$1
  shift
  if command -v setsid >/dev/null 2>&1; then
    setsid "$@" >"$quiet_log" 2>&1 </dev/null &
  else
    "$@" >"$quiet_log" 2>&1 </dev/null &
  fi
  quiet_pid=$!
  trap 'stop_quiet $quiet_pid; exit 130' INT TERM HUP
}

# stop_quiet PID: ends a command of start_quiet.
stop_quiet() {
  kill -- "-$1" 2>/dev/null || kill "$1" 2>/dev/null
}

# is_terminal: whether standard output is a terminal that can rewrite a line.
is_terminal() { [ -t 1 ] && [ "${TERM:-dumb}" != dumb ]; }

# wait_quiet PID [STATUS]: waits and shows progress: on a terminal a spinner, or a line with the output of the command
# STATUS; elsewhere a dot every five seconds. Returns the exit code.
wait_quiet() {
  ticks=0
  is_terminal && [ -z "${2:-}" ] && printf ' '
  while kill -0 "$1" 2>/dev/null; do
    sleep 0.2
    ticks=$((ticks + 1))
    if ! is_terminal; then
      [ $((ticks % 25)) -ne 0 ] || printf .
    elif [ -n "${2:-}" ]; then
      [ $((ticks % 5)) -ne 0 ] || printf '\r%s\033[K' "$("$2")"
    else
      case $((ticks % 4)) in
        0) bar='|' ;;
        1) bar='/' ;;
        2) bar='-' ;;
        *) bar="\\" ;;
      esac
      printf '\b%s' "$bar"
    fi
  done
  if is_terminal; then
    if [ -n "${2:-}" ]; then printf '\r\033[K'; else printf '\b'; fi
  fi
  wait "$1"
}

# quietly TEXT LOG COMMAND...: prints a line with TEXT, progress and the time taken. If the command fails, prints LOG
# and returns its exit code.
quietly() {
  printf '%s ' "$1"
  quiet_began=$(date +%s)
  shift
  start_quiet "$@"
  if wait_quiet "$quiet_pid"; then
    printf ' %s s\n' $(($(date +%s) - quiet_began))
    return 0
  else
    quiet_code=$?
    printf ' failed\n'
    cat "$quiet_log"
    return $quiet_code
  fi
}
