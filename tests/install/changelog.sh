#!/bin/sh
# changelog.sh FOLDER: the first entries of CHANGELOG.md and debian/changelog have the version of
# include/weir/runtime.h. FOLDER is the project.
set -eu
cd "$1"
header=include/weir/runtime.h
version=
for part in MAJOR MINOR PATCH; do
  version="$version${version:+.}$(sed -n "s/^#define WEIR_VERSION_$part \([0-9]*\)$/\1/p" $header)"
done
packaged=$(sed -n '1s/^weir (\(.*\)-[0-9][0-9]*) .*/\1/p' debian/changelog)
if [ "$packaged" != "$version" ]; then
  echo "debian/changelog begins with version '$packaged', and $header has $version: add an entry 'weir ($version-1)'"
  exit 1
fi
described=$(sed -n 's/^## \([0-9][0-9.]*\).*/\1/p' CHANGELOG.md | head -n 1)
if [ "$described" != "$version" ]; then
  echo "CHANGELOG.md begins with version '$described', and $header has $version: add an entry '## $version'"
  exit 1
fi
