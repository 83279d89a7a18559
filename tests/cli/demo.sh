#!/bin/sh
# demo.sh PROGRAM VERSION: `weir demo` completes on the software device with both clocks, and fails as expected.
set -u
tested=demo
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
unset CUDA_VISIBLE_DEVICES WEIR_SOFT_MEMORY WEIR_ALLOC_CONF WEIR_NO_MEMORY_CACHING
export WEIR_DRIVER=soft

for clock in threads stepped; do
  export WEIR_SOFT_CLOCK=$clock
  run 0
  empty err
  has out '^Weir Software Device (soft), 16.00 GiB$'
  for word in training graph time; do has out "^  $word "; done
  for word in allocated reserved segments; do has out "^  $word .* now, .* at the peak$"; done
  has out '^  requests .* 0 retries$'
  has out '^All results are right, and all memory was released\.'

  run 0 --json
  empty err
  is_json
  has out '"ok": true'
  has out '"steps": 36, "graph_nodes": 18, "graph_replays": 9,'
  # Weights and two moments of 8 layers with 2 MiB each, and the graph's result of 512 KiB.
  has out '"allocated_bytes": {"current": 50855936, '
  has out '"num_device_free": 0, "num_alloc_retries": 0,'
done
unset WEIR_SOFT_CLOCK

# Settings reach the allocator, and invalid ones are named.
export WEIR_ALLOC_CONF=expandable_segments:True
run 0
empty err
has out '^  settings  *expandable_segments:True$'
export WEIR_ALLOC_CONF=expandable_segments:maybe
run 1
empty out
has err 'WEIR_ALLOC_CONF: column 21: expandable_segments: '
unset WEIR_ALLOC_CONF

# Without the cache a capture cannot allocate, so the demo runs without its graph.
export WEIR_NO_MEMORY_CACHING=1
run 0
empty err
has out '^  graph  *left out: a capture cannot allocate while caching is off'
has out '^All results are right, and all memory was released\.'
run 0 --json
is_json
has out '"caching": false, .* "graph_nodes": 0, "graph_replays": 0,'
export WEIR_NO_MEMORY_CACHING=2
run 0
has err 'invalid WEIR_NO_MEMORY_CACHING=2: expected 0 or 1; memory is cached'
has out '^  graph  *18 nodes'
unset WEIR_NO_MEMORY_CACHING

run 2 --wrong
empty out
run 0 --help
has out '^Usage: weir demo'

export CUDA_VISIBLE_DEVICES=
run 1
empty out
has err 'WEIR_ERROR_NO_DEVICE'
unset CUDA_VISIBLE_DEVICES

# With little memory it releases cached memory and continues; with far too little it prints where the memory is.
export WEIR_SOFT_MEMORY=110MiB
run 0
empty err
has out '^  requests .* [1-9][0-9]* retries$'
export WEIR_SOFT_MEMORY=2MiB
run 1
empty out
has err 'WEIR_ERROR_OUT_OF_MEMORY: .* Tried to allocate 20.00 MiB\.'

exit $failed
