"""Mixed precision: autocast and GradScaler, with the interface of torch.amp and torch.cuda.amp.

    import weir

    scaler = weir.amp.GradScaler()
    with weir.amp.autocast("cuda"):
        output = input @ weight                  # float16
    gradient = scaler.scale(loss_gradient(output))
    weight.grad = input.T @ gradient             # Weir has no autograd: the program computes its gradients
    scaler.step(optimizer)                       # divides weight.grad by the scale; skipped if it is not finite
    scaler.update()

An optimizer is any object with `param_groups`, a list of dicts whose "params" are objects with an attribute `grad`, an
Array or None, and with a method `step()`. weir.amp.Parameter is an array with such an attribute.

The classes serve both spellings of PyTorch. Calls in the way of torch.cuda.amp, which has no device type in front, are
deprecated as they are there.
"""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from collections import abc, defaultdict
from enum import Enum

import weir
from weir.compute import _compute
from weir.compute._array import Array
from weir.compute._compute import (
    _amp_foreach_non_finite_check_and_unscale_,
    _amp_update_scale_,
    _Array,
    _is_autocast_available,
    autocast_decrement_nesting,
    autocast_increment_nesting,
    clear_autocast_cache,
    get_autocast_dtype,
    is_autocast_cache_enabled,
    is_autocast_enabled,
    set_autocast_cache_enabled,
    set_autocast_dtype,
    set_autocast_enabled,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal

__all__ = [
    "GradScaler",
    "OptState",
    "Parameter",
    "amp_definitely_not_available",
    "autocast",
    "autocast_decorator",
    "cast_policy",
    "is_autocast_available",
]


def amp_definitely_not_available() -> bool:
    """Whether there is no device."""
    return not weir.is_available()


def is_autocast_available(device_type: str) -> bool:
    """Whether autocast exists for a type of device: "cuda" and "cpu"."""
    return _is_autocast_available(device_type)


def _deprecated(name: str) -> None:
    warnings.warn(
        f"`weir.amp.{name}(args...)` is deprecated. Please use `weir.amp.{name}('cuda', args...)` instead.",
        FutureWarning,
        stacklevel=3,
    )


# ---- Parameters ----


class Parameter(Array):
    """An array that an optimizer updates, with its gradient in `grad`. As torch.nn.Parameter, without autograd.

    The elements are those of the given array. Casts of a Parameter in an autocast region are cached, so it must not be
    changed between its first and its last use in a region.
    """

    __slots__ = {"grad": "The gradient: an Array, or None."}
    grad: Any

    def __new__(cls, data: Any) -> Parameter:
        if not isinstance(data, _Array):
            raise TypeError(f"expected an Array (got {type(data).__name__})")
        array: Any = data
        parameter: Parameter = _compute._array_alias(cls, array)
        parameter.grad = None
        return parameter

    @property
    def data(self) -> Array:
        """The elements as a plain array."""
        array: Array = _compute._array_alias(Array, self)
        return array

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self), (self.data,)

    def __repr__(self) -> str:
        return f"Parameter containing:\n{self.data!r}"


_compute._set_parameter_class(Parameter)


# ---- Autocast ----


def autocast_decorator(autocast_instance: autocast, func: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that it runs in a region."""

    @functools.wraps(func)
    def decorate_autocast(*args: Any, **kwargs: Any) -> Any:
        with autocast_instance:
            return func(*args, **kwargs)

    return decorate_autocast


class _Outer(threading.local):
    """The states to which the thread returns at the end of each region that it is in."""

    def __init__(self) -> None:
        self.states: list[tuple[bool, Any, bool]] = []


_outer = _Outer()


def _arguments_of_cuda_amp(
    enabled: bool = True, dtype: Any = _compute.float16, cache_enabled: bool = True
) -> dict[str, Any]:
    return {"device_type": "cuda", "dtype": dtype, "enabled": enabled, "cache_enabled": cache_enabled}


class autocast:
    """A context manager or decorator in which operations of the thread run in a type that is chosen for each of them.

    Matrix products run in `dtype`; operations that need the range or the digits of float32, such as exp(), pow() and
    sum(), run in that; others run in the widest type of their arrays. Only arrays on that type of device are cast, and
    no float64, integer or complex array is. Operations in place are not changed.

    Regions nest, and enabled=False switches autocast off within one.

    The arguments are (device_type, dtype=None, enabled=True, cache_enabled=None).

    Args:
        device_type: "cuda" or "cpu". Without it, the call is that of torch.cuda.amp.autocast: it is deprecated.
        dtype: float16 or bfloat16; by default get_autocast_dtype(), which is float16 for "cuda" and bfloat16 for "cpu".
        enabled: whether anything is cast.
        cache_enabled: whether casts of Parameters are kept until the outermost region ends.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        if isinstance(args[0], bool) if args else "device_type" not in keywords:
            _deprecated("autocast")
            args, keywords = (), _arguments_of_cuda_amp(*args, **keywords)
        self._set_up(*args, **keywords)

    def _set_up(
        self, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        if not isinstance(device_type, str):
            raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
        if not is_autocast_available(device_type):
            raise RuntimeError(f"User specified an unsupported autocast device_type '{device_type}'")
        self.device = device_type
        self.fast_dtype = get_autocast_dtype(device_type) if dtype is None else _compute._as_dtype(dtype)
        self._cache_enabled = is_autocast_cache_enabled() if cache_enabled is None else bool(cache_enabled)
        self._enabled = bool(enabled) and self._can_be_enabled()

    def _can_be_enabled(self) -> bool:
        supported = [_compute.bfloat16, _compute.float16]
        name = self.device.upper()
        if self.device == "cuda":
            if amp_definitely_not_available():
                warnings.warn(
                    "CUDA is not available or torch_xla is imported. Disabling autocast.", UserWarning, stacklevel=4
                )
                return False
            if self.fast_dtype is _compute.bfloat16 and not weir.is_bf16_supported():
                raise RuntimeError(
                    "Current CUDA Device does not support bfloat16. Please switch dtype to float16."
                )
            if self.fast_dtype is _compute.float32:  # PyTorch allows it
                return True
        if self.fast_dtype not in supported:
            warnings.warn(
                f"In {name} autocast, but the target dtype is not supported. Disabling autocast.\n"
                f"{name} Autocast only supports dtypes of " + ", ".join(map(str, supported)) + " currently.",
                UserWarning,
                stacklevel=4,
            )
            return False
        return True

    def __enter__(self) -> autocast:
        _outer.states.append(
            (is_autocast_enabled(self.device), get_autocast_dtype(self.device), is_autocast_cache_enabled())
        )
        set_autocast_enabled(self.device, self._enabled)
        set_autocast_dtype(self.device, self.fast_dtype)
        autocast_increment_nesting()
        set_autocast_cache_enabled(self._cache_enabled)
        return self

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> Literal[False]:
        if autocast_decrement_nesting() == 0:
            clear_autocast_cache()
        enabled, dtype, cache_enabled = _outer.states.pop()
        set_autocast_enabled(self.device, enabled)
        set_autocast_dtype(self.device, dtype)
        set_autocast_cache_enabled(cache_enabled)
        return False

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return autocast_decorator(self, func)


# ---- Policies for functions of the program ----

_POLICIES = ("lower_precision_fp", "fp32", "promote", "banned")


def _arrays_in(value: Any) -> Any:
    """The arrays in nested lists, tuples and dicts."""
    if isinstance(value, _Array):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _arrays_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _arrays_in(item)


def _cast(value: Any, device_type: str, dtype: Any) -> Any:
    """Casts arrays in nested lists, tuples and dicts, if autocast may."""
    if isinstance(value, _Array):
        array: Any = value
        return _compute._autocast_cast(array, device_type, dtype)
    if isinstance(value, dict):
        return {key: _cast(item, device_type, dtype) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(item, device_type, dtype) for item in value)
    return value


def _widest(arrays: Any, device_type: str) -> Any:
    lower = widest = get_autocast_dtype(device_type)
    for array in arrays:
        kind = array.dtype
        if array.device.type != device_type or not kind.is_floating_point or kind is _compute.float64:
            continue
        if _compute.float32 in (kind, widest):
            widest = _compute.float32
        elif kind is not lower:
            raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
    return widest


def cast_policy(
    policy: str, device_type: str = "cuda", *, message: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function of the program one that autocast treats as a single operation.

    In a region of that type of device, the arrays among its arguments are cast, and the function runs with autocast
    switched off.

    Args:
        policy: "lower_precision_fp" casts to the dtype of the region, "fp32" to float32, "promote" to the widest type
            of the arguments; "banned" raises RuntimeError.
        device_type: "cuda" or "cpu".
        message: the text of the error of a banned function.
    """
    if policy not in _POLICIES:
        raise ValueError(f"expected a policy of {', '.join(_POLICIES)}, got '{policy}'")
    if not is_autocast_available(device_type):
        raise RuntimeError(f"User specified an unsupported autocast device_type '{device_type}'")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_policy(*args: Any, **kwargs: Any) -> Any:
            if not is_autocast_enabled(device_type):
                return function(*args, **kwargs)
            arrays = [array for array in _arrays_in((args, kwargs)) if array.device.type == device_type]
            if not arrays:
                return function(*args, **kwargs)
            if policy == "banned":
                raise RuntimeError(message or f"{function.__qualname__} is unsafe to autocast.")
            if policy == "promote":
                dtype = _widest(arrays, device_type)
            else:
                dtype = _compute.float32 if policy == "fp32" else get_autocast_dtype(device_type)
            args, kwargs = _cast(args, device_type, dtype), _cast(kwargs, device_type, dtype)
            set_autocast_enabled(device_type, False)
            try:
                return function(*args, **kwargs)
            finally:
                set_autocast_enabled(device_type, True)

        return with_policy

    return decorate


# ---- Gradient scaling ----


class _MultiDeviceReplicator:
    """Copies of an array on the devices that ask for it."""

    def __init__(self, master_tensor: Array) -> None:
        self.master = master_tensor
        self._per_device_tensors: dict[Any, Array] = {}

    def get(self, device: Any) -> Array:
        """Returns the copy on a device, which is made at the first call."""
        copy = self._per_device_tensors.get(device)
        if copy is None:
            copy = self._per_device_tensors[device] = self.master.to(device=device, non_blocking=True, copy=True)
        return copy


class OptState(Enum):
    """What has been done with the gradients of an optimizer since the last update()."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


def _refresh_per_optimizer_state() -> dict[str, Any]:
    return {"stage": OptState.READY, "found_inf_per_device": {}}


class GradScaler:
    """Multiplies a loss by a scale, divides the gradients by it, and adjusts it. As torch.amp.GradScaler.

    If a gradient is infinite or NaN, step() skips the optimizer's step, and update() multiplies the scale by
    backoff_factor. After growth_interval steps without such a gradient, update() multiplies it by growth_factor.

    Args:
        device: the type of the devices, "cuda" or "cpu". GradScaler(init_scale, ...), the spelling of
            torch.cuda.amp.GradScaler, is deprecated.
        init_scale: the first scale.
        growth_factor: by which the scale grows; more than 1.
        backoff_factor: by which it is reduced; less than 1.
        growth_interval: steps in a row without infinite gradients until it grows.
        enabled: if False, scale() returns its argument, step() calls optimizer.step(), and the rest does nothing.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        if args and isinstance(args[0], (int, float)):
            _deprecated("GradScaler")
            args = ("cuda", *args)
        self._set_up(*args, **keywords)

    def _set_up(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self._device = device
        self._enabled = enabled
        if device == "cuda" and enabled and amp_definitely_not_available():
            warnings.warn(
                "weir.amp.GradScaler is enabled, but CUDA is not available.  Disabling.", UserWarning, stacklevel=3
            )
            self._enabled = False
        if self._enabled:
            if growth_factor <= 1.0:
                raise AssertionError("The growth factor must be > 1.0.")
            if backoff_factor >= 1.0:
                raise AssertionError("The backoff factor must be < 1.0.")
            self._init_scale = init_scale
            self._scale: Array | None = None  # made by the first scale(), on the device of its argument
            self._growth_factor = growth_factor
            self._backoff_factor = backoff_factor
            self._growth_interval = growth_interval
            self._init_growth_tracker = 0
            self._growth_tracker: Array | None = None
            self._per_optimizer_states: dict[int, dict[str, Any]] = defaultdict(_refresh_per_optimizer_state)

    def _check_scale_growth_tracker(self, funcname: str) -> tuple[Array, Array]:
        fix = "This may indicate your script did not use scaler.scale(loss or outputs) earlier in the iteration."
        if self._scale is None:
            raise AssertionError(f"Attempted {funcname} but _scale is None.  " + fix)
        if self._growth_tracker is None:
            raise AssertionError(f"Attempted {funcname} but _growth_tracker is None.  " + fix)
        return self._scale, self._growth_tracker

    def _lazy_init_scale_growth_tracker(self, dev: Any) -> None:
        if self._growth_tracker is not None:
            raise AssertionError("_growth_tracker initialized before _scale")
        self._scale = weir.full((), self._init_scale, dtype=_compute.float32, device=dev)
        self._growth_tracker = weir.full((), self._init_growth_tracker, dtype=_compute.int32, device=dev)

    def scale(self, outputs: Any) -> Any:
        """Multiplies an array, or the arrays of nested lists, tuples and iterables, by the scale.

        Lists and tuples keep their type; other iterables become an iterator.
        """
        if not self._enabled:
            return outputs
        copies: _MultiDeviceReplicator | None = None

        def apply_scale(value: Any) -> Any:
            nonlocal copies
            if isinstance(value, _Array):
                if self._scale is None:
                    self._lazy_init_scale_growth_tracker(value.device)
                scale: Any = self._scale
                if value is outputs:
                    return value * scale.to(device=value.device, non_blocking=True)
                if copies is None:
                    copies = _MultiDeviceReplicator(scale)
                return value * copies.get(value.device)
            if isinstance(value, abc.Iterable):
                scaled = map(apply_scale, value)
                return type(value)(scaled) if isinstance(value, (list, tuple)) else scaled
            raise ValueError("outputs must be a Tensor or an iterable of Tensors")

        return apply_scale(outputs)

    def _unscale_grads_(
        self, optimizer: Any, inv_scale: Array, found_inf: Array, allow_fp16: bool
    ) -> dict[Any, Array]:
        per_device_inv_scale = _MultiDeviceReplicator(inv_scale)
        per_device_found_inf = _MultiDeviceReplicator(found_inf)
        per_device_grads: dict[Any, list[Array]] = defaultdict(list)
        for group in optimizer.param_groups:
            for param in group["params"]:
                if not hasattr(param, "grad"):
                    raise AssertionError(f"expected param to have an attribute grad, got {type(param).__name__}")
                grad = param.grad
                if grad is None:
                    continue
                if not allow_fp16 and grad.dtype is _compute.float16:
                    raise ValueError("Attempting to unscale FP16 gradients.")
                per_device_grads[grad.device].append(grad)
        # All types of a device are done together.
        for device, grads in per_device_grads.items():
            _amp_foreach_non_finite_check_and_unscale_(
                grads, per_device_found_inf.get(device), per_device_inv_scale.get(device)
            )
        return per_device_found_inf._per_device_tensors

    def unscale_(self, optimizer: Any) -> None:
        """Divides the gradients of an optimizer by the scale, before the program clips or inspects them.

        May be called once between two updates, when the gradients are complete. Does not wait for the device.
        """
        if not self._enabled:
            return
        scale, _ = self._check_scale_growth_tracker("unscale_")
        optimizer_state = self._per_optimizer_states[id(optimizer)]
        if optimizer_state["stage"] is OptState.UNSCALED:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        if optimizer_state["stage"] is OptState.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        # The reciprocal is computed in float64 and rounded once.
        inv_scale = scale.double().reciprocal().float()
        found_inf = weir.full((), 0.0, dtype=_compute.float32, device=scale.device)
        optimizer_state["found_inf_per_device"] = self._unscale_grads_(optimizer, inv_scale, found_inf, False)
        optimizer_state["stage"] = OptState.UNSCALED

    def _maybe_opt_step(self, optimizer: Any, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if sum(found.item() for found in optimizer_state["found_inf_per_device"].values()):
            return None
        return optimizer.step(*args, **kwargs)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Divides the gradients by the scale, unless unscale_() has done so, and calls optimizer.step(*args, **kwargs)
        if all of them are finite. Returns what that returns, or None.

        An optimizer whose attribute `_step_supports_amp_scaling` is true does both itself: it is called always, with
        the scale in its attribute `grad_scale` and whether a gradient is not finite in `found_inf`, two arrays.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        self._check_scale_growth_tracker("step")
        optimizer_state = self._per_optimizer_states[id(optimizer)]
        if optimizer_state["stage"] is OptState.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            return self._step_that_scales(optimizer, optimizer_state, args, kwargs)
        if optimizer_state["stage"] is OptState.READY:
            self.unscale_(optimizer)
        if not optimizer_state["found_inf_per_device"]:
            raise AssertionError("No inf checks were recorded for this optimizer.")
        result = self._maybe_opt_step(optimizer, optimizer_state, *args, **kwargs)
        optimizer_state["stage"] = OptState.STEPPED
        return result

    def _step_that_scales(self, optimizer: Any, optimizer_state: dict[str, Any], args: Any, kwargs: Any) -> Any:
        """The step of an optimizer that divides by the scale and skips the step itself."""
        passes_itself = "grad_scaler" in inspect.signature(optimizer.step).parameters
        if passes_itself:
            warnings.warn(
                "GradScaler is going to stop passing itself as a keyword argument to the passed "
                "optimizer. In the near future GradScaler registers `grad_scale: Tensor` and "
                "`found_inf: Tensor` to the passed optimizer and let the optimizer use them directly.",
                FutureWarning,
                stacklevel=3,
            )
            kwargs["grad_scaler"] = self
        else:
            if optimizer_state["stage"] is OptState.READY:
                self._check_inf_per_device(optimizer)
            scale = self._get_scale_async()
            if scale is None:
                raise AssertionError("_get_scale_async returned None")
            found_inf = sum(
                found.to(scale.device, non_blocking=True)
                for found in optimizer_state["found_inf_per_device"].values()
            )
            # A grad_scale that the program has set is multiplied with the scale.
            if optimizer_state["stage"] is OptState.UNSCALED:
                optimizer.grad_scale = getattr(optimizer, "grad_scale", None)
            else:
                optimizer.grad_scale = scale * getattr(optimizer, "grad_scale", 1)
            optimizer.found_inf = found_inf
        result = optimizer.step(*args, **kwargs)
        optimizer_state["stage"] = OptState.STEPPED
        if not passes_itself:
            del optimizer.grad_scale
            del optimizer.found_inf
        return result

    def update(self, new_scale: Any = None) -> None:
        """Adjusts the scale, on the device, after the steps of all optimizers; or sets it to a float or an array."""
        if not self._enabled:
            return
        scale, growth_tracker = self._check_scale_growth_tracker("update")
        if new_scale is not None:
            if isinstance(new_scale, float):
                scale.fill_(new_scale)
            else:
                reason = (
                    "new_scale should be a float or a 1-element weir.FloatTensor or weir.cpu.FloatTensor on the "
                    "type of device of the scaler."
                )
                if not isinstance(new_scale, _Array) or new_scale.device.type != self._device:
                    raise AssertionError(reason)
                if new_scale.numel() != 1:
                    raise AssertionError(reason)
                scale.copy_(new_scale.reshape(()))
        else:
            found_infs = [
                found_inf.to(device=scale.device, non_blocking=True)
                for state in self._per_optimizer_states.values()
                for found_inf in state["found_inf_per_device"].values()
            ]
            if not found_infs:
                raise AssertionError("No inf checks were recorded prior to update.")
            combined = found_infs[0]
            for found_inf in found_infs[1:]:
                combined += found_inf
            _amp_update_scale_(
                scale, growth_tracker, combined, self._growth_factor, self._backoff_factor, self._growth_interval
            )
        self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)

    def _get_scale_async(self) -> Array | None:
        return self._scale

    def get_scale(self) -> float:
        """Returns the scale, or 1.0 if the scaler is disabled. Waits for the device."""
        if not self._enabled:
            return 1.0
        return self._init_scale if self._scale is None else float(self._scale.item())

    def get_growth_factor(self) -> float:
        """Returns the growth factor."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Sets the growth factor."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """Returns the backoff factor."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Sets the backoff factor."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """Returns the growth interval."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Sets the growth interval."""
        self._growth_interval = new_interval

    def _get_growth_tracker(self) -> int:
        if not self._enabled:
            return 0
        return self._init_growth_tracker if self._growth_tracker is None else int(self._growth_tracker.item())

    def is_enabled(self) -> bool:
        """Whether the scaler does anything."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """Returns the scale, the factors, the interval and the count of steps; {} if the scaler is disabled. Waits."""
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._get_growth_tracker(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replaces the state by one that state_dict() returned. Those of PyTorch are the same."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved "
                "from a disabled instance of GradScaler."
            )
        self._init_scale = state_dict["scale"]
        if self._scale is not None:
            self._scale.fill_(state_dict["scale"])
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        self._init_growth_tracker = state_dict["_growth_tracker"]
        if self._growth_tracker is not None:
            self._growth_tracker.fill_(state_dict["_growth_tracker"])

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if self._enabled:
            if self._per_optimizer_states:
                raise AssertionError(
                    "A GradScaler instance may only be pickled at the beginning "
                    "of an iteration, or at the end after scaler.update()."
                )
            # The copy makes its arrays when they are needed, on a device of its own process.
            state["_init_scale"] = self.get_scale()
            state["_init_growth_tracker"] = self._get_growth_tracker()
            state["_scale"] = None
            state["_growth_tracker"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def _check_inf_per_device(self, optimizer: Any) -> dict[Any, Array]:
        scale, _ = self._check_scale_growth_tracker("_check_inf_per_device")
        one = weir.full((), 1.0, dtype=_compute.float32, device=scale.device)
        found_inf = weir.full((), 0.0, dtype=_compute.float32, device=scale.device)
        state = self._per_optimizer_states[id(optimizer)]
        found = self._unscale_grads_(optimizer, one, found_inf, True)
        state["found_inf_per_device"] = found
        return found

    def _found_inf_per_device(self, optimizer: Any) -> dict[Any, Array]:
        found: dict[Any, Array] = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        return found
