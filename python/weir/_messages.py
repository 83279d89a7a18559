"""Messages with memory for a process that multiprocessing is starting.

The arguments of a process are pickled before its id is known. The id is added as soon as it is, so that the memory is
freed if the process ends before it has received its arguments.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import allocate_lock

from weir import _weir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
    from weakref import ref

_lock = allocate_lock()
_pending: list[tuple[ref[Any], bytes]] = []  # processes that are being started, and messages for them
_is_watching = False


def _after_fork_in_child() -> None:
    """The messages are the parent's, and so is the thread."""
    global _lock, _is_watching
    _lock = allocate_lock()
    _pending.clear()
    _is_watching = False


os.register_at_fork(after_in_child=_after_fork_in_child)


def is_sending() -> bool:
    """Whether multiprocessing has called the function that calls this one, by way of a pickler.

    It is recognized by its function, because registering with its ForkingPickler would import it with this package.
    """
    return sys._getframe(2).f_globals.get("__name__") == "multiprocessing.reduction"


def sent(name: bytes) -> None:
    """Notes a message that was sent."""
    global _is_watching
    context = sys.modules.get("multiprocessing.context")
    process = context.get_spawning_popen() if context is not None else None
    if process is None:
        return  # a queue or a pipe: any process that has its other end can receive it
    import threading
    import weakref

    with _lock:
        _pending.append((weakref.ref(process), name))
        if _is_watching:
            return
        _is_watching = True
    threading.Thread(target=_watch, name="weir-messages", daemon=True).start()


def _watch() -> None:
    """Waits for the ids of processes, which takes milliseconds. Ends when none is missing."""
    global _is_watching
    while True:
        with _lock:
            _pending[:] = [message for message in _pending if not _is_addressed(*message)]
            if not _pending:
                _is_watching = False
                return
        time.sleep(0.002)


def _is_addressed(reference: ref[Any], name: bytes) -> bool:
    """Whether nothing is left to do for a message."""
    try:
        return _address(reference, name)
    except Exception:
        return True  # it expires, as one in a queue does; the watch of the others goes on


def _address(reference: ref[Any], name: bytes) -> bool:
    """Names the receiver of a message. False if it has no id yet."""
    process = reference()
    if process is None:
        _weir._cancel_message(name)  # the start failed
        return True
    receiver = getattr(process, "pid", None)
    if receiver is None:
        return False
    _weir._set_receiver(name, receiver)
    return True
