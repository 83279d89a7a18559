#!/bin/sh
# needed.sh LIBRARY SONAME [NAME...]: the library is called so, needs libc and at most the named libraries, and little memory
# in each thread.
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

# A library that a running program loads (Python does) finds little of this: glibc keeps 1664 bytes for all of them.
tls=$(LC_ALL=C readelf -lW "$library" | sed -n 's/^ *TLS  *0x[0-9a-f]* 0x[0-9a-f]* 0x[0-9a-f]* 0x[0-9a-f]* \(0x[0-9a-f]*\) .*/\1/p')
if [ -z "$tls" ] || [ $((tls)) -gt 640 ]; then
  echo "$library has ${tls:-no known number of} bytes for each thread, expected 640 at most"
  exit 1
fi
