"""make_wide.py FILE: writes a snapshot whose numbers do not fit into 32 bits, as torch.cuda.memory._dump_snapshot() does."""
import pickle
import sys

GIB = 1 << 30
BASE = 0x7F00_0000_0000
# The lower halves are equal: a program that cuts handles to 32 bits takes them for one stream.
STREAMS = [0x5500_1234_5670, 0x5600_1234_5670]

trace, segments, live, now = [], {}, {}, 1_700_000_000_000_000


def note(action, address, size, stream):
    global now
    now += 10
    trace.append({"action": action, "addr": address, "size": size, "stream": stream, "time_us": now, "frames": [],
                  "device_id": 0})


def allocate(size, stream, address=None):
    """A new segment, or the free one at `address`."""
    if address is None:
        address = BASE + 16 * GIB * len(segments)
        segments[address] = (size, stream)
        note("segment_alloc", address, size, stream)
    note("alloc", address, size, stream)
    live[address] = size
    return address


def free(address):
    note("free_requested", address, live[address], segments[address][1])
    note("free_completed", address, live.pop(address), segments[address][1])


a = allocate(6 * GIB, STREAMS[0])
b = allocate(5 * GIB, STREAMS[1])
free(a)
c = allocate(6 * GIB, STREAMS[1])  # the free block belongs to the other stream
d = allocate(6 * GIB, STREAMS[0], a)
free(b)
free(c)
e = allocate(5 * GIB, STREAMS[1], b)
f = allocate(9 * GIB, 0)
free(f)

snapshot = {
    "segments": [{
        "device": 0, "address": address, "total_size": size, "allocated_size": live.get(address, 0),
        "active_size": live.get(address, 0), "requested_size": live.get(address, 0), "stream": stream,
        "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
        "blocks": [{"address": address, "size": size, "requested_size": live.get(address, 0), "frames": [],
                    "state": "active_allocated" if address in live else "inactive"}],
    } for address, (size, stream) in sorted(segments.items())],
    "device_traces": [trace],
    "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
                           "expandable_segments": False, "pinned_num_register_threads": 1,
                           "release_lock_on_cudamalloc": False, "pinned_use_cuda_host_register": False,
                           "roundup_power2_divisions": {str(1 << i): 0 for i in range(16)}},
}
with open(sys.argv[1], "wb") as file:
    pickle.dump(snapshot, file)
