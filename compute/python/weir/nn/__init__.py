"""Parameters, and the functions of torch.nn.functional that need no gradients.

Weir computes no gradients, so a network that is trained needs PyTorch. What is here lets a program for torch.cuda draw
dropout masks from a device's generator, apply a layer under autocast, and read and write parameters.
"""

from __future__ import annotations

from math import sqrt

from weir.amp import Parameter
from weir.nn import _reduction, functional

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from weir.compute._array import Array

__all__ = ["Linear", "Parameter", "functional"]


class Linear:
    """y = x W^T + b, with `weight` and `bias` of a uniform distribution, as torch.nn.Linear begins.

    Args:
        in_features: the length of the rows of x.
        out_features: the length of those of y.
        bias: whether b is added; otherwise `bias` is None.
        device: where the parameters are; the host by default.
        dtype: their type, float32 by default.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        import weir

        def start(*shape: int) -> Parameter:
            bound = 1 / sqrt(in_features) if in_features else 0.0
            array = weir.empty(*shape, device=device or "cpu", dtype=dtype)
            return Parameter(array.uniform_(-bound, bound))

        self.in_features, self.out_features = in_features, out_features
        self.weight = start(out_features, in_features)
        self.bias = start(out_features) if bias else None

    def to(self, *args: Any, **kwargs: Any) -> Linear:
        """Moves or converts the parameters in place, as Array.to() does with an array. Returns the layer."""
        self.weight = Parameter(self.weight.to(*args, **kwargs))
        self.bias = None if self.bias is None else Parameter(self.bias.to(*args, **kwargs))
        return self

    def cuda(self, device: Any = None) -> Linear:
        """Moves the parameters to a device, by default the current one."""
        return self.to("cuda" if device is None else device)

    def __call__(self, input: Array) -> Array:
        """Returns y for a batch x."""
        result: Array = functional.linear(input, self.weight, self.bias)
        return result

    def __repr__(self) -> str:
        return f"Linear(in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None})"
