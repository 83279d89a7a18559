# Functions that create and use a fresh Debian, for scripts/test-chroot and scripts/test-deb. To be sourced after
# quiet.sh. Needs root, debootstrap and a network; without them the script exits with 77 and the reason. MIRROR is the
# package mirror; the default is that of the host.
# shellcheck shell=sh

skip() {
  echo "  skipped: $1"
  exit 77
}

# create_chroot PACKAGE,...: sets root, the folder of a new Debian with these packages, and log, a file for output. Both
# are removed when the script ends.
create_chroot() {
  [ "$(id -u)" -eq 0 ] || skip 'creating a fresh Debian needs root'
  command -v debootstrap >/dev/null 2>&1 || skip 'debootstrap is not installed'
  unshare --mount true 2>/dev/null || skip 'mount namespaces are not allowed here'

  # The release and mirror of the host if it runs Debian.
  release=$(. /etc/os-release 2>/dev/null && [ "${ID:-}" = debian ] && echo "${VERSION_CODENAME:-}")
  release=${release:-bookworm}
  mirror=${MIRROR:-$(cat /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null |
    sed -n 's/^URIs: *\([^ ]*\).*/\1/p; s/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\) .*/\2/p' | head -n 1)}
  [ -n "$mirror" ] || skip 'no Debian mirror was found: set MIRROR'

  root=$(mktemp -d "${TMPDIR:-/tmp}/weir-chroot.XXXXXX") || exit 1
  chmod 755 "$root" || exit 1 # it becomes /, which users other than root must be able to traverse
  log=$root.log
  trap remove_chroot EXIT
  quietly "  creating a fresh Debian $release" "$log" \
    debootstrap --variant=minbase --include="$1" "$release" "$root" "$mirror" ||
    skip 'debootstrap failed: is there a network?'
  cp -L /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null
}

# shellcheck disable=SC2317,SC2329 # the trap runs it
remove_chroot() {
  rm -rf --one-file-system "$root"
  rm -f "$log"
}

# in_chroot TEXT COMMAND...: runs the command there, with its output in the log, and TEXT on one line.
in_chroot() {
  text=$1
  shift
  # The mounts belong to the inner shell, and end with it.
  # shellcheck disable=SC2016 # the inner shell expands the variables
  quietly "  $text" "$log" unshare --mount sh -c '
    mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount -t tmpfs tmpfs "$0/tmp" || exit 1
    exec chroot "$0" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
      ${http_proxy:+"http_proxy=$http_proxy"} "$@"' "$root" "$@"
}
