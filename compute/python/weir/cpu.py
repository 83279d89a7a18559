"""The typed classes of arrays and storages on the host: weir.cpu.FloatTensor is what torch.FloatTensor is."""

from __future__ import annotations

from weir.compute import _legacy

_classes = _legacy.classes(__name__, "cpu")
globals().update(_classes)
__all__ = list(_classes)
