"""weir.save() and weir.load(): objects with arrays and storages in a file, as torch.save() and torch.load().

The file is a pickle in which each storage is stored once, with the place where it was. Plain pickle works too, but
cannot move arrays to another device.
"""

from __future__ import annotations

import os
import pickle

from weir import _weir
from weir._utils import _get_device_index
from weir.compute import _legacy, _storage
from weir.compute._storage import TypedStorage, UntypedStorage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["load", "save"]

_MAGIC = "weir 1"
# What a file may refer to by name, unless weights_only is False.
_ALLOWED = {
    ("weir.compute._array", "_rebuild"),
    ("weir.compute._storage", "TypedStorage._wrap"),
    ("weir.amp", "Parameter"),
    ("weir", "Device"),
    ("weir", "Size"),
    ("weir.compute._array", "Size"),
    ("collections", "OrderedDict"),
    ("builtins", "complex"),
    ("builtins", "set"),
    ("builtins", "frozenset"),
    ("builtins", "bytearray"),
}


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=4)
        self.storages: dict[int, tuple[str, str, bytes]] = {}
        self.kept: list[UntypedStorage] = []  # addresses must not be reused while they are keys

    def persistent_id(self, obj: object) -> Any:
        if not isinstance(obj, UntypedStorage):
            return None
        if id(obj) not in self.storages:
            content, location = obj._contents()
            self.storages[id(obj)] = ("storage", location, content)
            self.kept.append(obj)
        # The same tuple each time: it is written once.
        return self.storages[id(obj)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, map_location: Any, weights_only: bool) -> None:
        super().__init__(file)
        self.map_location = map_location
        self.weights_only = weights_only
        self.storages: dict[int, tuple[Any, UntypedStorage]] = {}

    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "weir" and name in _legacy.TITLES
        if self.weights_only and (module, name) not in _ALLOWED and not is_dtype:
            raise pickle.UnpicklingError(
                f"Weights only load failed: the file refers to {module}.{name}. Loading it with weights_only=False can "
                "run any code; do that only with files from a trusted source."
            )
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> UntypedStorage:
        # Every reference to one storage is the same tuple, and the tuple is kept, so that its address stays unique.
        if id(pid) not in self.storages:
            _, location, content = pid
            self.storages[id(pid)] = (pid, self.restore(location, content))
        return self.storages[id(pid)][1]

    def restore(self, location: str, content: bytes) -> UntypedStorage:
        map_location = self.map_location
        if callable(map_location) and not isinstance(map_location, type):
            storage = _storage._load(content, "cpu")
            result = map_location(storage, location)
            if isinstance(result, TypedStorage):
                result = result._untyped_storage
            if result is not None:
                made: UntypedStorage = result
                return made
            map_location = None
        if isinstance(map_location, dict):
            location = map_location.get(location, location)
        elif map_location is not None:
            location = map_location
        _check(location)
        return _storage._load(content, location)


def _check(location: Any) -> None:
    """Raises an error if the place is a device that does not exist here."""
    index = _get_device_index(location, optional=True, allow_cpu=True)
    if index >= _weir._device_count():
        raise RuntimeError(
            f"Attempting to deserialize object on CUDA device {index} but weir.device_count() is "
            f"{_weir._device_count()}. Please use weir.load with map_location to map your storages to an existing device."
        )


def save(obj: object, f: Any, *, _use_new_zipfile_serialization: bool = True) -> None:
    """Writes an object, and the arrays in it, to a file or to a path. Arrays that share a storage share it again.

    torch.save() has two formats to choose from; the file has Weir's own in either case.
    """
    if isinstance(f, (str, os.PathLike)):
        with open(f, "wb") as file:
            save(obj, file)
        return
    pickle.dump(_MAGIC, f, protocol=4)
    _Pickler(f).dump(obj)


def load(f: Any, map_location: Any = None, *, weights_only: bool = True) -> Any:
    """Reads what save() wrote.

    Args:
        f: a file or a path.
        map_location: where the arrays go: a device, a dict from the old to the new place, or a function of a storage on
            the host and its old place, which returns a storage. None means where they were.
        weights_only: whether files that refer to anything but arrays and plain values are refused. A pickle can run any
            code, so turn this off only for files from a trusted source.
    """
    if isinstance(f, (str, os.PathLike)):
        with open(f, "rb") as file:
            return load(file, map_location, weights_only=weights_only)
    if map_location is not None and not callable(map_location) and not isinstance(map_location, dict):
        _check(map_location)  # an invalid device is an error even if there are no arrays
    try:
        magic = _Unpickler(f, None, True).load()
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError) as error:
        raise RuntimeError("the file was not written by weir.save()") from error
    if magic != _MAGIC:
        raise RuntimeError(f"the file was not written by weir.save(), or by a newer version (it begins with {magic!r})")
    return _Unpickler(f, map_location, weights_only).load()
