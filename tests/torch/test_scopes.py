"""How weir_torch learns which scopes of pools select a thread, with a stand-in for torch: test_scopes.py ADAPTERS"""
import os
import sys
import types

sys.path.insert(0, os.path.join(sys.argv[1], "torch"))
NAME = "_cuda_beginAllocateCurrentThreadToPool"
events = []


def begin(device, pool):
    """Begins a scope for the thread."""
    events.append((device, pool))
    if device < 0:
        raise RuntimeError("invalid device")


class Library:
    @staticmethod
    def weir_torch_next_scope(is_of_thread):
        events.append(is_of_thread)


torch = sys.modules["torch"] = types.ModuleType("torch")
torch._C, torch.cuda = types.SimpleNamespace(), types.SimpleNamespace(memory=types.SimpleNamespace())

import weir_torch  # noqa: E402

weir_torch._mark_scopes_of_threads(Library)  # PyTorch before 2.8 does not have the call
assert not vars(torch._C) and not vars(torch.cuda.memory)

setattr(torch._C, NAME, begin)
setattr(torch.cuda.memory, NAME, begin)
for _ in range(2):
    weir_torch._mark_scopes_of_threads(Library)
wrapped = getattr(torch.cuda.memory, NAME)
assert wrapped is getattr(torch._C, NAME) and wrapped.__wrapped__ is begin and wrapped.__doc__ == begin.__doc__
wrapped(0, (0, 1))
assert events == [1, (0, (0, 1)), 0], events
events.clear()
try:
    wrapped(-1, (0, 1))
    raise AssertionError("an error of the call is raised")
except RuntimeError:
    assert events == [1, (-1, (0, 1)), 0], events
