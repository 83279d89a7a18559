/*
 * Static tracepoints (USDT): a program like bpftrace can observe each allocation and each free of a running process,
 * without recording and without a restart. A tracepoint is one instruction that does nothing, and a note in the ELF
 * file with its address and arguments. They exist if <sys/sdt.h> was there when Weir was built.
 */
#pragma once

#if defined(__has_include)
#if __has_include(<sys/sdt.h>)
#define WEIR__HAS_PROBES 1
#endif
#endif

#ifdef WEIR__HAS_PROBES
#include <sys/sdt.h>
#ifdef __clang__ /* it warns about how the header calls its own macros */
#define WEIR__PROBE(name, pointer, device, bytes, stream)                                                              \
  do {                                                                                                                 \
    _Pragma("clang diagnostic push") _Pragma("clang diagnostic ignored \"-Wgnu-zero-variadic-macro-arguments\"")       \
        DTRACE_PROBE4(weir, name, pointer, device, bytes, stream);                                                     \
    _Pragma("clang diagnostic pop")                                                                                    \
  } while (0)
#else
#define WEIR__PROBE(name, pointer, device, bytes, stream) DTRACE_PROBE4(weir, name, pointer, device, bytes, stream)
#endif
/* pointer, device, bytes as requested, stream */
#define WEIR__PROBE_MALLOC(pointer, device, bytes, stream) WEIR__PROBE(malloc, pointer, device, bytes, stream)
#define WEIR__PROBE_FREE(pointer, device, bytes, stream) WEIR__PROBE(free, pointer, device, bytes, stream)
#else
#define WEIR__PROBE_MALLOC(pointer, device, bytes, stream) ((void)0)
#define WEIR__PROBE_FREE(pointer, device, bytes, stream) ((void)0)
#endif
