"""adapters/torch/tests/pytorch_own.py with a stand-in for PyTorch's tests: test_pytorch_own.py ROOT."""
import json
import os
import subprocess
import sys
import tempfile

TESTS = """
import os, time, unittest
weir, moving = os.environ["WEIR_TORCH"] == "1", os.environ.get("WEIR_ALLOC_CONF") == "moving_pages:True"
class TestPools(unittest.TestCase):
    expandable_segments = lambda self: False
    def test_a_passes(self): pass
    def test_b_fails_under_both(self): self.fail("always")
    def test_c_fails_with_weir(self): self.assertFalse(weir, "only natively")
    def test_d_crashes_with_weir(self):
        if weir: os._exit(11)
    def test_e_passes_with_weir(self): self.assertTrue(weir)
    @unittest.skip("not here")
    def test_f_is_skipped(self): pass
    def test_g_takes_long(self):
        if weir: time.sleep(30)
    def test_h_moving(self): self.assertEqual(moving, weir)
    def test_i_expandable(self): self.assertTrue(self.expandable_segments())
class TestOther(unittest.TestCase):
    def test_last(self): pass
"""
TORCH = """
import types
cuda = types.SimpleNamespace(memory=types.SimpleNamespace(_set_allocator_settings=lambda text: None))
"""


def main(root):
    with tempfile.TemporaryDirectory() as folder:
        for path, text in (("test_fake.py", TESTS), ("torch.py", TORCH)):
            with open(os.path.join(folder, path), "w") as file:
                file.write(text)
        out = os.path.join(folder, "out.json")

        def run(*arguments):
            command = [sys.executable, os.path.join(root, "adapters", "torch", "tests", "pytorch_own.py"), folder,
                       "--seconds-a-test", "1", "--json", out, *arguments]
            env = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", PYTHONPATH=folder)
            done = subprocess.run(command, env=env, capture_output=True, text=True)
            assert "Traceback" not in done.stderr, done.stderr
            with open(out) as file:
                return done.returncode, done.stdout, json.load(file)

        code, text, results = run("--files", "test_fake.py,test_fake.py+expandable", "--moving")
        assert code == 1, text
        for of in results.values():
            assert {name: result[0] for name, result in of["weir"].items() if "_i_" not in name} == {
                "TestPools.test_a_passes": "passed", "TestPools.test_b_fails_under_both": "failed",
                "TestPools.test_c_fails_with_weir": "failed", "TestPools.test_d_crashes_with_weir": "crashed",
                "TestPools.test_e_passes_with_weir": "passed", "TestPools.test_f_is_skipped": "skipped",
                "TestPools.test_g_takes_long": "failed", "TestPools.test_h_moving": "passed",
                "TestOther.test_last": "passed"}, of
        for file, result in (("test_fake.py", "failed"), ("test_fake.py+expandable", "passed")):
            assert results[file]["weir"]["TestPools.test_i_expandable"][0] == result, results
        worse = [line.split(": ")[0] for line in text.splitlines() if line.startswith("FAILED test_fake.py::")]
        assert [line.rpartition(".test_")[2][0] for line in worse] == ["c", "d", "g"], text
        assert text.endswith("pytorch own tests: 9 passed, 6 failed\n"), text

        code, text, results = run("--files", "test_fake.py", "--only", "passes")
        assert code == 0 and list(results["test_fake.py"]["weir"]) == [
            "TestPools.test_a_passes", "TestPools.test_e_passes_with_weir"], text
        code, text, results = run("--files", "test_absent.py")
        assert code == 1 and results["test_absent.py"]["weir"]["(all)"][0] == "failed", results


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]))
