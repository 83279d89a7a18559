"""Weir's random fills make PyTorch's numbers on the same GPU: equal bits, and an equal state of the generator after.

Needs libweir_compute.so, which is looked for in WEIR_COMPUTE_BUILD (default: build/debug, then build). PyTorch keeps its
own allocator here.
"""
import ctypes
import os

import harness
from harness import Waived, equal

SIZES = (1, 255, 257, 4097, 1 << 20, 64 << 20)


class Stream(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int64), ("device", ctypes.c_int32), ("device_type", ctypes.c_int32)]


class Weir:
    """The functions of libweir_compute that the tests use."""

    DTYPES = {"uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7,
              "bool": 11, "bfloat16": 15}

    def __init__(self):
        root = os.path.dirname(os.path.dirname(os.path.dirname(harness.HERE)))
        given = os.environ.get("WEIR_COMPUTE_BUILD")
        folders = [given] if given else [os.path.join(root, "build", "debug"), os.path.join(root, "build")]
        paths = [os.path.join(folder, "libweir_compute.so") for folder in folders]
        found = next((path for path in paths if os.path.exists(path)), None)
        if found is None:
            raise Waived(f"{paths[0]} does not exist")
        self.library = ctypes.CDLL(found)
        self.library.weir_last_error.restype = ctypes.c_char_p
        self.generator = ctypes.c_void_p()
        self.call("weir_generator_create", ctypes.c_int(0), ctypes.byref(self.generator))

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        assert status == 0, f"{name}: {self.library.weir_last_error().decode()}"

    def set_state(self, state):
        self.call("weir_generator_set_state", self.generator, ctypes.c_char_p(bytes(state)), ctypes.c_size_t(16))

    def state(self):
        state = (ctypes.c_ubyte * 16)()
        self.call("weir_generator_get_state", self.generator, state)
        return bytes(state)

    def fill(self, name, tensor, *numbers):
        import torch

        stream = Stream()
        raw = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.call("weir_stream_external", ctypes.c_int(0), raw, ctypes.byref(stream))
        dtype = self.DTYPES[str(tensor.dtype).split(".")[-1]]
        self.call(name, self.generator, ctypes.c_void_p(tensor.data_ptr()), ctypes.c_uint64(tensor.numel()),
                  ctypes.c_int(dtype), *numbers, stream)


WEIR = []


def weir():
    import torch

    if not torch.cuda.is_available():
        raise Waived("there is no GPU")
    if not WEIR:
        torch.cuda.init()
        WEIR.append(Weir())
    return WEIR[0]


def compare(name, dtype, of_torch, *numbers, sizes=SIZES):
    """Fills with PyTorch, and from the same state with Weir."""
    import torch

    with_weir = weir()
    for size in sizes:
        torch.cuda.manual_seed(1234)
        torch.empty(1000, device="cuda").uniform_()  # an offset other than 0
        before = torch.cuda.get_rng_state()
        expected = of_torch(torch.empty(size, dtype=getattr(torch, dtype), device="cuda"))
        after = bytes(torch.cuda.get_rng_state())
        with_weir.set_state(before.numpy().tobytes())
        found = torch.empty_like(expected)
        with_weir.fill(name, found, *numbers)
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[expected.element_size()]
        different = int((expected.view(bits) != found.view(bits)).sum())
        equal(different, 0, f"{name} of {size} {dtype}: elements that differ")
        equal(with_weir.state(), after, f"{name} of {size} {dtype}: the state after it")


def real(number):
    return ctypes.c_double(number)


def whole(number):
    return ctypes.c_int64(number)


def test_bits():
    compare("weir_random_bits", "int64", lambda t: t.random_(-(2**63), None))
    compare("weir_random_bits", "uint8", lambda t: t.random_())


def test_integers():
    for dtype in ("uint8", "int8", "int16", "int32", "int64", "bool", "float16", "bfloat16", "float32", "float64"):
        compare("weir_random_integers", dtype, lambda t: t.random_())


def test_randint():
    for low, high in ((0, 10), (-5, 6), (0, 2**28 - 1), (0, 2**28), (-7, 2**31 - 1)):
        compare("weir_random_randint", "int32", lambda t: t.random_(low, high), whole(low), whole(high))
    for low, high in ((0, 2**32), (-7, 2**33), (2**40, 2**62), (-(2**63), 2**63 - 1)):
        compare("weir_random_randint", "int64", lambda t: t.random_(low, high), whole(low), whole(high))
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        compare("weir_random_randint", dtype, lambda t: t.random_(-100, 1000), whole(-100), whole(1000))
    compare("weir_random_randint", "float16", lambda t: t.random_(0, 65504), whole(0), whole(65504))
    compare("weir_random_randint", "bfloat16", lambda t: t.random_(0, 2**20), whole(0), whole(2**20))
    low, high = -(2**40) - 3, 2**40 + 5  # neither is a float32; PyTorch warns about it
    compare("weir_random_randint", "float32", lambda t: t.random_(low, high), whole(low), whole(high))


def test_uniform():
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        compare("weir_random_uniform", dtype, lambda t: t.uniform_(), real(0), real(1))
        compare("weir_random_uniform", dtype, lambda t: t.uniform_(-2.5, 0.1), real(-2.5), real(0.1))


def test_bernoulli():
    for dtype in ("bool", "uint8", "int64", "float16", "bfloat16", "float32", "float64"):
        compare("weir_random_bernoulli", dtype, lambda t: t.bernoulli_(0.3), real(0.3))


def test_normal():
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        compare("weir_random_normal", dtype, lambda t: t.normal_(), real(0), real(1))
        compare("weir_random_normal", dtype, lambda t: t.normal_(3.5, 0.7), real(3.5), real(0.7))


def test_permutation():
    import torch

    def permute(tensor):
        return torch.randperm(tensor.numel(), dtype=tensor.dtype, device="cuda")

    compare("weir_random_permutation", "int64", permute, sizes=(1, 2, 255, 257, 4097, 28000, 30085, 31000, 1 << 20))
    compare("weir_random_permutation", "int32", permute, sizes=(1, 4097, 1 << 20))
    compare("weir_random_permutation", "float16", permute, sizes=(2049,))


def test_more_than_two_gigabytes():
    import torch

    if torch.cuda.is_available() and torch.cuda.mem_get_info()[0] < 24 << 30:
        raise Waived("needs 24 GiB of free memory")
    compare("weir_random_uniform", "float32", lambda t: t.uniform_(), real(0), real(1), sizes=((1 << 30) + 5,))


def test_speed():
    """A fill of 64 Mi elements takes at most 1.2 times as long as PyTorch's."""
    import torch

    with_weir = weir()
    tensor = torch.empty(64 << 20, device="cuda")

    def milliseconds(fill):
        best = float("inf")
        for _ in range(20):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(5):
                fill()
            end.record()
            end.synchronize()
            best = min(best, begin.elapsed_time(end) / 5)
        return best

    for name, of_torch, numbers in (
        ("weir_random_uniform", tensor.uniform_, (real(0), real(1))),
        ("weir_random_normal", tensor.normal_, (real(0), real(1))),
    ):
        native = milliseconds(of_torch)
        own = milliseconds(lambda: with_weir.fill(name, tensor, *numbers))
        print(f"{name}: {own:.3f} ms, PyTorch {native:.3f} ms")
        assert own <= 1.2 * native, f"{name}: {own} ms, PyTorch {native} ms"


if __name__ == "__main__":
    harness.main(globals())
