"""adapters/torch/check_interface.py, on a tree whose interface is what the adapter implements: test_check_interface.py ROOT.

Each change of that interface is named, and nothing else."""
import os
import subprocess
import sys
import tempfile

ROOT = sys.argv[1]
FOLDER = os.path.join(ROOT, "adapters", "torch")
SCRIPT = os.path.join(FOLDER, "check_interface.py")
sys.path.insert(0, FOLDER)
import build  # noqa: E402
import check_interface as checked  # noqa: E402

FIELDS = {"DeviceStats": ["Stat oversize_allocations;", "int64_t num_ooms = 0;"],
          "BlockInfo": ["size_t requested_size = 0;", "int32_t gc_counter = 0;"],
          "SegmentInfo": ["MempoolId_t owner_private_pool_id = {0, 0};", "std::vector<BlockInfo> blocks;"],
          "SnapshotInfo": ["std::vector<std::vector<TraceEntry>> device_traces;"],
          "AllocatorConfigInfo": ["std::vector<size_t> roundup_power2_divisions;"],
          "CheckpointDelta": ["std::vector<void*> ptrs_freed;"],
          "HostSegmentInfo": ["bool allocated = false;"],
          "HostStats": ["Stat active_bytes;"]}


def declarations(file, ours, minor):
    body = checked.body_of(checked.adapter_text(file, minor), ours)
    for name, count in checked.functions(body, checked.OVERRIDES).items():
        arguments = ", ".join(f"std::pair<int, int> a{i}" for i in range(count))
        yield f"  // virtual void of_a_comment() = 0;\n  virtual int {name}({arguments}) {{ return f({{1, 2}}); }}\n"


def write_tree(tree, minor, change=("", "")):
    files = {name: "" for name in checked.HEADERS}
    host = "".join(declarations("pinned.h", "PinnedAllocator", minor))
    device = "".join(declarations("allocator.h", "Allocator", minor))
    structs = "".join(f"struct {name} {{ {' '.join(lines)} }};\n" for name, lines in FIELDS.items())
    files["c10/core/CachingDeviceAllocator.h"] = structs + """
struct TraceEntry {
  enum Action { ALLOC, FREE_COMPLETED };
  TraceEntry(int a, int b, int c, int d, int e, std::pair<int, int> f, int g, int h = 1, int i = f(1, 2), int j = {})
      : a_(a), b_(b) { a_ = 2; }
};
struct AnnotationEntry { AnnotationEntry(int a, int b) : a_(a) {} };
"""
    files["c10/cuda/CUDACachingAllocator.h"] = f"""
struct ShareableHandle {{ ptrdiff_t offset; std::string handle; }};
struct StreamSegmentSize {{ StreamSegmentSize(int a, bool b, size_t c) : a_(a) {{}} int a_; }};
class C10_API CUDAAllocator : public DeviceAllocator {{
 public:
{device}}};
"""
    files["ATen/core/CachingHostAllocator.h"] = f"struct TORCH_API HostAllocator : public at::Allocator {{\n{host}}};\n"
    files["c10/cuda/CUDAAllocatorConfig.h"] = """
class CUDAAllocatorConfig {
  static bool release_lock_on_cudamalloc() { return instance().m_release; }
  static void set_something(int value);
};"""
    for name, text in files.items():
        path = os.path.join(tree, name if minor % 2 else name.replace("ATen", "aten/src/ATen"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text.replace(*change))
        if change[0] and change[0] in text:
            change = ("", "")
    assert not change[0], change
    with open(os.path.join(tree, "version.txt"), "w") as file:
        file.write(f"2.{minor}.0a0\n")


def run(minor, change=("", "")):
    with tempfile.TemporaryDirectory() as tree:
        write_tree(tree, minor, change)
        done = subprocess.run([sys.executable, "-B", SCRIPT, tree], capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return done.returncode, [line.strip() for line in done.stdout.split("\n")[1:] if "left to PyTorch" not in line]


for version in range(build.OLDEST[1] + 1, build.NEWEST[1] + 1):
    assert run(version) == (0, [""]), run(version)

NEWEST = build.NEWEST[1]
CUDA = "class C10_API CUDAAllocator : public DeviceAllocator {"
for change, said in (
        ((CUDA, CUDA + "\n  virtual void defragment(int device) = 0;"),
         "function of CUDAAllocator defragment: missing"),
        (("virtual int raw_delete(", "virtual int raw_delete(bool at_once, "),
         "function of CUDAAllocator raw_delete: missing: it has 2 parameters, not 1"),
        (("virtual int cacheInfo(", "int cacheInfo("), "function of CUDAAllocator cacheInfo: PyTorch does not have it"),
        (("virtual int get_stats(", "virtual int pin(); virtual int get_stats("),
         "function of HostAllocator pin: missing"),
        (("int32_t gc_counter", "std::map<int, int> generations; int32_t gc_counter"),
         "field BlockInfo.generations: missing"),
        (("ptrdiff_t offset;", "ptrdiff_t offset; int kind;"), "struct ShareableHandle: it is made from 3 values, not 2"),
        (("int j = {}", "int j = {}, int k = 0"), "struct TraceEntry: it is made from 11 values, not 10"),
        (("enum Action { ALLOC,", "enum Action { ALLOC, MOVED,"), "action MOVED: missing"),
        (("static bool release_lock", "static bool compacts() { return true; }\n  static bool release_lock"),
         "setting compacts: missing")):
    assert run(NEWEST, change) == (1, [said, ""]), (change, run(NEWEST, change))

code, lines = run(NEWEST + 1)
assert code == 1 and len(lines) == 2, lines
assert "is newer than this adapter" in lines[0] and "--pluggable-only" in lines[0], lines
print("ok")
