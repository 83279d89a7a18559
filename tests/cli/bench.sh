#!/bin/sh
# bench.sh PROGRAM VERSION: `weir bench` measures, as text and as JSON, names missing allocators, and rejects unknown
# arguments.
set -u
tested=bench
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
page=$(cd "$(dirname "$0")/../../docs" && pwd)/bench.md
# Neither changes the measurement.
export WEIR_ALLOC_CONF=no_such_key:1 WEIR_NO_MEMORY_CACHING=1

# Topics.
for help in '' --help -h; do
  # shellcheck disable=SC2086 # nothing at all is one of the cases
  run 0 $help
  empty err
  has out '^Usage: weir bench TOPIC'
  has out '^  alloc '
  has out '^  observe '
done
run 2 alocl
empty out
has err "unknown topic 'alocl'; did you mean 'alloc'?"
run 2 --json
empty out

run 0 alloc --help
empty err
for word in pair live threads stream curve metadata --threads --driver --conf --quick --no-torch --json Exit; do
  has out " *$word"
done

# Errors in the command line are named, and nothing is measured.
refused() {
  text=$1
  shift
  run 2 alloc "$@"
  empty out
  has err "$text"
  has err "(see 'weir bench alloc --help')\$"
}
refused "a comma-separated list of pair, live, threads, stream, curve and metadata (got 'pair,pears')" --patterns pair,pears
refused "(got 'pair,')" --patterns pair,
refused "1 to 64 (got '0')" --threads 0
refused "1 to 64 (got '4x')" --threads 4x
refused "(got 'abacus')" --driver abacus
refused 'needs a value' --driver
refused "unknown option '--fast'" --fast
refused "takes no arguments (got 'now')" now

# All topics, as text.
run 0 alloc --quick --no-torch
empty err
has out " core.*; Weir $version on ledger; median of 3 rounds"
has out '^PyTorch: absent: not requested$'
count 6 '^pairs of '
count 3 ' live, up to '
count 5 ', own streams* '
count 5 ', one stream '
count 1 '^free blocks'
count 3 '^1[0-9]*  *[0-9.]*  *[0-9.]*$'
has out '^Weir  *1[0-9][0-9][0-9][0-9][0-9] '
# Both of Weir's columns have a number in every row.
count 19 '^[a-zA-Z0-9, ]* [0-9][0-9]*\.[0-9]  *[0-9][0-9]*\.[0-9] '

# Some topics. Without PyTorch the reason is printed.
run 0 alloc --quick --patterns threads,stream --threads 2
empty err
count 2 ' threads*, own streams* '
count 2 ' threads*, one stream '
hasnt out '^pairs'
hasnt out '^free blocks'
hasnt out '^metadata'
if ! python3 -c 'import torch' 2>/dev/null; then
  has out '^PyTorch: absent: no '
fi

# A stand-in for PyTorch takes part, with malloc for its memory; one that fails halfway is reported.
if command -v g++ >/dev/null; then
  mkdir -p "$work/bin" "$work/include/c10/cuda"
  cat >"$work/bin/python3" <<END
#!/bin/sh
echo 'torch 9.9'
echo '-isystem$work/include'
echo "-DFAILS_AFTER=\$FAILS_AFTER"
END
  chmod +x "$work/bin/python3"
  cat >"$work/include/c10/cuda/CUDACachingAllocator.h" <<'END'
#include <atomic>
#include <cstdlib>
#include <stdexcept>
typedef struct stream_of_straw *cudaStream_t;
namespace c10 {
using DeviceIndex = signed char;
namespace cuda {
namespace _internal {
inline void setHasPrimaryContext(bool (*)(DeviceIndex)) {}
}
namespace CUDACachingAllocator {
inline std::atomic<long> count{0};
inline void init(int) {}
inline void emptyCache() {}
inline void *raw_alloc_with_stream(size_t bytes, cudaStream_t) {
  if (++count > FAILS_AFTER)
    throw std::runtime_error("straw burns");
  return malloc(bytes < 64 ? bytes : 64);
}
inline void raw_delete(void *pointer) { free(pointer); }
}
}
}
END
  cat >"$work/include/c10/cuda/CUDAStream.h" <<'END'
namespace c10::cuda {
struct stream_from_pool {
  cudaStream_t stream() { return nullptr; }
};
inline stream_from_pool getStreamFromPool(bool, int) { return {}; }
}
END
  path=$PATH
  PATH=$work/bin:$PATH
  FAILS_AFTER=1000000000 && export FAILS_AFTER
  run 0 alloc --quick --patterns pair,live,threads,stream --threads 2 --json
  empty err
  has out '"version": "9.9"'
  count 13 '"torch_to_weir": [0-9]'
  FAILS_AFTER=20000
  run 0 alloc --quick --patterns pair --json
  PATH=$path
  has out '"reason": "its run failed: straw burns"'
  has out '"torch": null'
fi

# On a device, with settings.
run 0 alloc --quick --no-torch --driver soft --patterns pair --conf max_split_size_mb:100
empty err
has out ' on soft; '
has out '^settings: max_split_size_mb:100$'
run 1 alloc --quick --no-torch --patterns pair --conf no_such_key:1
empty out
has err 'no_such_key'
export WEIR_SOFT_MEMORY=100MiB
run 1 alloc --quick --no-torch --driver soft --patterns live
empty out
has err 'live_1000_1MiB: an allocation failed: .*out of memory'
unset WEIR_SOFT_MEMORY

# JSON, which has every key that the page documents.
run 0 alloc --quick --no-torch --json
empty err
# shellcheck disable=SC2016 # no command is meant
keys=$(sed -n '/^| key /,/^$/p' "$page" | grep -o '`[a-z_0-9]*`' | tr -d '`' | sort -u)
for key in $keys; do
  has out "\"$key\": "
done
[ "$(echo "$keys" | wc -w)" -gt 30 ] || fail "only these keys on the page: $keys"
if command -v python3 >/dev/null; then
  python3 - "$work/out" <<'END' 2>"$work/err" || fail 'not as it should be'
import json, sys
r = json.load(open(sys.argv[1]))
assert len(r["patterns"]) == 19, len(r["patterns"])
assert list(r["contestants"]) == ["weir", "weir_expandable", "mimalloc", "torch"]
assert r["contestants"]["torch"] == {"present": False, "version": None, "reason": "not requested"}
for p in r["patterns"]:
    for who in ("weir", "weir_expandable"):
        assert 0 < p["least_ns"][who] <= p["ns"][who] <= p["most_ns"][who], p
    assert p["ns"]["torch"] is None and p["torch_to_weir"] is None, p
    assert (p["ns"]["mimalloc"] is not None) == r["contestants"]["mimalloc"]["present"], p
    assert (p["to_mimalloc"] is None) == (p["ns"]["mimalloc"] is None), p
    if p["group"] != "live":
        assert p["device_calls"] == {"weir": 0, "weir_expandable": 0}, p
sizes = [c["free_blocks"]["weir"] for c in r["curve"]]
assert len(sizes) == 3 and all(n >= wanted for n, wanted in zip(sizes, (100, 1000, 10000))), sizes
END

  # The example of the page works as written.
  said='the example of docs/bench.md'
  # shellcheck disable=SC2016 # no command is meant
  sed -n '/^```sh$/,/^```$/p' "$page" | sed '/^```/d' >"$work/example.sh"
  (cd "$work" && PATH=$(dirname "$weir"):$PATH && sh ./example.sh) >"$work/out" 2>"$work/err" || fail 'it fails'
  empty err
  count 9 '^[a-z]*_[0-9a-zA-Z_]* [0-9.]* '
fi

# The cost of recording.
run 0 observe --help
empty err
for word in --quick --json Exit; do
  has out " *$word"
done
run 2 observe --fast
empty out
has err "unknown option '--fast'"
run 2 observe now
has err "takes no arguments (got 'now')"
run 0 observe --quick
empty err
has out '48 bytes in an entry'
for way in 'off' 'entries, no stacks' 'the same to a file' 'native stacks of allocations' 'native stacks of frees too'; do
  count 1 "^$way  "
done
run 0 observe --quick --json
empty err
count 5 '"name": '
has out '"event_bytes": 48'
if command -v python3 >/dev/null && ! python3 -m json.tool "$work/out" >"$work/json" 2>"$work/err"; then
  fail "not JSON"
fi

exit $failed
