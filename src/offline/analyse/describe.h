/*
 * Descriptions for people: a stack in one line, a span of time, a phase.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offline/read/recording.h"

enum { WEIR__DESCRIBE_TEXT = 160, WEIR__SIZE_CLASS_MIN = 512 };

/* The frames that stand for a stack (offline/analyse/sites.h): "forward (resnet.py:147), from main (train.py:41)". ""
 * for stack 0. Returns `text`. */
const char *weir__describe_stack(const weir__recording *recording, uint32_t stack, char text[WEIR__DESCRIBE_TEXT]);

/* For each stack the first one with the same description. free() it. */
weir_status weir__describe_alike(const weir__recording *recording, uint32_t **alike);

/* The range of the program that was open on a device at a time, or else ended last: "in forward", "after
 * Optimizer.step". "" if there is none. Returns `text`. */
const char *weir__describe_phase(const weir__recording *recording, int device, int64_t time_us,
                                 char text[WEIR__DESCRIBE_TEXT]);

/* From one time of a file to another, in microseconds. A file may contain any values, so nothing may overflow. */
static inline int64_t weir__time_between(int64_t from, int64_t to) { return (int64_t)((uint64_t)to - (uint64_t)from); }

/* "12 us", "3.4 ms", "1.20 s", "5 min", "2.5 h". Returns `text`. */
const char *weir__describe_span(int64_t microseconds, char text[32]);

/* "the default stream", "stream 0x55d0c8". Returns `text`. */
const char *weir__describe_stream(const weir__recording *recording, uint16_t stream, char text[48]);

/* "default pool", "private pool (0, 1)". Returns `text`. */
const char *weir__describe_pool(const weir__recording *recording, uint32_t pool, char text[64]);

/* A stack as above, or else "blocks of 2.00 MiB". Returns `text`. */
const char *weir__describe_blocks(const weir__recording *recording, uint32_t stack, uint64_t size, char text[192]);

/* The power of two that a size is at most, and "1.00 MiB to 2.00 MiB" for it. */
uint64_t weir__size_class(uint64_t size);
const char *weir__describe_size_class(uint64_t class, char text[WEIR__DESCRIBE_TEXT]);
