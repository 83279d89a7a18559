# Sourced by tests of what is printed on a terminal: without pseudo-terminals, as in a chroot without devpts, these
# parts are left out, and a test whose other parts have passed is waived. shellcheck shell=sh

waived=

has_terminal() {
  python3 -c 'import os; os.openpty()' 2>/dev/null && return
  waived='no pseudo-terminal (os.openpty of python3)'
  return 1
}

# Ends the test. `failed` is its result.
finish() {
  # shellcheck disable=SC2154 # set by the test
  [ "$failed" = 0 ] && [ "$waived" ] || exit "$failed"
  echo "waived: $waived"
  exit 77
}
