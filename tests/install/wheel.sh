#!/bin/sh
# wheel.sh SOURCE_DIR PYTHON PROGRAM: the wheel: its name, what it needs, its licences, an installation without a
# network, the command and the calls, the source archive, and the adapter for PyTorch, with a stand-in for PyTorch and
# its compiler.
#
# WEIR_TEST_WHEELS=FOLDER tests the files that scripts/wheel left there, and builds none.
# shellcheck disable=SC2015 # fail() exits
set -eu
source=$1 python=$2 program=$3
if [ "${WEIR_TEST_LONG:-}" != 1 ] && [ -z "${WEIR_TEST_WHEELS:-}" ]; then
  echo "waived: it takes minutes; WEIR_TEST_LONG=1 selects it"
  exit 77
fi
for module in setuptools wheel pip; do
  "$python" -c "import $module" 2>/dev/null || {
    echo "waived: $python has no $module"
    exit 77
  }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH PYTHONHOME WEIR_CACHE_DIR WEIR_TORCH WEIR_TORCH_LIBRARIES CUDA_HOME CUDA_PATH CXX
fail() {
  echo "$*"
  exit 1
}
ok() { echo "ok: $*"; }
trace=$source/tests/data/traces/llama_oom.pickle.zst
SOURCE_DATE_EPOCH=1700000000
export SOURCE_DATE_EPOCH

folder=${WEIR_TEST_WHEELS:-}
if [ -z "$folder" ]; then
  folder=$work/wheel
  "$source/scripts/wheel" "$python" "$folder"
  mkdir "$work/second"
  (cd "$source" && "$python" -c '
import sys
from setuptools import build_meta
build_meta.build_sdist(sys.argv[1])' "$work/second" >"$work/log" 2>&1) || fail "$(tail -n 20 "$work/log")"
  cmp "$folder"/weir-*.tar.gz "$work/second"/weir-*.tar.gz || fail "two source archives differ"
  ok "two source archives are the same"
fi
wheel=$(echo "$folder"/weir-*.whl)
archive=$(echo "$folder"/weir-*.tar.gz)

# ---- The name ----

tag=$("$python" "$source/python/wheel_tag.py" "$wheel" 2>/dev/null)
case $tag in
  manylinux_2_*) ;;
  *) fail "the tag is $tag, not manylinux" ;;
esac
case $wheel in
  *-"$tag".whl) ok "$tag" ;;
  *) fail "$wheel should be named $tag" ;;
esac

# ---- Installation ----

site=$work/site
"$python" -m pip -q --disable-pip-version-check install --no-index --no-deps --no-compile --target "$site" "$wheel"
for file in "$site/weir/bin/weir" "$site/weir/lib/libweir.so.0" "$site"/weir/_weir*.so "$site"/weir/compute/_compute*.so; do
  needs=$(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -vE '^(_weir\..*|lib(c|m|dl|pthread)\.so\.[0-9]+|ld-linux.*)$' || true)
  [ -z "$needs" ] || fail "$file needs $needs"
done
ok "libc alone"
"$source/tests/library/hardening.sh" "$site/weir/bin/weir" "$site/weir/lib/libweir.so.0" "$site"/weir/_weir*.so \
  "$site"/weir/compute/_compute*.so ||
  fail "the files are not hardened"
ok "hardened"
# The licences of what is linked in ask for their texts in every copy.
for file in LICENSE NOTICE; do
  cmp "$source/$file" "$(find "$site"/weir-*.dist-info -name $file)" || fail "the wheel has no $file"
  tar -xzOf "$archive" --wildcards --no-wildcards-match-slash "*/$file" 2>/dev/null | cmp "$source/$file" - || fail "the source archive has no $file"
done
licences='Apache-2.0 AND LicenseRef-CUDA-libdevice AND MIT AND BSD-2-Clause AND BSD-3-Clause'
grep -qx "License: $licences" "$site"/weir-*.dist-info/METADATA || fail "the metadata does not name the licences"
ok "LICENSE and NOTICE"
version=$("$program" --version)
export PYTHONPATH="$site"
[ "$("$site/bin/weir" --version)" = "$version" ] || fail "the command is not $version"
for arguments in "explain $trace" "summary --json $trace" "--help" "help environment" "tune --json $trace"; do
  # shellcheck disable=SC2086 # word splitting is intended
  PATH=$site/bin:$PATH "$site/bin/weir" $arguments >"$work/installed"
  # shellcheck disable=SC2086
  (cd "$(dirname "$program")" && PATH=.:$PATH weir $arguments) >"$work/built"
  cmp "$work/installed" "$work/built" || fail "weir $arguments differs from $program"
done
ok "the command is the program"
"$python" -m weir explain "$trace" | head -1 | grep -q 'out of memory' || fail "python -m weir explain"
WEIR_DRIVER=soft "$python" - "$trace" "$("$program" explain --json "$trace")" <<'END'
import json, sys, weir
report = weir.explain(sys.argv[1])
assert report.to_dict() == json.loads(sys.argv[2])
assert weir.buffer(16).fill_(1).tobytes() == b"\1" * 16
assert weir.arange(3, device="cuda").tolist() == [0, 1, 2]
END
ok "the calls"
if "$site/weir/bin/weir" view -o "$work/page.html" --no-open "$trace" >/dev/null 2>"$work/err"; then
  if echo 'int main(void) { return 0; }' | clang --target=wasm32-wasi -x c -o /dev/null - 2>/dev/null; then
    grep -q 'id="weir-wasm"' "$work/page.html" && grep -q 'id="weir-recording"' "$work/page.html" ||
      fail "the page has no what-if"
  fi
  ok "weir view has its page"
else
  grep -q 'this build of Weir has no page' "$work/err" || fail "$(cat "$work/err")"
  command -v esbuild >/dev/null && fail "esbuild is there, but the wheel has no page"
  ok "weir view says that it has no page"
fi
if "$python" -c 'import pytest' 2>/dev/null; then
  "$python" -m pytest -q -p no:cacheprovider "$source/python/tests/test_tools.py" || fail "test_tools.py"
fi

# ---- The adapter for PyTorch ----

torch=$work/torch
mkdir -p "$torch/torch/include" "$torch/torch/lib" "$work/cuda/include"
: >"$work/cuda/include/cuda_runtime_api.h"
cat >"$torch/torch/__init__.py" <<'END'
import os
from importlib.metadata import entry_points
__version__ = os.environ.get("FAKE_TORCH", "2.11.0+cu130")
class version:
    cuda = os.environ.get("FAKE_CUDA", "13.0") or None
def compiled_with_cxx11_abi():
    return True
class _Pluggable:
    def __init__(self, path, alloc, free):
        assert os.path.exists(path), path
        self.set_init_fn = lambda address: setattr(self, "init", address)
    def allocator(self):
        return self
class cuda:
    class memory:
        CUDAPluggableAllocator = _Pluggable
for entry in entry_points(group="torch.backends"):
    entry.load()()
END
cat >"$work/adapter.c" <<'END'
#include <stdio.h>
#include <stdlib.h>
const char *weir_torch_built_for(void) { return VERSION; }
const char *weir_torch_install(void) { puts("installed"); fflush(stdout); return NULL; }
int weir_torch_is_installed(void) { return 1; }
const char *weir_torch_install_pinned(void) { return NULL; }
int weir_torch_pinned_is_installed(void) { return 0; }
void *weir_torch_allocator(void) { return NULL; }
void *weir_torch_timing(void) { return NULL; }
END
cat >"$work/c++" <<'END'
#!/bin/sh
# Instead of the C++ compiler: an object is empty, and the library is adapter.c.
[ -z "${FAKE_ERROR:-}" ] || { echo "$FAKE_ERROR"; exit 1; }
for argument; do
  [ "${last:-}" != -o ] || out=$argument
  [ "$argument" != -shared ] || shared=1
  last=$argument
done
[ -n "${shared:-}" ] || { : >"$out"; exit 0; }
echo built >>"$FAKE_COUNT"
exec cc -shared -fPIC -DVERSION="\"${FAKE_TORCH:-2.11.0+cu130}\"" -o "$out" "$FAKE_ADAPTER"
END
chmod +x "$work/c++"
export CXX="$work/c++" CUDA_HOME="$work/cuda" FAKE_COUNT="$work/count" FAKE_ADAPTER="$work/adapter.c"
export PYTHONPATH="$torch:$site" XDG_CACHE_HOME="$work/cache" HOME="$work"
train() { "$python" -W always -c 'import torch; print("trained")' >"$work/out" 2>"$work/err"; }
built() { [ "$(wc -l <"$work/count" 2>/dev/null || echo 0)" -eq "$1" ] || fail "$(cat "$work/count") builds, expected $1"; }

train
[ "$(cat "$work/out")" = trained ] && [ ! -s "$work/err" ] && [ ! -e "$work/cache" ] || fail "something happened at import"
ok "no effect without WEIR_TORCH=1"
export WEIR_TORCH=1
train & one=$!
"$python" -c 'import torch' >"$work/other" 2>&1 || fail "$(cat "$work/other")"
wait $one || fail "$(cat "$work/err")"
grep -q '^installed$' "$work/out" || fail "not installed: $(cat "$work/err")"
grep -q '^installed$' "$work/other" || fail "not installed: $(cat "$work/other")"
built 1
train
[ ! -s "$work/err" ] && grep -q '^installed$' "$work/out" || fail "the second run: $(cat "$work/err")"
built 1
[ "$(stat -c %a "$work/cache/weir/torch")" = 700 ] || fail "the cache is not private"
ok "WEIR_TORCH=1 builds once"
place=$("$python" -m weir torch-build)
[ -e "$place/libweir_torch.so" ] && [ -e "$place/libweir_torch_pluggable.so" ] && built 1 || fail "torch-build: $place"
"$python" -m weir torch-build --clean >/dev/null 2>&1
built 2
(cd "$work" && PYTHONPATH=$site "$python" -m weir torch-build 2>&1 || true) | grep -q 'PyTorch is not installed' || fail "torch-build"
ok "torch-build"
FAKE_TORCH=2.99.0 train
grep -q 'PyTorch 2.99.0 is newer than this adapter.*--pluggable-only.*PyTorch keeps its own allocator' "$work/err" ||
  fail "an unknown PyTorch: $(cat "$work/err")"
FAKE_TORCH=2.99.0 WEIR_TORCH=0 "$python" -c 'import weir_torch
library = weir_torch.pluggable_allocator()
assert library.allocator().init, "no hooks"
weir_torch.pluggable_allocator()' 2>"$work/err" || fail "$(cat "$work/err")"
[ "$(grep -c 'building the pluggable library' "$work/err")" = 1 ] || fail "$(cat "$work/err")"
! grep -q 'building the adapter' "$work/err" || fail "$(cat "$work/err")"
built 2
ok "a PyTorch that is not known has the pluggable library"
FAKE_TORCH=2.12.1 train
built 3
grep -q '^installed$' "$work/out" || fail "another PyTorch: $(cat "$work/err")"
ok "another version of PyTorch is another build"
FAKE_CUDA='' train
grep -q 'was built without CUDA' "$work/err" && grep -q trained "$work/out" || fail "without CUDA: $(cat "$work/err")"
FAKE_ERROR='no such header' FAKE_TORCH=2.13.0 train
grep -q 'no such header' "$work/err" && grep -q trained "$work/out" || fail "a failed build: $(cat "$work/err")"
[ -z "$(find "$work/cache/weir/torch" -name 'build-*')" ] || fail "a failed build left files"
chmod 777 "$work/cache/weir/torch"
train
grep -q 'not a folder that only' "$work/err" && grep -q '^trained$' "$work/out" || fail "others can write"
grep -q '^installed$' "$work/out" && fail "code of others was loaded"
built 3
ok "failures are warnings"

# ---- The source archive ----

unset WEIR_TORCH CXX CUDA_HOME PYTHONPATH XDG_CACHE_HOME
mkdir "$work/source" "$work/again"
tar -xzf "$archive" -C "$work/source" --strip-components=1
[ ! -e "$work/source/viewer/node_modules" ] || fail "the source archive has packages of npm"
# Without the tools that built the page.
mkdir "$work/bin"
for tool in cc c++ gcc g++ as ld readelf sh ccache x86_64-linux-gnu-gcc x86_64-linux-gnu-g++ "$(basename "$python")"; do
  path=$(command -v "$tool") && ln -sf "$path" "$work/bin/$tool"
done
# By pip, which isolates the build, and in a virtual environment without packages, as without a network.
"$python" -m venv "$work/venv"
"$work/venv/bin/python3" -m pip -q --disable-pip-version-check uninstall -y setuptools >"$work/log" 2>&1
(cd "$work/source" && PATH=$work/bin WEIR_BUILD_TORCH=0 "$work/venv/bin/python3" -m pip --disable-pip-version-check wheel \
  --no-index --no-deps --wheel-dir "$work/again" . >"$work/log" 2>&1) || fail "$(tail -n 20 "$work/log")"
"$python" - "$wheel" "$work/again/$(basename "$wheel")" <<'END'
import sys, zipfile
one, two = ({item.filename: item.CRC for item in zipfile.ZipFile(path).infolist()} for path in sys.argv[1:])
differ = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
assert not [name for name in differ if not name.endswith("RECORD")], f"these files differ: {differ}"
END
ok "the source archive builds the same wheel"
