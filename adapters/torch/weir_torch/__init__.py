"""Weir as PyTorch's allocator of device memory.

    import torch, weir_torch
    weir_torch.install()          # before anything uses the device

Alternatively, set WEIR_TORCH=1 in the environment of an unchanged program. All device memory of tensors then comes from
Weir; torch.cuda.memory_stats(), memory_snapshot(), graphs, MemPool and everything else work as before.
"""
import atexit
import ctypes
import os
import sysconfig
import warnings

__all__ = ["install", "is_installed", "allocator", "settings", "pluggable_allocator", "library_folder"]

_HERE = os.path.dirname(os.path.abspath(__file__))
_library = None
_frames = None


def library_folder():
    """Returns the folder of the libraries: libweir_torch.so, libweir_torch_pluggable.so and libweir.so.0."""
    return os.environ.get("WEIR_TORCH_LIBRARIES") or _HERE


def _load():
    global _library
    if _library is not None:
        return _library
    import torch

    path = os.path.join(library_folder(), "libweir_torch.so")
    if torch.version.cuda is None:
        raise RuntimeError(f"weir: PyTorch {torch.__version__} was built without CUDA: it has no device memory")
    if not os.path.exists(path):
        raise RuntimeError(f"weir: {path} was not found. Build it for this PyTorch: python3 adapters/torch/build.py")
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise RuntimeError(f"weir: {path} cannot be loaded into PyTorch {torch.__version__}: {error}. Build it for this"
                           " version: python3 adapters/torch/build.py") from error
    library.weir_torch_built_for.restype = ctypes.c_char_p
    library.weir_torch_install.restype = ctypes.c_char_p
    library.weir_torch_is_installed.restype = ctypes.c_int
    library.weir_torch_allocator.restype = ctypes.c_void_p
    built, runs = library.weir_torch_built_for().decode(), torch.__version__.split("+")[0]
    if built.split(".")[:2] != runs.split(".")[:2]:
        raise RuntimeError(f"weir: {path} was built for PyTorch {built}, but this is {runs}. PyTorch's allocator"
                           " interface changes between versions. Build it for this one with adapters/torch/build.py")
    _library = library
    return library


def _record_frames():
    """Adds Python frames to the stacks of a recording (WEIR_RECORD, WEIR_RECORD_STACKS) until the interpreter ends."""
    global _frames
    wanted = os.environ.get("WEIR_RECORD_STACKS", "") not in ("", "none")
    if _frames is not None or not wanted or not os.environ.get("WEIR_RECORD"):
        return
    for name in (sysconfig.get_config_var("SOABI"), "public"):
        path = os.path.join(library_folder(), f"libweir_torch_frames.{name}.so")
        if not os.path.exists(path):
            continue
        library = ctypes.PyDLL(path)  # with the GIL
        library.weir_frames_begin.restype = ctypes.c_bool
        if library.weir_frames_begin():
            atexit.register(library.weir_frames_end)  # before Python frees the states of threads that still run
            _frames = library
            return
    warnings.warn("weir: the stacks of WEIR_RECORD have no Python frames: libweir_torch_frames was not found in"
                  f" {library_folder()}. Build it: python3 adapters/torch/build.py", stacklevel=3)


def install():
    """Makes PyTorch allocate device memory from Weir. Further calls do nothing.

    Call it before CUDA is initialized, such as right after `import torch`. Raises RuntimeError with the reason if it is
    not possible.
    """
    problem = _load().weir_torch_install()
    if problem is not None:
        raise RuntimeError("weir: " + problem.decode(errors="replace"))
    _record_frames()


def is_installed():
    """Whether PyTorch allocates device memory from Weir."""
    return _library is not None and bool(_library.weir_torch_is_installed())


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
    call = _weir().weir_allocator_settings
    call.argtypes, call.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t], ctypes.c_size_t
    text = ctypes.create_string_buffer(call(address, None, 0) + 1)
    call(address, text, len(text))
    return text.value.decode()


def pluggable_allocator():
    """Returns a torch.cuda.memory.CUDAPluggableAllocator that uses Weir, with all hooks set.

    Pass it to torch.cuda.memory.change_current_allocator(), or its .allocator() to torch.cuda.MemPool. For a whole
    program, prefer install(): PyTorch's pluggable allocators have no statistics, snapshots and pools.
    """
    import torch

    _record_frames()
    path = os.path.join(library_folder(), "libweir_torch_pluggable.so")
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
    except RuntimeError as error:
        warnings.warn(f"{error} (WEIR_TORCH=1 is set; PyTorch keeps its own allocator)", stacklevel=2)
