#include "record/entry.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "record/texts.h"
#include "weir/history.h"

/* ---- Names of actions ---- */

static const char *const action_names[] = {
#define X(name, number, text) [number] = text,
    WEIR_TRACE_ACTION_MAP(X)
#undef X
};
_Static_assert((int)WEIR__ACTION_TAKEN < (int)WEIR_TRACE_ACTIONS &&
                   (int)WEIR__ACTION_UNKNOWN == (int)WEIR_TRACE_ACTIONS,
               "internal actions fill the gap, or follow the public ones");

const char *weir_trace_action_name(weir_trace_action action) {
  return (unsigned)action < WEIR_TRACE_ACTIONS && action_names[action] ? action_names[action] : "unknown";
}

weir_status weir_history_action(const char *name, unsigned *bit) {
  WEIR__CHECK_ARGUMENT(name);
  WEIR__CHECK_ARGUMENT(bit);
  for (unsigned i = 0; i < WEIR_TRACE_ACTIONS; i++)
    if (action_names[i] && strcmp(name, action_names[i]) == 0) {
      *bit = 1u << i;
      return WEIR_OK;
    }
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Unknown TraceEntry action: %s", __func__, name);
}

/* ---- Numbers ---- */

/* Pools, contexts and annotations are interned as structs, and differ from texts in their first byte. */
enum { POOL_MARK = 1, CONTEXT_MARK = 2, PAIRS_MARK = 3 };

typedef struct marked_pool {
  uint64_t mark;
  weir_pool_id id;
} marked_pool;

typedef struct marked_context {
  uint32_t mark;
  weir__entry_context context;
} marked_context;

uint32_t weir__pool_number(weir_pool_id id) {
  if (!id.first && id.second < WEIR__POOL_DIRECT)
    return (uint32_t)id.second | (id.second ? WEIR__POOL_SECOND : 0);
  if (!id.second && id.first < WEIR__POOL_DIRECT)
    return (uint32_t)id.first | WEIR__POOL_FIRST;
  marked_pool pool = {POOL_MARK, id};
  return weir__intern_put(&weir__texts, &pool, sizeof pool);
}

bool weir__pool_of_bytes(const void *bytes, size_t length, weir_pool_id *id) {
  marked_pool pool;
  if (!bytes || length != sizeof pool)
    return false;
  memcpy(&pool, bytes, sizeof pool);
  *id = pool.id;
  return pool.mark == POOL_MARK;
}

bool weir__pool_is_direct(uint32_t number, weir_pool_id *id) {
  uint32_t value = number % WEIR__POOL_DIRECT;
  *id = number & WEIR__POOL_FIRST ? (weir_pool_id){value, 0} : (weir_pool_id){0, value};
  return !number || number >= WEIR__POOL_DIRECT;
}

weir_pool_id weir__pool_of_number(uint32_t number) {
  size_t length;
  weir_pool_id direct;
  if (weir__pool_is_direct(number, &direct))
    return direct;
  const void *bytes = weir__intern_get(&weir__texts, number, &length);
  weir_pool_id id;
  return weir__pool_of_bytes(bytes, length, &id) ? id : (weir_pool_id){0, 0};
}

uint32_t weir__context_number(weir__entry_context context) {
  if (!(context.phase | context.compile | context.metadata))
    return 0;
  marked_context marked = {CONTEXT_MARK, context};
  return weir__intern_put(&weir__texts, &marked, sizeof marked);
}

bool weir__context_of_bytes(const void *bytes, size_t length, weir__entry_context *context) {
  marked_context marked;
  if (!bytes || length != sizeof marked)
    return false;
  memcpy(&marked, bytes, sizeof marked);
  *context = marked.context;
  return marked.mark == CONTEXT_MARK;
}

weir__entry_context weir__context_of_number(uint32_t number) {
  size_t length;
  const void *bytes = weir__intern_get(&weir__texts, number, &length);
  weir__entry_context context;
  return weir__context_of_bytes(bytes, length, &context) ? context : (weir__entry_context){0, 0, 0};
}

/* Annotations repeat, and each is interned once. */
typedef struct marked_pairs {
  uint32_t mark, count;
  char texts[];
} marked_pairs;

uint32_t weir__pairs_number(const char *texts, size_t bytes, uint32_t count) {
  marked_pairs *marked = malloc(sizeof *marked + bytes);
  if (!marked)
    return 0;
  marked->mark = PAIRS_MARK;
  marked->count = count;
  memcpy(marked->texts, texts, bytes);
  uint32_t number = weir__intern_put(&weir__texts, marked, sizeof *marked + bytes);
  free(marked);
  return number;
}

bool weir__pairs_of_bytes(const void *bytes, size_t length, const char **texts, size_t *count) {
  marked_pairs marked;
  if (!bytes || length < sizeof marked)
    return false;
  memcpy(&marked, bytes, sizeof marked);
  const char *at = (const char *)bytes + sizeof marked, *end = (const char *)bytes + length;
  *texts = at;
  *count = 0;
  for (int key = 1; at < end; key = !key) {
    size_t room = (size_t)(end - at), used = strnlen(at, room);
    if (used == room)
      return false;
    at += used + 1;
    *count += !key;
  }
  return marked.mark == PAIRS_MARK && *count == marked.count;
}
