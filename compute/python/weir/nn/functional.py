"""Functions of torch.nn.functional, on arrays."""

from __future__ import annotations

from weir.amp import cast_policy
from weir.nn._reduction import get_enum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from weir.compute._array import Array

__all__ = ["avg_pool2d", "binary_cross_entropy", "dropout", "linear", "relu", "rrelu"]


def dropout(input: Array, p: float = 0.5, training: bool = True, inplace: bool = False) -> Array:
    """Sets elements to 0 with probability p, and divides the others by 1 - p.

    The mask comes from the default generator of the device; each replay of a captured graph draws a new one.

    Args:
        input: an array of floats.
        p: the probability.
        training: nothing is changed if this is false.
        inplace: whether the result replaces the input.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training:
        return input
    import weir

    mask = weir.empty_like(input).bernoulli_(1 - p)
    if p < 1:
        mask.mul_(1 / (1 - p))
    return input.mul_(mask) if inplace else input * mask


def rrelu(
    input: Array, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Array:
    """Multiplies elements up to 0 by factors in [lower, upper): random ones in training, otherwise their mean.

    Args:
        input: an array of floats.
        lower: the smallest factor.
        upper: the bound of the factors.
        training: whether the factors are drawn from the default generator of the device.
        inplace: whether the result replaces the input.
    """
    if lower > upper:
        raise RuntimeError(f"Lower bound should be less than or equal to the upper bound (got {lower} and {upper})")
    import weir

    slope = weir.empty_like(input).uniform_(lower, upper) if training else (lower + upper) / 2
    result = weir.where(input > 0, input, input * slope)
    return input.copy_(result) if inplace else result


def relu(input: Array, inplace: bool = False) -> Array:
    """Sets negative elements to 0."""
    result: Array = input.relu_() if inplace else input.relu()
    return result


@cast_policy("lower_precision_fp", "cpu")
@cast_policy("lower_precision_fp", "cuda")
def linear(input: Array, weight: Array, bias: Array | None = None) -> Array:
    """Returns input weight^T + bias. Autocast treats it as a matrix product."""
    rows = input.reshape(-1, input.shape[-1])
    product = rows.mm(weight.t())
    if bias is not None:
        product.add_(bias)
    result: Array = product.reshape(*input.shape[:-1], weight.shape[0])
    return result


_UNSAFE = (
    "weir.nn.functional.binary_cross_entropy is unsafe to autocast: half precision cannot represent what its logarithms "
    "need near 0 and 1. Leave the region for it, or compute it with weir.autocast('cuda', enabled=False)."
)


def binary_cross_entropy(
    input: Array, target: Array, weight: Array | None = None, reduction: str = "mean"
) -> Array:
    """Returns -(target log(input) + (1 - target) log(1 - input)), with logarithms of at least -100.

    Args:
        input: probabilities.
        target: numbers from 0 to 1, of the same shape.
        weight: factors of the elements.
        reduction: "mean", "sum", or "none" for all elements.
    """
    loss: Array = _cross_entropy(input, target, weight, get_enum(reduction))
    return loss


@cast_policy("banned", "cuda", message=_UNSAFE)
@cast_policy("banned", "cpu", message=_UNSAFE)
def _cross_entropy(input: Array, target: Array, weight: Array | None = None, reduction: int = 1) -> Array:
    if tuple(input.shape) != tuple(target.shape):
        raise ValueError(f"Using a target size ({target.shape}) that is different to the input size ({input.shape})")
    loss = -(target * input.log().clamp(min=-100) + (1 - target) * (1 - input).log().clamp(min=-100))
    if weight is not None:
        loss = loss * weight
    return loss.mean() if reduction == 1 else loss.sum() if reduction == 2 else loss


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def avg_pool2d(
    input: Array,
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, int] = 0,
) -> Array:
    """Returns the means of windows over the last two dimensions.

    Args:
        input: an array of three or four dimensions.
        kernel_size: height and width of a window, or one number for both.
        stride: from one window to the next; by default kernel_size.
        padding: zeros at either side, which count; at most half of kernel_size.
    """
    kernel, pad = _pair(kernel_size), _pair(padding)
    step = kernel if stride is None else _pair(stride)
    if input.dim() not in (3, 4):
        raise RuntimeError(f"Expected 3D or 4D (batch mode) tensor for input, but got an array of shape {input.shape}")
    if min(kernel) < 1 or min(step) < 1 or min(pad) < 0 or any(2 * p > k for p, k in zip(pad, kernel)):
        raise RuntimeError(f"expected a kernel and a stride of 1 or more, and a padding of at most half of the kernel "
                           f"(got {kernel}, {step} and {pad})")
    *outer, height, width = input.shape
    if max(pad):
        padded = input.new_zeros((*outer, height + 2 * pad[0], width + 2 * pad[1]))
        padded.narrow(-2, pad[0], height).narrow(-1, pad[1], width).copy_(input)
        input, height, width = padded, height + 2 * pad[0], width + 2 * pad[1]
    rows, columns = (height - kernel[0]) // step[0] + 1, (width - kernel[1]) // step[1] + 1
    if rows < 1 or columns < 1:
        raise RuntimeError(f"the windows {kernel} are larger than the input ({height}, {width})")
    *apart, down, right = input.stride()
    shape, strides = (*outer, rows, columns, *kernel), (*apart, down * step[0], right * step[1], down, right)
    return input.as_strided(shape, strides, input.storage_offset()).mean((-2, -1))
