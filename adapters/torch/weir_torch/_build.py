"""Builds the adapter's libraries for the installed PyTorch from the sources that a wheel of Weir carries.

    python3 -m weir torch-build [--clean]

builds them ahead of time, or again; WEIR_TORCH=1 builds them when they are first needed. They are kept in
WEIR_CACHE_DIR, $XDG_CACHE_HOME/weir or ~/.cache/weir, in a folder that only its owner can write to.
"""
import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile

LIBRARY = "libweir_torch.so"
PLUGGABLE = "libweir_torch_pluggable.so"  # works with every PyTorch


def installed_torch():
    """The version of the installed PyTorch, without importing it; None if there is none."""
    module = sys.modules.get("torch")
    if module is not None and hasattr(module, "__version__"):
        return str(module.__version__)
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def _same_minor(one, other):
    return one.split("+")[0].split(".")[:2] == other.split("+")[0].split(".")[:2]


def sources():
    """The folder of the adapter's sources in the package weir; None if it has none."""
    spec = importlib.util.find_spec("weir")
    if spec is None or not spec.submodule_search_locations:
        return None
    package = list(spec.submodule_search_locations)[0]
    script = os.path.join(package, "adapter", "adapters", "torch", "build.py")
    library = os.path.join(package, "lib", "libweir.so.0")
    return package if os.path.exists(script) and os.path.exists(library) else None


def folder(own):
    """The folder with libraries for the installed PyTorch: the package's own, or one of the cache, built if necessary.
    It is the package's own if there is nothing to build from."""
    torch = installed_torch()
    if os.path.exists(os.path.join(own, LIBRARY)):
        try:
            with open(os.path.join(own, "built_for")) as file:
                built_for = file.read().strip()
        except OSError:
            return own
        if torch is None or _same_minor(built_for, torch):
            return own
    package = sources()
    if package is None or torch is None:
        return own
    return cached(package, torch)


def pluggable_folder(own):
    """The folder with the pluggable library. It is built alone, since it does not need the adapter."""
    package, torch = sources(), installed_torch()
    if os.path.exists(os.path.join(own, PLUGGABLE)) or package is None or torch is None:
        return own
    return cached(package, torch, library=PLUGGABLE)


# ---- The cache ----


def cache_folder():
    given, xdg = os.environ.get("WEIR_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME", "")
    if given:
        return os.path.abspath(given)
    if os.path.isabs(xdg):
        return os.path.join(xdg, "weir")
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        raise RuntimeError("weir: there is no folder for the adapter's libraries: set WEIR_CACHE_DIR")
    return os.path.join(home, ".cache", "weir")


def _check_private(path):
    """Code is loaded from this folder, so no other user may be able to write to it."""
    about = os.lstat(path)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise RuntimeError(f"weir: {path} is not used for the adapter's libraries, since it is not a folder that only"
                           " its owner, this user, can write to. Run `chmod go-w` on it, or set WEIR_CACHE_DIR to"
                           " another folder")


def _key(package, torch):
    """Changes with everything that the libraries depend on."""
    digest = hashlib.sha256()
    for root, folders, names in os.walk(os.path.join(package, "adapter")):
        folders.sort()
        for name in sorted(names):
            if not name.endswith(".pyc"):
                with open(os.path.join(root, name), "rb") as file:
                    digest.update(name.encode() + b"\0" + file.read())
    with open(os.path.join(package, "lib", "libweir.so.0"), "rb") as file:
        digest.update(file.read())
    digest.update(os.path.realpath(sys.prefix).encode())
    version = "".join(c if c.isalnum() or c in ".+-" else "_" for c in torch)
    return f"torch-{version}-{sysconfig.get_config_var('SOABI')}-{digest.hexdigest()[:16]}"


@contextlib.contextmanager
def _lock(path):
    """Only one of the processes of a job builds; the others wait."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def cached(package, torch, clean=False, library=LIBRARY):
    """Returns the folder of the cache that has the libraries for this PyTorch, and builds them if it has none. PLUGGABLE:
    that library alone."""
    base = os.path.join(cache_folder(), "torch")
    os.makedirs(base, mode=0o700, exist_ok=True)
    _check_private(os.path.dirname(base))
    _check_private(base)
    final = os.path.join(base, _key(package, torch))
    if library == PLUGGABLE and not os.path.exists(os.path.join(final, "weir_torch", library)):
        final += "-pluggable"
    found = os.path.join(final, "weir_torch")
    if not clean and os.path.exists(os.path.join(found, library)):
        _check_private(final)
        return found
    with _lock(final + ".lock"):
        if clean:
            shutil.rmtree(final, ignore_errors=True)
        if not os.path.exists(os.path.join(found, library)):
            _build(package, torch, base, final, ["--pluggable-only"] if library == PLUGGABLE else [])
    return found


def _build(package, torch, base, final, options):
    what = "the pluggable library" if options else f"the adapter for PyTorch {torch}"
    print(f"weir: building {what} into {final}: once{'' if options else ', for a minute or two'}", file=sys.stderr,
          flush=True)
    work = tempfile.mkdtemp(prefix="build-", dir=base)  # readable by the user alone
    try:
        script = os.path.join(package, "adapter", "adapters", "torch", "build.py")
        command = [sys.executable, "-B", script, "--weir", os.path.join(package, "lib", "libweir.so.0"), "--out", work,
                   *options]
        # PyTorch must not ask for the adapter while it is built.
        done = subprocess.run(command, env={**os.environ, "WEIR_TORCH": "0"}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        if done.returncode:
            raise RuntimeError("weir: the adapter could not be built:\n" + done.stdout.strip()[-4000:])
        shutil.rmtree(final, ignore_errors=True)
        os.rename(work, final)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main(arguments):
    """The command torch-build. Returns an exit code."""
    if arguments not in ([], ["--clean"]):
        print(__doc__.strip(), file=sys.stderr)
        return 0 if arguments in (["--help"], ["-h"]) else 2
    package = sources()
    os.environ.pop("WEIR_TORCH", None)  # the import of PyTorch must not build
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401
    torch = installed_torch()
    try:
        if torch is None:
            raise RuntimeError(f"weir: PyTorch is not installed for {sys.executable}")
        if package is None:
            raise RuntimeError("weir: this installation has no sources of the adapter: run `python3"
                               " adapters/torch/build.py` in Weir's source folder")
        if arguments:
            print(cached(package, torch, clean=True))
        else:
            import weir_torch

            print(weir_torch.library_folder())
    except (RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
