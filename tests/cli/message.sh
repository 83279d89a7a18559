#!/bin/sh
# message.sh PROGRAM VERSION: `weir explain --message`: logs of one failure and of several ranks, and texts without one.
set -u
tested=explain
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
data=$(dirname "$0")/../data/corpus/message

run 0 --message "$data/native"
empty err
has out '^.*/native: out of memory, line 3 of 3, GPU 0$'
has out '^  request     1.82 GiB, or up to 2 MiB less (PyTorch prints the segment size, not the request)$'
has out '^  limit       12.58 GiB, set by the program (set_per_process_memory_fraction): 0.090 of the device$'
has out '^  why         Probably fragmentation: 1.95 GiB is unallocated'
has out '^  missing     1.04 to 1.08 GiB: the limit is that much too low$'
has out '^  others      8.33 GiB in 1 other process: 42 (8.33 GiB)$'
has out '^    possible    expandable_segments:True'
has out '^    yes         a limit of 13.66 GiB, which is set_per_process_memory_fraction(0.098)$'
has out '^                torch.cuda.memory._record_memory_history(stacks="python")$'
has out '; then weir explain oom-PID.pickle$'
has out "^  to paste    export PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True'\$"
run 0 --message --json "$data/native"
has out '"conf": "expandable_segments:True"}'
sed 's/$/ expandable_segments is enabled./' "$data/native" >"$work/expandable"
run 0 --message "$work/expandable"
has out '^  why         Probably fragmentation'
has out '^    no          expandable_segments:True: it is on$'
hasnt out 'to paste'

# With the limit that the text proves to be needed, the recorded job of that message runs.
trace=$data/../../traces/llama_oom.pickle.zst
if ! "$weir" summary "$trace" 2>&1 | grep -qi 'without.*zstd'; then
  "$weir" replay --memory 139.80GiB --fraction 0.098 "$trace" >"$work/out" 2>&1
  has out ', 0 failed$'
fi

# From a pipe; what the figures exclude is excluded.
said='weir explain --message -'
echo 'CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 100.00 MiB is free.
Including non-PyTorch memory, this process has 78.99 GiB memory in use. Of the allocated memory 77.00 GiB is allocated by
PyTorch, with 8.12 GiB allocated in private pools (e.g., CUDA Graphs), and 200.00 MiB is reserved by PyTorch but unallocated.' |
  "$weir" explain --message - >"$work/out" 2>"$work/err" || fail "exit code $?"
has out '^standard input: out of memory, line 1 of 3, GPU 0$'
has out '^  why         Not enough memory: 77.00 GiB allocated and the request make at least 77.99 GiB, and no more than 77.30 GiB could be reserved. Fragmentation is excluded.$'
has out '^    no          expandable_segments:True, moving_pages:True, and any other setting'
has out '^    possible    CUDA graphs that share a pool'
hasnt out '^    possible    expandable'
hasnt out 'to paste'

# The device is used by a process that is not listed, and more is reserved than there is.
said='weir explain --message -'
echo 'CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.10 GiB of which 100.00 MiB is free.
Including non-PyTorch memory, this process has 60.00 GiB memory in use. Of the allocated memory 59.00 GiB is allocated by
PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated.' | "$weir" explain --message - >"$work/out" 2>"$work/err"
has out '^  missing     1.40 to 1.41 GiB: that much more free memory was needed on the device; '
has out '^  unlisted    18.99 to 19.01 GiB of the device is in use, but by no process that the text lists'
echo 'CUDA out of memory. Tried to allocate 10.73 GiB (GPU 0; 8.00 GiB total capacity; 17.20 GiB already allocated; 0 bytes free; 19.15 GiB reserved in total by PyTorch)' |
  "$weir" explain --message - >"$work/out" 2>"$work/err"
has out '^  why         Too large: the request alone needs more than the device has, 8.00 GiB.$'
has out '^  note        more is reserved than the device has'

# What is said again is counted in the headline; the advice of PyTorch is not another failure.
said='weir explain --message, repeated'
error='torch.AcceleratorError: CUDA error: out of memory
Search for `cudaErrorMemoryAllocation'"' in https://docs.nvidia.com/ for more information."
for times in 1 2 3; do
  echo "$error" >>"$work/repeated"
  run 0 --message "$work/repeated"
  case $times in
  1) has out '/repeated: out of memory, line 1 of 2$' ;;
  2) has out '/repeated: out of memory, line 1 of 4, repeated once$' ;;
  3) has out '/repeated: out of memory, line 1 of 6, repeated 2 times$' ;;
  esac
done

# Several ranks: a table, and the first of them.
run 0 --message "$data/others"
has out 'out of memory at 7 places, 8 messages$'
has out '^  task 0 .* not known$'
has out '^  rank 9 .*6.90 GiB'
has out '^  in short    '
run 0 --message --json "$data/others"
if command -v python3 >/dev/null; then
  python3 - "$work/out" <<'END' || fail "the JSON is wrong"
import json, sys
report = json.load(open(sys.argv[1]))
assert report["failures"] == 8 and len(report["messages"]) == 7, report
cupy = report["messages"][0]
assert cupy["wording"] == "CuPy" and cupy["missing"] == {"least": 20867072, "most": 20867072}, cupy
assert report["messages"][1]["rank"] == 9 and report["messages"][1]["device"] is None
assert [m["cause"] for m in report["messages"]][-2:] == ["too large", "not known"]
END
fi
run 0 --message "$data/async"
has out '^  missing     2.44 to 2.46 GiB: the limit is that much too low$'
run 0 --message --device 1 "$data/parentheses"
has out ': out of memory, line 1 of 2, GPU 1$'
run 1 --message --device 7 "$data/parentheses"
has err 'no message says that GPU 7 ran out of memory'

# The request, as far as the size of the segment shows it.
said='weir explain --message, sizes of segments'
for size in 2.00 20.00 100.00; do
  echo "CUDA out of memory. Tried to allocate $size MiB. GPU 0 has a total capacity of 15.48 GiB of which 1.75 MiB is free."
done | while read -r text; do echo "$text" | "$weir" explain --message -; done >"$work/out" 2>"$work/err"
has out '^  request     1.00 MiB or less (PyTorch prints the segment size, 2.00 MiB, not the request)$'
has out '^  request     above 1 MiB, up to 20.00 MiB (PyTorch prints the segment size, not the request)$'
has out '^  request     100.00 MiB, or up to 2 MiB less (PyTorch prints the segment size, not the request)$'
has out '^  device      15.48 GiB, of which 1.75 MiB was free$'

# line NUMBER FILE: explains one line of a log.
line() {
  said="weir explain --message, line $1 of $2"
  sed -n "$1p" "$data/$2" | "$weir" explain --message - >"$work/out" 2>"$work/err" || fail "exit code $?"
}

# Texts of other libraries.
line 1 xla
has out '^  request     3.39 GiB$'
has out 'the driver had no memory left for the allocator of XLA'
run 0 --message "$data/xla"
has out 'out of memory at 3 places, 3 messages$'

# text TEXT: the message is TEXT, with printf's escapes
text() {
  said="weir explain --message of $1"
  printf "$1" | "$weir" explain --message - >"$work/out" 2>"$work/err" || fail "exit code $?"
}

text 'RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4112345678 bytes.\nBufferAssignment stats:\n  parameter allocation: 7.78GiB\n  preallocated temp allocation: 3.83GiB\n'
has out '^  program     the compiled program has 7.78 GiB arguments, 3.83 GiB temporary$'
has out 'the compiled program needs 3.83 GiB at once for temporary values alone'
text "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1.95GiB\nwith allocator GPU_0_bfc on device 0.\n[executable_name='jit_greater']"
has out '^  request     1.95 GiB, by jit_greater$'
text 'ResourceExhaustedError: failed to allocate memory [Op:Cast]'
has out 'not known: the text has the operation alone, Cast$'

line 1 libraries
has out '^  request     8.00 GiB$'
has out 'Not known: the driver had no memory left for RMM'
hasnt out 'pool'
line 2 libraries
has out '^  request     8.00 GiB$'
has out 'Not known: the pool of RMM has reached its size'
line 5 libraries
has out 'Not known: the text has no figures'

# Without FILE, a text is read from a pipe; a recording needs its name.
said='weir explain --message'
"$weir" explain --message <"$data/native" >"$work/out" 2>"$work/err" || fail "exit code $?"
has out '^standard input: out of memory, line 3 of 3, GPU 0$'
run 2
has err 'FILE is missing'

# TensorFlow, whose allocator is that of JAX, and vLLM.
run 0 --message "$data/serving"
has out 'no room for the KV cache: 1 of 3; others hold the memory: 1 of 3. '
line 1 serving
has out '^  request     the KV cache of one request of 40960 tokens: 10.00 GiB$'
has out '^    yes         max_model_len of 5120 or less, as vLLM estimates$'
line 2 serving
has out '^    yes         gpu_memory_utilization of 0.85 or less'
line 3 serving
has out '^  request     1.00 GiB: a tensor \[32,2048,64,64\] of float$'
has out '^  next        tf.config'
hasnt out 'JAX'

# BFC's summary in a log of TensorFlow: the limit and the memory are TensorFlow's.
cat >"$data/bfc" <<'END'
W tensorflow/core/common_runtime/bfc_allocator.cc:501] Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.95GiB (rounded to 2097152000)requested by op model/dense/MatMul
I tensorflow/core/common_runtime/bfc_allocator.cc:1086] Stats: 
Limit:                     16000000000
InUse:                     14000000000
MaxInUse:                  15000000000
NumAllocs:                       12345
MaxAllocSize:               2097152000
END
run 0 --message "$data/bfc"
has out '^  limit       14.90 GiB of TensorFlow$'
has out '^  14.90 GiB reserved by TensorFlow$'
hasnt out 'XLA'

# What to do next is about the library that the text is of.
for number in 1 2 3; do
  line $number xla
  hasnt out 'torch'
  has out '^  next .*XLA_PYTHON_CLIENT_MEM_FRACTION'
done
line 3 libraries
hasnt out 'torch'
has out '^                cupy.get_default_memory_pool().set_limit(fraction=0.9)$'
line 4 libraries
has out 'of PyTorch, MemoryPool.set_limit of CuPy, XLA_PYTHON_CLIENT_MEM_FRACTION of JAX$'
line 6 libraries
hasnt out 'torch.cuda'
hasnt out 'moving_pages'
has out 'only with CUDA or ROCm$'

# Where NVML does not answer, PyTorch calls no observer.
said='weir explain --message, NVML'
echo 'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":830, please report a bug to PyTorch.' |
  "$weir" explain --message - >"$work/out" 2>"$work/err" || fail "exit code $?"
has out '^  request     not known: the text has no size$'
has out '^  why         Not known: PyTorch ran out of memory and then failed to describe it'
has out '^                    torch.cuda.memory._dump_snapshot("oom.pickle")$'
hasnt out 'observer'

# PyTorch on ROCm.
said='weir explain --message, HIP'
hip='HIP out of memory. Tried to allocate 1.00 GiB. GPU 1 has a total capacity of 63.98 GiB of which 900.00 MiB is free. Of the
allocated memory 59.00 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., HIP Graphs), and 2.00 GiB is
reserved by PyTorch but unallocated.'
echo "torch.OutOfMemoryError: $hip" | "$weir" explain --message - >"$work/out" 2>"$work/err" || fail "exit code $?"
has out '^  why         Probably fragmentation'
has out '^  outside     .*: its context and libraries, and other processes$'
has out 'kept for HIP graphs'
has out "^  to paste    export PYTORCH_HIP_ALLOC_CONF='expandable_segments:True'\$"
hasnt out 'CUDA'
hasnt out 'moving_pages'
echo 'torch.AcceleratorError: HIP error: out of memory' | "$weir" explain --message - >"$work/out" 2>"$work/err"
has out 'set AMD_SERIALIZE_KERNEL=3 once'
hasnt out 'CUDA'

# The heading of the remedies has rows below it.
said='weir explain --message, no remedy'
sed '$d; /^PyTorch limit/d; s/48.51/10.51/' "$data/async" | "$weir" explain --message - >"$work/out" 2>"$work/err"
has out ': that much more free memory was needed on the device$'
hasnt out 'would it have helped'

# Control characters of a log are not printed.
run 0 --message "$data/ranks"
hasnt out "$(printf '\033')"
has out 'rank 1'

# Texts without a message, and options of recordings.
echo 'epoch 3: loss 0.1' >"$work/log"
run 1 --message "$work/log"
empty out
has err 'found no out-of-memory error; expected a text such as'
run 1 --message "$data/../../small_snapshot.pickle"
has err 'small_snapshot.pickle: this is a recording: leave out --message'
run 1 --message "$work/none"
has err '/none: cannot open it: No such file or directory$'
wrong '--message reads a text, to which --at does not apply' --message --at peak "$data/native"
wrong '--message reads a text, to which --memory does not apply' --message --memory 1GiB "$data/native"
run 1 "$data/native"
has err 'not a recording, but a text with an out-of-memory error: add --message'
run 1 "$work/log"
has err 'log: not a recording: expected a file of torch.cuda.memory._dump_snapshot() or of WEIR_RECORD$'
hasnt err '--message'

# A named pipe is read once.
mkfifo "$work/pipe"
for option in --message --; do
  cat "$work/log" >"$work/pipe" &
  said="weir explain $option pipe"
  timeout 60 "$weir" explain $option "$work/pipe" >"$work/out" 2>"$work/err"
  [ $? -eq 1 ] || fail "did not fail, or did not end"
  wait
done
exit "$failed"
