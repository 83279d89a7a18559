#include "record/ring_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/library.h"
#include "base/memory_map.h"
#include "record/stacks.h"
#include "record/texts.h"

/* ---- The file ---- */

static void describe(weir__ring_file *file, int devices, const char *host, int64_t rank) {
  weir__ring_file_header *h = file->header;
  h->version = WEIR__RING_VERSION;
  h->event_bytes = sizeof(weir__entry);
  h->chunk_bytes = sizeof(weir__chunk);
  h->device_count = devices;
  h->file_bytes = file->bytes;
  h->log_at = WEIR__RING_HEADER;
  h->log_bytes = file->bytes / 8 / 64 * 64;
  h->checkpoints_at = h->log_at + h->log_bytes;
  h->checkpoint_bytes = file->bytes / 8 / 64 * 64;
  h->chunks_at = h->checkpoints_at + h->checkpoint_bytes;
  h->chunk_count = (file->bytes - h->chunks_at) / sizeof(weir__chunk);
  h->pid = weir__process_id();
  h->rank = rank;
  strncpy(h->host, host, sizeof h->host - 1);
  h->first = weir__clock_first();
  h->last[0] = weir__clock_now();
  atomic_signal_fence(
      memory_order_release); /* a process that is killed here leaves no magic over an incomplete header */
  memcpy(h->magic, WEIR__RING_MAGIC, sizeof h->magic);
}

weir__ring_file *weir__ring_file_create(const char *path, uint64_t bytes, int devices, const char *host, int64_t rank,
                                        int *why) {
  weir__ring_file *file = calloc(1, sizeof *file);
  char *name = strdup(path);
  *why = ENOMEM;
  if (!file || !name)
    goto free_both;
  int descriptor =
      open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600); /* it has paths and, with stacks, code of the job */
  if (descriptor < 0) {
    *why = errno;
    goto free_both;
  }
  *why = bytes > SIZE_MAX ? EFBIG : weir__map_allocate_file(descriptor, bytes);
  if (*why)
    goto remove_file;
  file->map = weir__map_shared_file(descriptor, (size_t)bytes);
  if (!file->map) {
    *why = errno;
    goto remove_file;
  }
  close(descriptor);
  file->path = name;
  file->bytes = (size_t)bytes;
  file->header = (weir__ring_file_header *)(void *)file->map;
  weir__mutex_init(&file->checkpoint_lock);
  describe(file, devices, host, rank);
  return file;

remove_file:
  close(descriptor);
  unlink(path);
free_both:
  free(name);
  free(file);
  return NULL;
}

static void note_clock(weir__ring_file *file) {
  weir__ring_file_header *h = file->header;
  unsigned older = !atomic_load_explicit(&h->newest, memory_order_relaxed);
  h->last[older] = weir__clock_now();
  atomic_store_explicit(&h->newest, older, memory_order_release);
  /* A longer measurement gives a better rate: the interval doubles, up to about a second. */
  const uint64_t second = 1ull << 31;
  uint64_t passed = h->last[older].ticks - h->first.ticks;
  file->clock_at = h->last[older].ticks + (passed < second ? passed : second);
}

void weir__ring_file_close(weir__ring_file *file) {
  if (!file)
    return;
  note_clock(file);
  atomic_store(&file->header->ended, WEIR__RING_CLOSED);
  weir__unmap(file->map, file->bytes);
  weir__hash_map_clear(&file->modules);
  weir__mutex_destroy(&file->checkpoint_lock);
  free(file->draft);
  free(file->path);
  free(file);
}

void weir__ring_file_note_exit(weir__ring_file *file) {
  note_clock(file);
  atomic_store(&file->header->ended, WEIR__RING_EXITED);
}

bool weir__ring_file_detach(weir__ring_file *file) { return weir__map_replace(file->map, file->bytes); }

/* ---- Chunks ---- */

uint64_t weir__ring_file_capacity(const weir__ring_file *file) {
  return file->header->chunk_count * WEIR__CHUNK_ENTRIES;
}

/* A device may have any number of chunks, except for a few that are reserved for each of the others. */
weir__chunk *weir__ring_file_chunk(weir__ring_file *file, int device) {
  const weir__ring_file_header *h = file->header;
  uint64_t sure = h->chunk_count / (4 * (uint64_t)h->device_count), kept = 0;
  weir__chunk *chunk = NULL;
  weir__lock_acquire(&file->lock);
  for (int i = 0; i < h->device_count; i++)
    if (i != device && file->taken[i] < sure)
      kept += sure - file->taken[i];
  if (file->fresh + (file->taken[device] < sure ? 0 : kept) < h->chunk_count) {
    chunk = (weir__chunk *)(void *)(file->map + h->chunks_at) + file->fresh++;
    file->taken[device]++;
  }
  weir__lock_release(&file->lock);
  return chunk;
}

/* Usually a checkpoint is due every quarter of the ring. With many blocks the interval grows, up to half of the ring,
 * to bound the overhead. Another quarter later it becomes urgent: then a quarter of the ring is left until the last
 * checkpoint goes stale. A device that keeps very few entries gets none. */
static void count_chunk(weir__ring_file *file, int device, uint64_t most) {
  enum { fewest = 64, events_for_block = 8 };
  const weir__ring_file_header *h = file->header;
  uint64_t left = (h->chunk_count - file->fresh) / (uint64_t)h->device_count;
  uint64_t ring = file->taken[device] + left, interval = file->interval;
  uint64_t since = ++file->since[device];
  if (most < ring)
    ring = most;
  if (!file->due || (most < fewest && !interval))
    return;
  if (!interval) {
    uint64_t longer = file->blocks[device] * events_for_block / WEIR__CHUNK_ENTRIES;
    interval = longer < ring / 4 ? ring / 4 : longer < ring / 2 ? longer : ring / 2;
    interval += !interval;
  }
  bool is_urgent = since >= interval + ring / 4;
  if (since == interval || (is_urgent && since % 8 == 0))
    file->due(file->due_context, device, is_urgent);
}

void weir__ring_file_begin(weir__ring_file *file, weir__chunk *chunk, int device, uint64_t most) {
  weir__lock_acquire(&file->lock);
  atomic_store_explicit(&chunk->count, 0, memory_order_release);
  chunk->sequence = ++file->next_sequence;
  if (weir__clock_ticks() >= file->clock_at)
    note_clock(file);
  count_chunk(file, device, most);
  weir__lock_release(&file->lock);
}

/* The order of chunks decides between entries of the same time. The two entries of a free may lie in an arena's last
 * chunk and in an older one that it continues, so the latter becomes the newest. Its earlier entries are not affected:
 * their writer is gone. */
void weir__ring_file_resume(weir__ring_file *file, weir__chunk *chunk) {
  weir__lock_acquire(&file->lock);
  chunk->sequence = ++file->next_sequence;
  weir__lock_release(&file->lock);
}

/* ---- The log, with the lock held ---- */

static bool log_record(weir__ring_file *file, weir__ring_file_kind kind, uint32_t number, const void *head,
                       size_t head_bytes, const void *bytes, size_t length) {
  weir__ring_file_header *h = file->header;
  uint64_t used = atomic_load_explicit(&h->log_used, memory_order_relaxed);
  uint64_t whole = weir__round_up(sizeof(weir__ring_file_record) + head_bytes + length, 8);
  if (whole > h->log_bytes - used) {
    if (atomic_fetch_add(&h->log_lost, 1) == 0)
      weir__log(
          WEIR_LOG_WARN,
          "%s: the log of stacks, texts and settings is full, so later entries lack them; a larger WEIR_RECORD_MB "
          "gives it more room",
          file->path);
    return false;
  }
  char *at = file->map + h->log_at + used;
  weir__ring_file_record record = {.kind = kind, .number = number, .length = (uint32_t)(head_bytes + length)};
  memcpy(at, &record, sizeof record);
  if (head_bytes)
    memcpy(at + sizeof record, head, head_bytes);
  memcpy(at + sizeof record + head_bytes, bytes, length);
  atomic_store_explicit(&h->log_used, used + whole, memory_order_release);
  return true;
}

static void log_new(weir__ring_file *file, weir__ring_file_kind kind, const weir__intern *intern, unsigned count,
                    atomic_uint *logged) {
  unsigned from = atomic_load_explicit(logged, memory_order_relaxed);
  for (unsigned i = from + 1; from != UINT32_MAX && i <= count; i++) {
    size_t length;
    const void *bytes = weir__intern_get(intern, i, &length);
    if (!log_record(file, kind, i, NULL, 0, bytes, length)) {
      atomic_store_explicit(logged, UINT32_MAX, memory_order_release);
      return;
    }
    atomic_store_explicit(logged, i, memory_order_release);
  }
}

/* A job that keeps loading libraries, such as compiled kernels, would otherwise log all others each time. */
static bool is_logged(weir__ring_file *file, const weir__ring_file_module *module, const char *text, size_t length) {
  uint64_t hash = (module->base * 31 + module->begin) * 31 + module->end;
  for (size_t i = 0; i < length; i++)
    hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3u;
  hash |= 1; /* keys are not 0 */
  bool is_known = weir__hash_map_find(&file->modules, sizeof hash, hash) != NULL;
  if (!is_known)
    weir__hash_map_put(&file->modules, sizeof hash, hash);
  return is_known;
}

static void log_module(void *context, const weir__image *image) {
  enum { MAX_PATH = 4096, MAX_ID = 64 };
  weir__ring_file *file = context;
  const weir__ring_file_module module = {image->base, image->begin, image->end};
  char text[MAX_PATH + MAX_ID];
  size_t length = strnlen(image->path, MAX_PATH - 1);
  memcpy(text, image->path, length);
  if (!length) {
    ssize_t got = readlink("/proc/self/exe", text, MAX_PATH - 1);
    length = got > 0 ? (size_t)got : 0;
  }
  if (module.begin >= module.end || !length)
    return;
  if (image->build_id && image->build_id_bytes && image->build_id_bytes < MAX_ID) {
    text[length++] = 0;
    memcpy(text + length, image->build_id, image->build_id_bytes);
    length += image->build_id_bytes;
  }
  if (!is_logged(file, &module, text, length))
    log_record(file, WEIR__RING_MODULE, 0, &module, sizeof module, text, length);
}

static void log_modules(weir__ring_file *file) {
  unsigned long long loads = weir__images_loaded();
  if (loads != file->loads)
    weir__images_each(log_module, file);
  file->loads = loads;
}

void weir__ring_file_log_settings(weir__ring_file *file, const char *conf) {
  weir__lock_acquire(&file->lock);
  uint64_t time = weir__clock_ticks();
  log_record(file, WEIR__RING_SETTINGS, 0, &time, sizeof time, conf, strlen(conf));
  weir__lock_release(&file->lock);
}

void weir__ring_file_log_limit(weir__ring_file *file, int device, uint64_t bytes) {
  weir__lock_acquire(&file->lock);
  weir__ring_file_limit limit = {weir__clock_ticks(), bytes, device};
  log_record(file, WEIR__RING_LIMIT, 0, NULL, 0, &limit, sizeof limit);
  weir__lock_release(&file->lock);
}

void weir__ring_file_sync(weir__ring_file *file) {
  weir__lock_acquire(&file->lock);
  /* Stacks are counted before the texts that they refer to: a stack that another thread adds meanwhile may refer to a
   * text that this call does not log, and waits for the next call. */
  unsigned stacks = atomic_load_explicit(&weir__stacks.count, memory_order_acquire);
  unsigned texts = atomic_load_explicit(&weir__texts.count, memory_order_acquire);
  log_new(file, WEIR__RING_TEXT, &weir__texts, texts, &file->texts_logged);
  if (stacks > atomic_load_explicit(&file->stacks_logged, memory_order_relaxed)) {
    log_modules(file);
    log_new(file, WEIR__RING_STACK, &weir__stacks, stacks, &file->stacks_logged);
  }
  weir__lock_release(&file->lock);
}

/* ---- Checkpoints ---- */

static uint64_t slots_bytes(const weir__ring_file_header *h) {
  return (uint64_t)h->device_count * WEIR__RING_CHECKPOINTS * sizeof(weir__ring_file_slot);
}

static weir__ring_file_slot *slot_of(const weir__ring_file *file, int device, int number) {
  return (weir__ring_file_slot *)(void *)(file->map + file->header->checkpoints_at) + device * WEIR__RING_CHECKPOINTS +
         number;
}

uint64_t weir__ring_file_room(const weir__ring_file *file) {
  const weir__ring_file_header *h = file->header;
  return h->checkpoint_bytes > slots_bytes(h) ? h->checkpoint_bytes - slots_bytes(h) : 0;
}

void weir__ring_file_cut(weir__ring_file *file, int device, uint64_t blocks) {
  weir__lock_acquire(&file->lock);
  file->since[device] = 0;
  file->blocks[device] = blocks;
  weir__lock_release(&file->lock);
}

/* A free range of so many bytes in the area of checkpoints; 0 if there is none. */
static uint64_t find_room(const weir__ring_file *file, uint64_t bytes) {
  const weir__ring_file_header *h = file->header;
  uint64_t end = h->checkpoints_at + h->checkpoint_bytes, at = h->checkpoints_at + slots_bytes(h);
  for (bool moved = true; moved && bytes <= end - at;) {
    moved = false;
    for (int i = 0; i < h->device_count * WEIR__RING_CHECKPOINTS; i++) {
      const struct weir__ring_file_place *p = &file->places[i / WEIR__RING_CHECKPOINTS][i % WEIR__RING_CHECKPOINTS];
      if (p->sequence && at < p->at + p->bytes && p->at < at + bytes) {
        at = p->at + p->bytes;
        moved = true;
      }
    }
  }
  return bytes <= end - at ? at : 0;
}

static void drop_checkpoint(weir__ring_file *file, int device, int number) {
  atomic_store_explicit(&slot_of(file, device, number)->sequence, 0, memory_order_release);
  file->places[device][number].sequence = 0;
}

/* Whether entries after a checkpoint have been dropped. */
static bool is_stale(const weir__ring_file *file, int device, int number) {
  const weir__ring_file_device *d = &file->header->devices[device];
  uint64_t time = file->places[device][number].time;
  return time < atomic_load(&d->dropped_until) || time < atomic_load(&d->cleared_until);
}

/* The checkpoint of a device to drop next; -1 if none may go. A stale oldest one goes first. An oldest one that is
 * still valid is where readers start, so the second oldest goes instead; of two, the oldest. The last valid one stays.
 * */
static int choose_oldest(const weir__ring_file *file, int device) {
  int oldest = -1, next = -1, count = 0;
  for (int i = 0; i < WEIR__RING_CHECKPOINTS; i++) {
    uint64_t sequence = file->places[device][i].sequence;
    if (!sequence)
      continue;
    count++;
    if (oldest < 0 || sequence < file->places[device][oldest].sequence) {
      next = oldest;
      oldest = i;
    } else if (next < 0 || sequence < file->places[device][next].sequence)
      next = i;
  }
  if (oldest < 0 || is_stale(file, device, oldest))
    return oldest;
  return count > 2 ? next : count == 2 ? oldest : -1;
}

/* Drops a checkpoint of the device to make room, or one of another device if it has none to spare. */
static bool drop_oldest(weir__ring_file *file, int device) {
  int oldest = choose_oldest(file, device);
  for (int i = 0; oldest < 0 && i < file->header->device_count; i++) {
    device = i;
    oldest = choose_oldest(file, i);
  }
  if (oldest >= 0)
    drop_checkpoint(file, device, oldest);
  return oldest >= 0;
}

static int vacant_slot(const weir__ring_file *file, int device) {
  int i = 0;
  while (i < WEIR__RING_CHECKPOINTS && file->places[device][i].sequence)
    i++;
  return i < WEIR__RING_CHECKPOINTS ? i : -1;
}

bool weir__ring_file_put(weir__ring_file *file, int device, const weir__ring_file_state *state, uint64_t bytes) {
  uint64_t at;
  int number;
  if (bytes > weir__ring_file_room(file))
    return false;
  while ((number = vacant_slot(file, device)) < 0)
    drop_oldest(file, device);
  while (!(at = find_room(file, bytes)))
    if (!drop_oldest(file, device))
      return false;
  weir__ring_file_slot *slot = slot_of(file, device, number);
  uint64_t sequence = ++file->next_checkpoint;
  atomic_signal_fence(memory_order_seq_cst); /* if the process dies, an incomplete checkpoint does not count */
  memcpy(file->map + at, state, (size_t)bytes);
  slot->at = at;
  slot->bytes = bytes;
  slot->checksum = weir__ring_file_checksum(sequence, at, state, bytes);
  atomic_store_explicit(&slot->sequence, sequence, memory_order_release);
  file->places[device][number] = (struct weir__ring_file_place){sequence, at, bytes, state->time};
  return true;
}
