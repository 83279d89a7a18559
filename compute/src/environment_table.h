/*
 * All environment variables that libweir_compute reads. The table has the form of the core's,
 * src/base/environment_table.h:
 *
 *   WEIR__GROUP(heading)
 *   WEIR__VARIABLE(id, names, from, to, values, preset, help)
 *
 * The first of the names that is set and not empty counts. `values` says what is expected, in messages as well; numbers
 * and sizes are from `from` to `to`. `preset` is what counts if no name is set; NULL if there is then no effect.
 */
#define TUNABLE(name) ("WEIR_TUNABLEOP_" name, "PYTORCH_TUNABLEOP_" name)

WEIR__GROUP("Libraries and compilers")
WEIR__VARIABLE(NVRTC_LIBRARY, ("WEIR_NVRTC_LIBRARY"), 0, 0, "a file", "searched for",
               "the library to load as NVRTC; ignored in set-user-ID programs, as all of this table are")
WEIR__VARIABLE(CUBLAS_LIBRARY, ("WEIR_CUBLAS_LIBRARY"), 0, 0, "a file", "searched for", "the library to load as cuBLAS")
WEIR__VARIABLE(NCCL_LIBRARY, ("WEIR_NCCL_LIBRARY"), 0, 0, "a file", "searched for", "the library to load as NCCL")
WEIR__VARIABLE(CUDA_HOME, ("CUDA_HOME"), 0, 0, "a folder", "/usr/local/cuda",
               "a CUDA toolkit, in which libraries and headers are looked for last")
WEIR__VARIABLE(CUDA_PATH, ("CUDA_PATH"), 0, 0, "a folder", NULL, "another one, which is looked at after CUDA_HOME")
WEIR__VARIABLE(CXX, ("WEIR_CXX"), 0, 0, "a compiler", "c++, g++ or clang++",
               "the C++ compiler with which the software device compiles kernels")
WEIR__VARIABLE(PATH, ("PATH"), 0, 0, "folders separated by colons", "/usr/local/bin:/usr/bin:/bin",
               "where that compiler is looked for")
WEIR__VARIABLE(TEMPORARY, ("TMPDIR"), 0, 0, "a folder", "/tmp",
               "where source and object files are while a kernel is compiled")

WEIR__GROUP("The cache of kernels")
WEIR__VARIABLE(CACHE_DIR, ("WEIR_CACHE_DIR"), 0, 0, "a folder", "$XDG_CACHE_HOME/weir or ~/.cache/weir",
               "where compiled kernels are kept")
WEIR__VARIABLE(CACHE_HOME, ("XDG_CACHE_HOME"), 0, 0, "a folder", "~/.cache",
               "where that folder is, if WEIR_CACHE_DIR is not set")
WEIR__VARIABLE(HOME, ("HOME"), 0, 0, "a folder", NULL,
               "where that is, if XDG_CACHE_HOME is not set; without any of the three, kernels are not kept")
WEIR__VARIABLE(CACHE_SIZE, ("WEIR_CACHE_SIZE"), 0, 18446744073709549568.0, "a size such as 500MB", "1GiB",
               "the size above which the kernels that were not used for longest are removed")

WEIR__GROUP("Matrix products and collectives")
WEIR__VARIABLE(WORKSPACE, ("CUBLAS_WORKSPACE_CONFIG"), 0, 0, ":KIB:COUNT, repeated",
               ":4096:2:16:8, or 32 MiB on devices of capability 9.0", "the size of the workspaces of matrix products")
WEIR__VARIABLE(ALLOW_TF32, ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"), 0, 0, "0 or 1", "0",
               "1 allows TF32 in matrix products, whatever the program sets")
WEIR__VARIABLE(NCCL_TIMEOUT, ("WEIR_NCCL_TIMEOUT"), 1e-9, 1e6, "a number of seconds above 0, up to 1e+06", "600",
               "how long a rank of a communicator waits for others")

WEIR__GROUP("Tools")
WEIR__VARIABLE(NVTX_TOOL, ("NVTX_INJECTION64_PATH"), 0, 0, "a library", NULL,
               "the profiler or checker that gets ranges and memory through NVTX; such tools set it themselves")
WEIR__VARIABLE(NVTX_MEMORY, ("WEIR_NVTX_MEMORY"), 0, 0, "0 or 1", "1",
               "0: segments and blocks are not reported to such a tool")

WEIR__GROUP("Tunable operations")
WEIR__VARIABLE(TUNABLE_ENABLED, TUNABLE("ENABLED"), 0, 0, "0 or 1", "0", "1 turns tunable operations on")
WEIR__VARIABLE(TUNABLE_TUNING, TUNABLE("TUNING"), 0, 0, "0 or 1", "1", "0 forbids tuning: only known results are used")
WEIR__VARIABLE(TUNABLE_RECORD_UNTUNED, TUNABLE("RECORD_UNTUNED"), 0, 0, "0 or 1", "0",
               "1 records operations that have no result, while tuning is off")
WEIR__VARIABLE(TUNABLE_FILENAME, TUNABLE("FILENAME"), 0, 0, "a file", "tunableop_results.csv",
               "the file of results, in which the device's number is inserted")
WEIR__VARIABLE(TUNABLE_UNTUNED_FILENAME, TUNABLE("UNTUNED_FILENAME"), 0, 0, "a file", "tunableop_untuned.csv",
               "the file of recorded operations, in which the device's number is inserted")
WEIR__VARIABLE(TUNABLE_MAX_DURATION, TUNABLE("MAX_TUNING_DURATION_MS"), INT_MIN, INT_MAX, "a number of milliseconds",
               "30", "how long an implementation is timed; 0 for no limit")
WEIR__VARIABLE(TUNABLE_MAX_ITERATIONS, TUNABLE("MAX_TUNING_ITERATIONS"), INT_MIN, INT_MAX, "a number", "100",
               "how often it is timed; 0 for no limit, and 100 if there is no limit at all")
WEIR__VARIABLE(TUNABLE_MAX_WARMUP_DURATION, TUNABLE("MAX_WARMUP_DURATION_MS"), INT_MIN, INT_MAX,
               "a number of milliseconds", "0", "how long it runs before; with both limits 0, it does not")
WEIR__VARIABLE(TUNABLE_MAX_WARMUP_ITERATIONS, TUNABLE("MAX_WARMUP_ITERATIONS"), INT_MIN, INT_MAX, "a number", "0",
               "how often it runs before")
WEIR__VARIABLE(TUNABLE_ROTATING, TUNABLE("ROTATING_BUFFER_SIZE"), INT_MIN, INT_MAX, "a number of MiB", "the L2 cache",
               "rotating memory; 0 for none")
WEIR__VARIABLE(TUNABLE_CHECK, TUNABLE("NUMERICAL_CHECK"), 0, 0, "0, 1 or two positive numbers such as 1e-5_1e-5", "0",
               "the absolute and the relative tolerance of results; 1 is 1e-5_1e-5, 0 is off")
WEIR__VARIABLE(TUNABLE_VERBOSE, TUNABLE("VERBOSE"), INT_MIN, INT_MAX, "a number", "0",
               "what is logged; 1: settings and files; 2: each search, too; 3: each implementation, too")
WEIR__VARIABLE(TUNABLE_VERBOSE_FILENAME, TUNABLE("VERBOSE_FILENAME"), 0, 0, "err, out or a file", "err",
               "where that goes; a file is appended to")

#undef TUNABLE
#undef WEIR__GROUP
#undef WEIR__VARIABLE
