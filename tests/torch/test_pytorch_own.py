"""adapters/torch/tests/pytorch_own.py with a stand-in for PyTorch and its tests: test_pytorch_own.py ROOT."""
import json
import os
import subprocess
import sys
import tempfile

TESTS = """
import os, signal, time, unittest
import expecttest, psutil, torch
weir, moving = os.environ["WEIR_TORCH"] == "1", os.environ.get("WEIR_ALLOC_CONF") == "moving_pages:True"
ran = []
class TestPools(expecttest.TestCase):
    expandable_segments = lambda self: False
    def tearDown(self): ran.append(self)
    def test_a_passes(self): self.assertEqual(psutil.disk_partitions(), [])
    def test_b_fails_everywhere(self): self.fail("always")
    def test_c_fails_with_weir(self): self.assertFalse(weir, "only natively")
    def test_d_crashes_with_weir(self):
        if weir: os._exit(11)
    def test_e_passes_with_weir(self): self.assertTrue(weir)
    @unittest.skip("not here")
    def test_f_is_skipped(self): pass
    def test_g_takes_long(self):
        if weir: time.sleep(30)
    def test_h_moving(self): self.assertFalse(moving)
    def test_i_expandable(self): self.assertTrue(self.expandable_segments())
    def test_j_fails_after_others(self): self.assertFalse(weir and len(ran) > 1, "alone it passes")
    def test_k_crashes_natively(self):
        if not weir: os._exit(12)
    def test_l_breaks_the_device(self):
        torch.cuda.broken = True
        self.fail("sticky")
    def test_m_follows(self): self.assertFalse(torch.cuda.broken)
    @unittest.expectedFailure
    def test_n_is_expected(self): self.fail("so it is")
    def test_o_text(self): self.assertExpectedInline("a", "a")
class TestOther(unittest.TestCase):
    def test_last(self): pass
"""
STUCK = """
import signal, time, unittest
class TestStuck(unittest.TestCase):
    def test_ignores_the_alarm(self):
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        time.sleep(60)
    def test_later(self): pass
"""
TORCH = """
import types
__version__ = "2.11.0+cu130"
def synchronize():
    if cuda.broken:
        raise RuntimeError("CUDA error: device-side assert triggered")
cuda = types.SimpleNamespace(memory=types.SimpleNamespace(_set_allocator_settings=lambda text: None), broken=False,
                             synchronize=synchronize, device_count=lambda: 1, get_device_name=lambda i: "Fake GPU")
"""
EXPECTED = {"a": "passed", "b": "failed", "c": "failed", "d": "crashed", "e": "passed", "f": "skipped",
            "g": "timed out", "h": "passed", "i": "failed", "j": "passed", "k": "passed", "l": "failed", "m": "passed",
            "n": "passed", "o": "passed"}


class Setup:
    def __init__(self, root, folder):
        self.folder, self.out = folder, os.path.join(folder, "out.json")
        self.tool = os.path.join(root, "adapters", "torch", "tests")
        self.source = os.path.join(folder, "pytorch")
        os.makedirs(os.path.join(self.source, "test"))
        os.makedirs(os.path.join(folder, "packages"))
        for path, text in (("pytorch/test/test_fake.py", TESTS), ("pytorch/test/test_stuck.py", STUCK),
                           ("pytorch/version.txt", "2.11.0a0\n"), ("packages/torch.py", TORCH),
                           ("packages/psutil.py", "")):
            with open(os.path.join(folder, path), "w") as file:
                file.write(text)

    def run(self, *arguments, code, source=True, before=""):
        command = [sys.executable, "-c", before + "import sys, pytorch_own; sys.exit(pytorch_own.main())"]
        command += [self.source] if source else []
        env = dict(os.environ, PYTHONDONTWRITEBYTECODE="1",
                   PYTHONPATH=os.pathsep.join([os.path.join(self.folder, "packages"), self.tool]))
        done = subprocess.run([*command, *arguments], env=env, capture_output=True, text=True)
        assert "Traceback" not in done.stderr and done.returncode == code, (arguments, done.returncode, done.stdout,
                                                                            done.stderr)
        return done.stdout, done.stderr

    def results(self, path=None):
        with open(path or self.out) as file:
            return json.load(file)["results"]


def short(tests):
    return {name.rpartition(".test_")[2][0]: one["result"] for name, one in tests.items() if "TestPools" in name}


def test_all_modes(setup):
    modes = ["--files", "test_fake.py", "--modes", "native,exact", "--shards", "1", "--json", setup.out]
    text, _ = setup.run(*modes, "--seconds-a-test", "1", code=1)
    found = setup.results()["test_fake.py"]
    assert short(found["exact"]) == EXPECTED, short(found["exact"])
    assert short(found["native"]) == {**EXPECTED, **dict.fromkeys("cdg", "passed"), "e": "failed", "k": "crashed"}
    assert found["exact"]["TestOther.test_last"]["result"] == "passed"
    assert found["exact"]["TestPools.test_j_fails_after_others"]["alone"] == 1, "it passes alone"
    assert found["exact"]["TestPools.test_c_fails_with_weir"]["alone"] == 2, "it still differs"
    worse = sorted({line.split("TestPools.test_")[1][0] for line in text.splitlines() if line.startswith("FAILED ")})
    assert worse == ["c", "d", "e", "g", "k"], text
    assert "    | AssertionError: True is not false : only natively" in text, text
    assert text.endswith("pytorch own tests: 9 passed, 5 failed\n"), text[-200:]

    again, said = setup.run(*modes, code=1)
    assert again == text and "run again" not in said, said  # all is known


    text, _ = setup.run("--files", "test_fake.py", "--only", "test_h", "--shards", "1", code=1)
    assert "FAILED test_fake.py::TestPools.test_h_moving, Weir, moving pages: failed, natively passed" in text, text


def test_parts(setup):
    """Modes and files that run in several commands are joined; parts of a file run in several processes."""
    paths = []
    for mode in ("native", "exact"):
        paths.append(os.path.join(setup.folder, mode + ".json"))
        setup.run("--files", "test_fake.py+expandable", "--only", "passes", "--modes", mode, "--shards", "2", "--json",
                  paths[-1], code=0)
    text, _ = setup.run("--merge", *paths, "--json", setup.out, source=False, code=1)
    found = setup.results()["test_fake.py+expandable"]
    assert list(found) == ["native", "exact"] and len(found["exact"]) == 2, found
    assert text.endswith("pytorch own tests: 2 passed, 1 failed\n"), text
    text, _ = setup.run("--files", "test_fake.py+expandable", "--only", "_i_", "--modes", "exact", "--shards", "1",
                        code=0)
    assert "1 passed" in text, text


def test_reasons(setup):
    """A stated reason excuses a difference, a missing one is an error, and one that is not needed is reported."""
    path = os.path.join(setup.folder, "reasons.txt")
    with open(path, "w") as file:
        file.write("# a comment\nexact,moving * TestPools.test_c_fails_with_weir # says so\n"
                   "exact * TestPools.test_a_passes # not needed\n")
    use = f"import pytorch_report; pytorch_report.read_reasons.__defaults__ = ({path!r},)\n"
    few = ["--files", "test_fake.py", "--modes", "native,exact", "--shards", "1", "--only"]
    text, _ = setup.run(*few, "TestPools.test_c", before=use, code=0)
    assert "differs test_fake.py::TestPools.test_c_fails_with_weir" in text and ": says so" in text, text
    text, _ = setup.run(*few, "test_a_", before=use, code=0)
    assert "note: pytorch_reasons.txt:3: TestPools.test_a_passes does not differ any more" in text, text
    sys.path.insert(0, setup.tool)
    import pytorch_report

    with open(path, "w") as file:
        file.write("exact * TestPools.test_c\n")
    try:
        pytorch_report.read_reasons(path)
    except ValueError as error:
        assert "the reason is missing" in str(error), error
    else:
        raise AssertionError("a missing reason was accepted")
    assert pytorch_report.read_reasons(), "the file of the repository is valid"


def test_stuck(setup):
    text, _ = setup.run("--files", "test_stuck.py", "--modes", "native", "--seconds-a-test", "1", "--shards", "1",
                        "--json", setup.out + "2", before="import pytorch_own; pytorch_own.GRACE = 1\n", code=0)
    found = setup.results(setup.out + "2")["test_stuck.py"]["native"]
    assert {name: one["result"] for name, one in found.items()} == {
        "TestStuck.test_ignores_the_alarm": "timed out", "TestStuck.test_later": "passed"}, found
    text, _ = setup.run("--files", "test_absent.py", "--modes", "native", "--shards", "1", code=1)
    assert "FAILED test_absent.py, PyTorch's allocator: no test ran" in text, text


def test_version(setup):
    with open(os.path.join(setup.source, "version.txt"), "w") as file:
        file.write("2.12.0a0\n")
    _, problem = setup.run(code=2)
    assert "the installed PyTorch is 2.11.0+cu130, but the tests in" in problem and "v2.11.0" in problem, problem
    setup.run("--any-version", "--files", "test_fake.py", "--only", "test_a_", "--modes", "native", "--shards", "1",
              code=0)
    _, problem = setup.run(setup.folder, source=False, code=2)
    assert "is not a source tree of PyTorch" in problem, problem


def test_docs(setup):
    import pytorch_report as report

    results = setup.results(os.path.join(setup.folder, "native.json"))
    results["test_fake.py+expandable"].update(
        setup.results(os.path.join(setup.folder, "exact.json"))["test_fake.py+expandable"])
    summary = report.summarize(results, report.compare(results, []), {"torch": "2.11.0", "source": "2.11.0a0",
                                                                       "gpu": "Fake GPU", "weir": "1.0.0"})
    page = report.replace_section(f"a\n{report.BEGIN}\nold\n{report.END}\nb\n", summary)
    assert "| `test_fake.py+expandable` | Weir | 2 | 0 | 0 | 0 | 0 | 0 |" in page and "old" not in page, page
    assert "test_e_passes_with_weir` | Weir | failed | passed | not known: AssertionError: False" in page, page
    missing = "`test_cuda_multigpu.py` was not run: it needs two GPUs."
    assert missing in page, page
    several = {**summary, "files": {**summary["files"], "test_cuda_multigpu.py": {"native": {"passed": 1}}}}
    assert missing not in report.section(several), report.section(several)
    setup.run("--check-docs", source=False, code=0)  # docs/evidence/torch-tests.md has what pytorch_results.json says


def main(root):
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(root, folder)
        test_all_modes(setup)
        test_parts(setup)
        test_reasons(setup)
        test_stuck(setup)
        test_version(setup)
        test_docs(setup)


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]))
