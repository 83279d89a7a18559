"""The names of torch.accelerator.graphs."""

from __future__ import annotations

import weir
from weir.graphs import CUDAGraph

__all__ = ["Graph"]


class Graph:
    """A graph that captures the current stream as a context manager, and replays what was captured.

    Args:
        keep_graph: keeps what was captured; see CUDAGraph.
        pool: the id of a memory pool to share, from pool() of another graph.
    """

    def __init__(self, keep_graph: bool = False, *, pool: tuple[int, int] | None = None) -> None:
        self.graph_pool = pool
        self._graph = CUDAGraph(keep_graph)

    def capture_begin(self, capture_error_mode: str = "default") -> None:
        """Begins to capture the current stream. The default mode is "global"; see CUDAGraph.capture_begin."""
        self._graph.capture_begin(self.graph_pool, "global" if capture_error_mode == "default" else capture_error_mode)

    def capture_end(self) -> None:
        """Ends the capture, after which the graph can be replayed."""
        self._graph.capture_end()

    def instantiate(self) -> None:
        """Makes what replay() launches of a kept graph; the first replay() does so otherwise."""
        self._graph.instantiate()

    def replay(self) -> None:
        """Submits the captured work to the current stream."""
        self._graph.replay()

    def reset(self) -> None:
        """Deletes the graph, and lets go of its memory."""
        self._graph.reset()

    def pool(self) -> tuple[int, int]:
        """Returns the id of the graph's memory pool."""
        return self._graph.pool()

    def enable_debug_mode(self) -> None:
        """Keeps what debug_dump() writes."""
        self._graph.enable_debug_mode()

    def debug_dump(self, path: str) -> None:
        """Writes the graph in the language of Graphviz."""
        self._graph.debug_dump(path)

    def __enter__(self) -> None:
        weir.synchronize()
        weir.empty_cache()
        self.capture_begin()

    def __exit__(self, *exc_info: object) -> None:
        self.capture_end()
