#!/usr/bin/env python3
"""make_big.py FILE [MEGABYTES] [--frames N]: writes a large snapshot, as torch.cuda.memory._dump_snapshot() writes it.

The pickle is written opcode by opcode, so that a file of a gigabyte takes a minute or two and little memory. Its
history is a possible one, so `weir replay --check` finds no difference. With --frames every event has a stack of N
frames: a list for each allocation with shared frames, as PyTorch writes them.
"""
import argparse
import pickle
import struct

# Places: each is a segment of a unique size, so a request of that size always gets it again.
PLACES = 512
SIZES = [(12 + 2 * i) << 20 for i in range(PLACES)]
ADDRESSES = [0x7F0000000000 + sum(SIZES[:i]) for i in range(PLACES)]
FRAMES = 512


def text(value):
    data = value.encode()
    return b"\x8c" + bytes([len(data)]) + data


def number(value):
    """Encodes a value as compactly as the pickle module."""
    if value < 256:
        return b"K" + bytes([value])
    if value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    size = value.bit_length() // 8 + 1
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)


class Writer:
    """Counts memo entries like the reader."""

    def __init__(self, file):
        self.file = file
        self.size = 0
        self.memo = 0
        self.known = {}
        self.buffer = []

    def put(self, data):
        self.buffer.append(data)
        self.size += len(data)
        if len(self.buffer) >= 1 << 14:
            self.flush()

    def flush(self):
        self.file.write(b"".join(self.buffer))
        self.buffer.clear()

    def memoize(self):
        self.put(b"\x94")
        self.memo += 1
        return self.memo - 1

    def word(self, value):
        """Writes a text once, and a reference from then on."""
        if value not in self.known:
            self.put(text(value))
            self.known[value] = self.get(self.memoize())
        else:
            self.put(self.known[value])

    @staticmethod
    def get(index):
        return b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)


def write(file, wanted, depth):
    w = Writer(file)
    w.put(b"\x80\x04}")
    w.memoize()
    w.put(b"(")
    w.word("external_annotations")
    w.put(b"]")
    w.memoize()
    w.put(b"(")
    for step in range(400):
        # In a real file much precedes the history, so references into the memo are long.
        w.put(b"}")
        w.memoize()
        w.put(b"(")
        for key, value in (("name", f"step {step // 2}"), ("stage", ("START", "END")[step % 2])):
            w.word(key)
            w.word(value)
        w.word("device")
        w.put(number(0))
        w.word("time_us")
        w.put(number(1_790_000_000_000_000 + step * 1000))
        w.put(b"u")
    w.put(b"e")
    w.word("device_traces")
    w.put(b"]")
    w.memoize()
    w.put(b"]")
    w.memoize()
    frames = []
    for name in ("action", "addr", "size", "stream", "time_us", "compile_context", "user_metadata", "frames", "N/A", "",
                 "alloc", "free_requested", "free_completed", "segment_alloc", "filename", "line", "name"):
        w.word(name)
        w.put(b"0")

    def frame_list(seed):
        w.put(b"]")
        index = w.memoize()
        w.put(b"(")
        for i in range(depth):
            k = (seed * 7 + i * i) % FRAMES
            if k < len(frames):
                w.put(frames[k])
                continue
            k = len(frames)
            w.put(b"}")
            frames.append(w.get(w.memoize()))
            w.put(b"(")
            for key, value in (("filename", f"/opt/model/layer_{k % 61}.py"), ("name", f"forward_{k}")):
                w.word(key)
                w.word(value)
            w.word("line")
            w.put(number(10 + k))
            w.put(b"u")
        w.put(b"e")
        return w.get(index)

    tails = {}

    def event(action, address, size, time, stack):
        w.put(b"}")
        w.memoize()
        if action not in tails:
            k = w.known
            tails[action] = (
                b"(" + k["action"] + k[action] + k["addr"],
                k["size"],
                k["stream"] + b"K\x00" + k["time_us"],
                k["compile_context"] + k["N/A"] + k["user_metadata"] + k[""],
            )
        a, b, c, d = tails[action]
        w.put(a + number(address) + b + number(size) + c + number(time) + d)
        if depth and action != "segment_alloc":
            w.put(w.known["frames"])
            if stack is None:
                stack = frame_list(address >> 21)
            else:
                w.put(stack)
        w.put(b"u")
        return stack

    time = 1_790_000_000_000_000
    held = [False] * PLACES
    stacks = [None] * PLACES
    events = 0
    random = 1

    def allocate(place, is_new):
        if is_new:
            event("segment_alloc", ADDRESSES[place], SIZES[place], time, None)
        stacks[place] = event("alloc", ADDRESSES[place], SIZES[place] - place, time + 1, None)
        held[place] = True
        return 1 + is_new

    w.put(b"(")
    for place in range(PLACES):
        events += allocate(place, True)
    w.put(b"e")
    while w.size < wanted:
        w.put(b"(")
        for _ in range(250):
            random = random * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
            place = (random >> 33) % PLACES
            if held[place]:
                event("free_requested", ADDRESSES[place], SIZES[place] - place, time, stacks[place])
                event("free_completed", ADDRESSES[place], SIZES[place] - place, time + 1, stacks[place])
                held[place] = False
                events += 2
            else:
                events += allocate(place, False)
            time += 37
        w.put(b"e")
    w.put(b"a")
    w.word("segments")
    segments = []
    for place in range(PLACES):
        used = SIZES[place] if held[place] else 0
        asked = SIZES[place] - place
        state = "active_allocated" if held[place] else "inactive"
        segments.append({"device": 0, "address": ADDRESSES[place], "total_size": SIZES[place], "stream": 0,
                         "segment_type": "large", "allocated_size": used, "active_size": used,
                         "requested_size": asked if held[place] else 0, "segment_pool_id": (0, 0),
                         "is_expandable": False, "frames": [],
                         "blocks": [{"address": ADDRESSES[place], "size": SIZES[place], "requested_size": asked,
                                     "state": state, "frames": []}]})

    def splice(value):
        """The output of the pickle module for a value, without header and STOP, and without memo entries."""
        pickler = pickle._Pickler(file=Sink(w), protocol=4)  # noqa: SLF001 - the C version requires a memo
        pickler.fast = True
        pickler.save(value)

    splice(segments)
    w.word("allocator_settings")
    splice({"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
            "expandable_segments": False})
    w.put(b"u.")
    w.flush()
    return events


class Sink:
    def __init__(self, writer):
        self.write = writer.put


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file")
    parser.add_argument("megabytes", type=int, nargs="?", default=1000)
    parser.add_argument("--frames", type=int, default=0)
    options = parser.parse_args()
    with open(options.file, "wb") as out:
        print(write(out, options.megabytes * 1_000_000, options.frames), "events")
