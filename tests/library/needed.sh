#!/bin/sh
# needed.sh LIBRARY SONAME [NAME...]: the library has this SONAME, needs only libc and the named libraries, and uses
# little thread-local storage.
set -eu
library=$1 soname=$2
shift 2

dynamic=$(LC_ALL=C readelf -d "$library")
got=$(printf '%s\n' "$dynamic" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
if [ "$got" != "$soname" ]; then
  echo "soname is '$got', expected '$soname'"
  exit 1
fi

needed=$(printf '%s\n' "$dynamic" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
for name in $needed; do
  case $name in
    libc.so.* | ld-linux*) ;;
    libpthread.so.* | libdl.so.*) ;; # parts of glibc that were files of their own before 2.34
    *)
      case " $* " in
        *" ${name%%.so*} "*) ;;
        *)
          echo "$library needs $name"
          exit 1
          ;;
      esac
      ;;
  esac
done
case $needed in
  *libc.so.*) ;;
  *)
    echo "$library does not name libc: readelf was not understood"
    exit 1
    ;;
esac

# glibc reserves 1664 bytes of static TLS for all libraries that a running program loads, as Python does.
tls=$(LC_ALL=C readelf -lW "$library" | sed -n 's/^ *TLS  *0x[0-9a-f]* 0x[0-9a-f]* 0x[0-9a-f]* 0x[0-9a-f]* \(0x[0-9a-f]*\) .*/\1/p')
if [ -z "$tls" ] || [ $((tls)) -gt 640 ]; then
  echo "$library has ${tls:-no known number of} bytes for each thread, expected 640 at most"
  exit 1
fi
