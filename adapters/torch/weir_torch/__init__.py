"""Weir as PyTorch's allocator of device memory.

    import torch, weir_torch
    weir_torch.install()          # before anything uses the device

Alternatively, set WEIR_TORCH=1 in the environment of an unchanged program. All device memory of tensors then comes from
Weir; torch.cuda.memory_stats(), memory_snapshot(), graphs, MemPool and everything else work as before. Pinned host
memory too comes from Weir after install(pinned=True), or with WEIR_TORCH_PINNED=1 in addition (PyTorch 2.11 and later).
"""
import atexit
import ctypes
import functools
import json
import os
import sysconfig
import warnings

__all__ = ["install", "is_installed", "install_pinned", "is_pinned_installed", "allocator", "settings", "configure",
           "memory_stats", "fix_pages", "tag", "sleep", "wake", "driver_timing", "pluggable_allocator",
           "library_folder"]

_HERE = os.path.dirname(os.path.abspath(__file__))
_folder = None
_library = None
_frames = None


def library_folder():
    """Returns the folder of the libraries: libweir_torch.so, libweir_torch_pluggable.so and libweir.so.0.

    If the package was installed by pip without libraries for this PyTorch, it builds them first, once, into a folder of
    the user's cache: a minute or two."""
    global _folder
    given = os.environ.get("WEIR_TORCH_LIBRARIES")
    if given:
        return given
    if _folder is None:
        from weir_torch import _build

        _folder = _build.folder(_HERE)
    return _folder


def _load():
    global _library
    if _library is not None:
        return _library
    import torch

    if torch.version.cuda is None:
        raise RuntimeError(f"weir: PyTorch {torch.__version__} was built without CUDA: it has no device memory")
    path = os.path.join(library_folder(), "libweir_torch.so")
    if not os.path.exists(path):
        raise RuntimeError(f"weir: {path} was not found. Build it for this PyTorch: `python3 -m weir torch-build`, or"
                           " `python3 adapters/torch/build.py` in Weir's source folder")
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise RuntimeError(f"weir: {path} cannot be loaded into PyTorch {torch.__version__}: {error}. Build it for this"
                           " version: python3 adapters/torch/build.py") from error
    library.weir_torch_built_for.restype = ctypes.c_char_p
    library.weir_torch_install.restype = ctypes.c_char_p
    library.weir_torch_is_installed.restype = ctypes.c_int
    library.weir_torch_install_pinned.restype = ctypes.c_char_p
    library.weir_torch_pinned_is_installed.restype = ctypes.c_int
    library.weir_torch_allocator.restype = ctypes.c_void_p
    library.weir_torch_timing.restype = ctypes.c_void_p
    built, runs = library.weir_torch_built_for().decode(), torch.__version__.split("+")[0]
    if built.split(".")[:2] != runs.split(".")[:2]:
        raise RuntimeError(f"weir: {path} was built for PyTorch {built}, but this is {runs}. PyTorch's allocator"
                           " interface changes between versions. Build it for this one with adapters/torch/build.py")
    _library = library
    return library


def _record_frames(folder):
    """Adds Python frames to the stacks of a recording (WEIR_RECORD, WEIR_RECORD_STACKS; WEIR_GUARD) until the interpreter ends."""
    global _frames
    stacks = os.environ.get("WEIR_RECORD_STACKS", "")
    if os.environ.get("WEIR_GUARD") in ("1", "light", "full"):
        wanted = stacks != "none"
    else:
        wanted = stacks not in ("", "none") and os.environ.get("WEIR_RECORD")
    if _frames is not None or not wanted:
        return
    for name in (sysconfig.get_config_var("SOABI"), "public"):
        path = os.path.join(folder, f"libweir_torch_frames.{name}.so")
        if not os.path.exists(path):
            continue
        library = ctypes.PyDLL(path)  # with the GIL
        library.weir_frames_begin.restype = ctypes.c_bool
        if library.weir_frames_begin():
            atexit.register(library.weir_frames_end)  # before Python frees the states of threads that still run
            _frames = library
            return
    warnings.warn("weir: the stacks of WEIR_RECORD have no Python frames: libweir_torch_frames was not found in"
                  f" {folder}. Build it: python3 adapters/torch/build.py", stacklevel=3)


def _mark_scopes_of_threads(library):
    """Tells the allocator which scopes of pools select a thread, such as those of torch.cuda.use_mem_pool.

    PyTorch gives an allocator a C++ function for each scope, which does not state what it selects by. But it opens the
    scopes of threads by a call of their own (from 2.8 on), which is wrapped here. A program that has imported the call
    before install() opens a scope with a function, as before."""
    import torch

    name = "_cuda_beginAllocateCurrentThreadToPool"
    begin = getattr(torch._C, name, None)
    if begin is None or hasattr(begin, "__wrapped__"):
        return

    @functools.wraps(begin)
    def begin_of_thread(*arguments):
        library.weir_torch_next_scope(1)
        try:
            return begin(*arguments)
        finally:
            library.weir_torch_next_scope(0)

    begin_of_thread.__wrapped__ = begin
    for module in torch._C, torch.cuda.memory:
        if getattr(module, name, None) is begin:
            setattr(module, name, begin_of_thread)


def install(pinned=None):
    """Makes PyTorch allocate device memory from Weir, and with `pinned` also pinned host memory (install_pinned). None
    means pinned memory if WEIR_TORCH_PINNED=1 is set. Further calls do nothing.

    Call it before CUDA is initialized, such as right after `import torch`. Raises RuntimeError with the reason if it is
    not possible.
    """
    problem = _load().weir_torch_install()
    if problem is not None:
        raise RuntimeError("weir: " + problem.decode(errors="replace"))
    _mark_scopes_of_threads(_library)
    if pinned or (pinned is None and os.environ.get("WEIR_TORCH_PINNED") == "1"):
        install_pinned()
    _record_frames(library_folder())
    if os.environ.get("WEIR_DRIVER_TIMING", "1") not in ("", "1"):
        atexit.unregister(_write_timing)
        atexit.register(_write_timing)


def is_installed():
    """Whether PyTorch allocates device memory from Weir."""
    return _library is not None and bool(_library.weir_torch_is_installed())


def install_pinned():
    """Makes PyTorch allocate pinned host memory from Weir: torch.empty(pin_memory=True), Tensor.pin_memory(), data
    loaders. Existing tensors keep their memory. Further calls do nothing.

    Works at any time, but not during a capture, and also without install(). Raises RuntimeError with PyTorch 2.10.
    """
    problem = _load().weir_torch_install_pinned()
    if problem is not None:
        raise RuntimeError("weir: " + problem.decode(errors="replace"))


def is_pinned_installed():
    """Whether PyTorch allocates pinned host memory from Weir."""
    return _library is not None and bool(_library.weir_torch_pinned_is_installed())


def allocator():
    """Returns the address of the underlying weir_allocator, for Weir's C functions; None before CUDA is initialized."""
    return _load().weir_torch_allocator()


def _weir():
    _load()
    return ctypes.CDLL(os.path.join(library_folder(), "libweir.so.0"))


def settings():
    """Returns the allocator's settings that differ from their defaults, in Weir's syntax."""
    address = allocator()
    if not address:
        return ""
    call, length = _weir().weir_allocator_settings, ctypes.c_size_t()
    call.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]
    call(address, None, 0, ctypes.byref(length))
    text = ctypes.create_string_buffer(length.value + 1)
    call(address, text, len(text), ctypes.byref(length))
    return text.value.decode()


def _call(name, *arguments):
    """Calls a function of Weir that returns a status, with the allocator as its first argument."""
    address, weir = allocator(), _weir()
    if not address:
        raise RuntimeError(f"weir: {name}: CUDA is not initialized")
    if getattr(weir, name)(ctypes.c_void_p(address), *arguments):
        weir.weir_last_error.restype = ctypes.c_char_p
        raise RuntimeError("weir: " + weir.weir_last_error().decode(errors="replace"))


def configure(text):
    """Changes settings that only Weir has, such as "moving_pages:True", in the syntax of WEIR_ALLOC_CONF."""
    _call("weir_allocator_configure", text.encode())


def memory_stats(device=None):
    """Returns Weir's statistics by name: those of torch.cuda.memory_stats(), and more, such as "moving.pages_moved"."""
    import torch

    number, weir, stats = torch.cuda._utils._get_device_index(device, optional=True), _weir(), {}
    weir.weir_stats_name.restype, weir.weir_stats_name.argtypes = ctypes.c_char_p, [ctypes.c_size_t]
    while name := weir.weir_stats_name(len(stats)):
        value = ctypes.c_int64()
        _call("weir_allocator_stat", number, name, ctypes.byref(value))
        stats[name.decode()] = value.value
    return stats


def fix_pages(memory):
    """Fixes the pages of a tensor, or of an allocated address, in place until they are returned to the driver, such as
    for memory that is registered with a network card: with moving_pages:True they do not move even when they are
    free."""
    address = memory if isinstance(memory, int) else memory.untyped_storage().data_ptr()
    _call("weir_allocator_fix_pages", ctypes.c_void_p(address))


def tag(name, device=None):
    """Returns a tag, a name on memory that can sleep; None stands for the current device.

        with weir_torch.tag("weights"):
            model = Model().cuda()
        weir_torch.sleep("weights")     # the device has the memory; the tensors keep their addresses
        weir_torch.wake("weights")      # and have their bytes again

    PyTorch has to allocate from Weir: install(), or WEIR_TORCH=1. What cuBLAS allocates for itself at its first use is
    made before a scope begins, for the current stream, since it outlives what is made in the scope."""
    import torch

    from weir_torch._tags import Tag

    if not is_installed():
        raise RuntimeError("weir: tags need PyTorch to allocate from Weir: weir_torch.install(), or WEIR_TORCH=1")
    torch.cuda.init()
    number = torch.cuda._utils._get_device_index(device, optional=True)
    return Tag(_weir(), allocator(), number, name, torch.cuda.current_blas_handle, torch.OutOfMemoryError)


def sleep(*names, keep=True, device=None):
    """Puts tags to sleep, one after the other (Tag.sleep)."""
    for name in names:
        tag(name, device).sleep(keep)


def wake(*names, device=None):
    """Wakes tags, one after the other (Tag.wake)."""
    for name in names:
        tag(name, device).wake()


def driver_timing():
    """Returns {name: (calls, ns, longest ns)} of the driver calls that Weir has made, such as "cuMemMap"; None unless
    WEIR_DRIVER_TIMING is set and CUDA is initialized."""
    table = _load().weir_torch_timing()
    if not table:
        return None
    weir, found, call = _weir(), {}, 0
    weir.weir_driver_call_name.restype = ctypes.c_char_p
    counts = weir.weir_timing_counts
    counts.argtypes = [ctypes.c_void_p, ctypes.c_int] + 3 * [ctypes.POINTER(ctypes.c_uint64)]
    while name := weir.weir_driver_call_name(call):
        values = [ctypes.c_uint64() for _ in range(3)]
        counts(table, call, *(ctypes.byref(value) for value in values))
        if values[0].value:
            found[name.decode()] = tuple(value.value for value in values)
        call += 1
    return found


def _write_timing():
    timing = driver_timing()
    if timing is not None:
        with open(os.environ["WEIR_DRIVER_TIMING"], "a") as file:
            file.write(json.dumps({"pid": os.getpid(), "calls": timing}) + "\n")


def pluggable_allocator():
    """Returns a torch.cuda.memory.CUDAPluggableAllocator that uses Weir, with all hooks set.

    Pass it to torch.cuda.memory.change_current_allocator(), or its .allocator() to torch.cuda.MemPool. For a whole
    program, prefer install(): PyTorch's pluggable allocators have no statistics, snapshots and pools.
    """
    import torch

    folder = os.environ.get("WEIR_TORCH_LIBRARIES") or _folder
    if folder is None:
        from weir_torch import _build

        folder = _build.pluggable_folder(_HERE)
    _record_frames(folder)
    path = os.path.join(folder, "libweir_torch_pluggable.so")
    pluggable = torch.cuda.memory.CUDAPluggableAllocator(path, "weir_torch_alloc", "weir_torch_free")
    library, inner = ctypes.CDLL(path), pluggable.allocator()
    for setter, name in (("set_init_fn", "weir_torch_init"), ("set_reset_fn", "weir_torch_reset"),
                         ("set_memory_fraction_fn", "weir_torch_memory_fraction"),
                         ("set_base_alloc_fn", "weir_torch_base_alloc"),
                         ("set_record_stream_fn", "weir_torch_record_stream"),
                         ("set_begin_allocate_to_pool", "weir_torch_begin_pool"),
                         ("set_end_allocate_to_pool_fn", "weir_torch_end_pool"),
                         ("set_release_pool", "weir_torch_release_pool")):
        if hasattr(inner, setter):
            getattr(inner, setter)(ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
    return pluggable


def _autoload():
    """The entry point that PyTorch calls at the end of `import torch` (group torch.backends)."""
    if os.environ.get("WEIR_TORCH") != "1":
        return
    try:
        install()
    except (RuntimeError, OSError) as error:
        warnings.warn(f"{error} (WEIR_TORCH=1 is set; PyTorch keeps its own allocator)", stacklevel=2)
