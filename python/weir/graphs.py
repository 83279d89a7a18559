"""CUDA graphs: work that is captured from a stream once, and launched many times."""

from __future__ import annotations

from weir import _weir
from weir._device import synchronize
from weir._weir import CUDAGraph
from weir.streams import Stream, StreamContext, current_stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

__all__ = ["CUDAGraph", "graph", "graph_pool_handle", "is_current_stream_capturing", "make_graphed_callables"]


# What make_graphed_callables() calls first: functions that raise an error if nothing may be captured now.
_checks_of_captures: list[Callable[[], None]] = []


def is_current_stream_capturing() -> bool:
    """Whether the current stream is being captured into a graph."""
    return _weir._is_current_stream_capturing()


def graph_pool_handle() -> tuple[int, int]:
    """Returns the id of a new memory pool that graphs can share."""
    return _weir._graph_pool_handle()


class graph:
    """A context manager that captures the work submitted to the current stream into a graph.

    If the block raises an exception, the exception propagates, and the graph is left without a capture.

    Args:
        cuda_graph: the CUDAGraph to capture into.
        pool: the id of a memory pool to share, from graph_pool_handle() or from pool() of another graph.
        stream: the stream to capture; None for a stream that is reserved for captures.
        capture_error_mode: what other threads may do during the capture: "global", "thread_local" or "relaxed"; see
            CUDAGraph.capture_begin.
    """

    default_capture_stream: Stream | None = None

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: tuple[int, int] | None = None,
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
    pool: tuple[int, int] | None = None,
) -> Any:
    """Captures functions that work on Buffers or Arrays as graphs.

    Each function is called `num_warmup_iters` times with its `sample_args`, and once more during the capture. The
    returned function copies its arguments into the sample arguments, launches the graph, and returns what the captured
    call returned: the same objects each time. Pass a tuple of functions and a tuple of their argument tuples to capture
    several. Their graphs share one memory pool, so they must be called in the order of the tuple.

    `allow_unused_input` is accepted for compatibility: it concerns gradients, which Weir does not have.
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
        with graph(captured, pool=pool):
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
