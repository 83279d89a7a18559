#!/bin/sh
# lint.sh PROGRAM VERSION: `weir lint`: the problems that it finds in configuration strings.
set -u
tested=lint
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
# Only the given text counts.
export WEIR_ALLOC_CONF=no_such_key:1

# fine TEXT, finds KIND WORDS TEXT: exactly one finding, of that kind.
fine() {
  run 0 "$1"
  empty err
  for kind in error hurts 'does nothing'; do hasnt out "^$kind\$"; done
}
finds() {
  run 1 "$3"
  empty err
  has out "^$1\$"
  tr '\n' ' ' <"$work/out" | tr -s ' ' >"$work/line"
  has line "$2"
  for kind in error hurts 'does nothing'; do [ "$kind" = "$1" ] || hasnt out "^$kind\$"; done
}

fine ''
has out '^nothing is set'
fine expandable_segments:True
has out 'grow by mapping memory'
fine 'roundup_power2_divisions:[256:1,512:2,1024:4,>:8], max_split_size_mb:512'
has out '^roundup_power2_divisions:\[256:1,512:2,1024:4,>:8\]$'
has out '^max_split_size_mb:512$'
fine 'max_split_size_mb:15,large_segment_size_mb:12'
fine garbage_collection_threshold:0.8,per_process_memory_fraction:0.5
has out '^note$'
has out 'PyTorch before 2.10 does not know it'

# All errors are found, and columns refer to the whole text.
finds error "column 1: there is no key 'max_split_size'; did you mean 'max_split_size_mb'?" 'max_split_size:12,foo:1'
has out "column 19: there is no key 'foo'"
finds error "column 46: max_split_size_mb: '12MB'" 'expandable_segments:True,  max_split_size_mb:12MB'
finds error 'the text has this key already' 'expandable_segments:True,expandable_segments:False'
finds error 'is odd' 'large_segment_size_mb:21,expandable_segments:True'

finds hurts 'max_split_size_mb with expandable_segments:True' 'expandable_segments:True,max_split_size_mb:128'
finds hurts 'allows no memory at all' per_process_memory_fraction:0
finds hurts 'up to a third' roundup_power2_divisions:2
finds hurts 'fails at once' throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5
finds 'does nothing' 'set_per_process_memory_fraction' garbage_collection_threshold:0.8
finds 'does nothing' 'and there are none' garbage_collection_threshold:0.8,expandable_segments:True
finds 'does nothing' 'nothing is reserved' expandable_segments_reserve:0.5
finds 'does nothing' 'nothing is reserved' 'expandable_segments_reserve_by_class:[a:1]'
finds 'does nothing' 'which is not set' max_non_split_rounding_mb:64
finds 'does nothing' 'mean no divisions' roundup_power2_divisions:1
finds 'does nothing' 'ignores it' backend:cudaMallocAsync,max_split_size_mb:512
finds 'does nothing' 'whole device' throw_on_cudamalloc_oom:True
finds 'does nothing' 'nothing is registered' pinned_num_register_threads:8
finds 'does nothing' 'the smaller of them counts' pinned_max_round_threshold_mb:64,pinned_max_cached_size_mb:32
finds 'does nothing' 'is the default' max_split_size_mb:default
finds 'does nothing' 'without moving_pages:True no page moves' moving_pages_max_aliases:4
run 0 moving_pages:True
has out "only Weir's allocator knows it"
run 0 pinned_register_min_mb:64
has out "pinned_register_min_mb: only Weir's allocator knows it"

run 1 --json 'max_split_size:12, expandable_segments:True'
if command -v python3 >/dev/null; then
  python3 -c '
import json, sys
x = json.load(sys.stdin)
assert [k["key"] for k in x["keys"]] == ["max_split_size", "expandable_segments"], x
assert x["keys"][0]["does"] is None and x["keys"][1]["does"], x
assert [f["kind"] for f in x["findings"]] == ["error"], x
' <"$work/out" 2>"$work/err" || fail "not what was expected"
fi

run 2
has err 'STRING is missing'
run 2 expandable_segments:True, max_split_size_mb:128
has err 'takes only one STRING'
run 2 --what x
has err "unknown option '--what'"
run 0 --help
has out '^Usage: weir lint'

exit $failed
