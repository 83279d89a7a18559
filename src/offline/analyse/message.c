/*
 * What follows from the figures of a message. Every figure is a range, and a conclusion is drawn only if it holds for
 * all values in it.
 */
#include <stdio.h>

#include "offline/analyse/message.h"

static const uint64_t mib = 1ull << 20;

static uint64_t minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }
static uint64_t least_of(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Figures of the text are at most 1 EB. Sums are cut off where they could overflow. */
static weir__figure sum(weir__figure a, weir__figure b) {
  const uint64_t most = 1ull << 62;
  return (weir__figure){a.is_known && b.is_known, least_of(a.least + b.least, most), least_of(a.most + b.most, most)};
}

/* At least 0: what is left of `a` without `b`. */
static weir__figure rest(weir__figure a, weir__figure b) {
  return (weir__figure){a.is_known && b.is_known, minus(a.least, b.most), minus(a.most, b.least)};
}

/* The smaller of two, of which one may not be known. */
static weir__figure smaller(weir__figure a, weir__figure b) {
  if (!a.is_known || !b.is_known)
    return a.is_known ? a : b;
  return (weir__figure){true, least_of(a.least, b.least), least_of(a.most, b.most)};
}

static bool is_above(weir__figure a, weir__figure b) { return a.is_known && b.is_known && a.least > b.most; }
static bool is_within(weir__figure a, weir__figure b) { return a.is_known && b.is_known && a.most <= b.least; }

static bool has_segments(const weir__message *m) {
  return m->kind == WEIR__MESSAGE_NATIVE || m->kind == WEIR__MESSAGE_PARENTHESES;
}

/* The text has the size of the segment that was to be made: 2 MiB for requests up to 1 MiB, 20 MiB for those below 10
 * MiB, and a multiple of 2 MiB otherwise. */
static weir__figure infer_request(const weir__message *m) {
  weir__figure tried = m->tried;
  if (!has_segments(m) || !tried.is_known || !tried.most)
    return tried;
  bool is_small = tried.least <= 2 * mib && tried.most >= 2 * mib;
  bool is_medium = tried.least <= 20 * mib && tried.most >= 20 * mib;
  if (m->has_old_rules)
    tried.least = minus(tried.least, mib);
  else if (is_small)
    return (weir__figure){true, 1, mib};
  else if (is_medium)
    tried.least = mib + 1;
  else
    tried.least = minus(tried.least, 2 * mib - 1);
  if (!tried.least)
    tried.least = 1;
  return tried;
}

static void find_bound(weir__message *m, weir__figure below_limit) {
  if (m->kind == WEIR__MESSAGE_REJECTED || is_above(m->tried, below_limit))
    m->bound = WEIR__BOUND_LIMIT; /* it is compared before the driver is asked */
  else if (below_limit.is_known && !is_within(m->tried, below_limit))
    m->bound = is_within(m->tried, m->free) ? WEIR__BOUND_LIMIT : WEIR__BOUND_EITHER;
  else if (m->tried.is_known && m->free.is_known && !is_within(m->tried, m->free))
    m->bound = WEIR__BOUND_DEVICE;
}

static weir__message_cause find_cause(const weir__message *m) {
  switch (m->kind) {
  case WEIR__MESSAGE_HUGE:
    return WEIR__MESSAGE_TOO_LARGE;
  case WEIR__MESSAGE_CUDA:
  case WEIR__MESSAGE_LIBRARY:
    return WEIR__MESSAGE_OUTSIDE;
  case WEIR__MESSAGE_VLLM:
    return WEIR__MESSAGE_NO_CACHE;
  case WEIR__MESSAGE_VLLM_START:
    return WEIR__MESSAGE_OCCUPIED;
  default:
    break;
  }
  if (is_above(m->request, m->total) || is_above(m->request, m->allowed))
    return WEIR__MESSAGE_TOO_LARGE;
  if (m->reserve.is_known)
    return WEIR__MESSAGE_ADDRESS_SPACE;
  if (!m->request.is_known || !m->headroom.is_known)
    return WEIR__MESSAGE_NOT_KNOWN;
  if (m->bound == WEIR__BOUND_NOT_KNOWN)
    return WEIR__MESSAGE_REFUSED;
  if (!m->usable.is_known)
    return WEIR__MESSAGE_NOT_KNOWN;
  if (is_above(m->request, m->usable))
    return WEIR__MESSAGE_EXHAUSTED;
  return is_within(m->tried, m->unallocated) ? WEIR__MESSAGE_FRAGMENTED : WEIR__MESSAGE_UNDECIDED;
}

/* Expandable segments, if fragmentation is likely: PyTorch has them from 2.1 on. */
static const char *find_conf(const weir__message *m) {
  bool is_likely =
      m->cause == WEIR__MESSAGE_FRAGMENTED || (m->cause == WEIR__MESSAGE_UNDECIDED && is_within(m->request, m->usable));
  bool has_key = m->kind == WEIR__MESSAGE_NATIVE && m->library == WEIR__LIBRARY_TORCH && !m->is_weirs;
  return is_likely && has_key && !m->is_expandable ? "expandable_segments:True" : NULL;
}

static void derive(weir__message *m) {
  if (m->reserved.is_known && m->allocated.is_known && !m->unallocated.is_known)
    m->unallocated = rest(m->reserved, m->allocated);
  else if (!m->reserved.is_known)
    m->reserved = sum(m->allocated, m->unallocated);
  m->request = infer_request(m);

  static const weir__figure none = {true, 0, 0}; /* vLLM's KV cache has what is available to itself */
  weir__figure taken = m->kind == WEIR__MESSAGE_VLLM ? none : m->reserved.is_known ? m->reserved : m->allocated;
  weir__figure below_limit = rest(m->allowed, taken);
  m->headroom = smaller(m->free, below_limit);
  find_bound(m, below_limit);
  if (m->bound != WEIR__BOUND_NOT_KNOWN) {
    m->missing = rest(m->tried, m->headroom);
    if (m->missing.is_known && !m->missing.least)
      m->missing.least = 1; /* since it failed */
  }
  m->usable = sum(m->unallocated, m->headroom);
  m->short_by = rest(m->request, m->usable);

  /* What XLA's allocator lacks need not be in one piece: its pool would grow by it. */
  if (m->kind == WEIR__MESSAGE_XLA && m->short_by.is_known && m->short_by.least)
    m->missing = m->short_by;

  m->non_pytorch = rest(m->own, m->reserved);
  m->outside = rest(m->total, sum(m->free, m->reserved));
  m->others.is_known = m->own.is_known;
  for (size_t i = 0; i < m->process_count; i++)
    m->others = sum(m->others, m->processes[i].used);
  m->unlisted = rest(m->total, sum(sum(m->free, m->own), m->others));
  m->cause = find_cause(m);
  m->others_suffice =
      m->bound == WEIR__BOUND_DEVICE && m->others.is_known && m->missing.is_known && is_within(m->missing, m->others);
  m->pools_suffice =
      m->cause == WEIR__MESSAGE_EXHAUSTED && m->pools.is_known && is_within(m->request, sum(m->usable, m->pools));
  m->conf = find_conf(m);
}

void weir__messages_derive(weir__messages *messages) {
  for (size_t i = 0; i < messages->count; i++)
    derive(&messages->items[i]);
}

const weir__message_cause_name weir__message_causes[WEIR__MESSAGE_CAUSES] = {
    [WEIR__MESSAGE_NOT_KNOWN] = {"not known", "not known"},
    [WEIR__MESSAGE_TOO_LARGE] = {"too large", "request too large"},
    [WEIR__MESSAGE_EXHAUSTED] = {"exhausted", "not enough memory"},
    [WEIR__MESSAGE_FRAGMENTED] = {"fragmented", "probably fragmentation"},
    [WEIR__MESSAGE_UNDECIDED] = {"undecided", "perhaps fragmentation"},
    [WEIR__MESSAGE_OUTSIDE] = {"outside", "outside the allocator"},
    [WEIR__MESSAGE_REFUSED] = {"refused", "refused although free"},
    [WEIR__MESSAGE_ADDRESS_SPACE] = {"address space", "addresses of a segment"},
    [WEIR__MESSAGE_NO_CACHE] = {"no room for the KV cache", "no room for the KV cache"},
    [WEIR__MESSAGE_OCCUPIED] = {"occupied", "others hold the memory"}};

const char *const weir__message_bounds[WEIR__BOUNDS] = {[WEIR__BOUND_NOT_KNOWN] = NULL,
                                                        [WEIR__BOUND_DEVICE] = "device",
                                                        [WEIR__BOUND_LIMIT] = "limit",
                                                        [WEIR__BOUND_EITHER] = "either"};

const char *const weir__message_kinds[WEIR__MESSAGE_KINDS] = {[WEIR__MESSAGE_NATIVE] = "PyTorch 2.1 or newer",
                                                              [WEIR__MESSAGE_PARENTHESES] = "PyTorch 1.0 to 2.0",
                                                              [WEIR__MESSAGE_ASYNC] = "cudaMallocAsync",
                                                              [WEIR__MESSAGE_REJECTED] = "throw_on_cudamalloc_oom",
                                                              [WEIR__MESSAGE_HUGE] = "more than 1 EB",
                                                              [WEIR__MESSAGE_THC] = "cuda runtime error",
                                                              [WEIR__MESSAGE_CUDA] = "CUDA",
                                                              [WEIR__MESSAGE_LIBRARY] = "CUDA library",
                                                              [WEIR__MESSAGE_NVML] = "NVML assertion",
                                                              [WEIR__MESSAGE_CUPY] = "CuPy",
                                                              [WEIR__MESSAGE_RMM] = "RMM",
                                                              [WEIR__MESSAGE_XLA] = "XLA",
                                                              [WEIR__MESSAGE_TENSORFLOW] = "TensorFlow",
                                                              [WEIR__MESSAGE_VLLM] = "vLLM",
                                                              [WEIR__MESSAGE_VLLM_START] = "vLLM at its start"};

const char *weir__message_source_text(const weir__message *m, char text[WEIR__MESSAGE_SOURCE_TEXT]) {
  static const char *const names[] = {[WEIR__SOURCE_RANK] = "rank",
                                      [WEIR__SOURCE_LOCAL] = "local rank",
                                      [WEIR__SOURCE_TASK] = "task",
                                      [WEIR__SOURCE_PROCESS] = "process"};
  text[0] = 0;
  if (m->source > WEIR__SOURCE_NONE && m->source <= WEIR__SOURCE_PROCESS)
    snprintf(text, WEIR__MESSAGE_SOURCE_TEXT, "%s %llu", names[m->source], (unsigned long long)m->source_number);
  else if (m->device >= 0)
    snprintf(text, WEIR__MESSAGE_SOURCE_TEXT, "GPU %d", m->device);
  return text;
}
