"""Runs the tests of a file with Weir as PyTorch's allocator, without a test library: `python3 test_pools.py [NAME...]`.
pytest finds the same functions."""
import faulthandler
import gc
import os
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))


class Waived(Exception):
    """The test cannot run here, for the given reason."""


def package_folder():
    root = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
    return os.environ.get("WEIR_TORCH_PACKAGE") or os.path.join(root, "build", "torch")


def install():
    """Makes this process and its children use Weir as PyTorch's allocator."""
    if os.environ.get("WEIR_TEST_NATIVE") == "1":  # to check whether PyTorch's own allocator passes
        import torch

        return torch
    folder = package_folder()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    others = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != folder]
    os.environ["PYTHONPATH"] = os.pathsep.join([folder] + others)
    os.environ["WEIR_TORCH"] = "1"
    import torch
    import weir_torch

    weir_torch.install()
    return torch


def equal(got, wanted, what=""):
    assert got == wanted, f"{what}: expected {wanted!r}, got {got!r}"


def near(got, wanted, slack, what=""):
    assert abs(got - wanted) <= slack, f"{what}: expected {wanted!r} within {slack!r}, got {got!r}"


def raises(kind, text, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        assert text in str(error), f"expected an error with {text!r}, got {str(error)!r}"
        return error
    raise AssertionError(f"expected {kind.__name__}")


def clean():
    """Restores the state after a start: nothing is allocated by the previous test, and nothing is cached."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.memory._record_memory_history(None)
        torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
        torch.cuda.set_per_process_memory_fraction(1.0)
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()


def main(names):
    faulthandler.enable()
    wanted = sys.argv[1:]
    counts = {"passed": 0, "FAILED": 0, "waived": 0}
    for name, test in list(names.items()):
        if not name.startswith("test_") or not callable(test) or (wanted and name not in wanted):
            continue
        begin = time.perf_counter()
        print(f"  begin  {name}", file=sys.stderr, flush=True)
        try:
            clean()
            test()
            result, why = "passed", ""
        except Waived as error:
            result, why = "waived", f": {error}"
        except BaseException:  # noqa: BLE001
            result, why = "FAILED", "\n" + traceback.format_exc()
        counts[result] += 1
        file = os.path.basename(sys.argv[0])
        print(f"{result} {file}::{name} ({time.perf_counter() - begin:.1f} s){why}", flush=True)
    totals = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"total {os.path.basename(sys.argv[0])}: {totals}", flush=True)
    sys.stdout.flush()
    sys.exit(1 if counts["FAILED"] else 0)
