"""The table of compute/bench/elementwise.c for PyTorch: python3 bench/torch/elementwise.py [ELEMENTS]"""
import sys
import time

import torch

TRIES, WARMUP = 20, 3


def measure(fn):
    best = 1e9
    for attempt in range(-WARMUP, TRIES):
        start = time.perf_counter()
        fn()
        torch.cuda.synchronize()
        if attempt >= 0:
            best = min(best, time.perf_counter() - start)
    return best


def measure_all(dtype, count):
    name = str(dtype).split(".")[1]
    size = dtype.itemsize
    a = torch.full((count // 1024, 1024), 0.5, dtype=dtype, device="cuda")
    b, out, half = torch.full_like(a, 0.25), torch.empty_like(a), torch.empty_like(a, dtype=torch.float16)
    row, total = torch.full((1024,), 2.0, dtype=dtype, device="cuda"), torch.empty((), dtype=dtype, device="cuda")
    operations = [
        ("add", lambda: torch.add(a, b, out=out), 3 * size),
        ("mul by a number", lambda: torch.mul(a, 1.5, out=out), 2 * size),
        ("exp", lambda: torch.exp(a, out=out), 2 * size),
        ("sin", lambda: torch.sin(a, out=out), 2 * size),
        ("fill", lambda: out.fill_(1), size),
        ("copy", lambda: out.copy_(a), 2 * size),
        ("copy to float16", lambda: half.copy_(a), size + 2),
        ("add a row", lambda: torch.add(a, row, out=out), 2 * size),
        ("sum", lambda: torch.sum(a, (0, 1), out=total), size),
    ]
    for operation, fn, each in operations:
        seconds = measure(fn)
        print(f"{name:8} {operation:16} {seconds * 1e6:10.1f} us {each * count / seconds * 1e-9:10.1f} GB/s")


def main():
    count = int(sys.argv[1]) // 1024 * 1024 if len(sys.argv) > 1 else 64 << 20
    print(f"{count} elements, PyTorch {torch.__version__}")
    measure_all(torch.float32, count)
    measure_all(torch.float16, count)


if __name__ == "__main__":
    main()
