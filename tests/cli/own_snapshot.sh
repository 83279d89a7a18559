#!/bin/sh
# own_snapshot.sh PROGRAM VERSION: every command reads the snapshots that Weir writes, completely. MAKE_SNAPSHOT is the
# program that writes one.
set -u
tested=
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
export WEIR_DRIVER=soft WEIR_SOFT_MEMORY=1GiB

for conf in '' expandable_segments:True moving_pages:True; do
  file=$work/own${conf:+_${conf%%_*}}.pickle
  said="make_snapshot with '$conf'"
  WEIR_ALLOC_CONF=$conf "${MAKE_SNAPSHOT:?}" "$file" >"$work/out" 2>"$work/err" || fail 'it failed'

  run 0 summary "$file"
  empty err
  hasnt out 'not understood'
  has out 'out of memory  1 time, '
  run 0 summary --json "$file"
  has out '"not_understood": \[\]'
  has out '"host": {"segments": 0, '
  is_json
  for at in '' --at=peak --at=end --json; do
    run 0 explain $at "$file"
    empty err
    hasnt out 'not understood'
  done
  run 0 replay --check "$file"
  empty err
  has out ', 0 differ$'
  run 0 replay "$file"
  empty err
  run 0 whatif --conf expandable_segments:True "$file"
  empty err
  # The request was for a petabyte, which no setting can serve.
  run 3 tune --threads 2 "$file"
  empty err
  for form in json csv perfetto; do
    run 0 export --to "$form" "$file"
    empty err
  done
  run 0 export --to json "$file"
  is_json
  for key in host_segments host_traces epoch phase user_metadata compile_context; do has out "\"$key\": "; done
  if "$weir" export --to sqlite -o "$work/own.sqlite" "$file" 2>"$work/err"; then
    [ -s "$work/own.sqlite" ] || fail 'an empty database'
  else
    has err 'built without'
  fi
  run 0 redact -o "$work/redacted.pickle" "$file"
  empty err
  hasnt out 'left out'
  run 0 summary "$work/redacted.pickle"
  hasnt out 'not understood'
  for name in forward model.py epoch between 'run 5'; do
    if grep -q -a "$name" "$work/redacted.pickle"; then fail "'$name' is still in the copy"; fi
  done
done

exit "$failed"
