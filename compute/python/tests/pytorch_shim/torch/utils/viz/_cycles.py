"""torch.utils.viz._cycles is weir.cycles."""

from weir.cycles import *
from weir.cycles import observe_tensor_cycles
