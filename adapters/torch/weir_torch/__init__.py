"""Weir under PyTorch.

    import torch, weir_torch
    weir_torch.install()          # before anything touches the device

or, with no change to the program, WEIR_TORCH=1 in its environment. From then on every tensor's memory on the device is Weir's;
torch.cuda.memory_stats(), memory_snapshot(), graphs, MemPool and everything else work as before.
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
    """The folder of the libraries: libweir_torch.so, libweir_torch_pluggable.so and libweir.so.0."""
    return os.environ.get("WEIR_TORCH_LIBRARIES") or _HERE


def _load():
    global _library
    if _library is not None:
        return _library
    import torch

    path = os.path.join(library_folder(), "libweir_torch.so")
    if torch.version.cuda is None:
        raise RuntimeError(f"weir: this PyTorch, {torch.__version__}, was built without CUDA: there is no device memory to manage")
    if not os.path.exists(path):
        raise RuntimeError(f"weir: {path} is not there. Build it for this PyTorch: python3 adapters/torch/build.py")
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise RuntimeError(f"weir: {path} cannot be loaded into PyTorch {torch.__version__}: {error}. It must be built for this"
                           " version: python3 adapters/torch/build.py") from error
    library.weir_torch_built_for.restype = ctypes.c_char_p
    library.weir_torch_install.restype = ctypes.c_char_p
    library.weir_torch_is_installed.restype = ctypes.c_int
    library.weir_torch_allocator.restype = ctypes.c_void_p
    built, runs = library.weir_torch_built_for().decode(), torch.__version__.split("+")[0]
    if built.split(".")[:2] != runs.split(".")[:2]:
        raise RuntimeError(f"weir: {path} was built for PyTorch {built}, and this is {runs}. PyTorch's allocator interface changes"
                           " from version to version: build it for this one, python3 adapters/torch/build.py")
    _library = library
    return library


def _record_frames():
    """Gives the stacks of a recording (WEIR_RECORD with WEIR_RECORD_STACKS) Python's frames, until the interpreter ends."""
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
            atexit.register(library.weir_frames_end)  # before Python takes away the states of threads that still run
            _frames = library
            return
    warnings.warn("weir: the stacks of WEIR_RECORD have no Python frames: there is no libweir_torch_frames in"
                  f" {library_folder()}. Build it: python3 adapters/torch/build.py", stacklevel=3)


def install():
    """Puts Weir under PyTorch. Before CUDA starts, so right after `import torch`; RuntimeError says why when it cannot be done.
    Doing it twice is allowed."""
    problem = _load().weir_torch_install()
    if problem is not None:
        raise RuntimeError("weir: " + problem.decode(errors="replace"))
    _record_frames()


def is_installed():
    """Whether PyTorch's device memory comes from Weir."""
    return _library is not None and bool(_library.weir_torch_is_installed())


def allocator():
    """The address of the weir_allocator behind PyTorch, for calls of Weir's own functions; None before CUDA has started."""
    return _load().weir_torch_allocator()


def _weir():
    _load()
    return ctypes.CDLL(os.path.join(library_folder(), "libweir.so.0"))


def settings():
    """The settings of the allocator that are not at their default, as Weir writes them."""
    address = allocator()
    if not address:
        return ""
    call = _weir().weir_allocator_settings
    call.argtypes, call.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t], ctypes.c_size_t
    text = ctypes.create_string_buffer(call(address, None, 0) + 1)
    call(address, text, len(text))
    return text.value.decode()


def pluggable_allocator():
    """A torch.cuda.memory.CUDAPluggableAllocator over Weir, with all hooks set: for torch.cuda.memory.change_current_allocator, or,
    with .allocator(), for torch.cuda.MemPool. install() is the better way for a whole program: PyTorch's pluggable allocators have
    no statistics, no snapshots and no pools of their own."""
    import torch

    _record_frames()
    path = os.path.join(library_folder(), "libweir_torch_pluggable.so")
    pluggable = torch.cuda.memory.CUDAPluggableAllocator(path, "weir_torch_alloc", "weir_torch_free")
    library, inner = ctypes.CDLL(path), pluggable.allocator()
    for setter, name in (("set_init_fn", "weir_torch_init"), ("set_reset_fn", "weir_torch_reset"),
                         ("set_memory_fraction_fn", "weir_torch_memory_fraction"), ("set_base_alloc_fn", "weir_torch_base_alloc"),
                         ("set_record_stream_fn", "weir_torch_record_stream"),
                         ("set_begin_allocate_to_pool", "weir_torch_begin_pool"),
                         ("set_end_allocate_to_pool_fn", "weir_torch_end_pool"), ("set_release_pool", "weir_torch_release_pool")):
        if hasattr(inner, setter):
            getattr(inner, setter)(ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
    return pluggable


def _autoload():
    """PyTorch calls this at the end of `import torch` (entry point of the group torch.backends)."""
    if os.environ.get("WEIR_TORCH") != "1":
        return
    try:
        install()
    except RuntimeError as error:
        warnings.warn(f"{error} (WEIR_TORCH=1 is set; PyTorch goes on with its own allocator)", stacklevel=2)
