#include "alloc/ipc/sent.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/cache/arena.h"
#include "alloc/cache/backend_port.h"
#include "alloc/cache/pointer.h"
#include "alloc/cache/trace.h"
#include "alloc/cache/uses.h"
#include "alloc/ipc/ipc.h"
#include "base/environment.h"
#include "base/system.h"
#include "base/thread.h"
#include "driver/call.h"

enum { DEFAULT_TIMEOUT = 600 };

/* Seconds after which a message that has not been received expires, once its memory is in limbo; infinite if
 * negative. */
static double timeout_from_env(void) {
  double seconds = DEFAULT_TIMEOUT;
  if (weir__env_number(WEIR__ENV_IPC_TIMEOUT, &seconds) && seconds)
    return seconds;
  weir__env_ignore(WEIR__ENV_IPC_TIMEOUT, "messages expire after 600 seconds");
  return DEFAULT_TIMEOUT;
}

typedef struct reference reference;
struct reference {
  uint32_t slot, generation;
  weir_cu_event event; /* NULL if there is none */
  double timeout;      /* infinite if negative */
  reference *next;
};

/* A block that was sent. */
typedef struct sent {
  weir__block *block;
  bool is_in_limbo;
  uint64_t freed_ns; /* when it came there */
  reference *references;
} sent;

typedef struct sent_entry {
  uint64_t address;
  sent *sent;
} sent_entry;

static sent *find_sent(const weir__heap *heap, uint64_t address) {
  const sent_entry *entry = weir__hash_map_find(&heap->sent.blocks, sizeof(sent_entry), address);
  return entry ? entry->sent : NULL;
}

bool weir__sent_is_known(weir_allocator *allocator, const weir__ipc_message *message) {
  bool is_known = false;
  for (int i = 0; i < allocator->heap_count && !is_known; i++) {
    weir__heap *heap = &allocator->heaps[i];
    weir__mutex_lock(&heap->lock);
    const sent *memory = find_sent(heap, message->address);
    for (const reference *r = memory ? memory->references : NULL; r && !is_known; r = r->next)
      is_known = r->slot == message->reference.slot && r->generation == message->reference.generation &&
                 message->bytes <= weir__block_bytes(memory->block);
    weir__mutex_unlock(&heap->lock);
  }
  return is_known;
}

/* ---- The end of references ---- */

static void update_stats(weir__heap *heap) {
  weir_allocator_stats *stats = &heap->stats;
  stats->ipc_references = (int64_t)heap->sent.references;
  stats->ipc_limbo_blocks = (int64_t)heap->sent.limbo;
  if (stats->ipc_limbo_bytes > stats->ipc_limbo_bytes_peak)
    stats->ipc_limbo_bytes_peak = stats->ipc_limbo_bytes;
}

/* Results of weir__identity_has_ended, which makes several system calls, for one collection. */
typedef struct known_processes {
  weir__process_identity processes[16];
  bool has_ended[16];
  size_t count;
} known_processes;

static bool has_ended(known_processes *known, weir__process_identity process) {
  for (size_t i = 0; i < known->count; i++)
    if (known->processes[i] == process)
      return known->has_ended[i];
  bool ended = weir__identity_has_ended(process);
  if (known->count < WEIR_COUNT_OF(known->processes)) {
    known->processes[known->count] = process;
    known->has_ended[known->count++] = ended;
  }
  return ended;
}

static bool is_expired(const sent *memory, const reference *r, uint64_t now) {
  return memory->is_in_limbo && r->timeout >= 0 && (double)(now - memory->freed_ns) >= r->timeout * 1e9;
}

/* Whether a reference has ended. Then its word is free. `known` is NULL where only references that are done count. */
static bool end_reference(weir__heap *heap, const sent *memory, const reference *r, known_processes *known,
                          uint64_t now) {
  weir__references *references = heap->allocator->references;
  weir__process_identity process;
  weir__reference_state state = weir__reference_read(references, r->slot, &process);
  if (state == WEIR__REFERENCE_SENT && known && (has_ended(known, process) || is_expired(memory, r, now))) {
    if (!weir__reference_withdraw(references, r->slot))
      return false; /* it was received just now */
    heap->stats.ipc_lost_references++;
    return true;
  }
  if (state == WEIR__REFERENCE_HELD && known && has_ended(known, process))
    heap->stats.ipc_lost_references++;
  else if (state != WEIR__REFERENCE_DONE)
    return false;
  weir__reference_free(references, r->slot);
  return true;
}

static void delete_reference(weir__heap *heap, reference *r) {
  weir_driver *driver = heap->allocator->driver;
  if (r->event) {
    driver->EventDestroy(driver, r->event);
    heap->sent.events--;
  }
  heap->sent.references--;
  free(r);
}

static void end_references(weir__heap *heap, sent *memory, known_processes *known) {
  uint64_t now = known ? weir__monotonic_ns() : 0;
  for (reference **at = &memory->references; *at;) {
    reference *r = *at;
    if (end_reference(heap, memory, r, known, now)) {
      *at = r->next;
      delete_reference(heap, r);
    } else
      at = &r->next;
  }
}

/* Forgets a block without references. Its memory is still allocated, or in limbo. */
static void delete_sent(weir__heap *heap, sent *memory) {
  weir__ipc_sent_pages(heap, memory->block, -1);
  weir__hash_map_remove(&heap->sent.blocks, sizeof(sent_entry),
                        weir__hash_map_find(&heap->sent.blocks, sizeof(sent_entry), memory->block->address));
  free(memory);
}

static unsigned freed(weir__heap *heap, weir__block *block) {
  sent *memory = find_sent(heap, block->address);
  if (!memory)
    return 0;
  end_references(heap, memory, NULL);
  bool stays = memory->references != NULL;
  if (stays) {
    memory->is_in_limbo = true;
    memory->freed_ns = weir__monotonic_ns();
    heap->sent.limbo++;
    heap->stats.ipc_limbo_bytes += (int64_t)weir__block_bytes(block);
  } else
    delete_sent(heap, memory);
  update_stats(heap);
  return stays;
}

static void set_mark(const weir__heap *heap, weir__block *block, bool is_sent) {
  weir__arena *arena = weir__block_arena(heap, block);
  weir__arena_lock(arena);
  weir__block_mark(block, WEIR__MARK_SENT, is_sent);
  weir__arena_unlock(arena);
}

/* Returns the blocks that have no references any more, in a list; NULL without host memory, and if there are none. */
static sent **find_ended(weir__heap *heap, size_t *count) {
  known_processes known = {.count = 0};
  sent **ended = malloc((heap->sent.blocks.count + 1) * sizeof *ended);
  size_t at = 0;
  const sent_entry *entry;
  *count = 0;
  while (ended && (entry = weir__hash_map_next(&heap->sent.blocks, sizeof *entry, &at))) {
    end_references(heap, entry->sent, &known);
    if (!entry->sent->references)
      ended[(*count)++] = entry->sent;
  }
  return ended;
}

static size_t collect(weir__heap *heap) {
  size_t count, left = 0;
  if (!heap->sent.references)
    return 0;
  sent **ended = find_ended(heap, &count);
  for (size_t i = 0; i < count; i++) {
    weir__block *block = ended[i]->block;
    bool was_in_limbo = ended[i]->is_in_limbo;
    delete_sent(heap, ended[i]);
    if (!was_in_limbo) {
      set_mark(heap, block, false);
      continue;
    }
    left++;
    heap->sent.limbo--;
    heap->stats.ipc_limbo_bytes -= (int64_t)weir__block_bytes(block);
    weir__block_collected(heap, block);
  }
  free(ended);
  /* A collection visits all references. Sends skip it in proportion to those that are left, so that the cost of a send
   * does not grow with the number of messages under way. */
  heap->sent.sends_to_skip = heap->sent.references / 8;
  update_stats(heap);
  return left;
}

void weir__sent_clear(weir__heap *heap, bool entered) {
  size_t at = 0, held = 0;
  const sent_entry *entry;
  while ((entry = weir__hash_map_next(&heap->sent.blocks, sizeof *entry, &at))) {
    sent *memory = entry->sent;
    for (reference *r = memory->references, *next; r; r = next) {
      weir__process_identity process;
      next = r->next;
      held += weir__reference_read(heap->allocator->references, r->slot, &process) == WEIR__REFERENCE_HELD &&
              !weir__identity_has_ended(process);
      if (!entered)
        r->event = NULL; /* goes with the context */
      delete_reference(heap, r);
    }
    free(memory);
  }
  if (held)
    weir__log(
        WEIR_LOG_WARN,
        "device %d: memory is returned to the driver while other processes use it: they hold %zu references to it",
        heap->device, held);
  weir__hash_map_clear(&heap->sent.blocks);
}

/* ---- Send ---- */

/* Records what the receiver's stream has to wait for in an event. Where there is none, waits for the stream. */
static weir_status record(const char *caller, weir__heap *heap, weir_cu_stream stream, weir_cu_event *event,
                          weir_cu_ipc_event_handle *handle) {
  weir_driver *driver = heap->allocator->driver;
  *event = NULL;
  int can = 1, mode;
  if (driver->DeviceGetAttribute(driver, &can, WEIR_CU_ATTR_IPC_EVENT_SUPPORTED, heap->device))
    can = 1; /* an older driver, which does not know the attribute */
  if (heap->sent.events < WEIR__SENT_EVENTS_MAX && can &&
      !driver->EventCreate(driver, event,
                           WEIR_CU_EVENT_INTERPROCESS | WEIR_CU_EVENT_DISABLE_TIMING | WEIR_CU_EVENT_BLOCKING_SYNC)) {
    if (!driver->IpcGetEventHandle(driver, handle, *event) && !driver->EventRecord(driver, *event, stream))
      return WEIR_OK;
    driver->EventDestroy(driver, *event);
    *event = NULL;
  }
  if (!weir__capture_relax(heap, &mode))
    return weir__fail(WEIR_ERROR_BAD_STATE, "%s: not possible during a capture", caller);
  weir_status status = WEIR__CALL_FOR(caller, driver, StreamSynchronize(driver, stream));
  weir__capture_restore(heap, mode);
  return status;
}

static sent *add_sent(weir__heap *heap, weir__block *block) {
  sent *memory = find_sent(heap, block->address);
  if (memory)
    return memory;
  memory = calloc(1, sizeof *memory);
  sent_entry *entry = memory ? weir__hash_map_put(&heap->sent.blocks, sizeof *entry, block->address) : NULL;
  if (!entry) {
    free(memory);
    return NULL;
  }
  heap->sent.freed = freed;
  heap->sent.collect = collect;
  memory->block = block;
  entry->sent = memory;
  weir__ipc_sent_pages(heap, block, 1);
  set_mark(heap, block, true);
  return memory;
}

static void take_back(weir__heap *heap, sent *memory) {
  weir__block *block = memory->block;
  if (memory->references)
    return;
  delete_sent(heap, memory);
  set_mark(heap, block, false);
}

/* Collects first if words or events run out, because the rest of the call holds a pointer to the block's record. */
static weir_status take_word(const char *caller, weir__heap *heap, weir__process_identity receiver, reference *r) {
  weir__references *references = heap->allocator->references;
  if (heap->sent.sends_to_skip)
    heap->sent.sends_to_skip--;
  else if (heap->sent.events >= WEIR__SENT_EVENTS_MAX)
    collect(heap);
  if (weir__reference_take(references, receiver, &r->slot, &r->generation))
    return WEIR_OK;
  collect(heap);
  if (weir__reference_take(references, receiver, &r->slot, &r->generation))
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                    "%s: other processes have %d references to memory of this one, which is the maximum. Release some, "
                    "or send several allocations as one",
                    caller, (int)WEIR__REFERENCES_MAX);
}

/* Sends a live block. The heap's lock is held, and the device's context is current. */
static weir_status send_block(const char *caller, weir__heap *heap, weir__block *block, uint64_t base,
                              weir_cu_stream stream, const weir_ipc_send_options *options,
                              weir__process_identity receiver, weir_ipc_handle *handle) {
  weir_allocator *allocator = heap->allocator;
  weir__ipc_message message = {.magic = WEIR__IPC_MESSAGE_MAGIC, .address = block->address};
  weir__ipc_name name = {.bytes = NULL};
  if (weir__is_in_capture(heap, stream))
    return weir__fail(WEIR_ERROR_BAD_STATE, "%s: memory cannot be sent while its stream is being captured", caller);
  reference *r = calloc(1, sizeof *r);
  if (!r)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
  weir_status status = take_word(caller, heap, receiver, r);
  if (status)
    goto free_reference;
  sent *memory = add_sent(heap, block);
  if (!memory) {
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
    goto free_word;
  }
  status = weir__ipc_name_memory(caller, heap, block->address, block, base, &name);
  if (status)
    goto take_back;
  status = weir__ipc_check_room(caller, handle, sizeof message + name.length);
  if (!status)
    status = record(caller, heap, stream, &r->event, &message.event);
  if (status)
    goto free_name;

  r->timeout = options->timeout != 0 ? options->timeout : allocator->ipc_timeout;
  r->next = memory->references;
  memory->references = r;
  heap->sent.references++;
  heap->sent.events += r->event != NULL;
  update_stats(heap);
  message.reference = (weir__reference_name){.sender = allocator->references->owner,
                                             .file = allocator->references_file,
                                             .slot = r->slot,
                                             .generation = r->generation};
  message.bytes = weir__block_bytes(block);
  message.offset = name.offset;
  message.name_length = name.length;
  message.has_event = r->event != NULL;
  memcpy(handle->bytes, &message, sizeof message);
  memcpy(handle->bytes + sizeof message, name.bytes, name.length);
  handle->length = sizeof message + name.length;
  handle->offset = 0;
  free(name.bytes);
  return WEIR_OK;

free_name:
  free(name.bytes);
take_back:
  take_back(heap, memory);
free_word:
  weir__reference_withdraw(allocator->references, r->slot);
free_reference:
  free(r);
  return status;
}

static weir_status need_references(const char *caller, weir_allocator *allocator) {
  weir_status status = WEIR_OK;
  weir__mutex_lock(&allocator->ipc_lock);
  if (!allocator->references)
    allocator->ipc_timeout = timeout_from_env();
  if (!allocator->references && !(allocator->references = weir__references_new(&allocator->references_file)))
    status =
        weir__fail(WEIR_ERROR_SYSTEM, "%s: cannot create shared memory for references: %s", caller, strerror(errno));
  else if (!allocator->references->owner)
    status = weir__fail(WEIR_ERROR_SYSTEM,
                        "%s: cannot read /proc/self/stat, by which other processes recognize this one", caller);
  weir__mutex_unlock(&allocator->ipc_lock);
  return status;
}

weir_status weir_ipc_send(weir_allocator *allocator, void *pointer, weir_cu_stream stream,
                          const weir_ipc_send_options *given, weir_ipc_handle *handle) {
  WEIR__CHECK_ALLOCATOR(allocator);
  weir_ipc_send_options options;
  weir_ipc_send_options_init(&options);
  weir_status status = weir__read_options(__func__, "options", &options, sizeof options, given);
  weir__heap *heap;
  const weir__block *found;
  uint64_t base;
  weir__process_identity receiver = 0;
  if (!status)
    status = weir__ipc_check_room(__func__, handle, 0);
  if (!status && options.receiver && !(receiver = weir__process_identity_of(options.receiver)))
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: there is no process %d", __func__, options.receiver);
  if (!status)
    status = weir__ipc_find(__func__, allocator, (uint64_t)pointer, &heap, &found, &base);
  if (!status && !found)
    status = weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                        "%s: memory that was allocated with caching off cannot be sent, because the driver frees it at "
                        "once; use weir_ipc_share, and keep it allocated",
                        __func__);
  if (!status)
    status = weir__driver_check_stream(__func__, allocator->driver, stream);
  if (!status)
    status = need_references(__func__, allocator);
  if (status)
    return status;
  weir_cu_context previous;
  weir__arena *arena;
  weir__mutex_lock(&heap->lock);
  weir_cu_result r = weir__heap_enter(heap, &previous);
  if (!r) {
    weir__block *block = weir__block_lock(allocator, (uint64_t)pointer, &arena);
    if (block)
      weir__arena_unlock(arena);
    status = block ? send_block(__func__, heap, block, base, stream, &options, receiver, handle)
                   : weir__no_block(__func__, (uint64_t)pointer);
    weir__heap_leave(heap, previous);
  } else
    status = weir__driver_status(allocator->driver, r, __func__, "cuCtxSetCurrent");
  weir__mutex_unlock(&heap->lock);
  return status;
}

/* ---- Cancel and collect ---- */

/* Reads a handle, which must be one of this allocator. */
static weir_status read_own(const char *caller, weir_allocator *allocator, const void *bytes, size_t length,
                            weir__reference_name *name) {
  weir__ipc_message message;
  weir_status status = weir__ipc_read_message(caller, bytes, length, &message);
  if (status)
    return status;
  weir__mutex_lock(&allocator->ipc_lock);
  const weir__references *mine = allocator->references;
  bool is_mine =
      mine && message.reference.sender == mine->owner && message.reference.file == allocator->references_file;
  weir__mutex_unlock(&allocator->ipc_lock);
  *name = message.reference;
  return is_mine ? WEIR_OK : weir__fail(WEIR_ERROR_BAD_STATE, "%s: the message was not sent by this allocator", caller);
}

/* As a receiver that needs the memory no longer: the next collection finds it. */
static weir_status take_message_back(const char *caller, weir_allocator *allocator, const weir__reference_name *name) {
  weir__references *references = allocator->references;
  weir__process_identity receiver;
  if (!weir__reference_hold(references, name, references->owner, &receiver))
    return weir__fail(WEIR_ERROR_BAD_STATE, "%s: the message has been received, or was taken back", caller);
  weir__reference_end(references, name, references->owner);
  return WEIR_OK;
}

weir_status weir_ipc_cancel(weir_allocator *allocator, const void *bytes, size_t length) {
  WEIR__CHECK_ALLOCATOR(allocator);
  WEIR__CHECK_ARGUMENT(bytes);
  weir__reference_name name;
  weir_status status = read_own(__func__, allocator, bytes, length, &name);
  return status ? status : take_message_back(__func__, allocator, &name);
}

weir_status weir_ipc_set_receiver(weir_allocator *allocator, const void *bytes, size_t length, int receiver) {
  WEIR__CHECK_ALLOCATOR(allocator);
  WEIR__CHECK_ARGUMENT(bytes);
  weir__reference_name name;
  if (receiver <= 0)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %d is not the id of a process", __func__, receiver);
  weir_status status = read_own(__func__, allocator, bytes, length, &name);
  if (status)
    return status;
  weir__process_identity process = weir__process_identity_of(receiver);
  if (!process && weir__process_has_ended(receiver))
    return take_message_back(__func__, allocator, &name);
  if (!process)
    return weir__fail(WEIR_ERROR_SYSTEM, "%s: cannot read /proc/%d/stat, by which a process is recognized", __func__,
                      receiver);
  if (!weir__reference_address(allocator->references, &name, process))
    return weir__fail(WEIR_ERROR_BAD_STATE, "%s: the message has been received, or was taken back", __func__);
  return WEIR_OK;
}

weir_status weir_ipc_collect(weir_allocator *allocator, size_t *freed) {
  WEIR__CHECK_ALLOCATOR(allocator);
  weir_status status = weir__received_collect(__func__, allocator);
  weir__mutex_lock(&allocator->ipc_lock);
  weir_status closed = weir__ipc_collect_closed(__func__, allocator);
  weir__mutex_unlock(&allocator->ipc_lock);
  status = status ? status : closed;
  size_t count = 0;
  weir__op op;
  weir__op_begin(&op, allocator, WEIR_CONTEXT_ALL);
  for (int i = 0; i < allocator->heap_count; i++) {
    weir__heap *heap = &allocator->heaps[i];
    weir_cu_context previous;
    weir__mutex_lock(&heap->lock);
    weir_cu_result r = heap->sent.references ? weir__heap_enter(heap, &previous) : WEIR_CU_SUCCESS;
    if (!r && heap->sent.references) {
      count += collect(heap);
      weir__heap_leave(heap, previous);
    }
    weir__mutex_unlock(&heap->lock);
    if (allocator->backend)
      allocator->backend->calls->return_segments(heap);
    if (r && !status)
      status = weir__driver_status(allocator->driver, r, __func__, "cuCtxSetCurrent");
  }
  weir__op_end(&op);
  if (!status && freed)
    *freed = count;
  return status;
}
