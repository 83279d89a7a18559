"""Storages: the memory that arrays share, as bytes and as elements of a type."""

from __future__ import annotations

import builtins

from weir import _messages
from weir.compute import _compute
from weir.compute._compute import _Storage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from weir.compute._array import Array
    from weir._weir import Device, Stream
    from weir.compute._compute import dtype

__all__ = ["TypedStorage", "UntypedStorage"]


class UntypedStorage(_Storage):
    """Memory of a device or of the host, as bytes. As torch.UntypedStorage.

    Args:
        size: the number of bytes, or a sequence of bytes.
        device: the device, or "cpu", the default.
    """

    __slots__ = ()

    def __new__(cls, size: Any = 0, *, device: Any = None) -> UntypedStorage:
        if isinstance(size, int):
            return _compute._storage_new(size, device, False)
        return _compute._array_from_data(list(size), _compute.uint8, device, False).untyped_storage()

    def _bytes(self) -> Array:
        return _compute._array_in_storage(self, _compute.uint8, 0, (self.nbytes(),), None)

    @property
    def is_cuda(self) -> bool:
        """Whether it is on a device."""
        return self.device.type == "cuda"

    def get_device(self) -> int:
        """Returns the index of the device, or -1 on the host."""
        index = self.device.index
        return -1 if index is None else index

    def element_size(self) -> int:
        """Returns 1."""
        return 1

    def clone(self) -> UntypedStorage:
        """Returns a copy."""
        return self._bytes().clone().untyped_storage()

    def copy_(self, source: UntypedStorage, non_blocking: bool = False) -> UntypedStorage:
        """Copies the bytes of another storage of the same size."""
        self._bytes().copy_(source._bytes(), non_blocking)
        return self

    def fill_(self, value: int) -> UntypedStorage:
        """Sets all bytes."""
        self._bytes().fill_(value)
        return self

    def cpu(self) -> UntypedStorage:
        """Returns the storage if it is on the host, otherwise a copy there."""
        return self._bytes().cpu().untyped_storage() if self.is_cuda else self

    def cuda(self, device: Any = None, non_blocking: bool = False) -> UntypedStorage:
        """Returns the storage if it is on the device, otherwise a copy there."""
        array = self._bytes()
        copied = array.cuda(device, non_blocking)
        return self if copied is array else copied.untyped_storage()

    def pin_memory(self) -> UntypedStorage:
        """Returns a copy in pinned memory, or the storage if it is pinned."""
        return self if self.is_pinned() else self._bytes().pin_memory().untyped_storage()

    def is_shared(self) -> bool:
        """Whether other processes can open the memory: that of a device."""
        return self.is_cuda

    def tolist(self) -> list[int]:
        """Returns the bytes as ints."""
        content: list[int] = self._bytes().tolist()
        return content

    def __len__(self) -> int:
        return self.nbytes()

    def __getitem__(self, key: Any) -> Any:
        part = self._bytes()[key]
        return part if isinstance(key, slice) else part.item()

    def __setitem__(self, key: Any, value: Any) -> None:
        self._bytes()[key] = value

    def __iter__(self) -> Iterator[int]:
        return iter(self.tolist())

    def __repr__(self) -> str:
        return f"<weir.UntypedStorage of {self.nbytes()} bytes on {self.device}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> UntypedStorage:
        copy: UntypedStorage = memo.setdefault(id(self), self.clone())
        return copy

    def _contents(self) -> tuple[bytes, str]:
        """The bytes and the place, from which _load() makes another storage."""
        array: Any = self.cpu()._bytes()
        content = bytes(memoryview(array)) if self.nbytes() else b""
        return content, str(self.device)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Sends the memory if multiprocessing pickles, otherwise copies it.

        Memory of the host is always copied, and so is memory of other libraries.
        """
        if _messages.is_sending() and self.is_cuda and self.nbytes() and not _compute._storage_is_foreign(self):
            message = _compute._storage_send(self)
            _messages.sent(message[1])
            return _compute._storage_receive, message
        return _load, self._contents()


_compute._set_storage_class(UntypedStorage)


def _load(content: bytes, location: str) -> UntypedStorage:
    """A storage with these bytes on a device."""
    storage = _compute._storage_new(len(content), location, False)
    if content:
        storage._bytes().copy_(_compute._array_from_buffer(content))
    return storage


class TypedStorage:
    """Memory as elements of one dtype: what Array.storage() returns.

    Args:
        dtype: the type of the elements.
        device: the device, or "cpu", the default.
        wrap_storage: an UntypedStorage to refer to.
    """

    __slots__ = {"_untyped_storage": "the memory", "dtype": "The type of the elements."}

    def __init__(self, *args: Any, dtype: Any = None, device: Any = None, wrap_storage: Any = None) -> None:
        kind = _compute.float32 if dtype is None else _compute._as_dtype(dtype)
        if wrap_storage is None:
            if len(args) > 1:
                raise TypeError(f"TypedStorage() takes a size or a sequence ({len(args)} arguments given)")
            if args and not isinstance(args[0], int):
                array = _compute._array_from_data(list(args[0]), kind, device, False)
                wrap_storage = array.untyped_storage()
            else:
                wrap_storage = _compute._storage_new((args[0] if args else 0) * kind.itemsize, device, False)
        elif args or device is not None:
            raise TypeError("TypedStorage() takes neither a size nor a device with wrap_storage")
        self._untyped_storage: UntypedStorage = wrap_storage
        self.dtype: dtype = kind

    @staticmethod
    def _wrap(storage: UntypedStorage, kind: dtype) -> TypedStorage:
        return TypedStorage(wrap_storage=storage, dtype=kind)

    def _array(self) -> Array:
        return _compute._array_in_storage(self._untyped_storage, self.dtype, 0, (self.size(),), None)

    def untyped(self) -> UntypedStorage:
        """Returns the storage as bytes."""
        return self._untyped_storage

    @property
    def device(self) -> Device:
        """The device; Device('cpu') on the host."""
        return self._untyped_storage.device

    @property
    def is_cuda(self) -> builtins.bool:
        """Whether it is on a device."""
        return self._untyped_storage.is_cuda

    def size(self) -> builtins.int:
        """Returns the number of elements."""
        return self._untyped_storage.nbytes() // self.element_size()

    def nbytes(self) -> builtins.int:
        """Returns the number of bytes."""
        return self._untyped_storage.nbytes()

    def element_size(self) -> builtins.int:
        """Returns the bytes of an element."""
        size: builtins.int = self.dtype.itemsize
        return size

    def data_ptr(self) -> builtins.int:
        """Returns the address."""
        return self._untyped_storage.data_ptr()

    def get_device(self) -> builtins.int:
        """Returns the index of the device, or -1 on the host."""
        return self._untyped_storage.get_device()

    def is_pinned(self) -> builtins.bool:
        """Whether it is pinned host memory."""
        return self._untyped_storage.is_pinned()

    def is_shared(self) -> builtins.bool:
        """Whether other processes can open the memory: that of a device."""
        return self.is_cuda

    def record_stream(self, stream: Stream) -> None:
        """Says that a stream uses the memory, as Array.record_stream()."""
        self._untyped_storage.record_stream(stream)

    def pickle_storage_type(self) -> str:
        """Returns the name of the legacy class, such as "FloatStorage"."""
        from weir.compute import _legacy

        return f"{_legacy.TITLES[self.dtype.name]}Storage"

    def _to(self, kind: Any = None, device: Any = None, non_blocking: builtins.bool = False) -> TypedStorage:
        array = self._array()
        result = array._to(device, kind, non_blocking, False)
        return self if result is array else result.storage()

    def type(self, dtype: Any) -> TypedStorage:
        """Returns the elements as another dtype."""
        if hasattr(dtype, "_place"):
            return self._to(dtype.dtype, dtype._place)
        return self._to(dtype)

    def to(self, *, device: Any, non_blocking: builtins.bool = False) -> TypedStorage:
        """Returns the storage on a device."""
        return self._to(None, device, non_blocking)

    def cuda(self, device: Any = None, non_blocking: builtins.bool = False) -> TypedStorage:
        """Returns the storage on a device, the current one by default."""
        return self._to(None, "cuda" if device is None else device, non_blocking)

    def cpu(self) -> TypedStorage:
        """Returns the storage on the host."""
        return self._to(None, "cpu")

    def pin_memory(self) -> TypedStorage:
        """Returns a copy in pinned memory, or the storage if it is pinned."""
        return self if self.is_pinned() else TypedStorage._wrap(self._untyped_storage.pin_memory(), self.dtype)

    def clone(self) -> TypedStorage:
        """Returns a copy."""
        return TypedStorage._wrap(self._untyped_storage.clone(), self.dtype)

    def copy_(self, source: TypedStorage, non_blocking: builtins.bool = False) -> TypedStorage:
        """Copies the elements of another storage, which may have another dtype and device."""
        self._array().copy_(source._array(), non_blocking)
        return self

    def fill_(self, value: Any) -> TypedStorage:
        """Sets all elements to a number."""
        self._array().fill_(value)
        return self

    def resize_(self, size: builtins.int) -> TypedStorage:
        """Changes the number of elements. No array may use the storage."""
        self._untyped_storage.resize_(size * self.dtype.itemsize)
        return self

    def tolist(self) -> list[Any]:
        """Returns the elements."""
        elements: list[Any] = self._array().tolist()
        return elements

    def double(self) -> TypedStorage:
        """Converts to float64."""
        return self._to(_compute.float64)

    def float(self) -> TypedStorage:
        """Converts to float32."""
        return self._to(_compute.float32)

    def half(self) -> TypedStorage:
        """Converts to float16."""
        return self._to(_compute.float16)

    def bfloat16(self) -> TypedStorage:
        """Converts to bfloat16."""
        return self._to(_compute.bfloat16)

    def long(self) -> TypedStorage:
        """Converts to int64."""
        return self._to(_compute.int64)

    def int(self) -> TypedStorage:
        """Converts to int32."""
        return self._to(_compute.int32)

    def short(self) -> TypedStorage:
        """Converts to int16."""
        return self._to(_compute.int16)

    def char(self) -> TypedStorage:
        """Converts to int8."""
        return self._to(_compute.int8)

    def byte(self) -> TypedStorage:
        """Converts to uint8."""
        return self._to(_compute.uint8)

    def bool(self) -> TypedStorage:
        """Converts to bool."""
        return self._to(_compute.bool_)

    def complex_float(self) -> TypedStorage:
        """Converts to complex64."""
        return self._to(_compute.complex64)

    def complex_double(self) -> TypedStorage:
        """Converts to complex128."""
        return self._to(_compute.complex128)

    def __len__(self) -> builtins.int:
        return self.size()

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            raise RuntimeError("slices are only supported in UntypedStorage.__getitem__")
        return self._array()[key].item()

    def __setitem__(self, key: Any, value: Any) -> None:
        self._array()[key] = value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> builtins.bool:
        """Whether both have the same dtype and elements."""
        if not isinstance(other, TypedStorage):
            return NotImplemented
        if self.dtype is not other.dtype or self.size() != other.size():
            return False
        return self.data_ptr() == other.data_ptr() or self.tolist() == other.tolist()

    def __hash__(self) -> builtins.int:
        return id(self._untyped_storage)

    def __repr__(self) -> str:
        return f"<weir.TypedStorage of {self.size()} elements of {self.dtype} on {self.device}>"

    def __reduce__(self) -> Any:
        return TypedStorage._wrap, (self._untyped_storage, self.dtype)
