"""pytorch_seed.py with a source tree of its own in place of PyTorch's."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

TESTS = """
import subprocess, sys, time, unittest
import torch
import torch.cuda
from torch.cuda._memory_viz import trace_plot
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_optimizers import optim_db, optims
from torch.testing._internal.common_utils import (
    TEST_CUDA, TestCase, instantiate_parametrized_tests, parametrize, slowTest, subtest
)

class TestNames(TestCase):
    def test_modules(self):
        import weir
        self.assertIs(torch.cuda, weir)
        self.assertIs(torch.cuda.memory, weir.memory)
        self.assertTrue(TEST_CUDA and not torch.zeros(1).is_cuda and not torch.FloatTensor(1).is_cuda)
        self.assertTrue(torch.cuda.FloatTensor(1).is_cuda)
    def test_child(self):
        code = "import torch; print(torch.cuda.device_count())"
        self.assertEqual(subprocess.check_output([sys.executable, "-c", code]).decode().strip(), str(torch.cuda.device_count()))
    def test_equal(self):
        x = torch.tensor([1.0, 2.0], device="cuda")
        self.assertEqual(x, [1.0, 2.0])
        self.assertEqual({"a": (x, 1)}, {"a": (x.cpu(), 1)})
        self.assertNotEqual(x, x + 1e-3)
        self.assertEqual(x, x + 1e-3, atol=1e-2, rtol=0)
        for other in (x.to(torch.float64), torch.ones(3), torch.tensor([float("nan"), 2.0])):
            with self.assertRaises(AssertionError):
                self.assertEqual(x, other)
        with self.assertRaises(AssertionError):
            self.assertEqual([1, 2], [1, 2, 3])
    def test_fails(self): self.assertEqual(torch.ones(2), torch.zeros(2))
    def test_needs_nn(self): torch.nn.Module()
    def test_needs_autograd(self): torch.ones(1, requires_grad=True)
    def test_unknown_name(self): torch.a_name_of_nothing
    def test_does_not_end(self): time.sleep(60)
    def test_crashes(self):
        import os
        os._exit(3)
    @slowTest
    def test_slow(self): self.fail()
    @unittest.skipIf(torch.cuda.device_count() < 2, "one device")
    def test_two_devices(self): self.assertEqual(torch.zeros(1, device="cuda:1").get_device(), 1)
    @unittest.expectedFailure
    def test_fails_as_expected(self): self.fail()
    @unittest.expectedFailure
    def test_fails_for_want_of_nn(self): torch.nn.Module()
    @parametrize("a, b", [(1, 2), subtest((2, 3), decorators=[unittest.skip("not this")])])
    def test_parameters(self, a, b): self.assertEqual(a + 1, b)

class TestDevices(TestCase):
    @optims(optim_db, dtypes=[torch.float32])
    def test_optimizers(self, device, dtype, optim_info): pass
    def test_device(self, device): self.assertEqual(device, "cuda")

instantiate_parametrized_tests(TestNames)
instantiate_device_type_tests(TestDevices, globals())
"""

OTHERS = """
import torch
from torch.nn.parallel import scatter_gather
from torch.testing._internal.common_cuda import TEST_MULTIGPU, _create_scaling_models_optimizers
from torch.testing._internal.common_utils import IS_REMOTE_GPU, TestCase

kept = []

class TestOthers(TestCase):
    def test_devices(self):
        self.assertTrue(TEST_MULTIGPU and not IS_REMOTE_GPU)
        self.assertEqual(torch.zeros(1, device="cuda:1").device, torch.device("cuda", 1))
        with torch.cuda.device(torch.device("cuda:1")):
            self.assertEqual(torch.cuda.current_device(), 1)
    def test_type_strings(self):
        x = torch.zeros(1, device="cuda")
        self.assertEqualTypeString(x, x + 1)
        with self.assertRaises(AssertionError):
            self.assertEqualTypeString(x, x.cpu())
    def test_no_leak(self): self.wrap_with_cuda_memory_check(lambda: torch.zeros(1 << 20, device="cuda:1"))()
    def test_leak(self): self.wrap_with_cuda_memory_check(lambda: kept.append(torch.zeros(1 << 20, device="cuda:1")))()
    def test_needs_parallel_layers(self): scatter_gather.scatter(1, [0])
    def test_needs_sparse(self): self.genSparseTensor((2, 3), 2, 1)
    def test_needs_optimizers(self): _create_scaling_models_optimizers()
"""

RESULTS = {
    "TestDevicesCUDA.test_device_cuda": ("passed", None),
    "TestDevicesCUDA.test_optimizers_cuda": ("error", "optimizers"),
    "TestNames.test_child": ("passed", None),
    "TestNames.test_crashes": ("error", None),
    "TestNames.test_does_not_end": ("timed out", None),
    "TestNames.test_equal": ("passed", None),
    "TestNames.test_fails": ("failed", None),
    "TestNames.test_fails_as_expected": ("passed", None),
    "TestNames.test_fails_for_want_of_nn": ("error", "nn"),
    "TestNames.test_modules": ("passed", None),
    "TestNames.test_needs_autograd": ("error", "autograd"),
    "TestNames.test_needs_nn": ("error", "nn"),
    "TestNames.test_parameters_a_1_b_2": ("passed", None),
    "TestNames.test_parameters_a_2_b_3": ("skipped", None),
    "TestNames.test_slow": ("skipped", None),
    "TestNames.test_two_devices": ("passed", None),
    "TestNames.test_unknown_name": ("error", None),
}


def test_results(tmp_path):
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_cuda.py").write_text(TESTS)
    out = tmp_path / "results"
    command = [sys.executable, str(HERE / "pytorch_seed.py"), str(tmp_path), "--seconds", "5", "--json", str(out)]
    one_device = {name: value for name, value in os.environ.items() if name not in ("WEIR_DRIVER", "WEIR_SOFT_DEVICES")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=one_device)
    found = {name: (one["result"], one["needs"]) for name, one in json.loads(out.read_text()).items()}
    assert found == RESULTS
    assert "17 tests: 7 passed, 2 skipped, 1 failed, 6 error, 1 timed out" in done.stdout
    assert "16 methods: 6 passed" in done.stdout, done.stdout
    assert done.returncode == 1, "some fail that need nothing else"


def test_another_file(tmp_path):
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_others.py").write_text(OTHERS)
    command = [sys.executable, str(HERE / "pytorch_seed.py"), str(tmp_path), "--file", "test_others.py"]
    two_devices = {**os.environ, "WEIR_DRIVER": "soft", "WEIR_SOFT_DEVICES": "2"}
    done = subprocess.run(command, capture_output=True, text=True, env=two_devices)
    assert "7 tests: 3 passed, 0 skipped, 0 failed, 4 error, 0 timed out" in done.stdout, done.stdout + done.stderr
    assert "WEIR: RuntimeError: CUDA driver API confirmed a leak of 4194304 bytes on device 1." in done.stdout
    assert "WEIR" not in done.stdout.replace("WEIR: RuntimeError: CUDA driver API", "")


def test_a_folder_without_the_tests(tmp_path):
    command = [sys.executable, str(HERE / "pytorch_seed.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "it has no test/test_cuda.py" in done.stderr
