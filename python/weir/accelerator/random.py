"""The names of torch.accelerator.random. The generators are those of weir.random, which compute provides."""

from __future__ import annotations

import weir
from weir.accelerator._utils import _get_device_index

TYPE_CHECKING = False
if TYPE_CHECKING:
    from weir.accelerator._utils import DeviceLike
    from weir.compute import Array

__all__ = ["get_rng_state", "get_rng_state_all", "initial_seed"]


def initial_seed() -> int:
    """Returns the seed of the current device's generator."""
    return weir.initial_seed()


def get_rng_state(device: DeviceLike = None, /) -> Array:
    """Returns the state of a device's generator as an array of bytes."""
    return weir.get_rng_state(_get_device_index(device, optional=True))


def get_rng_state_all() -> list[Array]:
    """Returns the states of all devices' generators."""
    return weir.get_rng_state_all()
