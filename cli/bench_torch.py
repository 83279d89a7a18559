"""Finds PyTorch for `weir bench alloc`.

Prints "absent" and the reason, or "torch" and the version, and then the arguments for the C++ compiler, one on each
line.
"""
import glob
import os
import shutil
import sys


def absent(why):
    print("absent", " ".join(str(why).split())[:120])
    sys.exit(0)


try:
    import torch
except Exception as error:
    absent("no PyTorch for python3" if isinstance(error, ImportError) else error)
if not torch.cuda.is_available():
    absent("PyTorch finds no GPU")
here = os.path.dirname(torch.__file__)
wheels = os.path.join(os.path.dirname(here), "nvidia", "*")
nvcc = shutil.which("nvcc")
homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"),
         nvcc and os.path.dirname(os.path.dirname(os.path.realpath(nvcc))), "/usr/local/cuda"]
homes = [home for home in homes if home]
headers = [home + "/include" for home in homes] + sorted(glob.glob(wheels + "/include"))
headers = [path for path in headers if os.path.exists(path + "/cuda_runtime_api.h")]
if not headers:
    absent("cuda_runtime_api.h was not found")
headers.sort(key=lambda path: not os.path.exists(path + "/crt/host_defines.h"))
libraries = [here + "/lib"] + sorted(glob.glob(wheels + "/lib"))
print("torch", torch.__version__)
print("-D_GLIBCXX_USE_CXX11_ABI=%d" % int(torch._C._GLIBCXX_USE_CXX11_ABI))
print("-isystem" + here + "/include")
print("-isystem" + headers[0])
for path in libraries:
    print("-L" + path)
    print("-Wl,-rpath," + path)
print("-lc10_cuda")
print("-lc10")
runtime = [file for path in libraries + [home + "/lib64" for home in homes]
           for file in sorted(glob.glob(path + "/libcudart.so*"))]
if runtime:
    print(runtime[0])
