#!/usr/bin/env python3
"""Compares the adapter with the allocator interface of a PyTorch: names each virtual function that the adapter does not
implement, and each field, action and setting that it does not honour.

    python3 adapters/torch/check_interface.py TREE...

A TREE is a source tree of PyTorch, or the folder `include` of an installed one. Nothing is compiled: the headers are
read as text, and the adapter's files with the conditions of version.h for that version. The exit status is 1 if
something is missing, or the adapter does not know the version.
"""
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import build  # noqa: E402

# Where the interface is. The first folder that has a file counts.
HEADERS = ("c10/core/Allocator.h", "c10/core/AllocatorConfig.h", "c10/core/CachingDeviceAllocator.h",
           "c10/cuda/CUDAAllocatorConfig.h", "c10/cuda/CUDACachingAllocator.h", "ATen/core/CachingHostAllocator.h")
FOLDERS = ("", "aten/src", "torch/include")

# The classes of the interface with their bases, and the class of the adapter that implements them.
CLASSES = (("CUDAAllocator", ("Allocator", "DeviceAllocator", "CUDAAllocator"), "allocator.h", "Allocator"),
           ("HostAllocator", ("Allocator", "HostAllocator"), "pinned.h", "PinnedAllocator"))

OVERRIDES = r"\boverride\b|WEIR_TORCH_2_11_OVERRIDE"

# What PyTorch reads of an allocator. The adapter sets or reads every field, by its name.
STRUCTS = ("DeviceStats", "BlockInfo", "SegmentInfo", "HostSegmentInfo", "SnapshotInfo", "AllocatorConfigInfo",
           "CheckpointDelta", "HostStats")
# These are made from a list of values, so the number of parameters, or of fields without a constructor, counts.
CONSTRUCTED = {"TraceEntry": 10, "AnnotationEntry": 2, "StreamSegmentSize": 3, "ShareableHandle": 2}
SETTINGS = ("AcceleratorAllocatorConfig", "CUDAAllocatorConfig")

# What is left to PyTorch, and why.
LEFT = {
    "is_simple_data_ptr": "PyTorch's own answer holds: the context of a pointer is the pointer",
    "getMemoryInfo": "PyTorch's own asks CUDA",
    "BlockInfo.gc_counter": "nothing in PyTorch reads it",
    "SnapshotInfo.host_segments": "PyTorch fills it from the host allocator",
    "SnapshotInfo.host_traces": "PyTorch fills it from the host allocator",
    "HostStats.bucket_allocation": "nothing in PyTorch reads it",
    "expandable_segments": "the same as use_expandable_segments, with a warning on platforms without them",
    "expandable_segments_handle_type": "no setting reaches it; Weir exports what the driver supports",
    "pinned_max_register_threads": "a constant, which Weir has too",
    "expandable_segments_reserve_decision": "Weir has the same settings in WEIR_ALLOC_CONF; PyTorch does not list its own",
    "clamp_reserve_bytes": "Weir has the same settings in WEIR_ALLOC_CONF; PyTorch does not list its own",
}


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.S)


def closing(text, at, pair="{}"):
    """The index behind the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == pair[0]) - (text[i] == pair[1])
        if depth == 0:
            return i + 1
    return len(text)


def body_of(text, name):
    """The body of a class or struct without those of its functions; None if it is not defined."""
    found = re.search(rf"\b(?:class|struct)\s+(?:\w+\s+)?{name}\b(?:\s+final)?\s*(?::[^;{{]*)?{{", text)
    if not found:
        return None
    body = text[found.end():closing(text, found.end() - 1) - 1]
    out, at = "", 0
    for brace in re.finditer(r"{", body):
        if brace.start() >= at:
            is_value = re.search(r"=\s*$|\w$", out + body[at:brace.start()]) and not re.search(
                r"(\)|const|override)\s*$", body[at:brace.start()])
            end = closing(body, brace.start())
            out += body[at:brace.start()] + (" " if is_value else ";")
            at = end
    return out + body[at:]


def parameters(text, at):
    """The number of parameters in the brackets at `at`."""
    inside = text[at + 1:closing(text, at, "()") - 1]
    inside = re.sub(r"<[^<>]*>", "", re.sub(r"<[^<>]*>", "", inside))
    inside = re.sub(r"[({][^(){}]*[)}]", "", inside)
    return inside.count(",") + 1 if inside.strip() else 0


def functions(body, keyword):
    """The member functions whose declaration contains the keyword, as {name: number of parameters}."""
    found = {}
    for declaration in body.split(";"):
        match = re.search(r"(~?\w+)\s*\(", re.sub(r"std::function<[^;]*?>|decltype\([^)]*\)", "", declaration))
        if match and re.search(keyword, declaration) and not match[1].startswith("~"):
            found[match[1]] = parameters(declaration, declaration.index("(", declaration.index(match[1])))
    return found


def fields(body):
    names = []
    for declaration in body.split(";"):
        declaration = re.sub(r"\s+", " ", re.sub(r"=[^;]*$", "", declaration)).strip()
        match = re.fullmatch(r"(?!using |static |friend |enum |template )[\w:<>,* ]+[ >*](\w+)", declaration)
        if match and "(" not in declaration:
            names.append(match[1])
    return names


def version_of(tree):
    for path, pattern in (("version.txt", r"(\d+)\.(\d+)"), ("torch/version.h", None),
                          ("torch/headeronly/version.h", None)):
        try:
            text = open(os.path.join(tree, path)).read()
        except OSError:
            continue
        found = re.findall(pattern or r"#define TORCH_VERSION_(?:MAJOR|MINOR) (\d+)", text)
        if found:
            return tuple(int(part) for part in (found[0] if pattern else found[:2]))
    sys.exit(f"check_interface.py: {tree} has neither version.txt nor torch/version.h")


def read_headers(tree):
    text = ""
    for header in HEADERS:
        paths = [os.path.join(tree, folder, header) for folder in FOLDERS]
        path = next((path for path in paths if os.path.exists(path)), None)
        if not path:
            sys.exit(f"check_interface.py: {tree} has no {header}")
        text += without_comments(open(path).read()) + "\n"
    return text


def adapter_text(name, minor):
    """A file of the adapter as the preprocessor leaves it for a version of PyTorch."""
    out, stack = [], [True]
    for line in open(os.path.join(HERE, name)):
        condition = re.match(r"\s*#\s*(if|else|endif)\b\s*(!?)(?:WEIR_TORCH_2_(\d+)$)?", line)
        if condition and condition[1] == "if":
            is_on = minor >= int(condition[3]) if condition[3] else True
            stack.append(is_on != bool(condition[2] and condition[3]))
        elif condition and condition[1] == "else":
            stack[-1] = not stack[-1]
        elif condition:
            stack.pop()
        elif all(stack):
            out.append(line)
    return without_comments("".join(out))


def check(tree):
    major, minor = version_of(tree)
    header = read_headers(tree)
    sources = {name: adapter_text(name, minor) for name in sorted(os.listdir(HERE)) if name.endswith((".h", ".cpp"))}
    adapter = "\n".join(sources.values())
    missing, left = [], []

    def miss(what, name, also=""):
        reason = LEFT.get(name)
        (left if reason else missing).append(f"{what} {name}: {reason or 'missing' + also}")

    for interface, bases, file, ours in CLASSES:
        wanted, implemented = {}, functions(body_of(sources[file], ours) or "", OVERRIDES)
        for base in bases:
            wanted.update(functions(body_of(header, base) or "", r"\bvirtual\b"))
        for name, count in wanted.items():
            if name not in implemented:
                miss(f"function of {interface}", name)
            elif implemented[name] != count:
                miss(f"function of {interface}", name, f": it has {count} parameters, not {implemented[name]}")
        for name in implemented:
            if name not in wanted:
                missing.append(f"function of {interface} {name}: PyTorch does not have it")
    for struct in STRUCTS:
        body = body_of(header, struct)
        if body is None and (struct != "HostSegmentInfo" or minor >= 14):
            missing.append(f"struct {struct}: PyTorch does not have it")
        for name in fields(body or ""):
            if not re.search(rf"(\.|->|::){name}\b", adapter):
                miss("field", f"{struct}.{name}")
    for struct, count in CONSTRUCTED.items():
        body = body_of(header, struct) or ""
        match = re.search(rf"\b{struct}\(", body)
        has = parameters(body, match.end() - 1) if match else len(fields(body))
        if has != count:
            missing.append(f"struct {struct}: it is made from {has} values, not {count}")
    actions = re.search(r"enum Action\s*{(.*?)}", header, flags=re.S)[1]
    for name in re.findall(r"\w+", actions):
        if not re.search(rf"TraceEntry::{name}\b", adapter):
            miss("action", name)
    keys = set()
    for config in SETTINGS:
        names = functions(body_of(header, config) or "", r"\bstatic\b")
        keys.update(name for name in names if not re.match("(set|get|parse|call|register)[A-Z_]|instance|C10", name))
    for name in sorted(keys):
        if not re.search(rf"\b(Generic|Cuda|AcceleratorAllocatorConfig)::{name}\b", adapter):
            miss("setting", name)

    known = build.OLDEST <= (major, minor) <= build.NEWEST
    print(f"PyTorch {major}.{minor} ({tree}): {'' if known else 'not known to the adapter; '}"
          f"{len(missing)} missing, {len(left)} left to PyTorch")
    for line in missing:
        print("  " + line)
    for line in left:
        print("  left to PyTorch: " + line)
    if not known:
        print("  " + build.unknown_version(f"{major}.{minor}"))
    return bool(missing) or not known


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    sys.exit(any([check(tree) for tree in sys.argv[1:]]))
