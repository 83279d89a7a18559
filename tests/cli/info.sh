#!/bin/sh
# info.sh PROGRAM VERSION: `weir info` about drivers and devices, on the software device.
set -u
tested=info
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
unset CUDA_VISIBLE_DEVICES WEIR_SOFT_CLOCK WEIR_SOFT_CAPABILITY
export WEIR_DRIVER=soft WEIR_SOFT_DEVICES=2 WEIR_SOFT_MEMORY=80GiB

run 0
empty err
has out "^Weir *$version$"
has out '^Driver *soft, CUDA '
has out '^Chosen *by WEIR_DRIVER=soft$'
has out '^Devices *2$'
count 2 '^Device [01]: '
count 2 ' GPU-[0-9a-f]\{8\}-'
count 2 ' 79.75 GiB free of 80.00 GiB$' # a context takes the rest

run 0 --json
empty err
is_json
count 2 '"uuid": "GPU-'
count 2 '"total_memory": 85899345920, "free_memory": 85630910464,'
has out '"driver": {"name": "soft", "choice": "soft", "reason": ""'

# CUDA_VISIBLE_DEVICES applies to the software device too. Having no device is not a failure.
export CUDA_VISIBLE_DEVICES=1
run 0
has out '^Devices *1, with CUDA_VISIBLE_DEVICES="1"$'
has out 'GPU-[0-9a-f]*1-'
export CUDA_VISIBLE_DEVICES=32
run 0
empty err
has out '^Devices *0, '
run 0 --json
is_json
has out '"devices": \[\]'
unset CUDA_VISIBLE_DEVICES

# The automatic choice reports why it did not use NVIDIA's driver.
export WEIR_DRIVER=auto WEIR_CUDA_LIBRARY=/nonexistent/libcuda.so.1
run 0
has out '^Chosen *automatically: .*/nonexistent/libcuda.so.1'

export WEIR_DRIVER=cuda
run 1
empty out
has err 'WEIR_ERROR_NO_DRIVER'
has err '/nonexistent/libcuda.so.1'

export WEIR_DRIVER=banana
run 1
empty out
has err 'banana'

exit $failed
