"""Typed arrays: weir.Array and the functions that make arrays, with the names of torch.Tensor and torch.

An array is on a device, or on the host ("cpu", the default). Operations run on the current stream of its device.
Differentiation is not part of it: there is no autograd.
"""

from __future__ import annotations

import builtins
import math

from weir import _weir
from weir.compute import _compute, _indexing
from weir.compute._storage import TypedStorage, UntypedStorage
from weir.compute._compute import _Array, _as_dtype, dtype

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from weir._weir import Device, Stream
    from weir.compute._compute import Generator

__all__ = [
    "Array",
    "Size",
    "arange",
    "as_tensor",
    "asarray",
    "bernoulli",
    "empty",
    "empty_like",
    "from_numpy",
    "full",
    "full_like",
    "normal",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "randperm",
    "tensor",
    "zeros",
    "zeros_like",
]

_float32, _int64 = _compute.float32, _compute.int64


class Size(tuple[int, ...]):
    """The shape of an array: a tuple of ints."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"weir.Size({list(self)})"

    def numel(self) -> int:
        """Returns the product of the sizes."""
        return math.prod(self)


class _ValuesAndIndices(tuple["Any", ...]):
    """The result of max() and min() along a dimension."""

    __slots__ = ()
    values = property(lambda self: self[0], doc="The values.")
    indices = property(lambda self: self[1], doc="Their positions along the dimension.")

    def __repr__(self) -> str:
        return f"weir.return_types(\nvalues={self[0]!r},\nindices={self[1]!r})"


class Array(_Array):
    """Elements of one type in memory of a device or of the host, with a shape and strides. As torch.Tensor.

    Arrays are made by functions such as weir.zeros(), and weir.tensor() for given values. Array(2, 3) is an
    uninitialized array of float32 on the host.
    """

    __slots__ = ()

    def __new__(cls, *args: Any) -> Array:
        return _legacy(args, _float32, "cpu")

    # ---- Copies and conversions ----

    def to(self, *args: Any, **keywords: Any) -> Array:
        """Returns the array with another dtype or on another device: to(dtype), to(device), to(device, dtype) or
        to(other), each with non_blocking=False and copy=False. Without a change, the array itself is returned.

        A non-blocking copy from a device to the host is in pinned memory, and is complete once the stream is.
        """
        device, kind, non_blocking, copy = None, None, False, False
        rest = list(args)
        if rest and isinstance(rest[0], _Array):
            other = rest.pop(0)
            device, kind = other.device, other.dtype
        else:
            if rest and not isinstance(rest[0], (dtype, builtins.bool)):
                device = rest.pop(0)
            if rest and not isinstance(rest[0], builtins.bool):
                kind = rest.pop(0)
        for name, value in zip(("non_blocking", "copy"), rest):
            keywords.setdefault(name, value)
        for name, value in keywords.items():
            if name == "device":
                device = value
            elif name == "dtype":
                kind = value
            elif name == "non_blocking":
                non_blocking = value
            elif name == "copy":
                copy = value
            else:
                raise TypeError(f"to() got an unexpected keyword argument '{name}'")
        return self._to(device, kind, non_blocking, copy)

    def cuda(self, device: Any = None, non_blocking: builtins.bool = False) -> Array:
        """Returns the array on a device, the current one by default."""
        return self._to("cuda" if device is None else device, None, non_blocking, False)

    def cpu(self) -> Array:
        """Returns the array on the host."""
        return self._to("cpu", None, False, False)

    def type(self, kind: Any = None, non_blocking: builtins.bool = False) -> Any:
        """Returns the array with another dtype, or without an argument the name of its type."""
        if kind is None:
            from weir.compute import _legacy as legacy

            return legacy.type_name(self)
        if isinstance(kind, builtins.type) and hasattr(kind, "_place"):
            made: Any = kind
            return self._to(made._place, made.dtype, non_blocking, False)
        return self._to(None, kind, non_blocking, False)

    def type_as(self, other: Array) -> Array:
        """Returns the array with the dtype and on the device of another."""
        return self.to(other)

    def float(self) -> Array:
        """Converts to float32."""
        return self._to(None, _float32, False, False)

    def double(self) -> Array:
        """Converts to float64."""
        return self._to(None, _compute.float64, False, False)

    def half(self) -> Array:
        """Converts to float16."""
        return self._to(None, _compute.float16, False, False)

    def bfloat16(self) -> Array:
        """Converts to bfloat16."""
        return self._to(None, _compute.bfloat16, False, False)

    def byte(self) -> Array:
        """Converts to uint8."""
        return self._to(None, _compute.uint8, False, False)

    def char(self) -> Array:
        """Converts to int8."""
        return self._to(None, _compute.int8, False, False)

    def short(self) -> Array:
        """Converts to int16."""
        return self._to(None, _compute.int16, False, False)

    def int(self) -> Array:
        """Converts to int32."""
        return self._to(None, _compute.int32, False, False)

    def long(self) -> Array:
        """Converts to int64."""
        return self._to(None, _int64, False, False)

    def bool(self) -> Array:
        """Converts to bool."""
        return self._to(None, _compute.bool_, False, False)

    def cfloat(self) -> Array:
        """Converts to complex64."""
        return self._to(None, _compute.complex64, False, False)

    def cdouble(self) -> Array:
        """Converts to complex128."""
        return self._to(None, _compute.complex128, False, False)

    def numpy(self) -> Any:
        """Returns a NumPy array that shares the memory. The array must be on the host."""
        if self.is_cuda:
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
                "memory first."
            )
        if self.dtype is _compute.bfloat16:
            raise TypeError("Got unsupported ScalarType BFloat16")
        import numpy

        array: Any = self
        view: Any = memoryview(array)
        return numpy.asarray(view)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    # ---- Storage ----

    def untyped_storage(self) -> UntypedStorage:
        """Returns the storage, which views share."""
        return _compute._array_storage(self)

    def storage(self) -> TypedStorage:
        """Returns the storage as elements of the array's dtype."""
        return TypedStorage._wrap(_compute._array_storage(self), self.dtype)

    def set_(
        self, source: Any = None, storage_offset: builtins.int = 0, size: Any = None, stride: Any = None
    ) -> Array:
        """Lets the array refer to another memory: that of an array with its shape, or of a storage. Without a source, the
        array is empty then."""
        if isinstance(source, TypedStorage):
            source = source._untyped_storage
        if source is None:
            source = _empty((0,), self.dtype, self.device)
        elif isinstance(source, UntypedStorage):
            size = (source.nbytes() // self.dtype.itemsize - storage_offset,) if size is None else size
            source = _compute._array_in_storage(source, self.dtype, storage_offset, size, stride)
        elif size is not None:
            source = _compute._array_in_storage(source.untyped_storage(), source.dtype, storage_offset, size, stride)
        if source.dtype is not self.dtype or source.is_cuda != self.is_cuda:
            raise RuntimeError("set_(): the source must have the dtype and the type of device of the array")
        return _compute._array_set(self, source)

    def is_shared(self) -> builtins.bool:
        """Whether other processes can open the memory: that of a device, as in PyTorch."""
        return self.is_cuda

    def share_memory_(self) -> Array:
        """Does nothing on a device, whose memory can be shared. Arrays on the host are not moved to shared memory."""
        if not self.is_cuda:
            raise NotImplementedError("share_memory_() is not supported on the host; see weir.ipc for device memory")
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuild, (self.untyped_storage(), self.dtype, self.storage_offset(), tuple(self.shape), self.stride())

    # ---- Views ----

    @property
    def T(self) -> Array:
        """The array with its dimensions reversed: a view."""
        return self.permute(*reversed(range(self.ndim)))

    @property
    def mT(self) -> Array:
        """The array with its last two dimensions swapped: a view."""
        return self.transpose(-2, -1)

    @property
    def real(self) -> Array:
        """The real parts: a copy of a complex array."""
        return self._real() if self.dtype.is_complex else self

    @property
    def imag(self) -> Array:
        """The imaginary parts: a copy."""
        if not self.dtype.is_complex:
            raise RuntimeError("imag is not implemented for tensors with non-complex dtypes.")
        return self._imag()

    def view_as(self, other: Array) -> Array:
        """Returns a view with the shape of another array."""
        return self.view(other.shape)

    def reshape_as(self, other: Array) -> Array:
        """Returns the array with the shape of another."""
        return self.reshape(other.shape)

    def expand_as(self, other: Array) -> Array:
        """Expands to the shape of another array."""
        return self.expand(other.shape)

    def is_floating_point(self) -> builtins.bool:
        """Whether the elements are real floats."""
        return self.dtype.is_floating_point

    def is_complex(self) -> builtins.bool:
        """Whether the elements are complex."""
        return self.dtype.is_complex

    # ---- New arrays ----

    def new(self, *args: Any, device: Any = None) -> Array:
        """Returns an array of the same dtype on the same device, unless another is given, from sizes or values."""
        return _legacy(args, self.dtype, self.device if device is None else device)

    def new_empty(self, *size: Any, dtype: Any = None, device: Any = None) -> Array:
        """Returns an uninitialized array of the same dtype on the same device, unless others are given."""
        return _empty(size, dtype or self.dtype, self.device if device is None else device)

    def new_zeros(self, *size: Any, dtype: Any = None, device: Any = None) -> Array:
        """Returns zeros of the same dtype on the same device, unless others are given."""
        return self.new_empty(*size, dtype=dtype, device=device).zero_()

    def new_ones(self, *size: Any, dtype: Any = None, device: Any = None) -> Array:
        """Returns ones of the same dtype on the same device, unless others are given."""
        return self.new_empty(*size, dtype=dtype, device=device).fill_(1)

    def new_full(self, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
        """Returns an array of one value, of the same dtype on the same device unless others are given."""
        return self.new_empty(size, dtype=dtype, device=device).fill_(fill_value)

    # ---- Arithmetic ----

    def max(self, dim: Any = None, keepdim: builtins.bool = False) -> Any:
        """Returns the largest element; along a dimension, the values and their indices; with an array, maximum()."""
        if isinstance(dim, _Array):
            return self.maximum(dim)
        if dim is None:
            return self.amax()
        return _ValuesAndIndices((self.amax(dim, keepdim), self.argmax(dim, keepdim)))

    def min(self, dim: Any = None, keepdim: builtins.bool = False) -> Any:
        """Returns the smallest element; along a dimension, the values and their indices; with an array, minimum()."""
        if isinstance(dim, _Array):
            return self.minimum(dim)
        if dim is None:
            return self.amin()
        return _ValuesAndIndices((self.amin(dim, keepdim), self.argmin(dim, keepdim)))

    def clamp(self, min: Any = None, max: Any = None) -> Array:
        """Limits the elements to [min, max]."""
        if min is None and max is None:
            raise ValueError("clamp: At least one of 'min' or 'max' must not be None")
        result = self if min is None else self.maximum(min)
        return result if max is None else result.minimum(max)

    def clamp_(self, min: Any = None, max: Any = None) -> Array:
        """Limits the elements to [min, max]. In place."""
        if min is None and max is None:
            raise ValueError("clamp: At least one of 'min' or 'max' must not be None")
        if min is not None:
            self.maximum_(min)
        return self if max is None else self.minimum_(max)

    def norm(self, p: Any = 2, dim: Any = None, keepdim: builtins.bool = False, dtype: Any = None) -> Array:
        """Returns the p-norm of all elements or along dimensions. 16-bit floats are computed as float32."""
        kind = self.dtype if dtype is None else _as_dtype(dtype)
        if dtype is None and _compute._autocast_runs_in_float32(self):
            kind = _float32
        if not (self.dtype.is_floating_point or self.dtype.is_complex):
            raise RuntimeError(
                f"norm(): input dtype should be either floating point or complex. Got {self.dtype.name} instead."
            )
        if not (kind.is_floating_point or kind.is_complex):
            raise RuntimeError(f"norm(): dtype should be either floating point or complex. Got {kind.name} instead.")
        p = 2.0 if p in ("fro", None) else builtins.float(p)
        x = self._to(None, _float32 if kind.itemsize == 2 else kind, False, False)
        if p == 2:
            result = x._sum_of_squares(dim, keepdim).sqrt_()
        elif p == 0:
            result = x.count_nonzero(dim, keepdim)
        elif math.isinf(p):
            x = x.abs()
            result = x.amax(dim, keepdim) if p > 0 else x.amin(dim, keepdim)
        elif p == 1:
            result = x.abs().sum(dim, keepdim)
        else:
            result = x.abs().pow_(p).sum(dim, keepdim).pow_(1 / p)
        if kind.is_complex:
            kind = _compute.float32 if kind is _compute.complex64 else _compute.float64
        return result._to(None, kind, False, False)

    def mm(self, mat2: Array) -> Array:
        """Returns the product of two matrices."""
        if self.ndim != 2:
            raise RuntimeError("self must be a matrix")
        if mat2.ndim != 2:
            raise RuntimeError("mat2 must be a matrix")
        return self.matmul(mat2)

    def bmm(self, mat2: Array) -> Array:
        """Returns the products of two batches of matrices."""
        if self.ndim != 3 or mat2.ndim != 3:
            raise RuntimeError("batch1 and batch2 must be 3D tensors")
        if self.shape[0] != mat2.shape[0] or self.shape[2] != mat2.shape[1]:
            raise RuntimeError(
                f"Expected size for first two dimensions of batch2 tensor to be: [{self.shape[0]}, {self.shape[2]}] "
                f"but got: [{mat2.shape[0]}, {mat2.shape[1]}]."
            )
        return self.matmul(mat2)

    def addmm(self, mat1: Array, mat2: Array, *, beta: Any = 1, alpha: Any = 1) -> Array:
        """Returns beta * self + alpha * (mat1 @ mat2). With a beta of 0, the elements of the array are not read."""
        product = mat1.mm(mat2)
        if alpha != 1:
            product *= alpha
        if beta == 0:
            return product
        return product.add(self if beta == 1 else self * beta)

    def mv(self, vec: Array) -> Array:
        """Returns the product of a matrix and a vector."""
        if self.ndim != 2 or vec.ndim != 1:
            raise RuntimeError("vector + matrix @ vector expected, got a matrix or a vector of other dimensions")
        return self._mv(vec)

    def dot(self, tensor: Array) -> Array:
        """Returns the product of two vectors."""
        if self.ndim != 1 or tensor.ndim != 1:
            raise RuntimeError(f"1D tensors expected, but got {self.ndim}D and {tensor.ndim}D tensors")
        return self._dot(tensor)

    def equal(self, other: Array) -> builtins.bool:
        """Whether both have the same shape and elements."""
        return self.shape == other.shape and builtins.bool((self == other).all())

    def __divmod__(self, other: Any) -> tuple[Array, Array]:
        return self // other, self % other

    def __complex__(self) -> complex:
        return complex(self.item())

    def __round__(self) -> Array:
        return self.round()

    # ---- Random numbers ----

    def uniform_(self, from_: builtins.float = 0.0, to: builtins.float = 1.0, *, generator: Any = None) -> Array:
        """Sets all elements to random numbers in [from_, to)."""
        return _compute._array_random(self, "uniform", generator, from_, to)

    def normal_(self, mean: builtins.float = 0.0, std: builtins.float = 1.0, *, generator: Any = None) -> Array:
        """Sets all elements to random numbers of a normal distribution."""
        return _compute._array_random(self, "normal", generator, mean, std)

    def bernoulli_(self, p: Any = 0.5, *, generator: Any = None) -> Array:
        """Sets all elements to 1 with probability p, otherwise 0. p is a number or an array."""
        if isinstance(p, _Array):
            return self.copy_(bernoulli(p.expand(self.shape), generator=generator))
        return _compute._array_random(self, "bernoulli", generator, p, 0.0)

    def exponential_(self, lambd: builtins.float = 1.0, *, generator: Any = None) -> Array:
        """Sets all elements to random numbers of an exponential distribution."""
        if not lambd > 0:
            raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd:g}")
        return self._from_uniform("exponential_", generator, lambda u: (1 - u).log() * (-1 / lambd))

    def cauchy_(self, median: builtins.float = 0.0, sigma: builtins.float = 1.0, *, generator: Any = None) -> Array:
        """Sets all elements to random numbers of a Cauchy distribution."""
        if not sigma > 0:
            raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma:g}")
        return self._from_uniform("cauchy_", generator, lambda u: ((u - 0.5) * math.pi).tan() * sigma + median)

    def geometric_(self, p: builtins.float, *, generator: Any = None) -> Array:
        """Sets all elements to the numbers of trials until the first success, which has the probability p."""
        if not 0 < p < 1:
            raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p:g}")
        return self._from_uniform("geometric_", generator, lambda u: ((1 - u).log() / math.log1p(-p)).ceil().clamp(min=1))

    def log_normal_(self, mean: builtins.float = 1.0, std: builtins.float = 2.0, *, generator: Any = None) -> Array:
        """Sets all elements to random numbers whose logarithms have a normal distribution."""
        if not std > 0:
            raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std:g}")
        return self.normal_(mean, std, generator=generator).exp_()

    def _from_uniform(self, name: str, generator: Any, transform: Any) -> Array:
        """Sets all elements to what `transform` makes of random numbers in [0, 1)."""
        if not self.is_floating_point() and name != "geometric_":
            raise NotImplementedError(f'"{name}" not implemented for {self.dtype!r}')
        numbers = _empty((self.shape,), _compute.float64 if self.dtype.itemsize == 8 else _float32, self.device)
        return self.copy_(transform(numbers.uniform_(generator=generator)))

    def random_(self, from_: Any = None, to: Any = None, *, generator: Any = None) -> Array:
        """Sets all elements to integers in [from_, to). One number n means [0, n), none the range of the dtype."""
        if from_ is not None and to is None:
            from_, to = 0, from_
        elif from_ is None and to is not None:
            from_ = 0
        return _compute._array_random(self, "random", generator, from_, to)

    # ---- The rest ----

    def __iter__(self) -> Iterator[Array]:
        if not self.ndim:
            raise TypeError("iteration over a 0-d tensor")
        return (self[i] for i in range(len(self)))

    def __contains__(self, value: object) -> builtins.bool:
        return builtins.bool((self == value).any())

    def __getitem__(self, key: Any) -> Array:
        if key.__class__ is int or key.__class__ is slice or not _indexing.is_advanced(key):
            return _Array.__getitem__(self, key)
        return _indexing.get(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if _indexing.is_advanced(key):
            _indexing.put(self, key, value)
            return
        if not isinstance(value, _Array) and hasattr(value, "__len__"):
            value = tensor(value, dtype=self.dtype, device=self.device)
        _Array.__setitem__(self, key, value)

    def index_put_(self, indices: Any, values: Array, accumulate: builtins.bool = False) -> Array:
        """Sets the elements at arrays of indices, one for each dimension, or adds to them."""
        _indexing.index_put(self, indices, values, accumulate)
        return self

    def __repr__(self) -> str:
        from weir.compute import _print

        return _print.text_of(self)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if not self.ndim else object.__format__(self, spec)


_compute._set_array_class(Array, Size)


def _rebuild(storage: UntypedStorage, kind: dtype, offset: int, shape: Any, stride: Any) -> Array:
    return _compute._array_in_storage(storage, kind, offset, shape, stride)


# ---- Factories ----


def _shape(size: tuple[Any, ...]) -> Any:
    return size[0] if len(size) == 1 and hasattr(size[0], "__len__") else size


def _empty(size: tuple[Any, ...], kind: Any, device: Any, pin_memory: builtins.bool = False) -> Array:
    return _compute._array_empty(_shape(size), _float32 if kind is None else kind, device, pin_memory)


def _no_grad(requires_grad: builtins.bool) -> None:
    if requires_grad:
        raise NotImplementedError("requires_grad=True is not supported: Weir has no autograd")


def empty(
    *size: Any,
    dtype: Any = None,
    device: Any = None,
    pin_memory: builtins.bool = False,
    requires_grad: builtins.bool = False,
) -> Array:
    """Returns an uninitialized array. The dtype is float32 and the device the host, unless others are given."""
    _no_grad(requires_grad)
    return _empty(size, dtype, device, pin_memory)


def zeros(
    *size: Any,
    dtype: Any = None,
    device: Any = None,
    pin_memory: builtins.bool = False,
    requires_grad: builtins.bool = False,
) -> Array:
    """Returns an array of zeros. The dtype is float32 and the device the host, unless others are given."""
    _no_grad(requires_grad)
    return _empty(size, dtype, device, pin_memory).zero_()


def ones(
    *size: Any,
    dtype: Any = None,
    device: Any = None,
    pin_memory: builtins.bool = False,
    requires_grad: builtins.bool = False,
) -> Array:
    """Returns an array of ones."""
    _no_grad(requires_grad)
    return _empty(size, dtype, device, pin_memory).fill_(1)


def full(
    size: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    pin_memory: builtins.bool = False,
    requires_grad: builtins.bool = False,
) -> Array:
    """Returns an array of one value, whose dtype follows from the value unless it is given."""
    _no_grad(requires_grad)
    if dtype is None:
        dtype = tensor(fill_value).dtype if not isinstance(fill_value, _Array) else fill_value.dtype
    return _empty((size,), dtype, device, pin_memory).fill_(fill_value)


def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    pin_memory: builtins.bool = False,
    requires_grad: builtins.bool = False,
) -> Array:
    """Returns start, start + step, ... below end. arange(end) starts at 0. Integers give int64, floats float32."""
    _no_grad(requires_grad)
    if end is None:
        start, end = 0, start
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if (end - start) * step < 0:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    if dtype is None:
        is_integer = not any(isinstance(number, builtins.float) for number in (start, end, step))
        dtype = _int64 if is_integer else _float32
    count = max(0, math.ceil((end - start) / step))
    return _empty((count,), dtype, device, pin_memory)._arange_(start, step)


def rand(
    *size: Any,
    dtype: Any = None,
    device: Any = None,
    pin_memory: builtins.bool = False,
    generator: Any = None,
    requires_grad: builtins.bool = False,
) -> Array:
    """Returns random numbers in [0, 1). On a device they are those that PyTorch makes with the same seed."""
    _no_grad(requires_grad)
    return _empty(size, dtype, device, pin_memory).uniform_(generator=generator)


def randn(
    *size: Any,
    dtype: Any = None,
    device: Any = None,
    pin_memory: builtins.bool = False,
    generator: Any = None,
    requires_grad: builtins.bool = False,
) -> Array:
    """Returns random numbers of a normal distribution with mean 0 and deviation 1."""
    _no_grad(requires_grad)
    return _empty(size, dtype, device, pin_memory).normal_(generator=generator)


def normal(
    mean: Any, std: Any, size: Any = None, *, dtype: Any = None, device: Any = None, generator: Any = None
) -> Array:
    """Returns random numbers of normal distributions, whose means and deviations are numbers or arrays."""
    if size is not None:
        return _empty((size,), dtype, device).normal_(mean, std, generator=generator)
    arrays = [value for value in (mean, std) if isinstance(value, _Array)]
    if not arrays:
        raise TypeError("normal() missing required argument 'size'")
    shape = (arrays[0] + arrays[-1]).shape if arrays[0].shape != arrays[-1].shape else arrays[0].shape
    result: Array = _empty((shape,), arrays[0].dtype, arrays[0].device).normal_(generator=generator) * std + mean
    return result


def randint(
    low: int,
    high: Any = None,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    pin_memory: builtins.bool = False,
    generator: Any = None,
    requires_grad: builtins.bool = False,
) -> Array:
    """Returns random integers in [low, high), of int64 unless a dtype is given. randint(high, size) starts at 0."""
    _no_grad(requires_grad)
    if size is None:
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    if size is None:
        raise TypeError("randint() missing required argument 'size'")
    return _empty((size,), dtype or _int64, device, pin_memory).random_(low, high, generator=generator)


def randperm(
    n: int,
    *,
    dtype: Any = None,
    device: Any = None,
    pin_memory: builtins.bool = False,
    generator: Any = None,
    requires_grad: builtins.bool = False,
) -> Array:
    """Returns a random permutation of 0 to n - 1, of int64 unless a dtype is given."""
    _no_grad(requires_grad)
    array = _empty((n,), dtype or _int64, device, pin_memory)
    return _compute._array_random(array, "permutation", generator, None, None)


def empty_like(
    other: Array,
    *,
    dtype: Any = None,
    device: Any = None,
    pin_memory: builtins.bool = False,
    requires_grad: builtins.bool = False,
) -> Array:
    """Returns an uninitialized array with the shape of another, and its dtype and device unless others are given."""
    _no_grad(requires_grad)
    return _empty((other.shape,), dtype or other.dtype, other.device if device is None else device, pin_memory)


def zeros_like(
    other: Array,
    *,
    dtype: Any = None,
    device: Any = None,
    pin_memory: builtins.bool = False,
    requires_grad: builtins.bool = False,
) -> Array:
    """Returns zeros with the shape of another array."""
    _no_grad(requires_grad)
    return empty_like(other, dtype=dtype, device=device, pin_memory=pin_memory).zero_()


def ones_like(
    other: Array,
    *,
    dtype: Any = None,
    device: Any = None,
    pin_memory: builtins.bool = False,
    requires_grad: builtins.bool = False,
) -> Array:
    """Returns ones with the shape of another array."""
    _no_grad(requires_grad)
    return empty_like(other, dtype=dtype, device=device, pin_memory=pin_memory).fill_(1)


def full_like(
    other: Array,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    pin_memory: builtins.bool = False,
    requires_grad: builtins.bool = False,
) -> Array:
    """Returns an array of one value with the shape of another."""
    _no_grad(requires_grad)
    return empty_like(other, dtype=dtype, device=device, pin_memory=pin_memory).fill_(fill_value)


def rand_like(
    other: Array, *, dtype: Any = None, device: Any = None, generator: Any = None, requires_grad: builtins.bool = False
) -> Array:
    """Returns random numbers in [0, 1) with the shape of another array."""
    _no_grad(requires_grad)
    return empty_like(other, dtype=dtype, device=device).uniform_(generator=generator)


def randn_like(
    other: Array, *, dtype: Any = None, device: Any = None, generator: Any = None, requires_grad: builtins.bool = False
) -> Array:
    """Returns random numbers of a normal distribution with the shape of another array."""
    _no_grad(requires_grad)
    return empty_like(other, dtype=dtype, device=device).normal_(generator=generator)


def tensor(
    data: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    pin_memory: builtins.bool = False,
    requires_grad: builtins.bool = False,
) -> Array:
    """Returns an array of given values: numbers, nested sequences of them, or another library's array. Always copies.

    Without a dtype, bool gives bool, int int64, float float32 and complex complex64.
    """
    _no_grad(requires_grad)
    if not isinstance(data, (list, tuple, int, builtins.float, complex)):
        source = data if isinstance(data, Array) else _shared(data)
        if source is not None:
            if pin_memory and not source.is_cuda and device in (None, "cpu"):
                return source._to(None, dtype, False, False).pin_memory()
            return source._to(device, dtype, False, True)
    return _compute._array_from_data(data, dtype, device, pin_memory)


def _shared(data: Any) -> Array | None:
    """An array over the memory of another library's array, if the object is one."""
    if isinstance(data, _weir.Buffer):
        return _of_buffer(data)
    interface = getattr(data, "__cuda_array_interface__", None)
    if interface is not None:
        return _of_interface(data, interface)
    try:
        view = memoryview(data)
    except (TypeError, BufferError, ValueError):
        return _compute._array_from_dlpack(data) if hasattr(data, "__dlpack__") else None
    view.release()
    return _compute._array_from_buffer(data)


def _of_buffer(buffer: _weir.Buffer) -> Array:
    """The bytes of a Buffer, which cannot be freed meanwhile."""
    view = buffer[:]
    device = "cpu" if buffer.is_host else buffer.device
    return _compute._array_borrow(
        view, view.data_ptr(), device, buffer.is_pinned, _compute.uint8, (len(buffer),), None, buffer.readonly
    )


def _of_interface(owner: Any, interface: dict[str, Any]) -> Array:
    kind = _compute._dtype_of_typestr(interface["typestr"])
    address, is_readonly = interface["data"]
    if interface.get("mask") is not None:
        raise TypeError("__cuda_array_interface__ with a mask is not supported")
    strides = interface.get("strides")
    if strides is not None:
        if any(stride < 0 or stride % kind.itemsize for stride in strides):
            raise TypeError("strides of __cuda_array_interface__ must be multiples of the element size, not negative")
        strides = tuple(stride // kind.itemsize for stride in strides)
    place = getattr(getattr(owner, "device", None), "index", None)
    if place is None:
        place = getattr(getattr(owner, "device", None), "id", None)  # CuPy
    array = _compute._array_borrow(
        owner, address, "cuda" if place is None else place, False, kind, tuple(interface["shape"]), strides, is_readonly
    )
    stream = interface.get("stream")
    if stream is not None:
        import weir

        current = weir.current_stream(array.device)
        if stream != (current.cuda_stream or 1):
            address = 0 if stream == 1 else stream
            current.wait_stream(weir.ExternalStream(address, device=array.device))
    return array


def asarray(data: Any, *, dtype: Any = None, device: Any = None, copy: builtins.bool | None = None) -> Array:
    """Returns an array that shares the memory of an object if possible, and otherwise a copy.

    The object can be an Array, a Buffer (as uint8), a NumPy array or another object with the buffer protocol, an object
    with __cuda_array_interface__ or __dlpack__, or nested sequences of numbers.
    """
    is_value = isinstance(data, (list, tuple, int, builtins.float, complex))
    array = data if isinstance(data, Array) else None if is_value else _shared(data)
    if array is None:
        if copy is False:
            raise ValueError(f"can't alias a {type(data).__name__}: a copy is needed")
        return tensor(data, dtype=dtype, device=device)
    result = array._to(device, dtype, False, builtins.bool(copy))
    if copy is False and result is not array:
        raise ValueError("can't alias arbitrary memory: another dtype or device needs a copy")
    return result


as_tensor = asarray


def from_numpy(array: Any) -> Array:
    """Returns an array on the host that shares the memory of a NumPy array."""
    if type(array).__module__.partition(".")[0] != "numpy" or not hasattr(array, "dtype"):
        raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
    return _compute._array_from_buffer(array)


def bernoulli(input: Array, *, generator: Any = None) -> Array:
    """Returns 1 with the probability that each element of `input` gives, otherwise 0."""
    numbers = _empty((input.shape,), _float32 if input.dtype.itemsize < 4 else input.dtype, input.device)
    return (numbers.uniform_(generator=generator) < input)._to(None, input.dtype, False, False)


def _legacy(args: tuple[Any, ...], kind: dtype, device: Any) -> Array:
    """What FloatTensor(*args) and its relatives return: sizes, a Size, or a sequence of values."""
    if not args:
        return _empty((0,), kind, device)
    if len(args) == 1 and isinstance(args[0], _Array):
        return args[0]._to(device, kind, False, False)
    if len(args) == 1 and not isinstance(args[0], (Size, builtins.int)):
        return _compute._array_from_data(args[0], kind, device, False)
    return _empty(args, kind, device)
