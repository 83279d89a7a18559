"""Functions that the benchmarks with PyTorch share."""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PACKAGE = os.path.join(ROOT, "build", "torch")


def compile_library(source, path, include=None):
    """Compiles a C++ source against PyTorch as a shared library, with headers of one more folder; returns its path."""
    sys.path.insert(0, os.path.join(ROOT, "adapters", "torch"))
    import build
    import torch

    folder = os.path.dirname(torch.__file__)
    standard = "c++20" if build.version_of(torch) >= (2, 13) else "c++17"
    subprocess.run(["g++", f"-std={standard}", "-O2", "-shared", "-fPIC", source, "-o", path,
                    "-isystem", os.path.join(folder, "include"), "-isystem", build.cuda_include(folder),
                    *(["-I" + include] if include else []),
                    f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
                    "-L" + os.path.join(folder, "lib"), "-lc10", "-lc10_cuda", *build.CXX_RUNTIME], check=True)
    return path


def environment(package, weir):
    """Returns the environment of a process that uses Weir, or else PyTorch's own allocator."""
    path = os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])
    return dict(os.environ, WEIR_TORCH="1" if weir else "0", PYTHONPATH=path)
