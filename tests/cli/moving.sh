#!/bin/sh
# moving.sh PROGRAM VERSION: predictions for moving_pages, and recordings of jobs in which pages moved. MOVING_JOB is a
# program that makes such recordings.
set -u
tested=
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
use_traces

# whatif: the pages are shown if some settings move them. One stream: one figure.
file=$traces/llama_oom.pickle.zst
run 0 whatif --fit --conf expandable_segments:True --conf moving_pages:True "$file"
empty err
has out '^ *reserved .* failed      fits in  settings$'
has out ' 0  *[0-9.]* GiB  moving_pages:True$'
has out '^  moving_pages:True: [0-9]* pages made, [0-9]* moved, [0-9]* returned to an address where they were still mapped$'
hasnt out 'A range: '
hasnt out 'expandable_segments:True: .* pages made'
run 0 whatif --conf expandable_segments:True "$file"
hasnt out 'pages made'
run 0 whatif --json --fit --conf expandable_segments:True --conf moving_pages:True "$file"
is_json
count 1 '"conf": "moving_pages:True", .*"moving": {"pages_moved": [1-9][0-9]*, "moved_bytes": [0-9]*, "pages_made": [1-9]'
count 1 '"stream_query": {"calls": '
has out '"conf": "expandable_segments:True", .*"moving": {"pages_moved": 0, .*"streams_busy": null, "fit": {"bytes": [0-9]*, '

# Several streams: a range, if it makes a difference.
run 0 whatif --conf moving_pages:True "$traces/streams_prefetch.pickle.zst"
has out '^ *[0-9.]* to [0-9.]* GiB .* moving_pages:True$'
has out '^  A range: pages move from one stream to another only when the first has done its work'
run 0 whatif --json --conf moving_pages:True "$traces/streams_prefetch.pickle.zst"
is_json
has out '"streams_busy": {"peak_reserved": [0-9]*, '

# tune: a key that PyTorch does not know stands apart.
run 0 tune --fit "$traces/cuda_graphs.pickle.zst"
has out "^  export PYTORCH_CUDA_ALLOC_CONF='"
hasnt out 'PYTORCH_CUDA_ALLOC_CONF=.*moving_pages'
has out "^The best with Weir's allocator under PyTorch (moving_pages is a key that PyTorch does not know: see docs/python/torch.md):$"
has out "^  export WEIR_ALLOC_CONF='moving_pages:True'$"
has out " under the best settings with Weir's allocator, with [0-9]* retries"
run 0 tune --json "$traces/cuda_graphs.pickle.zst"
is_json
has out '"best_moving": {"conf": "moving_pages:True'

# explain: one remedy beside the others; the last line is the one to paste.
run 0 explain "$file"
has out "^    yes         moving_pages:True, with Weir's allocator: .* reserved"
[ "$(tail -n 1 "$work/out")" = "  to paste    export PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True'" ] || fail 'another last line'

# Only pages that move would have served the request.
export WEIR_DRIVER=soft
for conf in '' expandable_segments:True; do
  WEIR_SOFT_MEMORY=64MiB WEIR_ALLOC_CONF=$conf "${MOVING_JOB:?}" 0 0 "$work/holes.pickle" >"$work/out" 2>"$work/err"
  run 0 explain "$work/holes.pickle"
  has out ': out of memory, entry '
  has out "^    yes         moving_pages:True, with Weir's allocator: "
  has out "^  next        to see the effect (PyTorch needs Weir's allocator for this key: docs/python/torch.md), run:$"
  [ "$(tail -n 1 "$work/out")" = "  to paste    export WEIR_ALLOC_CONF='moving_pages:True'" ] || fail 'another last line'
  run 0 explain --json "$work/holes.pickle"
  is_json
  has out '"works": true, .*"change": "moving_pages:True", "conf": "moving_pages:True", "weir_only": true, '
done

# Recordings of jobs in which pages moved, as a ring file and as a pickle, with one stream and several.
export WEIR_SOFT_MEMORY=1GiB
for conf in moving_pages:True moving_pages:True,moving_pages_across_streams:True; do
  for streams in 1 4; do
    [ $streams = 1 ] && [ $conf != moving_pages:True ] && continue # there is no other stream
    folder=$work/$streams.$conf
    mkdir "$folder"
    said="moving_job with $streams streams, $conf"
    WEIR_ALLOC_CONF=$conf WEIR_RECORD=$folder WEIR_RECORD_MB=2 "$MOVING_JOB" $streams 300 "$folder/own.pickle" \
      >"$work/job" 2>"$work/err" || fail 'it failed'
    grep -q '^[1-9][0-9]* pages moved$' "$work/job" || fail "no page moved: $(cat "$work/job")"
    for file in "$folder"/own.pickle "$folder"/*.ring; do
      # With several streams, a stream that became idle in the middle of a request is seldom noticed in the recording.
      if [ $streams -gt 1 ] && ! "$weir" replay --check "$file" >"$work/out" 2>"$work/err"; then
        has out '^  note        pages moved in this job, which depends on how far its streams were'
        continue
      fi
      run 0 replay --check "$file"
      empty err
      has out ' 0 differ$'
      run 0 replay "$file"
      empty err
      run 0 summary "$file"
      empty err
      has out '^  settings    .*moving_pages:True'
      run 0 explain "$file"
      empty err
      has out ': out of memory, entry '
      hasnt out 'nothing is predicted: the replay differs'
      run 0 explain --at peak "$file"
      has out ' reserved$'
      run 0 whatif --conf '' --conf expandable_segments:True "$file"
      empty err
      has out ' reproduced under the recorded settings$'
      has out ' recorded: moving_pages:True'
      run 0 export --to json "$file"
      empty err
      is_json
    done
  done
done

# A ring that wrapped: the state before comes from a checkpoint.
WEIR_ALLOC_CONF=moving_pages:True WEIR_RECORD="$work/wrapped" WEIR_RECORD_MB=1 "$MOVING_JOB" 1 14000 "$work/own.pickle" \
  >"$work/job" 2>"$work/err"
set -- "$work"/wrapped/*.ring
run 0 summary "$1"
has out '^    history   the last entries: '
run 0 explain "$1"
hasnt out 'cannot be put back'

# How far the stream was decides which old mappings are gone. That is not recorded: where it makes a difference, the
# output says so.
WEIR_ALLOC_CONF=moving_pages:True,moving_pages_max_aliases:4 WEIR_RECORD="$work/few" WEIR_RECORD_MB=2 "$MOVING_JOB" 4 400 \
  "$work/few.pickle" >"$work/job" 2>"$work/err"
for file in "$work"/few.pickle "$work"/few/*.ring; do
  if "$weir" replay --check "$file" >"$work/out" 2>"$work/err"; then
    has out ' 0 differ$'
    continue
  fi
  has out '^  note        pages moved in this job, which depends on how far its streams were'
  run 1 whatif --conf '' "$file"
  has err '^  pages moved in this job, which depends on how far its streams were'
  run 0 whatif --force --conf '' "$file"
  run 0 explain "$file"
  has out '^  note        pages moved in this job'
done

exit "$failed"
