"""CUDA graphs: work that is captured from a stream once, and launched many times."""

from __future__ import annotations

import weakref

from weir import _weir
from weir._device import synchronize
from weir.streams import Stream, StreamContext, current_stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, Union

    from typing_extensions import Self

    from weir._weir import _MemPool

    _Pool = Union[tuple[int, int], _MemPool, None]
    _Hook = Callable[["CUDAGraph"], object]

__all__ = ["CUDAGraph", "graph", "graph_pool_handle", "is_current_stream_capturing", "make_graphed_callables"]


# What make_graphed_callables() calls first: functions that raise an error if nothing may be captured now.
_checks_of_captures: list[Callable[[], None]] = []


def is_current_stream_capturing() -> bool:
    """Whether the current stream is being captured into a graph."""
    return _weir._is_current_stream_capturing()


def graph_pool_handle() -> tuple[int, int]:
    """Returns the id of a new memory pool that graphs can share."""
    return _weir._graph_pool_handle()


def _pool_id(pool: _Pool) -> tuple[int, int] | None:
    return pool.id if isinstance(pool, _weir._MemPool) else pool


# ---- Hooks ----


class RemovableHandle:
    """What a function that registers a hook returns. As a context manager it removes the hook at the end."""

    def __init__(self, hooks: dict[RemovableHandle, Any]) -> None:
        self._hooks = hooks

    def remove(self) -> None:
        """Removes the hook, unless it has been removed."""
        self._hooks.pop(self, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.remove()


def _register(hooks: dict[RemovableHandle, Any], hook: object) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle] = hook
    return handle


# The moments in the life of a graph that hooks are called at, and the hooks for all graphs.
_hooks_of_all: dict[str, dict[RemovableHandle, _Hook]] = {
    moment: {} for moment in ("capture start", "capture end", "instantiate", "replay start", "replay end")
}


def _call_and_print_errors(function: Callable[..., object], *arguments: object) -> None:
    try:
        function(*arguments)
    except Exception:
        import traceback

        traceback.print_exc()


def register_graph_capture_start_hook(fn: _Hook) -> RemovableHandle:
    """Registers a function that is called with each graph when its capture has begun; see the hooks of CUDAGraph.

    An exception of a hook for all graphs is printed and ignored.
    """
    return _register(_hooks_of_all["capture start"], fn)


def register_graph_capture_end_hook(fn: _Hook) -> RemovableHandle:
    """Registers a function that is called with each graph when its capture has ended; see the hooks of CUDAGraph."""
    return _register(_hooks_of_all["capture end"], fn)


def register_graph_instantiate_hook(fn: _Hook) -> RemovableHandle:
    """Registers a function that is called with each graph when it was instantiated."""
    return _register(_hooks_of_all["instantiate"], fn)


def register_graph_replay_start_hook(fn: _Hook) -> RemovableHandle:
    """Registers a function that is called with each graph before each of its launches."""
    return _register(_hooks_of_all["replay start"], fn)


def register_graph_replay_end_hook(fn: _Hook) -> RemovableHandle:
    """Registers a function that is called with each graph after each of its launches, also if the launch failed."""
    return _register(_hooks_of_all["replay end"], fn)


class _Retained:
    """What lives as long as one captured graph. It has no reference to the CUDAGraph, whose end it is called at."""

    def __init__(self) -> None:
        self.callbacks: dict[RemovableHandle, Callable[[], object]] = {}
        self.objects: dict[RemovableHandle, object] = {}
        self.waits = False  # for the streams that the graph was launched on
        self.streams: set[Stream] = set()

    def release(self) -> None:
        if self.waits:
            for stream in self.streams:
                _call_and_print_errors(stream.synchronize)
        for callback in list(self.callbacks.values()):
            _call_and_print_errors(callback)
        self.callbacks.clear()
        self.objects.clear()


# The graphs by the number of their capture, which no other capture has.
_graphs_of_captures: weakref.WeakValueDictionary[int, CUDAGraph] = weakref.WeakValueDictionary()


class CUDAGraph(_weir.CUDAGraph):
    """A CUDA graph: work captured once from a stream, and launched many times.

    Hooks are called with the graph, in the order of their registration, after those for all graphs
    (register_graph_capture_start_hook() and so on). Their exceptions propagate.

    Args:
        keep_graph: keeps what was captured after capture_end(), which then leaves its instantiation to instantiate() or
            the first replay().
    """

    def __new__(cls, keep_graph: bool = False) -> Self:
        graph = super().__new__(cls, keep_graph)
        graph._is_kept = keep_graph
        graph._is_instantiated = False
        graph._hooks = {}
        graph._retained = None
        return graph

    _is_kept: bool
    _is_instantiated: bool
    _hooks: dict[str, dict[RemovableHandle, _Hook]]
    _retained: Any  # the weakref.finalize of _of_capture; None if there is nothing to release
    _of_capture: _Retained

    @staticmethod
    def get_currently_capturing_graph() -> CUDAGraph:
        """Returns the graph that the work of the current stream is being captured into."""
        number = _weir._capture_id()
        if number == 0:
            raise RuntimeError("The current stream is not currently capturing.")
        graph = _graphs_of_captures.get(number)
        if graph is None:
            raise RuntimeError(
                "get_currently_capturing_graph() can be used only between capture_begin() and capture_end(). The "
                "capture of the current stream was not begun by a CUDAGraph."
            )
        return graph

    def _has_hooks(self, moment: str) -> bool:
        return bool(_hooks_of_all[moment] or self._hooks.get(moment))

    def _run_hooks(self, moment: str) -> None:
        for hook in list(_hooks_of_all[moment].values()):
            _call_and_print_errors(hook, self)
        for hook in list(self._hooks.get(moment, {}).values()):
            hook(self)

    def register_capture_start_hook(self, hook: _Hook) -> RemovableHandle:
        """Registers a hook for the start of a capture. What it submits to the stream is captured."""
        return _register(self._hooks.setdefault("capture start", {}), hook)

    def register_capture_end_hook(self, hook: _Hook) -> RemovableHandle:
        """Registers a hook for the end of a capture, before the graph is instantiated: raw_cuda_graph() works."""
        return _register(self._hooks.setdefault("capture end", {}), hook)

    def register_post_instantiate_hook(self, hook: _Hook) -> RemovableHandle:
        """Registers a hook for the time after each instantiation: raw_cuda_graph_exec() is new."""
        return _register(self._hooks.setdefault("instantiate", {}), hook)

    def register_replay_start_hook(self, hook: _Hook) -> RemovableHandle:
        """Registers a hook for the time before each launch. If it raises an exception, the graph is not launched."""
        return _register(self._hooks.setdefault("replay start", {}), hook)

    def register_replay_end_hook(self, hook: _Hook) -> RemovableHandle:
        """Registers a hook for the time after each launch, when the work is submitted; also if the launch failed."""
        return _register(self._hooks.setdefault("replay end", {}), hook)

    def _of_this_capture(self, waits: bool) -> _Retained:
        if self._retained is None:
            self._of_capture = _Retained()
            self._retained = weakref.finalize(self, self._of_capture.release)
        self._of_capture.waits |= waits
        return self._of_capture

    def register_destroy_callback(
        self, cb: Callable[[], object], *, synchronize_before_release: bool = False
    ) -> RemovableHandle:
        """Registers a function without arguments that is called when the graph is reset or destroyed, once.

        It must not refer to the graph, which would never be destroyed then. Its exceptions are printed and ignored.
        With synchronize_before_release it is called when all launches from now on have completed: it may then free
        memory that the graph uses.
        """
        return _register(self._of_this_capture(synchronize_before_release).callbacks, cb)

    def retain_object(self, obj: object, *, synchronize_before_release: bool = False) -> RemovableHandle:
        """Keeps an object alive until the graph is reset or destroyed; see register_destroy_callback()."""
        return _register(self._of_this_capture(synchronize_before_release).objects, obj)

    def capture_begin(self, pool: _Pool = None, capture_error_mode: str = "global") -> None:
        """Starts to capture the work submitted to the current stream, which must not be the default stream.

        Prefer weir.graph.

        Args:
            pool: a memory pool to share: a MemPool, or an id from graph_pool_handle() or from pool() of another graph.
            capture_error_mode: forbids unsafe calls during the capture: "global" from all threads, "thread_local" from
                this thread, "relaxed" from none.
        """
        super().capture_begin(_pool_id(pool), capture_error_mode)
        _graphs_of_captures[_weir._capture_id()] = self
        try:
            self._run_hooks("capture start")
        except BaseException:
            super().reset()  # ends the capture
            raise

    def capture_end(self) -> None:
        """Ends the capture. Must be called on the stream on which it began."""
        is_kept_for_hooks = not self._is_kept and self._has_hooks("capture end")
        if is_kept_for_hooks:
            self._keep()
        try:
            super().capture_end()
            self._run_hooks("capture end")
        finally:
            if is_kept_for_hooks:
                self._finish()
        if not self._is_kept:
            self._run_hooks("instantiate")

    def instantiate(self) -> None:
        """Makes what replay() launches of a graph that was created with keep_graph=True; again after a change of it."""
        super().instantiate()
        self._is_instantiated = True
        self._run_hooks("instantiate")

    def replay(self) -> None:
        """Launches the graph on the current stream."""
        if self._is_kept and not self._is_instantiated:
            self.instantiate()
        if self._retained is not None and self._of_capture.waits:
            self._of_capture.streams.add(current_stream())
        if not (self._hooks or _hooks_of_all["replay start"] or _hooks_of_all["replay end"]):
            super().replay()
            return
        self._run_hooks("replay start")
        try:
            super().replay()
        finally:
            self._run_hooks("replay end")

    def reset(self) -> None:
        """Discards the captured work, so that the object can capture again."""
        if self._retained is not None:
            self._retained()  # releases, and does not do so again
            self._retained = None
        self._is_instantiated = False
        super().reset()


class graph:
    """A context manager that captures the work submitted to the current stream into a graph.

    If the block raises an exception, the exception propagates, and the graph is left without a capture.

    Args:
        cuda_graph: the CUDAGraph to capture into.
        pool: a memory pool to share: a MemPool, or an id from graph_pool_handle() or from pool() of another graph.
        stream: the stream to capture; None for a stream that is reserved for captures.
        capture_error_mode: what other threads may do during the capture: "global", "thread_local" or "relaxed"; see
            CUDAGraph.capture_begin.
    """

    default_capture_stream: Stream | None = None

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: _Pool = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        if not isinstance(cuda_graph, CUDAGraph):
            raise TypeError(f"expected a weir.CUDAGraph, got {type(cuda_graph).__name__}")
        if stream is None:
            if graph.default_capture_stream is None:
                graph.default_capture_stream = Stream()
            stream = graph.default_capture_stream
        self.cuda_graph = cuda_graph
        self.pool = pool
        self.capture_stream = stream
        self.stream_ctx = StreamContext(stream)
        self.capture_error_mode = capture_error_mode

    def __enter__(self) -> None:
        from weir.memory import empty_cache

        # Leaves as much memory as possible to the graph's pool.
        synchronize()
        empty_cache()
        self.stream_ctx.__enter__()
        try:
            self.cuda_graph.capture_begin(self.pool, self.capture_error_mode)
        except BaseException:
            self.stream_ctx.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.cuda_graph.capture_end()
        except Exception:
            # The error that broke the capture is more useful than the fact that it is broken.
            if error is None:
                raise
        finally:
            self.stream_ctx.__exit__(kind, error, trace)


def make_graphed_callables(
    callables: Callable[..., Any] | tuple[Callable[..., Any], ...],
    sample_args: tuple[Any, ...],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: _Pool = None,
    capture_error_mode: str = "global",
) -> Any:
    """Captures functions that work on Buffers or Arrays as graphs.

    Each function is called `num_warmup_iters` times with its `sample_args`, and once more during the capture. The
    returned function copies its arguments into the sample arguments, launches the graph, and returns what the captured
    call returned: the same objects each time. Pass a tuple of functions and a tuple of their argument tuples to capture
    several. Their graphs share one memory pool, so they must be called in the order of the tuple.

    `allow_unused_input` is accepted for compatibility: it concerns gradients, which Weir does not have.
    `capture_error_mode` is that of each capture.
    """
    for check in _checks_of_captures:
        check()
    several = isinstance(callables, tuple)
    functions: Any = callables if several else (callables,)
    samples = sample_args if several else (sample_args,)
    if len(functions) != len(samples):
        raise ValueError(f"expected sample_args for {len(functions)} callables, got {len(samples)}")
    for function, arguments in zip(functions, samples):
        if not callable(function):
            raise TypeError(f"expected a callable, got {type(function).__name__}")
        if not isinstance(arguments, tuple):
            raise TypeError(f"expected a tuple of arguments, got {type(arguments).__name__}")
        for argument in arguments:
            if not hasattr(argument, "copy_"):
                raise TypeError(
                    "sample_args for each callable must contain only Buffers and Arrays. Other types are not allowed: "
                    f"got {type(argument).__name__}"
                )
    pool = graph_pool_handle() if pool is None else pool

    synchronize()
    side = Stream()
    side.wait_stream(current_stream())
    with StreamContext(side):
        for function, arguments in zip(functions, samples):
            for _ in range(num_warmup_iters):
                function(*arguments)
    synchronize()

    graphed = []
    for function, arguments in zip(functions, samples):
        captured = CUDAGraph()
        with graph(captured, pool=pool, capture_error_mode=capture_error_mode):
            outputs = function(*arguments)
        graphed.append(_graphed(captured, arguments, outputs, getattr(function, "__name__", "graphed")))
    return tuple(graphed) if several else graphed[0]


def _graphed(captured: CUDAGraph, inputs: tuple[Any, ...], outputs: Any, name: str) -> Callable[..., Any]:
    def graphed(*arguments: Any) -> Any:
        if len(arguments) != len(inputs):
            raise TypeError(f"{name}() was captured with {len(inputs)} arguments, got {len(arguments)}")
        for mine, given in zip(inputs, arguments):
            if given is not mine:
                mine.copy_(given)
        captured.replay()
        return outputs

    graphed.__name__ = graphed.__qualname__ = name
    return graphed
