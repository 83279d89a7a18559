/*
 * All environment variables that the library, its adapters and the program read. Those of libweir_compute are in
 * compute/docs/README.md.
 *
 *   WEIR__GROUP(heading)
 *   WEIR__VARIABLE(id, names, kind, from, to, values, preset, help)
 *
 * The first of the names that is set counts. `values` says what is expected, in messages as well, and lists the choices
 * of a choice; numbers are from `from` to `to`. `preset` is what counts if no name is set; NULL if there is then no
 * effect.
 */
WEIR__GROUP("Devices")
WEIR__VARIABLE(DRIVER, ("WEIR_DRIVER"), CHOICE, 0, 0, "auto, cuda or soft", "auto",
               "the driver: NVIDIA's (cuda), the software device (soft), or NVIDIA's if it has a device and else the "
               "software device (auto)")
WEIR__VARIABLE(VISIBLE_DEVICES, ("CUDA_VISIBLE_DEVICES"), TEXT, 0, 0,
               "a comma-separated list of device numbers or UUIDs", "all devices",
               "which devices the program sees, and in which order")
WEIR__VARIABLE(CUDA_LIBRARY, ("WEIR_CUDA_LIBRARY"), SECURE, 0, 0, "the name or path of a library", "libcuda.so.1",
               "the library to load as NVIDIA's driver; ignored in set-user-ID programs")
WEIR__VARIABLE(NVML_LIBRARY, ("WEIR_NVML_LIBRARY"), SECURE, 0, 0, "the name or path of a library", "libnvidia-ml.so.1",
               "the library to load as NVIDIA's management library; ignored in set-user-ID programs")
WEIR__VARIABLE(LOG, ("WEIR_LOG"), CHOICE, 0, 0, "error, warn, info or debug", "warn",
               "the least severe messages to write to standard error")
WEIR__VARIABLE(MODULE_LOADING, ("CUDA_MODULE_LOADING"), TEXT, 0, 0, "LAZY or EAGER",
               "LAZY in Python, else the driver's default",
               "when the driver loads kernels; the Python package sets it if it is not set")

WEIR__GROUP("Allocator")
WEIR__VARIABLE(ALLOC_CONF, ("WEIR_ALLOC_CONF"), TEXT, 0, 0, "key:value pairs, see 'weir help settings'",
               "the first of PyTorch's that is set", "the allocator's settings, such as expandable_segments:True")
WEIR__VARIABLE(PYTORCH_ALLOC_CONF, ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), TEXT, 0,
               0, "as WEIR_ALLOC_CONF", "default settings",
               "the allocator's settings where WEIR_ALLOC_CONF is not set; the first that is set counts")
WEIR__VARIABLE(
    NO_MEMORY_CACHING, ("WEIR_NO_MEMORY_CACHING"), CHOICE, 0, 0, "0 or 1", "0",
    "1 turns caching off: the driver serves every allocation and free, and captures cannot allocate; for tools "
    "that watch memory")
WEIR__VARIABLE(PYTORCH_NO_CACHING, ("PYTORCH_NO_CUDA_MEMORY_CACHING"), TEXT, 0, 0, "1", NULL,
               "1 turns caching off as well; other values are ignored")
WEIR__VARIABLE(SHARED_SEGMENTS, ("TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC"), TEXT, 0, 0, "0 or 1", "1",
               "0 makes expandable segments that cannot be shared with other processes")
WEIR__VARIABLE(IPC_TIMEOUT, ("WEIR_IPC_TIMEOUT"), NUMBER, -HUGE_VAL, HUGE_VAL,
               "a number of seconds above 0, or a negative number for no limit", "600",
               "when a message with memory that was freed expires, if no other process has received it")

WEIR__VARIABLE(SLEEP_PINNED, ("WEIR_SLEEP_PINNED"), BYTES, 0, 18446744073709551615.0, "a size such as 32GiB",
               "a quarter of the host's free memory, divided by the ranks on it",
               "how many bytes of pinned memory are kept for the next tag that sleeps, on each device")
WEIR__VARIABLE(
    LOCAL_RANKS,
    ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE",
     "SLURM_NTASKS_PER_NODE"),
    NUMBER, 1, 1 << 20, "a number from 1 to 1048576", "1",
    "the processes of the job on this host, which share it; launchers set it, and the first that is set counts")

WEIR__GROUP("Recording")
WEIR__VARIABLE(RECORD, ("WEIR_RECORD"), SECURE, 0, 0, "a folder", "no recording",
               "where every allocator records its history, in a file that stays readable however the process ends")
WEIR__VARIABLE(RECORD_MB, ("WEIR_RECORD_MB"), NUMBER, 1, 1 << 20, "1 to 1048576", "256",
               "the size in MiB to which that file may grow; then the oldest entries are overwritten")
WEIR__VARIABLE(RECORD_STACKS, ("WEIR_RECORD_STACKS"), TEXT, 0, 0,
               "none, state, alloc or all, optionally followed by ,native", "none",
               "which history entries have stacks; with ,native, native frames follow those of Python")
WEIR__VARIABLE(RECORD_SIGNAL, ("WEIR_RECORD_SIGNAL"), CHOICE, 0, 0, "SIGUSR1, SIGUSR2 or SIGHUP", "no signal",
               "the signal that writes a snapshot beside the recording")
WEIR__VARIABLE(RANK,
               ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK",
                "FLUX_TASK_RANK"),
               TEXT, 0, 0, "a number", "no rank",
               "the rank in the name of the recording; launchers set it, and the first that is set counts")

WEIR__GROUP("Live view")
WEIR__VARIABLE(STATS_PAGE, ("WEIR_STATS_PAGE"), SECURE, 0, 0, "0, 1 or a folder", "1",
               "whether a process says in shared memory what memory it holds, for 'weir top' and 'weir metrics'; 0 "
               "switches that off, and a folder is one that only you can enter, where the pages lie then")
WEIR__VARIABLE(RUNTIME_DIR, ("XDG_RUNTIME_DIR"), SECURE, 0, 0, "a folder", "/dev/shm/weir-UID for the pages",
               "the user's folder for files of running programs; the pages lie in its folder weir")

WEIR__GROUP("Guard mode")
WEIR__VARIABLE(GUARD, ("WEIR_GUARD"), CHOICE, 0, 0, "0, 1, off, light or full", "0",
               "light (or 1) finds misuse of memory: writes past the end of blocks and to freed blocks, and wrong "
               "frees. full puts "
               "each block at the end of pages of its own, so that the access itself faults. Both switch recording on")
WEIR__VARIABLE(GUARD_ACTION, ("WEIR_GUARD_ACTION"), CHOICE, 0, 0, "log, error or abort", "log",
               "what a finding does beside being logged: fail the call that learns of it (error), or end the process "
               "(abort)")
WEIR__VARIABLE(GUARD_SAMPLE, ("WEIR_GUARD_SAMPLE"), NUMBER, 1, 1e9, "a number from 1 to 1000000000", "1",
               "one allocation in so many is guarded")
WEIR__VARIABLE(GUARD_QUARANTINE, ("WEIR_GUARD_QUARANTINE"), BYTES, 0, 18446744073709551615.0, "a size such as 512MiB",
               "1/32 of the device's memory, at most 1GiB",
               "how many freed bytes wait before they are reused, on each device")
WEIR__VARIABLE(GUARD_SECONDS, ("WEIR_GUARD_SECONDS"), NUMBER, 0, 1e6, "a number from 0 to 1000000", "10",
               "for how many seconds freed memory waits at most")
WEIR__VARIABLE(GUARD_FILL, ("WEIR_GUARD_FILL"), TEXT, 0, 0, "nan, or a byte from 0 to 255", "no fill",
               "what new memory is filled with: NaN in every float type, or a byte")
WEIR__VARIABLE(GUARD_REPORT, ("WEIR_GUARD_REPORT"), SECURE, 0, 0, "a file", "none",
               "each finding is appended to this file, as one line of JSON")

WEIR__GROUP("Software device")
WEIR__VARIABLE(SOFT_DEVICES, ("WEIR_SOFT_DEVICES"), NUMBER, 1, 64, "a number from 1 to 64", "1",
               "how many software devices there are")
WEIR__VARIABLE(SOFT_MEMORY, ("WEIR_SOFT_MEMORY"), BYTES, 2 << 20, 1ll << 44,
               "a size from 2MiB to 16TiB, such as 80GiB or 500MB", "16GiB",
               "the memory of each; host memory is used only for pages that are touched")
WEIR__VARIABLE(SOFT_CONTEXT, ("WEIR_SOFT_CONTEXT"), BYTES, 0, 18446744073709551615.0,
               "a size up to that of the memory, such as 512MiB", "1/64 of the memory, at most 256MiB",
               "the memory that a context takes of a device")
WEIR__VARIABLE(SOFT_CLOCK, ("WEIR_SOFT_CLOCK"), CHOICE, 0, 0, "threads or stepped", "threads",
               "real time, or time that advances only when stepped")
WEIR__VARIABLE(SOFT_CLOCK_KHZ, ("WEIR_SOFT_CLOCK_KHZ"), NUMBER, 1, 100000000, "a number from 1 to 100000000", "1000000",
               "the clock rate in cycles per millisecond")
WEIR__VARIABLE(SOFT_CAPABILITY, ("WEIR_SOFT_CAPABILITY"), TEXT, 0, 0, "two numbers, such as 9.0", "9.0",
               "the compute capability")
WEIR__VARIABLE(SOFT_COPY_SPEED, ("WEIR_SOFT_COPY_SPEED"), BYTES, 0, 18446744073709551615.0,
               "bytes per second, such as 50GB or 500MB", "unlimited, 100GB in stepped time",
               "the bytes that a copy or fill transfers per second")

WEIR__GROUP("Adapters")
WEIR__VARIABLE(TORCH, ("WEIR_TORCH"), TEXT, 0, 0, "0 or 1", "0",
               "1 lets PyTorch allocate from Weir if the adapter is installed or on PYTHONPATH")
WEIR__VARIABLE(TORCH_PINNED, ("WEIR_TORCH_PINNED"), TEXT, 0, 0, "0 or 1", "0",
               "with WEIR_TORCH=1, 1 makes PyTorch allocate its pinned memory from Weir, too")
WEIR__VARIABLE(DRIVER_TIMING, ("WEIR_DRIVER_TIMING"), TEXT, 0, 0, "1 or a file", "off",
               "the adapter for PyTorch counts and times driver calls, and appends the result to the file at exit")
WEIR__VARIABLE(TORCH_LIBRARIES, ("WEIR_TORCH_LIBRARIES"), TEXT, 0, 0, "a folder",
               "the folder of the package weir_torch", "where the libraries of the PyTorch adapter are")
WEIR__VARIABLE(CACHE_DIR, ("WEIR_CACHE_DIR"), TEXT, 0, 0, "a folder", "$XDG_CACHE_HOME/weir or ~/.cache/weir",
               "where the adapter for PyTorch is kept after it was built")
WEIR__VARIABLE(CACHE_HOME, ("XDG_CACHE_HOME"), TEXT, 0, 0, "a folder", "~/.cache",
               "where that folder is, if WEIR_CACHE_DIR is not set")
WEIR__VARIABLE(MEMORY_LIMIT, ("WEIR_MEMORY_LIMIT"), TEXT, 0, 0, "a size such as 8GiB", "the device's memory",
               "the memory that a program under libweir_preload.so may use on each device")
WEIR__VARIABLE(MEMORY_FRACTION, ("WEIR_MEMORY_FRACTION"), TEXT, 0, 0, "0 to 1", "1",
               "the same as a fraction of the device's memory; the lower limit counts")

WEIR__GROUP("The weir program")
WEIR__VARIABLE(COLUMNS, ("COLUMNS"), NUMBER, 1, 1e9, "40 to 10000", "the width of the terminal, else 120",
               "the width to wrap text to")
WEIR__VARIABLE(NO_COLOR, ("NO_COLOR"), TEXT, 0, 0, "any text", NULL, "if it is not empty, nothing is printed in bold")
WEIR__VARIABLE(DISPLAY, ("DISPLAY", "WAYLAND_DISPLAY"), TEXT, 0, 0, "the name of a display", NULL,
               "if one is set, 'weir view' opens the page in a browser; desktops set them")
WEIR__VARIABLE(
    SANDBOX, ("WEIR_SANDBOX"), TEXT, 0, 0, "on or off", "on",
    "off lets commands that read recordings keep all rights of the user. Otherwise they give up what they do "
    "not need, as far as the kernel allows: other files, other programs and the network")
WEIR__VARIABLE(TERMINAL, ("TERM"), TEXT, 0, 0, "a terminal type", NULL,
               "text is printed in bold only on a terminal with a type other than dumb")
WEIR__VARIABLE(PATH, ("PATH"), TEXT, 0, 0, "folders separated by colons", NULL,
               "decides whether suggested commands name the program or its path")
WEIR__VARIABLE(LIBRARY_PATH, ("LD_LIBRARY_PATH"), TEXT, 0, 0, "folders separated by colons", NULL,
               "where libraries may be read from in spite of WEIR_SANDBOX; the loader looks there")
WEIR__VARIABLE(PRELOAD, ("LD_PRELOAD"), TEXT, 0, 0, "libraries", NULL,
               "under valgrind, which sets it, WEIR_SANDBOX is off")
WEIR__VARIABLE(TEMPORARY, ("TMPDIR"), SECURE, 0, 0, "a folder", "/tmp", "the folder for temporary files")
WEIR__VARIABLE(CXX, ("CXX"), TEXT, 0, 0, "a compiler", "g++", "the C++ compiler that builds the adapter for PyTorch")

#undef WEIR__GROUP
#undef WEIR__VARIABLE
