"""Tunable operations, as torch.cuda.tunable has them: the fastest implementation is found by timing, and remembered.

    import weir
    from weir import tunable

    tunable.enable()
    tunable.set_filename("results.csv")
    a = weir.rand(256, 256, device="cuda")
    b = a @ a                       # times the implementations of this product, then runs the fastest
    c = a @ a                       # runs it at once
    for op, params, solution, milliseconds in tunable.get_results():
        print(op, params, solution, milliseconds)

Matrix products are tuned. Results belong to a device: functions that have to do with results or files mean those of the
current device. Environment variables take precedence, as in PyTorch; compute/docs/tunable.md lists them.
"""

from __future__ import annotations

from weir import _weir
from weir.compute import _compute

TYPE_CHECKING = False
if TYPE_CHECKING:
    from weir import Array

__all__ = [
    "enable",
    "get_filename",
    "get_max_tuning_duration",
    "get_max_tuning_iterations",
    "get_results",
    "get_rotating_buffer_size",
    "get_validators",
    "is_enabled",
    "mgpu_tune_gemm_in_file",
    "read_file",
    "record_untuned_enable",
    "record_untuned_is_enabled",
    "set_filename",
    "set_max_tuning_duration",
    "set_max_tuning_iterations",
    "set_numerical_check_tolerances",
    "set_rotating_buffer_size",
    "tune_gemm_in_file",
    "tuning_enable",
    "tuning_is_enabled",
    "write_file",
    "write_file_on_exit",
]


def enable(val: bool = True) -> None:
    """Turns tunable operations on or off."""
    _compute._cuda_tunableop_enable(val)


def is_enabled() -> bool:
    """Returns whether tunable operations are on."""
    return _compute._cuda_tunableop_is_enabled()


def tuning_enable(val: bool = True) -> None:
    """Turns the search for the fastest implementation on or off. Known results are used in any case."""
    _compute._cuda_tunableop_tuning_enable(val)


def tuning_is_enabled() -> bool:
    """Returns whether operations that have no result are tuned."""
    return _compute._cuda_tunableop_tuning_is_enabled()


def record_untuned_enable(val: bool = True) -> None:
    """While tuning is off, writes operations that have no result to a file, for tune_gemm_in_file."""
    _compute._cuda_record_untuned_enable(val)


def record_untuned_is_enabled() -> bool:
    """Returns whether operations that have no result are written to a file."""
    return _compute._cuda_record_untuned_is_enabled()


def set_max_tuning_duration(duration: int) -> None:
    """Sets how many milliseconds an implementation is timed. The lower of this and the number of iterations counts."""
    _compute._cuda_tunableop_set_max_tuning_duration(duration)


def get_max_tuning_duration() -> int:
    """Returns how many milliseconds an implementation is timed."""
    return _compute._cuda_tunableop_get_max_tuning_duration()


def set_max_tuning_iterations(iterations: int) -> None:
    """Sets how often an implementation is timed. It is timed once at least."""
    _compute._cuda_tunableop_set_max_tuning_iterations(iterations)


def get_max_tuning_iterations() -> int:
    """Returns how often an implementation is timed."""
    return _compute._cuda_tunableop_get_max_tuning_iterations()


def set_filename(filename: str, insert_device_ordinal: bool = False) -> None:
    """Sets the file of results; "" selects the default.

    With insert_device_ordinal, the number of the device replaces the first "%d", or stands before the last dot.
    """
    _compute._cuda_tunableop_set_filename(filename, insert_device_ordinal)


def get_filename() -> str:
    """Returns the name of the file of results."""
    return _compute._cuda_tunableop_get_filename()


def get_results() -> tuple[tuple[str, str, str, float], ...]:
    """Returns operation, parameters, solution and milliseconds of each result."""
    return _compute._cuda_tunableop_get_results()


def get_validators() -> tuple[tuple[str, str], ...]:
    """Returns under which circumstances results are valid, as pairs of a key and a value."""
    return _compute._cuda_tunableop_get_validators()


def read_file(filename: str | None = None) -> bool:
    """Adds the results of a file. Returns False if it does not exist, or, with a warning, if it is stale or damaged."""
    return _compute._cuda_tunableop_read_file(get_filename() if filename is None else filename)


def write_file(filename: str | None = None) -> bool:
    """Writes all results to a file. Returns False, with a warning, if it cannot be written.

    Without a name it is the file of get_filename(), where results of other processes are kept; another file is replaced.
    """
    return _compute._cuda_tunableop_write_file() if filename is None else _compute._cuda_tunableop_write_file(filename)


def write_file_on_exit(val: bool) -> None:
    """Sets whether new results are written to the file. They are written at once, so that a crash loses none."""
    _compute._cuda_tunableop_write_file_on_exit(val)


def set_rotating_buffer_size(buffer_size: int) -> None:
    """Sets the size in MiB of the memory that an operation rotates over while it is timed.

    It keeps the operands out of the L2 cache, whose size a negative value selects. 0 turns rotation off.
    """
    _compute._cuda_tunableop_set_rotating_buffer_size(buffer_size)


def get_rotating_buffer_size() -> int:
    """Returns the size in KiB of the memory that an operation rotates over while it is timed."""
    return _compute._cuda_tunableop_get_rotating_buffer_size()


def set_numerical_check_tolerances(enable: bool, atol: float = 1e-5, rtol: float = 1e-5) -> None:
    """Sets whether implementations are compared with the default one, and by how much they may differ."""
    _compute._cuda_tunableop_set_numerical_check_tolerances(enable, atol, rtol)


# ---- Recorded operations ----


class _Skipped(Exception):
    """A line that cannot be tuned."""


def _matrix(rows: int, columns: int, leading: int, transposed: bool, batch: int, dtype: _compute.dtype, at: str) -> Array:
    """Makes a matrix of random numbers, stored by rows or, if it is transposed, by columns."""
    import weir

    outer, inner = (columns, rows) if transposed else (rows, columns)
    if leading < inner:
        raise _Skipped("a leading dimension is too small")
    shape = (outer, leading) if batch < 0 else (batch, outer, leading)
    made = weir.rand(*shape, device=at, dtype=weir.float64 if dtype in (weir.float64, weir.complex128) else None)
    made = made.to(dtype=dtype)[..., :inner]
    return made.transpose(-1, -2) if transposed else made


def _tune_line(line: str, device: int) -> None:
    """Tunes the product that a line of a file of untuned operations describes."""
    import weir

    types = {
        "float": weir.float32,
        "tf32": weir.float32,
        "double": weir.float64,
        "BFloat16": weir.bfloat16,
        "Half": weir.float16,
        "c10::complex<float>": weir.complex64,
        "c10::complex<double>": weir.complex128,
    }
    op, params = (line.strip().split(",") + [""])[:2]
    try:
        kind, type_name, _ = op.split("_")
        fields = params.split("_")
        batch = -1
        if kind == "GemmStridedBatchedTunableOp":
            if fields[4] != "B":
                raise ValueError
            batch = int(fields[5])
            del fields[4:6]
        elif kind != "GemmTunableOp":
            raise _Skipped(f"{kind} is not implemented")
        if fields[4] != "ld" or len(fields) != 8 or fields[0] not in ("nn", "nt", "tn", "tt"):
            raise ValueError
        m, n, k, lda, ldb, _ = (int(field) for field in fields[1:4] + fields[5:])
        if min(m, n, k) < 1 or batch == 0:
            raise ValueError
        dtype = types[type_name]
        # cuBLAS has columns where an Array has rows, so its factors are in the opposite order.
        second = _matrix(k, m, lda, fields[0][0] == "t", batch, dtype, f"cuda:{device}")
        first = _matrix(n, k, ldb, fields[0][1] == "t", batch, dtype, f"cuda:{device}")
    except (ValueError, KeyError, IndexError, OverflowError):
        raise _Skipped("the line is damaged") from None
    with weir.device(device):
        first @ second
        if not any((op, params) == result[:2] for result in get_results()):
            raise _Skipped("Weir makes this product with other parameters")


def _tune_lines(lines: list[str], device: int) -> list[str]:
    """Tunes the products of several lines; returns what is wrong with those that were skipped."""
    from weir import OutOfMemoryError

    problems = []
    for line in lines:
        problem = ""
        try:
            _tune_line(line, device)
        except _Skipped as reason:
            problem = str(reason)
        except OutOfMemoryError:
            problem = f"cuda:{device} has too little memory"
        if problem:
            problems.append(f"{line.strip()!r} is not tuned: {problem}")
    return problems


def _tune(lines: list[str], devices: list[int]) -> None:
    """Tunes each line on one of the devices, all of which work at the same time."""
    import warnings
    from concurrent.futures import ThreadPoolExecutor

    problems = []
    before = _compute._get_cublas_allow_tf32()
    try:
        for is_tf32 in (False, True):
            some = [line for line in lines if ("_tf32_" in line) is is_tf32]
            if not some:
                continue
            _compute._set_cublas_allow_tf32(is_tf32)
            shares = [some[i :: len(devices)] for i in range(len(devices))]
            with ThreadPoolExecutor(len(devices)) as pool:
                for found in pool.map(_tune_lines, shares, devices):
                    problems += found
    finally:
        _compute._set_cublas_allow_tf32(before)
    for problem in problems:
        warnings.warn(problem, stacklevel=3)


def _lines_of(path: str) -> list[str]:
    with open(path, encoding="utf-8", errors="replace") as file:
        return [line for line in file if line.startswith(("Gemm", "ScaledGemm"))]


def _check_enabled() -> None:
    if not is_enabled():
        raise AssertionError("TunableOp is not enabled")
    if not tuning_is_enabled():
        raise AssertionError("Tuning is not enabled")


def tune_gemm_in_file(filename: str) -> None:
    """Tunes the matrix products of a file that was written with record_untuned_enable, by Weir or by PyTorch.

    Lines that cannot be tuned, such as those of scaled products, are skipped with a warning.
    """
    _check_enabled()
    _tune(_lines_of(filename), [_weir._current_device()])


def mgpu_tune_gemm_in_file(filename_pattern: str, num_gpus: int) -> None:
    """Tunes the matrix products of all files that match a pattern, on several devices at the same time.

    The results of all devices are gathered in files like those of get_filename(), with "_full0" and so on in the
    place of the number of the device.
    """
    import glob
    import os

    import weir

    _check_enabled()
    if not 1 <= num_gpus <= weir.device_count():
        raise AssertionError(f"num_gpus must be between 1 and {weir.device_count()}, got {num_gpus}")
    lines = dict.fromkeys(line for path in sorted(glob.glob(filename_pattern)) for line in _lines_of(path))
    _tune(list(lines), list(range(num_gpus)))
    names: list[str] = []
    rows: dict[tuple[str, str], str] = {}
    validators = ""
    for device in range(num_gpus):
        with weir.device(device):
            names.append(get_filename())
            write_file()
            if device == 0:
                validators = "".join(f"Validator,{key},{value}\n" for key, value in get_validators())
            for op, params, solution, time in get_results():
                rows.setdefault((op, params), f"{op},{params},{solution},{time:.6f}\n")
    for device, name in enumerate(names):
        folder, name = os.path.split(name)  # the name of a folder may have a number or a dot as well
        start, number, end = name.rpartition(str(device))
        base, dot, extension = name.rpartition(".")
        if number:
            full = f"{start}_full{device}{end}"
        else:
            full = f"{base}_full{device}.{extension}" if dot else f"{name}_full{device}"
        with open(os.path.join(folder, full), "w", encoding="utf-8") as file:
            file.write(validators + "".join(rows.values()))
