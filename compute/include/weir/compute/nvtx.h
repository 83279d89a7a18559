/*
 * Ranges and marks of a program, for profilers and for recordings: NVTX 3.
 *
 * Part of libweir_compute; weir/weir.h does not include this header. A tool such as Nsight Systems or compute-sanitizer
 * gets them through NVTX's own protocol, for which no library is needed. While an allocator records (weir/history.h),
 * they also become part of its history. Without a tool and a recording, a call is a few loads and branches.
 * compute/docs/nvtx.md explains both.
 */
#ifndef WEIR_NVTX_H
#define WEIR_NVTX_H

#include <stdint.h>

#include "weir/alloc.h"
#include "weir/status.h"
#include "weir/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returned by push and pop where the depth of ranges is not tracked, as by NVTX. */
#define WEIR_NVTX_NOT_TRACKED (-2)

/* Begins a range of the calling thread, inside those that are open. Returns its depth, 0 for the outermost, or a
 * negative number. While an allocator records, the range is the thread's phase (weir_history_enter_phase), and an
 * annotation marks its beginning. NULL counts as "". */
int weir_nvtx_range_push(const char *message);

/* Ends the innermost range of the calling thread. Returns its depth, or a negative number if no range is open. */
int weir_nvtx_range_pop(void);

/* Begins a range that another thread may end. Returns its number; 0 if neither a tool nor a recording gets it. */
uint64_t weir_nvtx_range_start(const char *message);
void weir_nvtx_range_end(uint64_t range);

/* Marks a moment. */
void weir_nvtx_mark(const char *message);

/* A range that begins and ends in the order of the work of a stream, like weir_nvtx_range_start and _end in host
 * functions (weir_stream_host_function). The range is freed when its end is reached. If a graph captures them, it must
 * be launched exactly once. */
typedef struct weir_nvtx_device_range weir_nvtx_device_range;
weir_status weir_nvtx_device_range_start(const char *message, weir_stream stream, weir_nvtx_device_range **range);
weir_status weir_nvtx_device_range_end(weir_nvtx_device_range *range, weir_stream stream);

/* 1 if a tool listens. The first call of this header looks for it: the environment variable NVTX_INJECTION64_PATH names
 * its library. */
int weir_nvtx_is_listening(void);

/* Reports the segments and blocks of an allocator through NVTX's memory extension from now on, so that
 * `compute-sanitizer --nvtx yes` detects accesses outside of blocks. *listens is 0 if no tool wants that, or
 * WEIR_NVTX_MEMORY=0 is set, and then nothing changes; `listens` may be NULL. Allocations take the slow path while they
 * are reported. Blocks in use are reported at once; no other thread may use the allocator during the call. Expandable
 * segments are not reported. WEIR_ERROR_BAD_STATE if an adapter observes the allocator already
 * (weir_allocator_set_witness). */
weir_status weir_nvtx_report_memory(weir_allocator *allocator, int *listens);

/* Ends this, before the allocator is destroyed for example: the tool forgets its segments and blocks. Does nothing if
 * they are not reported. No other thread may use the allocator during the call. */
weir_status weir_nvtx_forget_memory(weir_allocator *allocator);

#ifdef __cplusplus
}
#endif
#endif
