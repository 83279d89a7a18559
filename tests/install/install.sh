#!/bin/sh
# install.sh BUILD_DIR VERSION CMAKE CC [CXX]: installs to a fresh prefix, moves the prefix, and builds programs against
# it: with pkg-config and CMake, shared and static, in C and C++.
set -eu
build=$1 version=$2 cmake=$3 cc=$4 cxx=${5:-}
consumer=$(cd "$(dirname "$0")/consumer" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Another installation of Weir on the machine must not be found.
unset PKG_CONFIG_PATH LD_LIBRARY_PATH CMAKE_PREFIX_PATH DESTDIR CFLAGS CXXFLAGS LDFLAGS weir_DIR weir_ROOT

DESTDIR=$work/stage "$cmake" --install "$build" --prefix /first >/dev/null
prefix=$work/second
mv "$work/stage/first" "$prefix"

# expect PROGRAM NEEDED...: it runs, prints the version, and is linked to the shared library or not.
expect() {
  program=$1 linked=$2
  got=$(LD_LIBRARY_PATH=$libdir WEIR_DRIVER=soft "$program")
  if [ "$got" != "$version WEIR_ERROR_NO_DEVICE" ]; then
    echo "$program printed '$got', expected '$version WEIR_ERROR_NO_DEVICE'"
    exit 1
  fi
  needs=shared
  readelf -d "$program" | grep -q 'NEEDED.*libweir' || needs=static
  if [ "$needs" != "$linked" ]; then
    echo "$program is linked $needs, expected $linked"
    exit 1
  fi
  echo "ok: $(basename "$program")"
}

# expect_compute PROGRAM: it loads kernels for the software device.
expect_compute() {
  got=$(LD_LIBRARY_PATH=$libdir WEIR_DRIVER=soft "$1")
  if [ "$got" != "weir_spin 1" ]; then
    echo "$1 printed '$got', expected 'weir_spin 1'"
    exit 1
  fi
  echo "ok: $(basename "$1")"
}

pc=$(find "$prefix" -name weir.pc)
libdir=$(cd "$(dirname "$pc")/.." && pwd)
export PKG_CONFIG_LIBDIR="$libdir/pkgconfig"

if [ "$("$prefix/bin/weir" --version)" != "weir $version" ]; then
  echo "the installed program is not weir $version"
  exit 1
fi

# A path in the build folder would be searched for libraries.
for file in "$prefix/bin/weir" "$libdir"/*.so; do
  if readelf -d "$file" | grep -Eq 'RPATH|RUNPATH'; then
    echo "$file has a path to look for libraries"
    exit 1
  fi
done

# Manual pages and completion: one page for each command that the program lists, with the installed version.
for command in '' $("$prefix/bin/weir" --help | sed -n '/^Inspect:/,/^Options:/s/^  \([a-z]*\)  *.*/-\1/p'); do
  page=$prefix/share/man/man1/weir$command.1
  grep -q "^\.TH WEIR.* 1 .*Weir $version" "$page" || {
    echo "$page is not the page of weir $version"
    exit 1
  }
done
[ -f "$prefix/share/man/man7/weir-environment.7" ]
if command -v bash >/dev/null; then
  bash -c ". '$prefix/share/bash-completion/completions/weir' && complete -p weir" >/dev/null
fi

# Directories of the compiler are allowed; only paths of the build must not be in there.
if grep -rl "$build" "$prefix/lib"* "$prefix/include" --include='*.pc' --include='*.cmake' --include='*.h'; then
  echo "these name the build folder"
  exit 1
fi

if command -v pkg-config >/dev/null; then
  [ "$(pkg-config --modversion weir)" = "$version" ]
  # shellcheck disable=SC2046 # flags are words
  {
    "$cc" -std=c11 "$consumer/use.c" $(pkg-config --cflags --libs weir) -o "$work/pc-c-weir"
    "$cc" -std=c11 "$consumer/use.c" $(pkg-config --cflags --libs weir-static) -o "$work/pc-c-static"
    if [ -n "$cxx" ]; then
      "$cxx" -std=c++17 "$consumer/use.cpp" $(pkg-config --cflags --libs weir) -o "$work/pc-cpp-weir"
      "$cxx" -std=c++17 "$consumer/use.cpp" $(pkg-config --cflags --libs weir-static) -o "$work/pc-cpp-static"
    fi
  }
  # The library of recordings alone, without libweir.
  [ "$(pkg-config --modversion weir-offline)" = "$version" ]
  # shellcheck disable=SC2046
  "$cc" -std=c11 "$consumer/offline.c" $(pkg-config --cflags --libs weir-offline) -o "$work/offline"
  got=$(LD_LIBRARY_PATH=$libdir "$work/offline")
  if [ "$got" != "18 the recording" ]; then
    echo "offline printed '$got', expected '18 the recording'"
    exit 1
  fi
  echo "ok: offline"
  if [ -n "$cxx" ]; then
    # shellcheck disable=SC2046
    "$cxx" -std=c++17 "$consumer/offline.cpp" $(pkg-config --cflags --libs weir-offline) -o "$work/offline-cpp"
    got=$(LD_LIBRARY_PATH=$libdir "$work/offline-cpp")
    if [ "$got" != "WEIR_ERROR_BAD_DATA" ]; then
      echo "offline-cpp printed '$got', expected 'WEIR_ERROR_BAD_DATA'"
      exit 1
    fi
    echo "ok: offline-cpp"
  fi
  # Kernels, where they were built.
  if pkg-config --exists weir-compute; then
    # shellcheck disable=SC2046
    "$cc" -std=c11 "$consumer/../../../compute/tests/consumer.c" $(pkg-config --cflags --libs weir-compute) -o "$work/compute"
    expect_compute "$work/compute"
  fi
  for program in "$work"/pc-*-weir; do expect "$program" shared; done
  for program in "$work"/pc-*-static; do expect "$program" static; done
else
  echo "no pkg-config here: left out"
fi

"$cmake" -S "$consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
  ${cxx:+-DWITH_CXX=ON -DCMAKE_CXX_COMPILER="$cxx"} -DVERSION="$version" >"$work/log" 2>&1 || {
  cat "$work/log"
  exit 1
}
"$cmake" --build "$work/consumer" >"$work/log" 2>&1 || {
  cat "$work/log"
  exit 1
}
for program in "$work"/consumer/*-weir; do expect "$program" shared; done
for program in "$work"/consumer/*-static; do expect "$program" static; done
for program in "$work"/consumer/compute-*; do
  [ ! -f "$program" ] || expect_compute "$program"
done
