#include "offline/read/ring_state.h"

#include <stdlib.h>
#include <string.h>

#include "offline/read/byte_reader.h"

/* The most pages of expandable segments, mapped or not, in one checkpoint: more than any device has, and few enough to
 * install from a hostile file. */
enum { MAX_PAGES = 1 << 18 };

/* A checkpoint being read. */
typedef struct reader {
  const unsigned char *data; /* of the file */
  uint64_t at, end;          /* of the checkpoint */
  uint64_t pools_at, segments_at, blocks_at;
  weir__ring_file_state of;
  weir__state *state;
  uint64_t pages;
  uint64_t bad;
  const char *why; /* NULL if nothing is wrong */
} reader;

static bool wrong(reader *r, uint64_t at, const char *why) {
  r->bad = at;
  r->why = why;
  return false;
}

/* ---- One segment ---- */

static bool is_sound(const weir__ring_file_segment *s) {
  return s->bytes && s->bytes < WEIR__STATE_MAX_REQUEST && s->address && s->address < UINT64_MAX - s->bytes &&
         s->address % WEIR__STATE_UNIT == 0 && s->bytes % WEIR__STATE_UNIT == 0 && s->page % WEIR__STATE_UNIT == 0 &&
         s->is_small <= 1 && (!s->page || (s->page <= s->bytes && s->bytes % s->page == 0));
}

/* `offset` is where it begins in its segment, `before` the state of the one before it. */
static bool read_block(reader *r, const weir__ring_file_segment *s, uint64_t number, uint64_t offset, uint8_t before) {
  static const uint8_t states[] = {WEIR_BLOCK_INACTIVE, WEIR__BLOCK_UNMAPPED, WEIR_BLOCK_ACTIVE_ALLOCATED,
                                   WEIR_BLOCK_ACTIVE_PENDING_FREE};
  uint64_t at = r->blocks_at + number * sizeof(weir__ring_file_block);
  weir__ring_file_block b;
  memcpy(&b, r->data + at, sizeof b);
  uint64_t size = (uint64_t)b.units * WEIR__STATE_UNIT, requested = b.rest >> 2;
  uint8_t state = states[b.rest & 3];
  bool is_active = state == WEIR_BLOCK_ACTIVE_ALLOCATED || state == WEIR_BLOCK_ACTIVE_PENDING_FREE;
  if (!size || size > s->bytes - offset)
    return wrong(r, at, "a block that does not fit into its segment");
  if (is_active ? !requested || requested > size : requested || state == before)
    return wrong(r, at, "a block whose state and size make no sense");
  if (state == WEIR__BLOCK_UNMAPPED && (!s->page || size % s->page || offset % s->page))
    return wrong(r, at, "a hole that is not made of pages");
  r->state->blocks[r->state->block_count++] = (weir__state_block){.address = s->address + offset,
                                                                  .size = size,
                                                                  .requested = requested,
                                                                  .event = WEIR__NO_ENTRY,
                                                                  .stack = is_active ? b.extra : 0,
                                                                  .age = state == WEIR_BLOCK_INACTIVE ? b.extra : 0,
                                                                  .state = state};
  if (state != WEIR__BLOCK_UNMAPPED)
    r->state->reserved += size;
  return true;
}

static bool read_segment(reader *r, uint64_t number, uint64_t *block) {
  uint64_t at = r->segments_at + number * sizeof(weir__ring_file_segment), offset = 0;
  weir__state *state = r->state;
  weir__ring_file_segment s;
  memcpy(&s, r->data + at, sizeof s);
  if (!is_sound(&s) || s.block_count > r->of.block_count - *block)
    return wrong(r, at, "a segment that makes no sense");
  if (!s.block_count && s.page) /* a reservation without pages */
    return true;
  size_t first = state->block_count;
  for (uint32_t i = 0; i < s.block_count; i++) {
    uint8_t before = i ? state->blocks[state->block_count - 1].state : WEIR_BLOCK_ACTIVE_ALLOCATED;
    if (!read_block(r, &s, *block + i, offset, before))
      return false;
    offset += state->blocks[state->block_count - 1].size;
  }
  *block += s.block_count;
  if (s.page)
    r->pages += offset / s.page;
  if (offset >= WEIR__STATE_MAX_BLOCK || (s.page ? offset % s.page != 0 : offset != s.bytes) ||
      state->blocks[state->block_count - 1].state == WEIR__BLOCK_UNMAPPED || r->pages > MAX_PAGES)
    return wrong(r, at, "a segment whose blocks are not all of it");
  state->segments[state->segment_count++] = (weir__state_segment){.address = s.address,
                                                                  .size = offset,
                                                                  .stream = (int64_t)s.stream,
                                                                  .pool = {(int64_t)s.pool[0], (int64_t)s.pool[1]},
                                                                  .first = first,
                                                                  .count = state->block_count - first,
                                                                  .reserve = s.page ? s.bytes : 0,
                                                                  .page = s.page,
                                                                  .is_small = s.is_small != 0,
                                                                  .is_expandable = s.page != 0};
  return true;
}

/* ---- One checkpoint ---- */

static uint64_t end_of(const weir__state_segment *s) { return s->address + (s->reserve ? s->reserve : s->size); }

static bool read_all(reader *r) {
  weir__state *state = r->state;
  uint64_t block = 0;
  memcpy(state->pools, r->data + r->pools_at, (size_t)r->of.pool_count * sizeof *state->pools);
  state->pool_count = (size_t)r->of.pool_count;
  for (uint64_t i = 0; i < r->of.segment_count; i++)
    if (!read_segment(r, i, &block))
      return false;
  return block == r->of.block_count || wrong(r, r->at, "a checkpoint with blocks of no segment");
}

static bool is_disjoint(reader *r) {
  const weir__state *state = r->state;
  for (size_t i = 1; i < state->segment_count; i++)
    if (end_of(&state->segments[i - 1]) > state->segments[i].address)
      return wrong(r, r->at, "a checkpoint of segments that overlap");
  return true;
}

/* Checks that the parts add up to the size of the whole. */
static bool read_head(reader *r, int device) {
  uint64_t left = r->end - r->at;
  if (left < sizeof r->of)
    return wrong(r, r->at, "a checkpoint that ends in its head");
  memcpy(&r->of, r->data + r->at, sizeof r->of);
  left -= sizeof r->of;
  uint64_t conf = weir__round_up((uint64_t)r->of.conf_bytes, 8);
  if (r->of.device != (uint32_t)device || conf > left)
    return wrong(r, r->at, "a checkpoint of another device");
  left -= conf;
  r->pools_at = r->at + sizeof r->of + conf;
  if (r->of.pool_count > left / sizeof(weir_pool_id))
    return wrong(r, r->at, "a checkpoint of more pools than it has");
  left -= r->of.pool_count * sizeof(weir_pool_id);
  r->segments_at = r->pools_at + r->of.pool_count * sizeof(weir_pool_id);
  if (r->of.segment_count > left / sizeof(weir__ring_file_segment))
    return wrong(r, r->at, "a checkpoint of more segments than it has");
  left -= r->of.segment_count * sizeof(weir__ring_file_segment);
  r->blocks_at = r->segments_at + r->of.segment_count * sizeof(weir__ring_file_segment);
  if (left % sizeof(weir__ring_file_block) || r->of.block_count != left / sizeof(weir__ring_file_block))
    return wrong(r, r->at, "a checkpoint of more blocks than it has, or fewer");
  return true;
}

static weir_status no_memory(const weir__budget *budget) {
  return weir__not_ok(weir__fail(budget->is_over ? WEIR_ERROR_BAD_DATA : WEIR_ERROR_HOST_OUT_OF_MEMORY,
                                 "no memory for a checkpoint of the recording"));
}

static weir_status read_checkpoint(reader *r, int device, weir__budget *budget) {
  if (!read_head(r, device))
    return WEIR_ERROR_BAD_DATA;
  uint64_t bytes = sizeof *r->state + r->of.pool_count * sizeof *r->state->pools +
                   (r->of.segment_count + 1) * sizeof *r->state->segments +
                   2 * (r->of.block_count + 1) * sizeof *r->state->blocks;
  r->state = weir__budget_take(budget, bytes) ? calloc(1, sizeof *r->state) : NULL;
  if (!r->state)
    return no_memory(budget);
  bool has_room =
      !weir__state_make((size_t)r->of.segment_count, (size_t)r->of.block_count, (size_t)r->of.pool_count, r->state);
  weir_status status = has_room ? WEIR_OK : no_memory(budget);
  if (!status && !read_all(r))
    status = WEIR_ERROR_BAD_DATA;
  if (!status && weir__state_sort(r->state))
    status = no_memory(budget);
  if (!status && !is_disjoint(r))
    status = WEIR_ERROR_BAD_DATA;
  if (status) {
    weir__state_clear(r->state);
    free(r->state);
    r->state = NULL;
  }
  return status;
}

/* ---- The choice of a checkpoint ---- */

/* Whether a slot has a complete checkpoint: its checksum matches. */
static bool is_whole(const unsigned char *data, uint64_t size, const weir__ring_file_slot *slot) {
  return slot->sequence && slot->at >= WEIR__RING_HEADER && slot->at <= size && slot->bytes <= size - slot->at &&
         slot->bytes >= sizeof(weir__ring_file_state) && slot->at % 8 == 0 && slot->bytes % 8 == 0 &&
         slot->checksum == weir__ring_file_checksum(slot->sequence, slot->at, data + slot->at, slot->bytes);
}

weir_status weir__ring_file_start_read(const unsigned char *data, uint64_t size, const weir__ring_file_header *h,
                                       int device, weir__budget *budget, weir__ring_file_start *start, uint64_t *bad,
                                       const char **why) {
  const weir__ring_file_device *d = &h->devices[device];
  uint64_t after = d->dropped_until > d->cleared_until ? d->dropped_until : d->cleared_until, oldest = UINT64_MAX;
  weir__ring_file_slot slots[WEIR__RING_CHECKPOINTS], *found = NULL;
  *start = (weir__ring_file_start){.is_known = false};
  *bad = 0;
  *why = NULL;
  uint64_t slots_at = h->slots_at, slot_bytes = (uint64_t)h->device_count * sizeof slots;
  if (!slots_at || slots_at > size || slot_bytes > size - slots_at) /* or it has grown by them since it was read */
    return WEIR_OK;
  memcpy(slots, data + slots_at + (size_t)device * sizeof slots, sizeof slots);
  for (int i = 0; i < WEIR__RING_CHECKPOINTS; i++) {
    start->is_missing |= slots[i].bytes != 0;
    if (slots[i].sequence >= oldest || !is_whole(data, size, &slots[i]))
      continue;
    weir__ring_file_state of;
    memcpy(&of, data + slots[i].at, sizeof of);
    if (of.time < after)
      continue;
    oldest = slots[i].sequence;
    found = &slots[i];
  }
  if (!found)
    return WEIR_OK;
  reader r = {.data = data, .at = found->at, .end = found->at + found->bytes};
  weir_status status = read_checkpoint(&r, device, budget);
  if (status) {
    *bad = r.bad;
    *why = r.why;
    return status;
  }
  *start = (weir__ring_file_start){
      .is_known = true, .of = r.of, .conf = (const char *)data + r.at + sizeof r.of, .state = r.state};
  return WEIR_OK;
}
