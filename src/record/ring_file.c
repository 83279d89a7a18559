#include "record/ring_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/library.h"
#include "base/memory_map.h"
#include "base/system.h"
#include "record/stacks.h"
#include "record/texts.h"

/* ---- The file ---- */

enum { FIRST_AREA = 64 << 10, FIRST_STATES = 256 << 10, LARGEST_STEP = 4 << 20 };

void weir__ring_file_describe(weir__ring_file_header *h, uint64_t bytes, int devices, const char *host, int64_t rank) {
  h->version = WEIR__RING_VERSION;
  h->header_bytes = WEIR__RING_HEADER;
  h->event_bytes = sizeof(weir__entry);
  h->chunk_bytes = sizeof(weir__chunk);
  h->device_count = devices;
  h->pid = weir__process_id();
  weir__process_start_time((int)h->pid, &h->process_start);
  h->pid_namespace = weir__process_namespace();
  h->rank = rank;
  strncpy(h->host, host, sizeof h->host - 1);
  h->first = weir__clock_first();
  h->last[0] = weir__clock_now();
  h->max_bytes = bytes;
  atomic_store_explicit(&h->file_bytes, WEIR__RING_HEADER, memory_order_relaxed);
  atomic_signal_fence(
      memory_order_release); /* a process that is killed here leaves no magic over an incomplete header */
  memcpy(h->magic, WEIR__RING_MAGIC, sizeof h->magic);
}

/* The log and the checkpoints may have an eighth of the file each. The heads of the areas of chunks, which are larger
 * than the first one, need less than a thousandth. */
static void divide(weir__ring_file *file) {
  uint64_t eighth = file->bytes / 8 / 64 * 64, rest = file->bytes - WEIR__RING_HEADER - 2 * eighth;
  file->areas[WEIR__RING_LOG].most = file->areas[WEIR__RING_STATES].most = eighth;
  file->areas[WEIR__RING_CHUNKS].most = rest;
  if (rest > sizeof(weir__ring_file_area) + rest / 1000)
    file->chunks_most = (rest - rest / 1000 - sizeof(weir__ring_file_area)) / sizeof(weir__chunk);
}

weir__ring_file *weir__ring_file_create(const char *path, uint64_t bytes, int devices, const char *host, int64_t rank,
                                        int *why) {
  weir__ring_file *file = calloc(1, sizeof *file);
  char *name = strdup(path);
  *why = ENOMEM;
  if (!file || !name)
    goto free_both;
  file->descriptor =
      open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600); /* it has paths and, with stacks, code of the job */
  if (file->descriptor < 0) {
    *why = errno;
    goto free_both;
  }
  *why = bytes > SIZE_MAX ? EFBIG : weir__map_allocate_file(file->descriptor, 0, WEIR__RING_HEADER);
  if (*why)
    goto remove_file;
  file->map = weir__map_shared_file(file->descriptor, (size_t)bytes);
  if (!file->map) {
    *why = errno;
    goto remove_file;
  }
  file->identity = weir__file_identity(file->descriptor);
  file->path = name;
  file->bytes = (size_t)bytes;
  file->header = (weir__ring_file_header *)(void *)file->map;
  weir__mutex_init(&file->checkpoint_lock);
  divide(file);
  weir__ring_file_describe(file->header, bytes, devices, host, rank);
  return file;

remove_file:
  close(file->descriptor);
  unlink(path);
free_both:
  free(name);
  free(file);
  return NULL;
}

/* A program that closes all descriptors, as a daemon does, may have opened something else under the number. */
static bool has_descriptor(weir__ring_file *file) {
  weir__file_id id = weir__file_identity(file->descriptor);
  if (file->descriptor >= 0 && id.device == file->identity.device && id.file == file->identity.file)
    return true;
  int again = file->descriptor < 0 ? -1 : open(file->path, O_RDWR | O_CLOEXEC);
  id = weir__file_identity(again);
  file->descriptor = again; /* the other one is not ours to close */
  return again >= 0 && id.device == file->identity.device && id.file == file->identity.file;
}

/* Adds an area of a kind, with the lock held: of `bytes` if there is room for so many, but `least` suffices. A smaller
 * one is tried if the disk is full. */
static weir__ring_file_area *grow(weir__ring_file *file, weir__ring_file_area_kind kind, uint64_t least,
                                  uint64_t bytes) {
  weir__ring_file_header *h = file->header;
  uint64_t at = atomic_load_explicit(&h->file_bytes, memory_order_relaxed);
  uint64_t left = file->areas[kind].most - file->areas[kind].bytes;
  const uint64_t head = sizeof(weir__ring_file_area), unit = kind == WEIR__RING_CHUNKS ? sizeof(weir__chunk) : 64;
  least = head + weir__round_up(least, 64);
  bytes = head + (bytes > head ? (bytes - head) / unit * unit : 0);
  bytes = bytes > least ? bytes : least;
  bytes = bytes <= left ? bytes : left < head ? 0 : head + (left - head) / unit * unit;
  if (bytes < least || atomic_load_explicit(&h->failure, memory_order_relaxed))
    return NULL;
  int error = has_descriptor(file) ? weir__map_allocate_file(file->descriptor, at, bytes) : EBADF;
  if (error && bytes > least) {
    bytes = least;
    error = weir__map_allocate_file(file->descriptor, at, bytes);
  }
  if (error) {
    atomic_store_explicit(&h->failure, (unsigned)error, memory_order_relaxed);
    atomic_store(&file->warns_of_failure, true);
    return NULL;
  }
  weir__ring_file_area *area = (weir__ring_file_area *)(void *)(file->map + at);
  area->kind = kind;
  area->bytes = bytes;
  file->areas[kind].bytes += bytes;
  file->areas[kind].last = area;
  atomic_store_explicit(&h->file_bytes, at + bytes, memory_order_release);
  return area;
}

static uint64_t next_step(const weir__ring_file *file, weir__ring_file_area_kind kind) {
  uint64_t bytes = file->areas[kind].bytes;
  return bytes < FIRST_AREA ? FIRST_AREA : bytes < LARGEST_STEP ? bytes : LARGEST_STEP;
}

void weir__ring_file_warn(weir__ring_file *file) {
  const weir__ring_file_header *h = file->header;
  if (atomic_exchange(&file->warns_of_failure, false))
    weir__log(WEIR_LOG_WARN,
              "%s: the recording cannot grow beyond %llu KiB: %s; from here on its oldest entries are overwritten",
              file->path, (unsigned long long)atomic_load(&h->file_bytes) >> 10,
              strerror((int)atomic_load(&h->failure)));
  if (atomic_exchange(&file->warns_of_log, false))
    weir__log(WEIR_LOG_WARN,
              "%s: the log of stacks, texts and settings is full, so later entries lack them; a larger WEIR_RECORD_MB "
              "gives it more room",
              file->path);
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
  weir__ring_file_warn(file);
  note_clock(file);
  atomic_store(&file->header->ended, WEIR__RING_CLOSED);
  weir__unmap(file->map, file->bytes);
  if (has_descriptor(file))
    close(file->descriptor);
  weir__hash_map_clear(&file->modules);
  weir__mutex_destroy(&file->checkpoint_lock);
  free(file->draft);
  free(file->path);
  free(file);
}

void weir__ring_file_stop(weir__ring_file *file) {
  weir__lock_acquire(&file->lock);
  note_clock(file);
  atomic_store(&file->header->ended, WEIR__RING_CLOSED);
  weir__lock_release(&file->lock);
}

void weir__ring_file_note_exit(weir__ring_file *file) {
  note_clock(file);
  atomic_store(&file->header->ended, WEIR__RING_EXITED);
}

bool weir__ring_file_detach(weir__ring_file *file) {
  if (has_descriptor(file))
    close(file->descriptor);
  file->descriptor = -1;
  uint64_t used = weir__round_up(atomic_load(&file->header->file_bytes), weir__map_page_size());
  return weir__map_replace(file->map, (size_t)used);
}

/* ---- Chunks ---- */

uint64_t weir__ring_file_capacity(const weir__ring_file *file) { return file->chunks_most * WEIR__CHUNK_ENTRIES; }

static uint64_t slots_bytes(const weir__ring_file_header *h) {
  return (uint64_t)h->device_count * WEIR__RING_CHECKPOINTS * sizeof(weir__ring_file_slot);
}

/* Room for checkpoints, while there is some: a full disk would keep a ring that wraps from being read. */
static bool add_states(weir__ring_file *file, uint64_t least, uint64_t bytes) {
  uint64_t slots = file->room_count ? 0 : slots_bytes(file->header);
  weir__ring_file_area *area =
      file->room_count < WEIR__RING_ROOMS ? grow(file, WEIR__RING_STATES, least + slots, bytes + slots) : NULL;
  if (!area)
    return false;
  uint64_t at = (uint64_t)((char *)area - file->map), first = at + sizeof *area;
  file->rooms[file->room_count].at = first + slots;
  file->rooms[file->room_count++].end = at + area->bytes;
  if (slots)
    atomic_store_explicit(&file->header->slots_at, first, memory_order_release);
  return true;
}

/* The next chunk that was never used, with the lock held. If the file cannot grow, there are no more. */
static weir__chunk *next_chunk(weir__ring_file *file) {
  weir__ring_file_area *area = file->areas[WEIR__RING_CHUNKS].last;
  const uint64_t head = sizeof *area;
  if (!area || file->fresh_in_last == (area->bytes - head) / sizeof(weir__chunk)) {
    uint64_t left = head + (file->chunks_most - file->fresh) * sizeof(weir__chunk);
    uint64_t step = next_step(file, WEIR__RING_CHUNKS);
    if (!file->room_count)
      add_states(file, 0, FIRST_STATES);
    area = grow(file, WEIR__RING_CHUNKS, sizeof(weir__chunk), step < left ? step : left);
    file->fresh_in_last = 0;
  }
  if (!area) {
    file->chunks_most = file->fresh;
    file->areas[WEIR__RING_CHUNKS].last = NULL;
    return NULL;
  }
  file->fresh++;
  return (weir__chunk *)(void *)((char *)area + head) + file->fresh_in_last++;
}

/* A caller without locks warns. */
static void ask_to_warn(const weir__ring_file *file, int device) {
  if (file->due && (atomic_load(&file->warns_of_failure) || atomic_load(&file->warns_of_log)))
    file->due(file->due_context, device, false);
}

/* A device may have any number of chunks, except for a few that are reserved for each of the others. */
weir__chunk *weir__ring_file_chunk(weir__ring_file *file, int device) {
  const weir__ring_file_header *h = file->header;
  uint64_t sure = file->chunks_most / (4 * (uint64_t)h->device_count), kept = 0;
  weir__chunk *chunk = NULL;
  weir__lock_acquire(&file->lock);
  for (int i = 0; i < h->device_count; i++)
    if (i != device && file->taken[i] < sure)
      kept += sure - file->taken[i];
  if (file->fresh + (file->taken[device] < sure ? 0 : kept) < file->chunks_most)
    chunk = next_chunk(file);
  file->taken[device] += chunk != NULL;
  if (!chunk)
    ask_to_warn(file, device);
  weir__lock_release(&file->lock);
  return chunk;
}

/* Usually a checkpoint is due every quarter of the ring. With many blocks the interval grows, up to half of the ring,
 * to bound the overhead. Another quarter later it becomes urgent: then a quarter of the ring is left until the last
 * checkpoint goes stale. A device that keeps very few entries gets none. */
static void count_chunk(weir__ring_file *file, int device, uint64_t most) {
  enum { fewest = 64, events_for_block = 8 };
  const weir__ring_file_header *h = file->header;
  uint64_t left = (file->chunks_most - file->fresh) / (uint64_t)h->device_count;
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
  weir__ring_file_area *area = file->areas[WEIR__RING_LOG].last;
  uint64_t whole = weir__round_up(sizeof(weir__ring_file_record) + head_bytes + length, 8);
  uint64_t used = area ? atomic_load_explicit(&area->used, memory_order_relaxed) : 0;
  if (!area || whole > area->bytes - sizeof *area - used) {
    area = grow(file, WEIR__RING_LOG, whole, next_step(file, WEIR__RING_LOG));
    used = 0;
  }
  if (!area) {
    if (atomic_fetch_add(&h->log_lost, 1) == 0) {
      atomic_store(&file->warns_of_log, true);
      ask_to_warn(file, 0);
    }
    return false;
  }
  char *at = (char *)(area + 1) + used;
  weir__ring_file_record record = {.kind = kind, .number = number, .length = (uint32_t)(head_bytes + length)};
  memcpy(at, &record, sizeof record);
  if (head_bytes)
    memcpy(at + sizeof record, head, head_bytes);
  memcpy(at + sizeof record + head_bytes, bytes, length);
  atomic_store_explicit(&area->used, used + whole, memory_order_release);
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

void weir__ring_file_log_tag(weir__ring_file *file, int device, uint64_t first, uint64_t second, const char *name) {
  weir__lock_acquire(&file->lock);
  weir__ring_file_tag tag = {weir__clock_ticks(), {first, second}, device};
  log_record(file, WEIR__RING_TAG, 0, &tag, sizeof tag, name, strlen(name));
  weir__lock_release(&file->lock);
}

void weir__ring_file_log_limit(weir__ring_file *file, int device, uint64_t bytes, double fraction) {
  weir__lock_acquire(&file->lock);
  weir__ring_file_limit limit = {weir__clock_ticks(), bytes, device, fraction};
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

static weir__ring_file_slot *slot_of(const weir__ring_file *file, int device, int number) {
  return (weir__ring_file_slot *)(void *)(file->map + file->header->slots_at) + device * WEIR__RING_CHECKPOINTS +
         number;
}

uint64_t weir__ring_file_room(const weir__ring_file *file) {
  uint64_t least = sizeof(weir__ring_file_area) + slots_bytes(file->header), most = file->areas[WEIR__RING_STATES].most;
  return most > least ? most - least : 0;
}

void weir__ring_file_cut(weir__ring_file *file, int device, uint64_t blocks) {
  weir__lock_acquire(&file->lock);
  file->since[device] = 0;
  file->blocks[device] = blocks;
  weir__lock_release(&file->lock);
}

/* A free range of so many bytes for a checkpoint; 0 if there is none. */
static uint64_t find_room_in(const weir__ring_file *file, uint64_t at, uint64_t end, uint64_t bytes) {
  const int slots = file->header->device_count * WEIR__RING_CHECKPOINTS;
  for (bool moved = true; moved && bytes <= end - at;) {
    moved = false;
    for (int i = 0; i < slots; i++) {
      const struct weir__ring_file_place *p = &file->places[i / WEIR__RING_CHECKPOINTS][i % WEIR__RING_CHECKPOINTS];
      if (p->sequence && at < p->at + p->bytes && p->at < at + bytes && p->at + p->bytes <= end) {
        at = p->at + p->bytes;
        moved = true;
      }
    }
  }
  return bytes <= end - at ? at : 0;
}

/* The file grows by room for a few checkpoints of this size, as long as it may. */
static uint64_t find_room(weir__ring_file *file, uint64_t bytes) {
  uint64_t at = 0;
  for (size_t i = 0; i < file->room_count && !at; i++)
    at = find_room_in(file, file->rooms[i].at, file->rooms[i].end, bytes);
  if (at)
    return at;
  weir__lock_acquire(&file->lock);
  bool has_grown = add_states(file, bytes, 4 * bytes > FIRST_STATES ? 4 * bytes : FIRST_STATES);
  weir__lock_release(&file->lock);
  return has_grown ? find_room(file, bytes) : 0;
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
  at = find_room(file, bytes); /* first, since it makes the slots */
  if (!file->room_count)
    return false;
  while ((number = vacant_slot(file, device)) < 0)
    drop_oldest(file, device);
  while (!at && !(at = find_room(file, bytes)))
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
