"""Control of the profiler, with the functions of torch.cuda.profiler.

On a GPU, a tool such as Nsight Systems collects between start and stop. On the software device, kernels, copies, fills
and host functions that run meanwhile become part of the memory history, if that is recorded:
`weir export --to perfetto` shows them.
"""

from __future__ import annotations

from contextlib import contextmanager

from weir._device import check_error, cudart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["profile", "start", "stop"]


def init(output_file: str, flags: list[str] | None = None, output_mode: str = "key_value") -> None:
    """Raises AssertionError, as PyTorch does with CUDA 12 and later, where the call has nothing to do."""
    raise AssertionError("CUDA12+ does not need profiler initialization!")


def start() -> None:
    """Starts collecting. Raises CudaError if the driver refuses."""
    check_error(cudart().cudaProfilerStart())


def stop() -> None:
    """Stops collecting. Raises CudaError if the driver refuses."""
    check_error(cudart().cudaProfilerStop())


@contextmanager
def profile() -> Iterator[None]:
    """Collects in a `with` block."""
    try:
        start()
        yield
    finally:
        stop()
