#!/usr/bin/env python3
"""Writes pickles of every protocol together with the values that Python reads from them.

    make_pickles.py > pickle_cases.bin
    make_pickles.py --snapshot TRACE.pickle > small_snapshot.pickle

A case is a line "name protocol text-size data-size", the text and the data. Protocol -1 means written by hand. The text
form of a value is that of test_pickle.c; "refused" marks a pickle with an opcode that runs code.
Run by hand when a case is added; the tests need no Python.
"""
import pickle
import pickletools
import struct
import sys


def text(value):
    if value is None or isinstance(value, (bool, int)):
        return str(value)
    if isinstance(value, float):
        return "f" + struct.pack(">d", value).hex()
    if isinstance(value, str):
        return '"' + quote(value.encode("utf-8", "surrogatepass")) + '"'
    if isinstance(value, (bytes, bytearray)):
        return 'b"' + quote(bytes(value)) + '"'
    if isinstance(value, list):
        return "[" + ",".join(map(text, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ",".join(map(text, value)) + ")"
    if isinstance(value, dict):
        return "{" + ",".join(text(k) + ":" + text(v) for k, v in value.items()) + "}"
    if isinstance(value, (set, frozenset)):
        return ("s<" if isinstance(value, set) else "z<") + ",".join(map(text, value)) + ">"
    raise TypeError(type(value))


def quote(data):
    return "".join(chr(b) if 32 <= b < 127 and b not in (34, 92) else "\\x%02x" % b for b in data)


shared = ["a", "b"]
values = {
    "none": None,
    "bools": [True, False],
    "small_ints": [0, 1, -1, 255, 256, 65535, 65536, 2**31 - 1, -(2**31), 2**31, -(2**31) - 1],
    "large_ints": [2**47, -(2**47), 2**58 - 1, 2**58, -(2**58), -(2**58) - 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1],
    "floats": [0.0, -0.0, 1.5, -2.25e300, 5e-324, 0.1, float("inf"), float("-inf")],
    "texts": ["", "a", "N/A", "12345678", "123456789", "x" * 255, "y" * 256, "\u00e9", "\u20ac", "\U0001f600", "a\nb\\c\r\0",
              "\\u0041", "'\"", "\udc80"],
    "bytes": [b"", b"abc", bytes(range(256)), b"z" * 300],
    "bytearray": bytearray(b"xyz"),
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ((1, 2), ("a", None))],
    "lists": [[], [1], [[2], [3, [4]]], list(range(40))],
    "dicts": [{}, {"a": 1}, {"a": 1, 2: "b", (3, 4): [5]}, {"n": {"n": {"n": {}}}}],
    "set": [set(), {7}, {"only"}],
    "frozenset": [frozenset(), frozenset([7]), {frozenset(["k"]): 1}],
    "shared": [shared, shared, {"x": shared}, "a", "b"],
    "long_list": [i % 7 for i in range(1100)],
    "long_dict": {i: -i for i in range(1050)},
    "many_texts": ["t%d" % (i % 300) for i in range(350)],
}

# Opcodes that CPython reads but does not write (any more).
handmade = {
    "int_line": (b"I-42\n.", -42),
    "long_line": (b"L18446744073709551615L\n.", 2**64 - 1),
    "long_line_no_l": (b"L-9223372036854775808\n.", -(2**63)),
    "bool_lines": (b"(I01\nI00\nl.", [True, False]),
    "float_line": (b"F-1e-3\n.", -1e-3),
    "float_inf": (b"Finf\n.", float("inf")),
    "string_line": (b"S'a\\n\\x41\\101\\'\\101'\n.", "a\nAA'A"),
    "string_quotes": (b'S"it\'s"\n.', "it's"),
    "unicode_line": (b"Va\\u00e9\\U0001f600\\\\u0041\xe9\n.", "a\u00e9\U0001f600\\\\u0041\u00e9"),
    "short_binstring": (b"U\x03abc.", "abc"),
    "binstring": (b"T\x03\x00\x00\x00abc.", "abc"),
    "binunicode8": (b"\x8d\x03\x00\x00\x00\x00\x00\x00\x00abc.", "abc"),
    "binbytes8": (b"\x8e\x03\x00\x00\x00\x00\x00\x00\x00abc.", b"abc"),
    "long1_empty": (b"\x8a\x00.", 0),
    "long1_padded": (b"\x8a\x0a\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00.", 1),
    "long1_padded_negative": (b"\x8a\x0a\xfe\xff\xff\xff\xff\xff\xff\xff\xff\xff.", -2),
    "long4": (b"\x8b\x02\x00\x00\x00\x00\x80.", -32768),
    "pop": (b"K\x01K\x020.", 1),
    "pop_a_mark": (b"K\x01(0.", 1),
    "pop_mark": (b"K\x01(K\x02K\x031.", 1),
    "dup": (b"]2\x86.", ([], [])),
    "dict_opcode": (b"(K\x01K\x02K\x03K\x04d.", {1: 2, 3: 4}),
    "frozenset_opcode": (b"(K\x01\x91.", frozenset([1])),
    "put_get": (b"K\x05p0\n0g0\n.", 5),
    "long_binput": (b"K\x06r\x01\x00\x00\x000j\x01\x00\x00\x00.", 6),
    "put_twice": (b"K\x05q\x00K\x06q\x000h\x00\x86.", (5, 6)),
    "memoize_after_put": (b"K\x07q\x02\x94h\x01\x86.", (7, 7)),
    "two_values": (b"K\x01K\x02.", 2),
    "empty_setitems": (b"}(u.", {}),
    "empty_frame": (b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00N.", None),
}


def write(name, protocol, expected, data):
    expected = expected.encode()
    sys.stdout.buffer.write(b"%s %d %d %d\n" % (name.encode(), protocol, len(expected), len(data)) + expected + data)


def snapshot(path):
    """A few events and segments of a recorded history, with stacks, so that every byte can be tested."""
    whole = pickle.load(open(path, "rb"))
    whole["device_traces"] = [whole["device_traces"][0][:40]]
    whole["segments"] = whole["segments"][:6]
    for entry in whole["device_traces"][0] + whole["segments"]:
        for frame in entry["frames"]:
            frame["filename"] = "/job/" + frame["filename"].rsplit("/", 1)[-1]
    whole["external_annotations"] = whole["external_annotations"][:4]
    sys.stdout.buffer.write(pickle.dumps(whole, 4))


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--snapshot":
        return snapshot(sys.argv[2])
    for name, value in values.items():
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            data = pickle.dumps(value, protocol)
            assert pickle.loads(data) == value
            is_plain = not {op.name for op, _, _ in pickletools.genops(data)} & {"GLOBAL", "STACK_GLOBAL", "REDUCE"}
            write(name, protocol, text(pickle.loads(data)) if is_plain else "refused", data)
    for name, (data, value) in handmade.items():
        assert pickle.loads(data) == value, name
        write(name, -1, text(value), data)


main()
