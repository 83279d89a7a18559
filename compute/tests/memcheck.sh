#!/bin/sh
# memcheck.sh SANITIZER OVERRUN: compute-sanitizer sees inside of the allocator's segments. SANITIZER is its program,
# and OVERRUN that of overrun.c. Needs a GPU.
set -u
sanitizer=$1 overrun=$2
passed=0 failed=0
out=$(mktemp)
trap 'rm -f "$out"' EXIT

# check CASE PATTERN [VARIABLE=VALUE...]: the report has a line with the pattern.
check() {
  case=$1 pattern=$2
  shift 2
  env "$@" WEIR_DRIVER=cuda "$sanitizer" --tool memcheck --report-api-errors no --nvtx yes "$overrun" "$case" >"$out" 2>&1
  if grep -q 'no tool wants' "$out" && [ $# -eq 0 ]; then
    echo "FAILED  $case: the tool did not take the memory extension"
    failed=$((failed + 1))
  elif grep -q "$pattern" "$out"; then
    echo "passed  $case${*:+ $*}"
    passed=$((passed + 1))
  else
    echo "FAILED  $case${*:+ $*}: no line '$pattern' in:"
    sed 's/^/  /' "$out"
    failed=$((failed + 1))
  fi
}

bad='Invalid __global__ write of size 1'
good='ERROR SUMMARY: 0 errors'
check inside "$good"
check between "$bad"
check beyond "$bad"
check freed "$bad"
check late "$good"
check reused "$good"
check again "$good"
# Without the reports, the tool sees one allocation of 2 MiB.
check between "$good" WEIR_NVTX_MEMORY=0
# Pages that are mapped are not reported.
check inside "$good" WEIR_ALLOC_CONF=expandable_segments:True
echo "memcheck: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
