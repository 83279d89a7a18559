"""Elementwise functions from C++ source, as torch.cuda.jiterator has them.

    from weir.jiterator import _create_jit_fn

    code = "template <typename T> T scaled_sum(T x, T y, T alpha) { return x + alpha * y; }"
    scaled_sum = _create_jit_fn(code, alpha=1.0)
    z = scaled_sum(x, y, alpha=3.14)

The arrays are on one device. They may have different types, shapes that broadcast, and any strides. The function is
compiled for the types when it is first called with them.
"""

from __future__ import annotations

from weir.compute import _compute

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from weir.compute._compute import _JittedFunction

__all__: list[str] = []


def _create(code_string: str, return_by_ref: bool, num_outputs: int, scalars: dict[str, Any]) -> _JittedFunction:
    from weir import kernel

    kernel._add_folders()
    try:
        return _compute._jit_create(code_string, return_by_ref, num_outputs, scalars)
    except RuntimeError as error:
        if "Couldn't parse code" in str(error):
            raise Exception(f"Couldn't parse code, please check correctness:\n {code_string}") from None
        raise


def _create_jit_fn(code_string: str, **kwargs: Any) -> _JittedFunction:
    """Makes an elementwise function of up to 8 arrays that returns one array.

    Args:
        code_string: a C++ function template that returns the result for one element. Of several functions, the last
            one is called. Its parameters are the inputs, then those of kwargs.
        kwargs: the default values of scalar parameters, which calls can replace by keyword.
    """
    return _create(code_string, False, 1, kwargs)


def _create_multi_output_jit_fn(code_string: str, num_outputs: int, **kwargs: Any) -> _JittedFunction:
    """Makes an elementwise function of up to 8 arrays that returns up to 8 arrays.

    Args:
        code_string: a C++ function template that returns nothing, and whose last parameters are references to the
            results for one element.
        num_outputs: the number of results.
        kwargs: the default values of scalar parameters, which calls can replace by keyword.
    """
    return _create(code_string, True, num_outputs, kwargs)
