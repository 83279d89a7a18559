"""check_snapshot.py PICKLE JSON EXPECTED: checks the schema and contents of a written snapshot in CPython.

EXPECTED has one line for each segment and block of the snapshot, in order, and one for each event of device 0.
"""
import json
import pickle
import pickletools
import sys

INT, STR, BOOL, FLOAT, LIST, DICT = int, str, bool, float, list, dict
SEGMENT = {
    "device": INT, "address": INT, "total_size": INT, "allocated_size": INT, "active_size": INT,
    "requested_size": INT, "stream": INT, "segment_type": ("large", "small"), "segment_pool_id": "pair",
    "is_expandable": BOOL, "frames": LIST, "blocks": LIST,
}
BLOCK = {
    "address": INT, "size": INT, "requested_size": INT,
    "state": ("active_allocated", "active_pending_free", "inactive"), "frames": LIST,
}
FRAME = {"name": STR, "filename": STR, "line": INT}
ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
           "segment_unmap", "snapshot", "oom", "annotate", "user_defined")
EVENT = {
    "action": ACTIONS, "addr": INT, "size": INT, "stream": INT, "time_us": INT, "compile_context": STR,
    "user_metadata": STR, "pool_id": "pair",
}
SETTINGS = {
    "PYTORCH_CUDA_ALLOC_CONF": STR, "max_split_size": INT, "garbage_collection_threshold": FLOAT,
    "expandable_segments": BOOL, "pinned_num_register_threads": INT, "release_lock_on_cudamalloc": BOOL,
    "pinned_use_cuda_host_register": BOOL, "graph_capture_record_stream_reuse": BOOL, "max_round_threshold": INT,
    "max_cached_size": INT, "roundup_power2_divisions": DICT,
}
TOP = {
    "segments": LIST, "device_traces": LIST, "allocator_settings": DICT, "external_annotations": LIST,
    "host_segments": LIST, "host_traces": LIST,
}

# The fields that MemoryViz.js reads.
OPCODES = {
    "PROTO", "STOP", "MARK", "EMPTY_DICT", "EMPTY_LIST", "SETITEMS", "APPENDS", "BINUNICODE", "BINPUT", "LONG_BINPUT",
    "BINGET", "LONG_BINGET", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "NEWTRUE", "NEWFALSE", "TUPLE2",
}


def check(value, schema, where, optional=()):
    assert type(value) is dict, f"{where} is a {type(value).__name__}"
    assert set(value) - set(optional) == set(schema), f"{where}: {sorted(set(value) ^ set(schema))}"
    for key, kind in schema.items():
        v = value[key]
        if isinstance(kind, tuple):
            assert v in kind, f"{where}[{key}] is {v!r}"
        elif kind == "pair":
            assert type(v) is tuple and [type(x) for x in v] == [int, int], f"{where}[{key}] is {v!r}"
        else:
            assert type(v) is kind, f"{where}[{key}] is a {type(v).__name__}"


def check_frames(frames, where):
    for i, frame in enumerate(frames):
        check(frame, FRAME, f"{where}.frames[{i}]")


def check_schema(snapshot):
    check(snapshot, TOP, "snapshot")
    for i, segment in enumerate(snapshot["segments"]):
        where = f"segments[{i}]"
        check(segment, SEGMENT, where)
        check_frames(segment["frames"], where)
        at = segment["address"]
        for k, block in enumerate(segment["blocks"]):
            check(block, BLOCK, f"{where}.blocks[{k}]")
            check_frames(block["frames"], f"{where}.blocks[{k}]")
            assert block["address"] == at, f"{where}.blocks[{k}] is not behind the one before"
            at += block["size"]
        assert at == segment["address"] + segment["total_size"], f"{where} is not covered"
    for device, trace in enumerate(snapshot["device_traces"]):
        assert type(trace) is list
        for i, event in enumerate(trace):
            where = f"device_traces[{device}][{i}]"
            schema = dict(EVENT)
            if event["action"] == "oom":
                schema["device_free"] = schema.pop("addr")
            check(event, schema, where, optional=("frames", "phase"))
            check_frames(event.get("frames", []), where)
    check(snapshot["allocator_settings"], SETTINGS, "allocator_settings")
    divisions = snapshot["allocator_settings"]["roundup_power2_divisions"]
    assert list(divisions) == [str(1 << i) for i in range(16)], divisions
    assert all(type(v) is int for v in divisions.values())
    for annotation in snapshot["external_annotations"]:
        assert type(annotation["device"]) is int and type(annotation["time_us"]) is int
        assert all(type(v) is str for k, v in annotation.items() if k not in ("device", "time_us"))


def check_opcodes(path):
    with open(path, "rb") as file:
        for op, argument, _ in pickletools.genops(file):
            assert op.name in OPCODES, op.name
            if op.name == "PROTO":
                assert argument == 2, argument


def lines_of(snapshot):
    for s in snapshot["segments"]:
        yield (f"segment {s['device']} {s['address']} {s['total_size']} {s['allocated_size']} {s['active_size']} "
               f"{s['requested_size']} {s['stream']} {s['segment_type']} {s['segment_pool_id'][0]} "
               f"{s['segment_pool_id'][1]} {int(s['is_expandable'])} {len(s['blocks'])}")
        for b in s["blocks"]:
            yield f"block {b['address']} {b['size']} {b['requested_size']} {b['state']}"
    for e in snapshot["device_traces"][0]:
        address = e["device_free"] if e["action"] == "oom" else e["addr"]
        yield (f"event {e['action']} {address} {e['size']} {e['stream']} {e['time_us']} {e['pool_id'][0]} "
               f"{e['pool_id'][1]} {len(e['frames']) if 'frames' in e else -1}")


def as_json(value):
    if isinstance(value, dict):
        return {key: as_json(v) for key, v in value.items()}
    return [as_json(v) for v in value] if isinstance(value, (list, tuple)) else value


pickle_path, json_path, expected_path = sys.argv[1:]
with open(pickle_path, "rb") as file:
    snapshot = pickle.load(file)
check_schema(snapshot)
check_opcodes(pickle_path)
with open(json_path, encoding="utf-8") as file:
    assert json.load(file) == as_json(snapshot), "the JSON is not the same"
with open(expected_path, encoding="utf-8") as file:
    expected = file.read().splitlines()
found = list(lines_of(snapshot))
for i, (e, f) in enumerate(zip(expected, found)):
    assert e == f, f"line {i + 1}: expected {e!r}, found {f!r}"
assert len(expected) == len(found), f"{len(expected)} lines expected, {len(found)} found"
