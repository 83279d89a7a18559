/*
 * All environment variables that the library, the adapters and the program read.
 */
#include "help.h"

const weir_cli_variable weir_cli_environment[] = {
    {"Devices", "WEIR_DRIVER", "auto, cuda or soft", "auto",
     "the driver: NVIDIA's (cuda), the software device (soft), or NVIDIA's if it has a device and else the software "
     "device (auto)"},
    {NULL, "CUDA_VISIBLE_DEVICES", "a comma-separated list of device numbers or UUIDs", "all devices",
     "which devices the program sees, and in which order"},
    {NULL, "WEIR_CUDA_LIBRARY", "the name or path of a library", "libcuda.so.1",
     "the library to load as NVIDIA's driver; ignored in set-user-ID programs"},
    {NULL, "WEIR_NVML_LIBRARY", "the name or path of a library", "libnvidia-ml.so.1",
     "the library to load as NVIDIA's management library; ignored in set-user-ID programs"},
    {NULL, "WEIR_LOG", "error, warn, info or debug", "warn", "the least severe messages to write to standard error"},
    {NULL, "CUDA_MODULE_LOADING", "LAZY or EAGER", "LAZY in Python, else the driver's default",
     "when the driver loads kernels; the Python package sets it if it is not set"},

    {"Allocator", "WEIR_ALLOC_CONF", "key:value pairs, see 'weir help settings'", "the first of PyTorch's that is set",
     "the allocator's settings, such as expandable_segments:True"},
    {NULL, "PYTORCH_CUDA_ALLOC_CONF, PYTORCH_HIP_ALLOC_CONF, PYTORCH_ALLOC_CONF", "as WEIR_ALLOC_CONF",
     "default settings", "the allocator's settings where WEIR_ALLOC_CONF is not set; the first that is set counts"},
    {NULL, "WEIR_NO_MEMORY_CACHING", "0 or 1", "0", "1 turns caching off: the driver serves every allocation and free"},
    {NULL, "PYTORCH_NO_CUDA_MEMORY_CACHING", "1", NULL, "1 turns caching off as well; other values are ignored"},
    {NULL, "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC", "0 or 1", "1",
     "0 makes expandable segments that cannot be shared with other processes"},

    {"Recording", "WEIR_RECORD", "a folder", "no recording",
     "where every allocator records its history, in a file that stays readable however the process ends"},
    {NULL, "WEIR_RECORD_MB", "1 to 1048576", "256", "the size of that file in MiB; the oldest entries are overwritten"},
    {NULL, "WEIR_RECORD_STACKS", "none, state, alloc or all, optionally followed by ,native", "none",
     "which history entries have stacks; with ,native, native frames follow those of Python"},
    {NULL, "WEIR_RECORD_SIGNAL", "SIGUSR1, SIGUSR2 or SIGHUP", "no signal",
     "the signal that writes a snapshot beside the recording"},
    {NULL, "RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK, PMI_RANK, PMIX_RANK, MV2_COMM_WORLD_RANK, FLUX_TASK_RANK",
     "a number", "no rank",
     "the rank in the name of the recording; launchers set it, and the first that is set counts"},

    {"Software device", "WEIR_SOFT_DEVICES", "1 to 64", "1", "how many software devices there are"},
    {NULL, "WEIR_SOFT_MEMORY", "2MiB to 16TiB", "16GiB", "the memory of each"},
    {NULL, "WEIR_SOFT_CLOCK", "threads or stepped", "threads", "real time, or time that advances only when stepped"},
    {NULL, "WEIR_SOFT_CLOCK_KHZ", "1 to 100000000", "1000000", "the clock rate in cycles per millisecond"},
    {NULL, "WEIR_SOFT_CAPABILITY", "two numbers such as 9.0", "9.0", "the compute capability"},
    {NULL, "WEIR_SOFT_COPY_SPEED", "a size such as 50GB", "unlimited, 100GB in stepped time",
     "the bytes that a copy or fill transfers per second"},

    {"Adapters", "WEIR_TORCH", "0 or 1", "0", "1 lets PyTorch allocate from Weir if the adapter is on PYTHONPATH"},
    {NULL, "WEIR_DRIVER_TIMING", "1 or a file", "off",
     "the adapter for PyTorch counts and times driver calls, and appends the result to the file at exit"},
    {NULL, "WEIR_TORCH_LIBRARIES", "a folder", "the folder of the package weir_torch",
     "where the libraries of the PyTorch adapter are"},
    {NULL, "WEIR_MEMORY_LIMIT", "a size such as 8GiB", "the device's memory",
     "the memory that a program under libweir_preload.so may use on each device"},
    {NULL, "WEIR_MEMORY_FRACTION", "0 to 1", "1",
     "the same as a fraction of the device's memory; the lower limit counts"},

    {"The weir program", "COLUMNS", "40 to 10000", "the width of the terminal, else 120", "the width to wrap text to"},
    {NULL, "NO_COLOR", "any text", NULL, "if it is not empty, nothing is printed in bold"},
    {NULL, "TERM", "a terminal type", NULL, "text is printed in bold only on a terminal with a type other than dumb"},
    {NULL, "PATH", "folders separated by colons", NULL,
     "decides whether suggested commands name the program or its path"},
    {NULL, "TMPDIR", "a folder", "/tmp", "the folder for temporary files"},
    {NULL, "CXX", "a compiler", "g++", "the C++ compiler that 'weir bench alloc' uses for PyTorch"},
    {NULL, "CUDA_HOME, CUDA_PATH", "a folder", "the folder of nvcc, else /usr/local/cuda",
     "where 'weir bench alloc' looks for CUDA's headers"},
    {NULL, "OMPI_COMM_WORLD_SIZE, PMI_SIZE, PMIX_RANK, MPI_LOCALNRANKS", "a number", NULL,
     "set by mpirun: 'weir tune' then shares its work through MPI, if the build has it"},
    {0}};
