/*
 * The recording of one rank of a synthetic job, as a ring file on standard output, for tests of many ranks:
 *
 *     make_rank RANKS ENTRIES SEED RANK [out]    the recording; with "out" the job runs out of memory
 *     make_rank RANKS ENTRIES SEED truth         what was planted: rank, kind, stack and step, a line each
 *
 * The job has four pipeline stages, and in each of them two tensor shards. Sizes jitter by up to 1 %, and a second
 * stream's requests come at any time. Some ranks are planted: one of their stacks needs half as much again from a step
 * on (outlier), or keeps blocks (leak), or they make one more request (divergence).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "record/ring_file.h"
#include "support/random.h"

enum {
  WEIGHTS = 6,
  ACTIVATIONS = 8,
  LAYERS = 4,
  SITES = 20,
  LEAKING = 18, /* sites */
  CHECKING = 19,
  COMMUNICATING = 17,
  STEP_ENTRIES = 3 * (ACTIVATIONS * LAYERS + 4),
  MAX_PLANTED = 4096
};

static const char *const functions[SITES] = {"embedding",     "attention_weight", "mlp_weight",  "norm_weight",
                                             "expert_weight", "optimizer_state",  "attention",   "softmax",
                                             "dropout",       "mlp_up",           "mlp_down",    "gelu",
                                             "norm",          "residual",         "gradient",    "loss",
                                             "workspace",     "all_reduce",       "log_metrics", "check_finite"};

static unsigned long long ranks, entries, seed;
static long long rank;

/* ---- What is planted ---- */

typedef enum kind { PLAIN, OUTLIER, LEAK, DIVERGENCE, KINDS } kind;

typedef struct plant {
  unsigned long long rank;
  kind kind;
  int site;
  unsigned long long step;
} plant;

static plant plants[MAX_PLANTED];
static size_t plant_count;

static void make_plants(void) {
  uint64_t state = seed;
  size_t each = ranks / 500 ? ranks / 500 : ranks >= 16 ? 1 : 0;
  unsigned long long steps = entries / STEP_ENTRIES;
  for (kind k = OUTLIER; k < KINDS; k++)
    for (size_t i = 0; i < each && plant_count < MAX_PLANTED; i++) {
      plant p = {.kind = k, .rank = next_random(&state) % ranks};
      bool is_taken = true;
      while (is_taken) {
        is_taken = false;
        for (size_t j = 0; j < plant_count; j++)
          is_taken |= plants[j].rank == p.rank;
        p.rank = is_taken ? (p.rank + 1) % ranks : p.rank;
      }
      p.site = k == OUTLIER ? WEIGHTS + (int)(next_random(&state) % ACTIVATIONS) : k == LEAK ? LEAKING : CHECKING;
      p.step = steps / 8 + next_random(&state) % (steps / 2 + 1);
      plants[plant_count++] = p;
    }
}

static const plant *plant_of(unsigned long long number) {
  static const plant none;
  for (size_t i = 0; i < plant_count; i++)
    if (plants[i].rank == number)
      return &plants[i];
  return &none;
}

/* ---- The file ---- */

static void put(const void *bytes, size_t size) {
  if (fwrite(bytes, 1, size, stdout) != size)
    exit(1);
}

static char logged[1 << 16];
static size_t logged_bytes;

static void log_record(uint32_t log_kind, uint32_t number, const void *bytes, uint32_t length) {
  weir__ring_file_record r = {log_kind, number, length, 0};
  memcpy(logged + logged_bytes, &r, sizeof r);
  memcpy(logged + logged_bytes + sizeof r, bytes, length);
  logged_bytes += (sizeof r + length + 7) / 8 * 8;
}

/* Texts 1 to SITES are functions, then come the file, the phase, and its context. The stack of a site is its number,
 * + 1, since 0 is none. */
enum { FILE_TEXT = SITES + 1, PHASE_TEXT, PHASE_CONTEXT };

static void make_log(void) {
  const uint64_t begin = 0;
  char settings[64];
  for (uint32_t i = 0; i < SITES; i++)
    log_record(WEIR__RING_TEXT, i + 1, functions[i], (uint32_t)strlen(functions[i]));
  log_record(WEIR__RING_TEXT, FILE_TEXT, "train.py", 8);
  log_record(WEIR__RING_TEXT, PHASE_TEXT, "train_step", 10);
  const uint32_t context[4] = {2, PHASE_TEXT, 0, 0}; /* as record/recorder.c marks them */
  log_record(WEIR__RING_TEXT, PHASE_CONTEXT, context, sizeof context);
  for (uint32_t i = 0; i < SITES; i++) {
    const uint64_t frame[2] = {1ull << 63 | (uint64_t)FILE_TEXT << 32 | (i + 1), 100 + i};
    log_record(WEIR__RING_STACK, i + 1, frame, sizeof frame);
  }
  memcpy(settings, &begin, sizeof begin);
  strcpy(settings + sizeof begin, "max_split_size_mb:512");
  log_record(WEIR__RING_SETTINGS, 0, settings, (uint32_t)(sizeof begin + strlen(settings + sizeof begin)));
  logged_bytes = (logged_bytes + 63) / 64 * 64;
}

static void put_area(uint32_t area_kind, uint64_t bytes) {
  weir__ring_file_area area = {.kind = area_kind, .bytes = sizeof area + bytes};
  atomic_store(&area.used, area_kind == WEIR__RING_LOG ? bytes : 0);
  put(&area, sizeof area);
}

static void put_header(void) {
  static union {
    weir__ring_file_header of;
    char page[WEIR__RING_HEADER];
  } h;
  const int64_t start = 1700000000000000000;
  uint64_t chunks = (entries + WEIR__CHUNK_ENTRIES - 1) / WEIR__CHUNK_ENTRIES;
  memcpy(h.of.magic, WEIR__RING_MAGIC, sizeof h.of.magic);
  h.of.version = WEIR__RING_VERSION;
  h.of.header_bytes = WEIR__RING_HEADER;
  h.of.event_bytes = sizeof(weir__entry);
  h.of.chunk_bytes = sizeof(weir__chunk);
  h.of.device_count = 1;
  h.of.pid = 1000 + rank;
  h.of.rank = rank;
  snprintf(h.of.host, sizeof h.of.host, "node%lld", rank / 8);
  h.of.first = (weir__clock_point){0, 0, start};
  h.of.last[0] = h.of.last[1] = (weir__clock_point){1ull << 40, 1ll << 40, start + (1ll << 40)};
  atomic_store(&h.of.ended, WEIR__RING_CLOSED);
  h.of.max_bytes = 1ull << 40;
  atomic_store(&h.of.file_bytes,
               sizeof h + 2 * sizeof(weir__ring_file_area) + logged_bytes + chunks * sizeof(weir__chunk));
  h.of.devices[0].memory = 80ull << 30;
  put(&h, sizeof h);
  put_area(WEIR__RING_LOG, logged_bytes);
  put(logged, logged_bytes);
  put_area(WEIR__RING_CHUNKS, chunks * sizeof(weir__chunk));
}

/* ---- The job ---- */

static weir__chunk chunk;
static unsigned filled;
static uint64_t written;
static uint64_t noise; /* the state of random numbers that differ from rank to rank */

static bool is_over(void) { return written == entries; }

static void flush_chunk(void) {
  atomic_store(&chunk.count, filled);
  chunk.sequence++;
  put(&chunk, sizeof chunk);
  filled = 0;
}

static void add(unsigned action, uint64_t address, uint64_t bytes, int site, bool begins_step, uint64_t stream) {
  if (is_over())
    return;
  written++;
  chunk.entries[filled++] = (weir__entry){.address = address,
                                          .bytes = bytes,
                                          .stream = stream,
                                          .time = written * 1000,
                                          .stack = site >= 0 ? (uint32_t)site + 1 : 0,
                                          .context = PHASE_CONTEXT,
                                          .action = (uint8_t)action,
                                          .thread = (uint16_t)(1 | (begins_step ? WEIR__ENTRY_PHASE_BEGINS : 0))};
  if (filled == WEIR__CHUNK_ENTRIES)
    flush_chunk();
}

static void release(uint64_t address, uint64_t bytes, uint64_t stream) {
  add(WEIR_TRACE_FREE_REQUESTED, address, bytes, -1, false, stream);
  add(WEIR_TRACE_FREE_COMPLETED, address, bytes, -1, false, stream);
}

/* Up to 1 % more or less. */
static uint64_t jitter(uint64_t bytes) {
  return bytes - bytes / 100 + (bytes / 50 * (next_random(&noise) >> 44)) / (1 << 20);
}

/* What a site needs in a stage and shard, which differ by more than jitter. */
static uint64_t size_of(int site) {
  unsigned long long stage = (unsigned long long)rank * 4 / ranks, shard = (unsigned long long)rank % 2;
  uint64_t bytes = (uint64_t)(16 + 3 * site) << 20;
  if (site < WEIGHTS)
    bytes *= 8 + stage * 2; /* later stages have more layers */
  if (site == 0 && stage == 0)
    bytes *= 3;
  if (site == 4 && shard)
    bytes *= 2;
  return bytes;
}

static uint64_t top = 1ull << 40; /* of what stays */

static void run_step(unsigned long long step, const plant *p) {
  uint64_t addresses[ACTIVATIONS * LAYERS], sizes[ACTIVATIONS * LAYERS];
  const uint64_t base = 1ull << 42, slot = 1ull << 28;
  unsigned communicates = (unsigned)(next_random(&noise) % (ACTIVATIONS * LAYERS));
  uint64_t bytes;
  for (unsigned i = 0; i < ACTIVATIONS * LAYERS; i++) {
    int site = WEIGHTS + (int)(i % ACTIVATIONS);
    sizes[i] = jitter(size_of(site));
    if (p->kind == OUTLIER && p->site == site && step >= p->step)
      sizes[i] += sizes[i] / 2;
    addresses[i] = base + i * slot;
    add(WEIR_TRACE_ALLOC, addresses[i], sizes[i], site, i == 0, 0);
    if (i == communicates) {
      bytes = jitter(size_of(COMMUNICATING));
      add(WEIR_TRACE_ALLOC, base - slot, bytes, COMMUNICATING, false, 0x5000 + (uint64_t)rank);
      release(base - slot, bytes, 0x5000 + (uint64_t)rank);
    }
  }
  if (p->kind == DIVERGENCE && step >= p->step) {
    add(WEIR_TRACE_ALLOC, base - 2 * slot, 512, CHECKING, false, 0);
    release(base - 2 * slot, 512, 0);
  }
  if (p->kind == LEAK && step >= p->step && step % 2 == 0) {
    add(WEIR_TRACE_ALLOC, top, 4 << 20, LEAKING, false, 0);
    top += slot;
  }
  for (int site = 14; site < 17; site++) {
    bytes = jitter(size_of(site));
    add(WEIR_TRACE_ALLOC, base - 3 * slot, bytes, site, false, 0);
    release(base - 3 * slot, bytes, 0);
  }
  for (unsigned i = ACTIVATIONS * LAYERS; i-- > 0;)
    release(addresses[i], sizes[i], 0);
}

static void run_job(bool runs_out) {
  const plant *p = plant_of((unsigned long long)rank);
  noise = seed * 1000003 + (uint64_t)rank;
  add(WEIR_TRACE_SEGMENT_ALLOC, 1ull << 40, jitter(40ull << 30), -1, false, 0);
  for (int site = 0; site < WEIGHTS; site++) {
    add(WEIR_TRACE_ALLOC, top, jitter(size_of(site)), site, false, 0);
    top += 1ull << 36;
  }
  unsigned long long last = runs_out ? entries / STEP_ENTRIES / 2 : entries;
  for (unsigned long long step = 0; !is_over() && step < last; step++)
    run_step(step, p);
  while (runs_out && !is_over())
    add(WEIR_TRACE_OOM, 64 << 20, 8ull << 30, 16, false, 0);
  if (filled)
    flush_chunk();
}

int main(int argc, char **argv) {
  static const char *const names[] = {"plain", "outlier", "leak", "divergence"};
  if (argc < 5) {
    fputs("usage: make_rank RANKS ENTRIES SEED RANK|truth [out]\n", stderr);
    return 2;
  }
  ranks = strtoull(argv[1], NULL, 10);
  entries = strtoull(argv[2], NULL, 10);
  seed = strtoull(argv[3], NULL, 10);
  make_plants();
  if (strcmp(argv[4], "truth") == 0) {
    for (size_t i = 0; i < plant_count; i++)
      printf("%llu %s %s %llu\n", plants[i].rank, names[plants[i].kind], functions[plants[i].site], plants[i].step);
    return 0;
  }
  rank = strtoll(argv[4], NULL, 10);
  make_log();
  put_header();
  run_job(argc > 5 && strcmp(argv[5], "out") == 0);
  return fflush(stdout) != 0;
}
