"""Tags under PyTorch: names on tensors' memory, that can sleep and wake."""
import ctypes

_OUT_OF_MEMORY, _STATES = 2, ("awake", "falling asleep", "asleep", "waking")


class _Info(ctypes.Structure):
    """weir_tag_info."""

    _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("device", ctypes.c_int),
                ("state", ctypes.c_int), ("pool", 2 * ctypes.c_uint64), ("pools", ctypes.c_size_t),
                ("reserved_bytes", ctypes.c_uint64), ("allocated_bytes", ctypes.c_uint64),
                ("asleep_bytes", ctypes.c_uint64), ("kept_bytes", ctypes.c_uint64), ("copied_bytes", ctypes.c_uint64),
                ("pinned_bytes", ctypes.c_uint64)]


class Tag:
    """A tag of one device, as a context manager: what the calling thread allocates within has the tag. Autograd's
    threads do not: the gradients that backward() makes have none, unless they exist before, such as after
    optimizer.zero_grad(set_to_none=False)."""

    def __init__(self, library, allocator, device, name, before=None, out_of_memory=RuntimeError):
        self.name, self.device = name, device
        self._library, self._before, self._out_of_memory = library, before, out_of_memory
        self._tag = ctypes.c_void_p()
        library.weir_last_error.restype = ctypes.c_char_p
        self._check(library.weir_tag_open(ctypes.c_void_p(allocator), device, name.encode(), ctypes.byref(self._tag)))

    def _check(self, status):
        if status:
            kind = self._out_of_memory if status == _OUT_OF_MEMORY else RuntimeError
            raise kind("weir: " + self._library.weir_last_error().decode(errors="replace"))

    def __enter__(self):
        if self._before:
            self._before()
        self._check(self._library.weir_tag_begin(self._tag))
        return self

    def __exit__(self, kind, error, trace):
        self._check(self._library.weir_tag_end(self._tag))

    def sleep(self, keep=True):
        """Returns the memory of the tag's tensors to the device; their addresses stay. Waits for the work that was
        submitted before. With `keep` their bytes come back with wake(); otherwise they are lost. Until then nothing
        may use the tensors, and no graph that was captured within the tag may be replayed."""
        self._check(self._library.weir_tag_sleep(self._tag, 0 if keep else 1, None))

    def wake(self):
        """Gives the tensors memory again, and their bytes. Raises torch.OutOfMemoryError if the device has too little
        memory: the tag is asleep as before."""
        self._check(self._library.weir_tag_wake(self._tag, None))

    def prepare(self):
        """Pins as much host memory as a sleep would need now: the larger part of the time of a first sleep."""
        self._check(self._library.weir_tag_prepare(self._tag))

    def info(self):
        """Returns what the tag holds: its state, pool and bytes, by name."""
        info = _Info(size=ctypes.sizeof(_Info))
        self._check(self._library.weir_tag_get_info(self._tag, ctypes.byref(info)))
        found = {field: getattr(info, field) for field, _ in _Info._fields_[6:]}
        return {"state": _STATES[info.state], "pool": tuple(info.pool), "pools": info.pools, **found}

    def __repr__(self):
        return f"<weir_torch.Tag '{self.name}' on device {self.device}, {self.info()['state']}>"
