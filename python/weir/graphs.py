"""Graphs: work captured once from a stream, and launched as one, many times."""

from __future__ import annotations

from weir import _weir
from weir._device import synchronize
from weir._weir import Buffer, CUDAGraph
from weir.streams import Stream, StreamContext, current_stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

__all__ = ["CUDAGraph", "graph", "graph_pool_handle", "is_current_stream_capturing", "make_graphed_callables"]


def is_current_stream_capturing() -> bool:
    """Whether what is put into the current stream is captured into a graph."""
    return _weir._is_current_stream_capturing()


def graph_pool_handle() -> tuple[int, int]:
    """A new id of a memory pool, for graphs to share."""
    return _weir._graph_pool_handle()


class graph:
    """Captures what is put into the current stream within a `with` block.

    cuda_graph: the CUDAGraph that keeps it.
    pool: the id of a memory pool to share: graph_pool_handle(), or pool() of another graph.
    stream: where to capture; None is a stream that is kept for it.
    capture_error_mode: what other threads may do meanwhile: "global", "thread_local" or "relaxed"; see capture_begin.

    Where the block fails, its exception comes out, and the graph is as if never captured.
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

        # As much memory as can be had for the graph's pool.
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
            # What broke the capture says more than that it is broken.
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
    """Functions that work on Buffers, as graphs.

    Each is called `num_warmup_iters` times, then once more to be captured, with its `sample_args`. The function that comes
    back copies its arguments into these, launches the graph, and returns what the captured call returned: the same
    Buffers each time. Of a tuple of functions, with a tuple of their arguments, the graphs share one pool: they are
    called in the order of the tuple.

    allow_unused_input is for gradients, which Weir has none of.
    """
    several = isinstance(callables, tuple)
    functions = callables if several else (callables,)
    samples = sample_args if several else (sample_args,)
    if len(functions) != len(samples):
        raise ValueError(f"{len(functions)} callables, and sample_args for {len(samples)}")
    for function, arguments in zip(functions, samples):
        if not callable(function):
            raise TypeError(f"expected a callable, got {type(function).__name__}")
        if not isinstance(arguments, tuple):
            raise TypeError(f"expected a tuple of arguments, got {type(arguments).__name__}")
        for argument in arguments:
            if not isinstance(argument, Buffer):
                raise TypeError(
                    "sample_args for each callable must contain only Buffers. Other types are not allowed: got "
                    f"{type(argument).__name__}"
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
            raise TypeError(f"{name}() was captured with {len(inputs)} arguments, and was called with {len(arguments)}")
        for mine, given in zip(inputs, arguments):
            if given is not mine:
                mine.copy_(given)
        captured.replay()
        return outputs

    graphed.__name__ = graphed.__qualname__ = name
    return graphed
