"""Lazy start of Weir, and calls that are deferred until it has started."""

from __future__ import annotations

import os

# Importing `threading` would double the import time.
from _thread import allocate_lock, get_ident

from weir import _weir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DeferredCudaCallError", "init", "is_initialized", "_is_in_bad_fork", "_lazy_call", "_lazy_init"]

_is_in_bad_fork = _weir._is_in_bad_fork
_lock = allocate_lock()  # held during the start
_starting_thread: int | None = None
# Functions that run at each start, before the queued calls.
_start_functions: list[Callable[[], object]] = []
_queued_calls: list[tuple[Callable[[], object], list[str]]] = []
# The most recent call with seed=True and the most recent with seed_all=True, in the order in which they were queued.
_queued_seeds: dict[str, tuple[Callable[[], object], list[str]]] = {}


class DeferredCudaCallError(Exception):
    """A call that was deferred until the start of Weir failed."""


def is_initialized() -> bool:
    """Whether Weir has started in this process."""
    return _weir._is_started()


def init() -> None:
    """Starts Weir: the driver, the devices and the allocator.

    Calling this is optional, since the first call that needs a device starts Weir. Further calls do nothing. A failed
    start can be retried.
    """
    _lazy_init()


def _at_start(function: Callable[[], object]) -> None:
    """Calls a function at each start, before deferred calls; and now if Weir has started."""
    if _starting_thread != get_ident():
        with _lock:
            if not is_initialized():
                _start_functions.append(function)
                return
    function()


def _lazy_call(callable: Callable[[], object], *, seed: bool = False, seed_all: bool = False) -> None:
    """Calls a function now if Weir has started, or else when it starts.

    If a deferred call fails, the start fails with DeferredCudaCallError, which shows the stack of this call.

    Args:
        seed, seed_all: the function seeds the random generator of one device, or of all devices. A new seed replaces
            the previous one, so only the most recent call of each kind is kept. These run after the other calls.
    """
    if _starting_thread != get_ident():
        with _lock:
            if not is_initialized():
                import traceback

                entry = (callable, traceback.format_stack())
                if seed or seed_all:
                    kind = "seed_all" if seed_all else "seed"
                    _queued_seeds.pop(kind, None)
                    _queued_seeds[kind] = entry
                else:
                    _queued_calls.append(entry)
                return
    callable()


def _lazy_init() -> None:
    global _starting_thread
    # Deferred calls use the devices from within the start, on the thread that runs it.
    if is_initialized() or _starting_thread == get_ident():
        return
    with _lock:
        if is_initialized():
            return
        if _is_in_bad_fork():
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
                "'spawn' start method"
            )
        # As torch.cuda does: load kernels at their first use. The driver reads this when it starts.
        os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
        _weir._start()
        _starting_thread = get_ident()
        try:
            for function in _start_functions:
                function()
            for call, where in [*_queued_calls, *_queued_seeds.values()]:
                try:
                    call()
                except Exception as error:
                    raise DeferredCudaCallError(
                        f"CUDA call failed lazily at initialization with error: {error}\n\n"
                        f"CUDA call was originally invoked at:\n\n{''.join(where)}"
                    ) from error
        finally:
            _starting_thread = None
        _queued_calls.clear()
        _queued_seeds.clear()
        _weir._set_started()


def _after_fork_in_child() -> None:
    # Another thread of the parent may have held it at the time of the fork.
    global _lock, _starting_thread
    _lock, _starting_thread = allocate_lock(), None


os.register_at_fork(after_in_child=_after_fork_in_child)
_weir._set_lazy_init(_lazy_init)
