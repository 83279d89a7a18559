"""Division of gradients by a scale, with the check for infinities, by Weir and by PyTorch.

PYTHONPATH=build/python python3 bench/torch/unscale.py
"""
import time

import torch
import weir

TRIES, WARMUP = 30, 5
# Gradients of a transformer of 12 layers, and of many small layers.
MODELS = {
    "12 layers": [(768, 768), (768,), (768, 3072), (3072,), (3072, 768), (768,), (768, 2304), (2304,)] * 12,
    "1000 small": [(64,), (64, 64)] * 500,
    "one large": [(256 << 20,)],
}


def measure(fn, synchronize):
    best = 1e9
    for attempt in range(-WARMUP, TRIES):
        start = time.perf_counter()
        fn()
        synchronize()
        if attempt >= 0:
            best = min(best, time.perf_counter() - start)
    return best


def main():
    print(f"PyTorch {torch.__version__}, {weir.get_device_name()}")
    for name, shapes in MODELS.items():
        for kind in ("float32", "float16"):
            theirs = [torch.ones(shape, dtype=getattr(torch, kind), device="cuda") for shape in shapes]
            scale, found = torch.full((1,), 0.5, device="cuda"), torch.zeros(1, device="cuda")
            count = sum(array.numel() * array.element_size() for array in theirs)
            of_torch = measure(
                lambda: torch._amp_foreach_non_finite_check_and_unscale_(theirs, found, scale), torch.cuda.synchronize
            )
            del theirs
            torch.cuda.empty_cache()
            ours = [weir.ones(shape, dtype=kind, device="cuda") for shape in shapes]
            scale, found = weir.full((1,), 0.5, device="cuda"), weir.zeros(1, device="cuda")
            of_weir = measure(
                lambda: weir._amp_foreach_non_finite_check_and_unscale_(ours, found, scale), weir.synchronize
            )
            del ours
            weir.empty_cache()
            print(
                f"{name:11} {kind:8} weir {of_weir * 1e6:9.1f} us {2 * count / of_weir * 1e-9:8.1f} GB/s   "
                f"torch {of_torch * 1e6:9.1f} us {2 * count / of_torch * 1e-9:8.1f} GB/s"
            )


if __name__ == "__main__":
    main()
