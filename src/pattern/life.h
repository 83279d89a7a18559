/*
 * The life of a block: what one request got, from the entry that allocated it to the one that freed it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WEIR__LIFE_OPEN UINT32_MAX
#define WEIR__LIFE_NO_POOL 0x7fff

/* Stacks, streams, pools and remarks are numbers of the caller's. */
typedef struct weir__life {
  uint64_t address;
  uint64_t size;  /* requested */
  uint32_t begin; /* the entry that allocated it */
  uint32_t freed; /* the entry that requested the free; from there to `end` it waits for other streams */
  uint32_t end;   /* the entry that completed the free */
  uint32_t stack; /* that of the allocation; with is_before that of the free, if it is known */
  uint32_t remark;
  uint16_t stream;
  uint16_t pool : 15; /* WEIR__LIFE_NO_POOL if not known */
  uint16_t is_before : 1;
} weir__life;

_Static_assert(sizeof(weir__life) == 40, "there is one for two entries");

/* Whether the block is in use right after an entry. */
static inline bool weir__life_spans(const weir__life *life, size_t entry) {
  return (life->is_before || life->begin <= entry) && life->freed > entry;
}
