"""Finds device memory that reference cycles keep alive until the garbage collector runs.

    from weir.cycles import observe_tensor_cycles

    stop = observe_tensor_cycles(lambda html: open("cycles.html", "w").write(html))
    ...
    stop()

Python frees an object when its last reference disappears. Objects that refer to each other wait for the garbage
collector, and so does device memory that they hold. The report names the objects and the references between them. Each
collection takes longer while an observer is there.
"""

from __future__ import annotations

import gc
import html
import sys
import types

from weir import memory
from weir._weir import Buffer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

__all__ = ["observe_tensor_cycles", "warn_tensor_cycles"]


def _is_device_memory(thing: object) -> bool:
    if isinstance(thing, Buffer):
        return not thing.is_host
    return type(thing).__module__.split(".")[0] == "weir" and getattr(thing, "is_cuda", None) is True


# ---- The report ----


def _references(thing: Any) -> Iterator[tuple[str, object]]:
    """The references of an object, with names where they have one."""
    if isinstance(thing, dict):
        for key, value in thing.items():
            yield (key if isinstance(key, str) else repr(type(key)), value)
    elif isinstance(thing, (list, tuple)):
        for number, value in enumerate(thing):
            yield f"[{number}]", value
    elif isinstance(thing, types.CellType):
        try:
            yield "cell_contents", thing.cell_contents
        except ValueError:  # it is empty
            pass
    elif isinstance(thing, types.FunctionType):
        for name in ("__closure__", "__defaults__", "__kwdefaults__", "__dict__"):
            yield name, getattr(thing, name)
    elif isinstance(thing, types.FrameType):
        yield from thing.f_locals.items()
        yield "f_back", thing.f_back
    elif isinstance(thing, types.MethodType):
        yield "__func__", thing.__func__
        yield "__self__", thing.__self__
    else:
        values = getattr(thing, "__dict__", None)
        named = {id(value): name for name, value in values.items()} if isinstance(values, dict) else {}
        for value in gc.get_referents(thing):
            if value is values:
                yield from values.items()
            elif id(value) not in named:
                yield "", value


def _describe(thing: Any, frames: dict[int, list[dict[str, Any]]]) -> str:
    kind = type(thing)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if isinstance(thing, types.FunctionType):
        return f"{name} {thing.__qualname__} ({thing.__code__.co_filename}:{thing.__code__.co_firstlineno})"
    if isinstance(thing, types.FrameType):
        return f"{name} {thing.f_code.co_name} ({thing.f_code.co_filename}:{thing.f_lineno})"
    if not _is_device_memory(thing):
        return name
    text = f"{name} of {thing.nbytes} bytes at {thing.data_ptr():#x} on device {thing.device}"
    where = frames.get(thing.data_ptr(), [])[:8]
    return text + "".join(f"\n    {frame['filename']}:{frame['line']}: {frame['name']}" for frame in where)


def _report(garbage: list[Any]) -> str | None:
    """Returns a page about the objects that hold device memory, or None if there is no such memory."""
    things = {id(thing): thing for thing in garbage}
    for thing in garbage:  # memory itself is not tracked by the collector
        things.update((id(value), value) for _, value in _references(thing) if _is_device_memory(value))
    holders: dict[int, list[int]] = {}
    edges: dict[int, list[tuple[str, int]]] = {}
    for number, thing in things.items():
        edges[number] = [(name, id(value)) for name, value in _references(thing) if id(value) in things]
        for _, target in edges[number]:
            holders.setdefault(target, []).append(number)
    shown = [number for number, thing in things.items() if _is_device_memory(thing)]
    if not shown:
        return None
    seen = set(shown)
    for number in shown:  # grows
        for holder in holders.get(number, ()):
            if holder not in seen:
                seen.add(holder)
                shown.append(holder)
    frames = {
        block["address"]: block["frames"]
        for segment in memory.memory_snapshot()
        for block in segment["blocks"]
        if block.get("frames")
    }
    rows = []
    for number in shown:
        text = html.escape(_describe(things[number], frames))
        links = [
            f"<li>{html.escape(name or 'refers to')} &rarr; <a href='#o{target:x}'>"
            f"{html.escape(type(things[target]).__qualname__)}</a></li>"
            for name, target in edges[number]
            if target in seen
        ]
        rows.append(f"<li id='o{number:x}'><pre>{text}</pre><ul>{''.join(links)}</ul></li>\n")
    return (
        "<!doctype html><meta charset='utf-8'><title>Device memory in reference cycles</title>\n"
        "<h1>Device memory in reference cycles</h1>\n"
        "<p>Memory first, then the objects that hold it, with the names of their references.</p>\n"
        f"<ol>\n{''.join(rows)}</ol>\n"
    )


# ---- Collections ----


class _Observer:
    def __init__(self, callback: Callable[[str], object]) -> None:
        self._callback = callback
        self._is_busy = False
        self._debug = 0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Called by the garbage collector. What it finds is kept, until after the collection, in gc.garbage."""
        if self._is_busy or sys.is_finalizing():
            return
        if phase == "start":
            self._debug = gc.get_debug()
            gc.set_debug(self._debug | gc.DEBUG_SAVEALL)
            return
        # No collection can run within this one. The next event of a profiler comes right after it.
        profiler, generation, own = sys.getprofile(), info["generation"], sys._getframe()

        def after(frame: types.FrameType, event: str, argument: object) -> None:
            if frame is not own:
                sys.setprofile(profiler)
                self._finish(generation)

        sys.setprofile(after)

    def _finish(self, generation: int) -> None:
        self._is_busy = True
        try:
            if generation < 2:
                gc.collect()  # the objects are in an older generation now: find all of that one before it is freed
            page = _report(gc.garbage)
            gc.garbage.clear()
            gc.set_debug(self._debug)
            gc.collect()
        finally:
            self._is_busy = False
        if page is not None:
            self._callback(page)


def observe_tensor_cycles(callback: Callable[[str], object]) -> Callable[[], None]:
    """Calls a function with a page of HTML after each garbage collection that frees device memory.

    Returns a function that ends this.
    """
    observer = _Observer(callback)
    gc.callbacks.append(observer)
    return lambda: gc.callbacks.remove(observer)


def warn_tensor_cycles() -> Callable[[], None]:
    """Writes a page to a temporary file, and issues a warning with its name, after each such collection.

    Returns a function that ends this.
    """

    def write(page: str) -> None:
        import tempfile
        import warnings

        with tempfile.NamedTemporaryFile("w", prefix="weir_cycles_", suffix=".html", delete=False) as file:
            file.write(page)
        warnings.warn(f"Reference cycle includes device memory, see visualization of cycle {file.name}", stacklevel=2)

    return observe_tensor_cycles(write)
