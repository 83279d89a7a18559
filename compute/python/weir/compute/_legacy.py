"""The classes that are named after a type: FloatTensor, FloatStorage and others.

They make arrays and storages, and say by isinstance() whether an object is of their type and place. Those of the
package are on a device, as torch.cuda.FloatTensor; those of weir.cpu are on the host.
"""

from __future__ import annotations

from weir import _weir
from weir.compute import _array, _compute
from weir.compute._storage import TypedStorage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The name of each type in the names of the classes.
TITLES = {
    "float64": "Double",
    "float32": "Float",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int64": "Long",
    "int32": "Int",
    "int16": "Short",
    "int8": "Char",
    "uint8": "Byte",
    "bool": "Bool",
    "complex128": "ComplexDouble",
    "complex64": "ComplexFloat",
}

# There are no classes of complex arrays, as in PyTorch.
__all__ = [
    "DoubleTensor", "FloatTensor", "HalfTensor", "BFloat16Tensor", "LongTensor", "IntTensor", "ShortTensor",
    "CharTensor", "ByteTensor", "BoolTensor", "DoubleStorage", "FloatStorage", "HalfStorage", "BFloat16Storage",
    "LongStorage", "IntStorage", "ShortStorage", "CharStorage", "ByteStorage", "BoolStorage",
    "ComplexDoubleStorage", "ComplexFloatStorage",
]


def _place_of(cls: Any, device: Any) -> Any:
    """A device that an array of a class is made on: of the type that the class stands for."""
    if (_weir.Device(device).type == "cpu") != (cls._place == "cpu"):
        raise RuntimeError(f"legacy constructor expects device type: {cls._place} but device type: {device} was passed")
    return device


class _TensorType(type):
    """The type of the classes of arrays. They have no instances of their own."""

    dtype: Any
    _place: str

    def __call__(cls, *args: Any, device: Any = None) -> Any:
        return _array._legacy(args, cls.dtype, cls._place if device is None else _place_of(cls, device))

    def __instancecheck__(cls, instance: Any) -> bool:
        is_array = isinstance(instance, _compute._Array)
        return bool(is_array and instance.dtype is cls.dtype and instance.device.type == cls._place)

    def __repr__(cls) -> str:
        return f"<class '{cls.__module__}.{cls.__name__}'>"


class _StorageType(type):
    """The type of the classes of storages."""

    dtype: Any
    _place: str

    def __call__(cls, *args: Any) -> TypedStorage:
        if len(args) > 1:
            raise TypeError(f"{cls.__name__}() takes a size or a sequence ({len(args)} arguments given)")
        return TypedStorage(*args, dtype=cls.dtype, device=cls._place)

    def __instancecheck__(cls, instance: Any) -> bool:
        is_storage = isinstance(instance, TypedStorage)
        return bool(is_storage and instance.dtype is cls.dtype and instance.device.type == cls._place)

    def __repr__(cls) -> str:
        return f"<class '{cls.__module__}.{cls.__name__}'>"


def _not_available(name: str) -> Any:
    def method(cls: type, *args: Any, **keywords: Any) -> Any:
        """Always fails, as in PyTorch: a storage on a device is not made this way."""
        raise RuntimeError(f"{name}: Not available for CUDA storage")

    method.__name__ = name
    return classmethod(method)


def classes(module: str, place: str) -> dict[str, type]:
    """The classes of a place, by name."""
    made: dict[str, type] = {}
    for name, title in TITLES.items():
        facts: dict[str, Any] = {"__module__": module, "__slots__": (), "dtype": _compute._as_dtype(name), "_place": place}
        where = "the current device" if place == "cuda" else "the host"
        text = f"Makes an array of {name} on {where}, from sizes or from a sequence of values."
        if f"{title}Tensor" in __all__:
            made[f"{title}Tensor"] = _TensorType(f"{title}Tensor", (), {**facts, "__doc__": text})
        text = f"Makes a storage of {name} on {where}, from a size or from a sequence of values."
        if place == "cuda":
            facts |= {
                method: _not_available(method)
                for method in ("from_buffer", "_new_with_weak_ptr", "_new_shared_filename")
            }
        made[f"{title}Storage"] = _StorageType(f"{title}Storage", (), {**facts, "__doc__": text})
    return made


def type_name(array: Any) -> str:
    """The name of the class of an array, such as "weir.FloatTensor"."""
    module = "weir" if array.is_cuda else "weir.cpu"
    return f"{module}.{TITLES[array.dtype.name]}Tensor"


_made: dict[str, Any] = classes("weir", "cuda")
(
    DoubleTensor, FloatTensor, HalfTensor, BFloat16Tensor, LongTensor, IntTensor, ShortTensor, CharTensor,
    ByteTensor, BoolTensor, DoubleStorage, FloatStorage, HalfStorage, BFloat16Storage, LongStorage, IntStorage,
    ShortStorage, CharStorage, ByteStorage, BoolStorage, ComplexDoubleStorage, ComplexFloatStorage,
) = (_made[name] for name in __all__)
