"""Random numbers: the default generators with the functions of torch.cuda.random, and fills of Buffers.

The fills have the names of torch.Tensor's methods. Given the same seed and a device of the same geometry, they make the
numbers that PyTorch makes on a GPU.
"""

from __future__ import annotations

from contextlib import contextmanager

from weir import _lazy, _weir
from weir.compute import _compute
from weir._device import current_device, device_count
from weir._lazy import _lazy_call, _lazy_init
from weir._weir import Buffer, Device
from weir.compute._compute import Generator

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sys
    from collections.abc import Iterable, Iterator
    from typing import Any

    from weir._weir import _Device
    from weir.compute._array import Array

    if sys.version_info >= (3, 12):
        from collections.abc import Buffer as BytesLike
    else:
        BytesLike = Any

__all__ = [
    "fork_rng",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def _default_generator(device: _Device = None) -> Generator:
    import weir

    index = _weir._parse_device(device)
    return weir.default_generators[current_device() if index < 0 else index]


# ---- The default generators ----


def get_rng_state(device: _Device = "cuda") -> Array:
    """Returns the state of a device's default generator: an array of 16 bytes on the host, the seed and the
    offset. Starts Weir."""
    _lazy_init()
    return _default_generator(device).get_state()


def get_rng_state_all() -> list[Array]:
    """Returns the states of the default generators of all devices."""
    return [get_rng_state(device) for device in range(device_count())]


def set_rng_state(new_state: BytesLike, device: _Device = "cuda") -> None:
    """Sets the state of a device's default generator, now or when Weir starts."""
    if not _lazy.is_initialized():
        new_state = bytes(new_state)  # it may change until the start
    _lazy_call(lambda: _default_generator(device).set_state(new_state))


def set_rng_state_all(new_states: Iterable[BytesLike]) -> None:
    """Sets the states of the default generators of all devices."""
    for device, state in enumerate(new_states):
        set_rng_state(state, device)


def manual_seed(seed: int) -> None:
    """Sets the seed of the current device's default generator, now or when Weir starts."""
    seed = int(seed)
    _lazy_call(lambda: _default_generator().manual_seed(seed), seed=True)


def manual_seed_all(seed: int) -> None:
    """Sets the seed of the default generators of all devices, now or when Weir starts."""
    seed = int(seed)

    def seed_all_devices() -> None:
        for device in range(device_count()):
            _default_generator(device).manual_seed(seed)

    _lazy_call(seed_all_devices, seed_all=True)


def seed() -> None:
    """Sets a random seed for the current device's default generator, now or when Weir starts."""
    _lazy_call(lambda: _default_generator().seed())


def seed_all() -> None:
    """Sets one random seed for the default generators of all devices, now or when Weir starts."""

    def seed_all_devices() -> None:
        seed = _default_generator(0).seed()
        for device in range(1, device_count()):
            _default_generator(device).manual_seed(seed)

    _lazy_call(seed_all_devices)


def initial_seed() -> int:
    """Returns the seed of the current device's default generator. Starts Weir."""
    _lazy_init()
    return _default_generator().initial_seed()


@contextmanager
def fork_rng(
    devices: Iterable[_Device] | None = None, enabled: bool = True, device_type: str = "cuda"
) -> Iterator[None]:
    """A context manager after which the default generators have the state that they had before it.

    Args:
        devices: the devices whose generators that is; None for all.
        enabled: False does nothing.
        device_type: "cuda".
    """
    if device_type != "cuda":
        raise RuntimeError(f"fork_rng: device_type is {device_type!r}; expected 'cuda'")
    forked = (range(device_count()) if devices is None else list(devices)) if enabled else []
    states = [get_rng_state(device) for device in forked]
    try:
        yield
    finally:
        for device, state in zip(forked, states):
            set_rng_state(state, device)


def _get_device(device: _Device) -> Device:
    """Returns the Device of an index, a text or a device."""
    return device if isinstance(device, Device) else Device(device)


def _get_generator(device: _Device) -> Generator:
    """Returns the default generator of a device."""
    return _default_generator(device)


def _set_rng_state_offset(offset: int, device: _Device = "cuda") -> None:
    """Sets the offset of a device's default generator, now or when Weir starts."""
    _lazy_call(lambda: _default_generator(device).set_offset(offset))


def _get_rng_state_offset(device: _Device = "cuda") -> int:
    """Returns the offset of a device's default generator. Starts Weir."""
    _lazy_init()
    return _default_generator(device).get_offset()


# ---- Fills ----
#
# Each fills a Buffer as an array of `dtype`, on the current stream of the buffer's device, and returns it. The
# generator is the default one of that device unless another is given.


def bits_(buffer: Buffer, *, dtype: object = "int64", generator: Generator | None = None) -> Buffer:
    """Fills with random bits, as integers."""
    return _compute._random_bits(buffer, dtype, generator)


def random_(
    buffer: Buffer,
    from_: int | None = None,
    to: int | None = None,
    *,
    dtype: object = "int64",
    generator: Generator | None = None,
) -> Buffer:
    """Fills with integers in [from_, to). One number n means [0, n), none the range of the type, as in torch."""
    if from_ is not None and to is None:
        from_, to = 0, from_
    elif from_ is None and to is not None:
        from_ = 0
    return _compute._random_integers(buffer, dtype, generator, from_, to)


def uniform_(
    buffer: Buffer,
    from_: float = 0.0,
    to: float = 1.0,
    *,
    dtype: object = "float32",
    generator: Generator | None = None,
) -> Buffer:
    """Fills with floats in [from_, to)."""
    return _compute._random_uniform(buffer, dtype, generator, from_, to)


def normal_(
    buffer: Buffer,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    dtype: object = "float32",
    generator: Generator | None = None,
) -> Buffer:
    """Fills with floats of a normal distribution."""
    return _compute._random_normal(buffer, dtype, generator, mean, std)


def bernoulli_(
    buffer: Buffer, p: float = 0.5, *, dtype: object = "float32", generator: Generator | None = None
) -> Buffer:
    """Fills with ones, each with probability p, and zeros."""
    return _compute._random_bernoulli(buffer, dtype, generator, p, 0.0)


def randperm_(buffer: Buffer, *, dtype: object = "int64", generator: Generator | None = None) -> Buffer:
    """Fills with a random permutation of 0 to n - 1, where n is the number of elements."""
    return _compute._random_permutation(buffer, dtype, generator)
