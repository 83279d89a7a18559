#!/usr/bin/env python3
"""Builds the adapter for the PyTorch of the running Python, into a folder that can be added to PYTHONPATH.

    python3 adapters/torch/build.py --weir build/libweir.so --out build/torch

The folder contains the package weir_torch with its libraries, and the metadata by which PyTorch finds it if
WEIR_TORCH=1 is set.
"""
import argparse
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIBRARY = "libweir_torch.so"
PLUGGABLE = "libweir_torch_pluggable.so"
FRAMES = "libweir_torch_frames"  # followed by .<version of Python>.so, or .public.so for any version
# Links to the C++ library that PyTorch has loaded, not to a copy: some compilers would link a static one by default.
CXX_RUNTIME = ["-nodefaultlibs", "-l:libstdc++.so.6", "-lm", "-lgcc_s", "-lgcc", "-lpthread", "-lc"]
LINK_FLAGS = ["-Wl,-rpath,$ORIGIN", "-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack"]


# The versions of PyTorch that the adapter was checked for, with check_interface.py.
OLDEST, NEWEST = (2, 10), (2, 14)


def fail(text):
    sys.exit(f"build.py: {text}")


def weir_version():
    header = open(os.path.join(ROOT, "include", "weir", "runtime.h")).read()
    return ".".join(re.search(rf"WEIR_VERSION_{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def cuda_include(torch_folder):
    """Returns the folder of CUDA's headers, from a toolkit or from NVIDIA's packages beside PyTorch."""
    places = [os.path.join(os.environ[name], "include") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    packages = os.path.join(os.path.dirname(torch_folder), "nvidia")
    places += sorted(glob.glob(os.path.join(packages, "cu[0-9]*", "include")), reverse=True)
    places += [os.path.join(os.path.dirname(torch_folder), "nvidia", "cuda_runtime", "include")]
    places += ["/usr/local/cuda/include"] + sorted(glob.glob("/usr/local/cuda-*/include"), reverse=True)
    places += ["/usr/include"]
    for place in places:
        if os.path.exists(os.path.join(place, "cuda_runtime_api.h")):
            return place
    fail("CUDA's headers (cuda_runtime_api.h) were not found; set CUDA_HOME to the folder of the toolkit")


def run(command):
    """Runs a compiler, whose name may have arguments, such as "ccache gcc"."""
    command = [*shlex.split(command[0]), *command[1:]]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.stdout:
        print(done.stdout, end="", flush=True)
    if done.returncode:
        fail("command failed:\n  " + " ".join(command))


def find_torch(any_version):
    """Imports PyTorch, and checks that the adapter can be built for it."""
    try:
        import torch
    except ImportError as error:
        fail(f"PyTorch is not installed for {sys.executable}: {error}")
    if version_of(torch) < OLDEST:
        fail(f"PyTorch 2.10 or later is required, found {torch.__version__}")
    if version_of(torch) > NEWEST and not any_version:
        fail(unknown_version(torch.__version__))
    if torch.version.cuda is None:
        fail(f"PyTorch {torch.__version__} was built without CUDA")
    cuda_include(os.path.dirname(torch.__file__))
    return torch


def unknown_version(version):
    newest = ".".join(map(str, NEWEST))
    return (f"PyTorch {version} is newer than this adapter, which knows the allocator interface up to {newest}. The"
            " pluggable library works with every version: build.py --pluggable-only, and then"
            " torch.cuda.memory.change_current_allocator(weir_torch.pluggable_allocator()). --any-version builds the"
            " adapter nevertheless, if its interface is still the same")


def version_of(torch):
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def compile_library(arguments, package):
    torch = find_torch(arguments.any_version)
    folder = os.path.dirname(torch.__file__)
    standard = "c++20" if version_of(torch) >= (2, 13) else "c++17"
    include = os.path.join(folder, "include")
    # Each allocation crosses two libraries, so calls are bound directly, without a lookup by name.
    flags = [f"-std={standard}", "-O2", "-g", "-fPIC", "-fno-plt", "-fno-semantic-interposition", "-Wall", "-Wextra",
             "-DUSE_CUDA",
             f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
             "-I" + os.path.join(ROOT, "include"), "-isystem", include,
             "-isystem", os.path.join(include, "torch", "csrc", "api", "include"), "-isystem", cuda_include(folder)]
    objects = os.path.join(arguments.out, "objects")
    os.makedirs(objects, exist_ok=True)
    sources = sorted(glob.glob(os.path.join(HERE, "*.cpp")))
    outputs = [os.path.join(objects, os.path.basename(source) + ".o") for source in sources]
    with ThreadPoolExecutor(arguments.jobs) as workers:
        jobs = ([arguments.cxx, *flags, "-c", source, "-o", output] for source, output in zip(sources, outputs))
        list(workers.map(run, jobs))
    run([arguments.cxx, "-shared", *outputs, "-o", os.path.join(package, LIBRARY), "-L" + os.path.join(folder, "lib"),
         "-lc10", "-lc10_cuda", "-ltorch_cuda", "-ltorch_cpu", package_weir(arguments, package), *LINK_FLAGS,
         *CXX_RUNTIME])
    shutil.rmtree(objects)
    with open(os.path.join(package, "built_for"), "w") as file:
        file.write(torch.__version__ + "\n")
    return torch.__version__


def package_weir(arguments, package):
    """Copies the library into the package, under its soname."""
    target = os.path.join(package, "libweir.so.0")
    if os.path.realpath(arguments.weir) != os.path.realpath(target):
        shutil.copy(os.path.realpath(arguments.weir), target)
    return target


def compile_pluggable(arguments, package):
    run([arguments.cc, "-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra",
         "-Wpedantic", "-I" + os.path.join(ROOT, "include"), "-shared", os.path.join(HERE, "pluggable.c"), "-o",
         os.path.join(package, PLUGGABLE), package_weir(arguments, package), *LINK_FLAGS, "-lpthread"])


def compile_frames(arguments, package):
    """Builds the libraries that add Python frames to stacks (WEIR_RECORD_STACKS): one for this version of Python, whose
    headers define the layout of frames, and one for any version, through public functions. Builds for several versions
    of Python can coexist."""
    sources = os.path.join(ROOT, "python", "frames")
    include = sysconfig.get_path("include")
    variants = [("public", "public.c", [])]
    if os.path.exists(os.path.join(include, "internal", "pycore_frame.h")):
        variants.append((sysconfig.get_config_var("SOABI"), "walk.c", ["-isystem", include]))
    else:
        print(f"{include}/internal/pycore_frame.h was not found: stacks of this Python use its public functions, which"
              " is slower")
    for name, source, flags in variants:
        run([arguments.cc, "-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-fPIC", "-fno-plt", "-Wall", "-Wextra",
             "-I" + os.path.join(ROOT, "include"), *flags, "-shared", os.path.join(sources, source), "-o",
             os.path.join(package, f"{FRAMES}.{name}.so"), package_weir(arguments, package), *LINK_FLAGS,
             "-lpthread"])


def write_metadata(out):
    version = weir_version()
    folder = os.path.join(out, f"weir_torch-{version}.dist-info")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "METADATA"), "w") as file:
        file.write(f"Metadata-Version: 2.1\nName: weir-torch\nVersion: {version}\nSummary: Weir under PyTorch\n")
    with open(os.path.join(folder, "entry_points.txt"), "w") as file:
        file.write("[torch.backends]\nweir = weir_torch:_autoload\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default=os.path.join(ROOT, "build", "libweir.so"),
                        help="the shared library of Weir (default: %(default)s)")
    parser.add_argument("--out", default=os.path.join(ROOT, "build", "torch"),
                        help="the output folder (default: %(default)s)")
    parser.add_argument("--cxx", default=os.environ.get("CXX", "g++"), help="the C++ compiler (default: %(default)s)")
    parser.add_argument("--cc", default=os.environ.get("CC", "gcc"), help="the C compiler (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1,
                        help="the number of parallel compilations (default: %(default)s)")
    parser.add_argument("--pluggable-only", action="store_true",
                        help=f"build only {PLUGGABLE}, which does not need PyTorch")
    parser.add_argument("--any-version", action="store_true", help="build for a PyTorch that the adapter does not know")
    parser.add_argument("--check", action="store_true", help="only check whether the adapter can be built here")
    arguments = parser.parse_args()
    if arguments.check:
        if not shutil.which(shlex.split(arguments.cxx)[0]):
            fail(f"the C++ compiler {arguments.cxx} was not found")
        print(f"the adapter can be built for PyTorch {find_torch(arguments.any_version).__version__}")
        return
    if not os.path.exists(arguments.weir):
        fail(f"{arguments.weir} was not found; build Weir first (make), or pass its library with --weir")
    package = os.path.join(arguments.out, "weir_torch")
    os.makedirs(package, exist_ok=True)
    for name in os.listdir(os.path.join(HERE, "weir_torch")):
        if name.endswith(".py"):
            shutil.copy(os.path.join(HERE, "weir_torch", name), package)
    write_metadata(arguments.out)
    compile_pluggable(arguments, package)
    compile_frames(arguments, package)
    if arguments.pluggable_only:
        print(f"{os.path.join(package, PLUGGABLE)}: built")
    else:
        version = compile_library(arguments, package)
        print(f"{arguments.out}: built for PyTorch {version}; use it with PYTHONPATH={arguments.out}")


if __name__ == "__main__":
    main()
