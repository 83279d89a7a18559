#include "offline/render/message_report.h"

#include "base/base.h"
#include "offline/analyse/message.h"

typedef struct context {
  weir__report *r;
  const weir__message *m;
  size_t at, processes; /* its row, and that of the first process */
  bool has_remedy;      /* the text has */
} context;

static void say(const context *c, const char *format) { weir__say(c->r, format); }

static bool is_xla(const weir__message *m) {
  return m->kind == WEIR__MESSAGE_XLA || m->kind == WEIR__MESSAGE_TENSORFLOW;
}

static bool has_segments(const weir__message *m) {
  return m->kind == WEIR__MESSAGE_NATIVE || m->kind == WEIR__MESSAGE_PARENTHESES;
}

static bool is_within(weir__figure a, weir__figure b) { return a.is_known && b.is_known && a.most <= b.least; }

/* ---- The rows of a message ---- */

static void add_figure(weir__report *r, const char *key, weir__figure figure) {
  if (figure.is_known)
    WEIR__ROWS(r, JSON_OBJECT(key), ROW_BYTES("least", figure.least), ROW_BYTES("most", figure.most), JSON_CLOSE);
  else
    WEIR__ROWS(r, JSON_NULL(key));
}

static void add_figures(weir__report *r, const weir__message *m) {
  const struct {
    const char *key;
    weir__figure figure;
  } figures[] = {{"tried", m->tried},
                 {"request", m->request},
                 {"device_total", m->total},
                 {"device_free", m->free},
                 {"limit", m->allowed},
                 {"allocated", m->allocated},
                 {"free_in_private_pools", m->pools},
                 {"unallocated", m->unallocated},
                 {"reserved", m->reserved},
                 {"process", m->own},
                 {"headroom", m->headroom},
                 {"missing", m->missing},
                 {"usable_without_fragmentation", m->usable},
                 {"missing_without_fragmentation", m->short_by},
                 {"non_pytorch", m->non_pytorch},
                 {"other_processes", m->others},
                 {"unlisted", m->unlisted},
                 {"outside", m->outside},
                 {"program", m->program},
                 {"program_arguments", m->arguments},
                 {"program_results", m->results},
                 {"program_temporaries", m->temporaries},
                 {"program_constants", m->constants},
                 {"largest_buffer", m->largest},
                 {"_reserve", m->reserve}};
  for (size_t i = 0; i < WEIR_COUNT_OF(figures); i++)
    add_figure(r, figures[i].key, figures[i].figure);
}

/* The only process in the text that uses enough memory to be this one. NULL if no process does, or several do. */
static const weir__message_process *find_self(const weir__message *m) {
  const weir__message_process *found = NULL;
  for (size_t i = 0; i < m->process_count && m->reserved.is_known; i++) {
    if (!m->processes[i].used.is_known || m->processes[i].used.most < m->reserved.least)
      continue;
    if (found)
      return NULL;
    found = &m->processes[i];
  }
  return found;
}

/* How much the best setting can leave after the request, in percent of what could be reserved as well. */
static double best_left(const weir__message *m, uint64_t *left) {
  const uint64_t all = m->reserved.most + m->headroom.most;
  *left = m->usable.most > m->request.least ? m->usable.most - m->request.least : 0;
  return m->reserved.most ? 100 * (double)*left / (double)all : 0;
}

/* What sentences say beside the rows of JSON. */
static void add_derived(weir__report *r, const weir__message *m) {
  const uint64_t needed = m->allowed.most + m->missing.most;
  const double total = m->total.least ? (double)m->total.least : 1, most = m->total.most ? (double)m->total.most : 1;
  uint64_t left;
  const double part = best_left(m, &left);
  bool has_part = m->total.is_known && m->total.most && m->free.is_known && m->free.least <= m->total.most;
  const unsigned percent = has_part ? (unsigned)(100 * ((double)m->free.least / most)) : 0;
  const weir__message_process *self = find_self(m);
  WEIR__ROWS(r,
             JSON_TEXT("_allocator", m->is_weirs                              ? "Weir"
                                     : m->library == WEIR__LIBRARY_TENSORFLOW ? "TensorFlow"
                                     : is_xla(m)                              ? "the allocator of XLA"
                                                                              : "PyTorch"),
             JSON_TEXT("_graphs", m->is_hip ? "HIP graphs" : "CUDA graphs"),
             JSON_TEXT("_why", weir__message_causes[m->cause].text), JSON_INTEGER("_mib", m->has_old_rules ? 1 : 2),
             JSON_REAL("_share", (double)m->allowed.most / most, 3), ROW_BYTES("_needed", needed),
             JSON_REAL("_fraction", (double)needed / total + 0.0005, 3),
             JSON_REAL_IF(has_part, "_utilization", (double)percent / 100, 2),
             ROW_BYTES("_at_least", m->allocated.least + m->request.least),
             ROW_BYTES("_at_most", m->reserved.most + m->headroom.most), ROW_BYTES("_left", left),
             JSON_REAL("_left_percent", part, 1), JSON_NATURAL("_others", m->process_count),
             JSON_NATURAL_IF(self != NULL, "_self", self ? self->pid : 0));
  add_figure(r, "_self_used", self ? self->used : (weir__figure){0});
}

/* Returns the row of its first process. */
static size_t add_message(weir__report *r, const weir__message *m, bool is_in_table) {
  char source[WEIR__MESSAGE_SOURCE_TEXT];
  bool has_rank = m->source == WEIR__SOURCE_RANK || m->source == WEIR__SOURCE_LOCAL || m->source == WEIR__SOURCE_TASK;
  WEIR__ROWS(r, JSON_OBJECT(NULL), JSON_TEXT("source", weir__message_source_text(m, source)),
             JSON_NATURAL_IF(has_rank, "rank", m->source_number), JSON_NATURAL_IF(m->device >= 0, "device", m->device),
             JSON_NATURAL("line", m->line), JSON_NATURAL("repeated", m->repeated),
             JSON_TEXT("wording", weir__message_kinds[m->kind]), JSON_BOOL("weir", m->is_weirs),
             JSON_TEXT("cause", weir__message_causes[m->cause].name),
             JSON_TEXT("bound", weir__message_bounds[m->bound]));
  add_figures(r, m);
  add_derived(r, m);
  WEIR__ROWS(r, JSON_TEXT("largest_buffer_name", *m->largest_name ? m->largest_name : NULL),
             JSON_TEXT("tensor", *m->tensor ? m->tensor : NULL),
             JSON_TEXT("operation", *m->operation ? m->operation : NULL),
             JSON_NATURAL_IF(m->tokens > 0, "tokens", m->tokens),
             JSON_NATURAL_IF(m->tokens_fit > 0, "tokens_that_fit", m->tokens_fit), JSON_LIST("processes"));
  const size_t processes = r->count;
  for (size_t i = 0; i < m->process_count; i++) {
    WEIR__ROWS(r, JSON_OBJECT(NULL), JSON_NATURAL("pid", m->processes[i].pid));
    add_figure(r, "used", m->processes[i].used);
    WEIR__ROWS(r, JSON_CLOSE);
  }
  WEIR__ROWS(r, JSON_CLOSE, JSON_BOOL("other_processes_suffice", m->others_suffice),
             JSON_BOOL("private_pools_suffice", m->pools_suffice), JSON_TEXT("conf", m->conf));
  if (is_in_table) {
    weir__say(r, *source ? "  {source:-13} " : "  -             ");
    weir__say(r, "{line:-7} {tried=:11} {missing:23} {unallocated=:11}  {_why}\n");
  }
  WEIR__ROWS(r, JSON_CLOSE);
  return processes;
}

/* ---- What the text of the error says ---- */

static const char *request_sentence(const weir__message *m) {
  if (m->kind == WEIR__MESSAGE_HUGE)
    return "  request     more than 1 EB\n";
  if (m->kind == WEIR__MESSAGE_VLLM)
    return m->tokens ? "  request     the KV cache of one request of {tokens} tokens: {tried=}\n"
                     : "  request     the KV cache of one request: {tried=}\n";
  if (!m->tried.is_known)
    return *m->operation ? "  request     not known: the text has the operation alone, {operation}\n"
                         : "  request     not known: the text has no size\n";
  if (m->kind == WEIR__MESSAGE_VLLM_START)
    return "  request     {tried=}, which is gpu_memory_utilization of the device\n";
  if (*m->tensor)
    return "  request     {tried=}: a tensor {tensor}\n";
  if (!has_segments(m))
    return *m->operation ? "  request     {tried=}, by {operation}\n" : "  request     {tried=}\n";
  if (m->request.least <= 1)
    return "  request     {request.most} or less ({_allocator} prints the segment size, {tried=}, not the request)\n";
  if (m->request.least == (1u << 20) + 1)
    return "  request     above 1 MiB, up to {tried=} ({_allocator} prints the segment size, not the request)\n";
  return "  request     {tried=}, or up to {_mib} MiB less ({_allocator} prints the segment size, not the request)\n";
}

static void say_device(const context *c) {
  const weir__message *m = c->m;
  if (m->total.is_known)
    say(c, m->free.is_known ? "  device      {device_total=}, of which {device_free=} was free\n"
                            : "  device      {device_total=}\n");
  if (!m->allowed.is_known || m->kind == WEIR__MESSAGE_VLLM)
    return;
  say(c, "  limit       {limit=}");
  if (m->kind == WEIR__MESSAGE_CUPY)
    say(c, ", set by the program (MemoryPool.set_limit)");
  else if (is_xla(m))
    say(c, " of {_allocator}");
  else if (m->total.is_known && m->allowed.least >= m->total.most)
    say(c, ", which is the whole device");
  else
    say(c, ", set by the program (set_per_process_memory_fraction)");
  say(c,
      m->total.is_known && m->total.least && m->allowed.most < m->total.least ? ": {_share:.3} of the device\n" : "\n");
}

static void say_uses(const context *c) {
  const weir__message *m = c->m;
  if (m->kind == WEIR__MESSAGE_ASYNC || m->kind == WEIR__MESSAGE_CUPY) {
    say(c, m->reserved.is_known    ? "  *{reserved=} reserved*\n"
           : m->allocated.is_known ? "  *{allocated=} allocated*\n"
                                   : "");
    return;
  }
  if (!m->reserved.is_known)
    return;
  say(c, "  *{reserved} reserved by {_allocator}*\n    {allocated=:11}  allocated\n");
  if (m->pools.is_known)
    say(c, "    {free_in_private_pools=:11}  of these: free, but kept for {_graphs} and other private pools\n");
  say(c, m->kind == WEIR__MESSAGE_NATIVE || m->has_old_rules ? "    {unallocated=:11}" : "    {unallocated:11}");
  say(c, "  unallocated: free, but not returned to the driver\n");
}

/* What a program that XLA compiled needs; a text that was cut off has a part of its table. */
static void say_program(const context *c) {
  const weir__message *m = c->m;
  const struct {
    weir__figure figure;
    const char *text;
  } parts[] = {{m->arguments, "{program_arguments=} arguments"},
               {m->results, "{program_results=} results"},
               {m->temporaries, "{program_temporaries=} temporary"},
               {m->constants, "{program_constants=} constants"}};
  const char *before = m->program.is_known ? ": " : "  program     the compiled program has ", *end = "";
  if (m->program.is_known)
    say(c, "  program     {program=} for the compiled program");
  for (size_t i = 0; i < WEIR_COUNT_OF(parts); i++)
    if (parts[i].figure.is_known) {
      say(c, before);
      say(c, parts[i].text);
      before = ", ";
      end = "\n";
    }
  say(c, m->program.is_known ? "\n" : end);
  if (m->largest.is_known)
    say(c, *m->largest_name ? "  largest     {largest_buffer=} in one buffer: {largest_buffer_name}\n"
                            : "  largest     {largest_buffer=} in one buffer\n");
}

static void say_outside(const context *c) {
  const weir__message *m = c->m;
  if (m->non_pytorch.is_known)
    say(c, m->is_hip
               ? "  outside     {non_pytorch} of this process is not the allocator's: the context, kernels, RCCL, "
                 "rocBLAS and other libraries\n"
               : "  outside     {non_pytorch} of this process is not the allocator's: the context, kernels, NCCL, "
                 "cuBLAS and other libraries\n");
  if (m->others.is_known && m->process_count) {
    say(c, "  others      {other_processes} in {_others other process}:");
    for (size_t i = 0, at = c->processes; i < m->process_count && !c->r->has_failed; at = c->r->rows[at].end) {
      c->r->scope = at;
      say(c, i++ ? ", {pid} ({used=})" : " {pid} ({used=})");
    }
    c->r->scope = c->at;
    say(c, "\n");
  }
  /* A little is the driver's own. */
  if (m->unlisted.is_known && m->unlisted.least > 512u << 20)
    say(c, "  unlisted    {unlisted} of the device is in use, but by no process that the text lists: by other "
           "containers, or by the driver\n");
  if (m->own.is_known || !m->outside.is_known)
    return;
  say(c, "  outside     {outside} of the device is not reserved by this process: its context and libraries, and other "
         "processes\n");
  if (find_self(m))
    say(c,
        "  note        process {_self}, with {_self_used=}, is probably this one: in a container the driver's process "
        "numbers are not those of the program\n");
}

/* ---- What follows ---- */

static const char *refused_sentence(const weir__message *m) {
  if (m->kind == WEIR__MESSAGE_NATIVE && !m->allowed.is_known && !m->is_weirs)
    return "Refused although enough was free: probably by a limit of the program's own "
           "(set_per_process_memory_fraction), which PyTorch 2.1 to 2.4 do not print. Else memory was freed after the "
           "failure, or the system limits the process (WSL, MIG, a container).\n";
  return "Refused although enough was free: memory was freed after the failure, or the system limits the process (WSL, "
         "MIG, a container).\n";
}

static const char *undecided_sentence(const weir__message *m) {
  bool is_below = m->bound == WEIR__BOUND_LIMIT;
  if (is_within(m->request, m->usable))
    return is_below ? "Perhaps fragmentation: {unallocated} unallocated and {headroom} left below the limit would "
                      "together be enough, if they were in one piece.\n"
                    : "Perhaps fragmentation: {unallocated} unallocated and {headroom} left on the device would "
                      "together be enough, if they were in one piece.\n";
  return is_below ? "Not decided by the rounded figures: {unallocated} unallocated and {headroom} left below the limit "
                    "may just have been enough, if they had been in one piece.\n"
                  : "Not decided by the rounded figures: {unallocated} unallocated and {headroom} left on the device "
                    "may just have been enough, if they had been in one piece.\n";
}

static const char *unknown_sentence(const weir__message *m) {
  if (m->bound == WEIR__BOUND_LIMIT)
    return "The limit that the program has set.\n";
  if (m->is_drivers)
    return m->kind == WEIR__MESSAGE_RMM
               ? "Not known: the driver had no memory left for RMM, and the text does not say what uses it.\n"
               : "Not known: the driver had no memory left for {_allocator}, and the text does not say what uses it.\n";
  if (m->kind == WEIR__MESSAGE_RMM)
    return "Not known: the pool of RMM has reached its size, and the text does not say what it is used for.\n";
  if (m->kind == WEIR__MESSAGE_THC)
    return "Not known: the text has no figures. The allocator of PyTorch 0.4 and older says no more, and so do other "
           "calls of CUDA.\n";
  if (m->kind == WEIR__MESSAGE_NVML)
    return "Not known: PyTorch ran out of memory and then failed to describe it, since NVML refused its calls: as on "
           "MIG, on Jetson, or in a container without NVML. The text has no figures.\n";
  if (m->program.is_known)
    return "Not known: the compiled program needs {program=} at once, but the text does not say how much was free.\n";
  if (m->temporaries.is_known)
    return "Not known: the compiled program needs {program_temporaries=} at once for temporary values alone, but the "
           "text does not say how much was free.\n";
  return "Not known: the text has too few figures.\n";
}

static const char *cause_sentence(const weir__message *m) {
  switch (m->cause) {
  case WEIR__MESSAGE_TOO_LARGE:
    if (m->kind == WEIR__MESSAGE_HUGE)
      return "Wrong size: no device has that much. The size was computed from a negative or overflowing number.\n";
    return m->total.is_known && m->request.least > m->total.most
               ? "Too large: the request alone needs more than the device has, {device_total=}.\n"
               : "Too large: the request alone exceeds the limit of {limit=}.\n";
  case WEIR__MESSAGE_EXHAUSTED:
    return "Not enough memory: {allocated=} allocated and the request make at least {_at_least}, and no more than "
           "{_at_most} could be reserved. Fragmentation is excluded.\n";
  case WEIR__MESSAGE_FRAGMENTED:
    return "Probably fragmentation: {unallocated} is unallocated, which is enough for the request, but not in a form "
           "that it can use: in pieces between live blocks, or belonging to other streams or pools.\n";
  case WEIR__MESSAGE_UNDECIDED:
    return undecided_sentence(m);
  case WEIR__MESSAGE_OUTSIDE:
    return m->kind == WEIR__MESSAGE_LIBRARY
               ? "Outside the allocator: cuBLAS or cuDNN found no memory for itself. It takes it from the driver, and "
                 "the allocator had left too little.\n"
               : "Outside the allocator: a driver call ran out of memory, for example while creating a context, "
                 "loading "
                 "a kernel or instantiating a graph. The text has no figures; the call that failed may be an earlier "
                 "one.\n";
  case WEIR__MESSAGE_REFUSED:
    return refused_sentence(m);
  case WEIR__MESSAGE_ADDRESS_SPACE:
    return "The request exceeds the addresses that an expandable segment reserves, {_reserve=}. Memory itself may have "
           "been enough.\n";
  case WEIR__MESSAGE_NO_CACHE:
    return "No room for the KV cache: the weights, the activations of the largest batch and the CUDA graphs take what "
           "gpu_memory_utilization lets vLLM use. The lines of its log \"Model loading took\" and \"Available KV cache "
           "memory\" say how much.\n";
  case WEIR__MESSAGE_OCCUPIED:
    return "Other programs hold memory that vLLM was to take: it compares what is free at its start with "
           "gpu_memory_utilization of the whole device.\n";
  default:
    return unknown_sentence(m);
  }
}

static void say_missing(const context *c) {
  const weir__message *m = c->m;
  if (!m->missing.is_known) {
    say(c, m->cause == WEIR__MESSAGE_TOO_LARGE ? "" : "  missing     not known\n");
    return;
  }
  say(c, "  missing     {missing}");
  if (m->library != WEIR__LIBRARY_VLLM)
    say(c, m->bound == WEIR__BOUND_LIMIT    ? ": the limit is that much too low"
           : m->bound == WEIR__BOUND_DEVICE ? ": that much more free memory was needed on the device"
                                            : "");
  say(c, m->cause == WEIR__MESSAGE_EXHAUSTED ? "; {missing_without_fragmentation} if nothing were fragmented\n" : "\n");
}

/* How much the best setting can bring. */
static void say_margin(const context *c) {
  uint64_t left;
  if (c->m->cause != WEIR__MESSAGE_FRAGMENTED && c->m->cause != WEIR__MESSAGE_UNDECIDED)
    return;
  say(c,
      "  at best     {_left} would have been left after the request without any fragmentation: {_left_percent:.1} % of "
      "what could be reserved");
  say(c, best_left(c->m, &left) < 5 ? ". The job is near its limit in any case\n" : "\n");
}

/* ---- Would it have helped? ---- */

/* Says a remedy, and above the first one the heading. */
static void say_remedy(context *c, const char *format) {
  if (!c->has_remedy)
    say(c, "  *would it have helped?* As far as the figures prove it\n");
  c->has_remedy = true;
  say(c, format);
}

static void say_settings(context *c) {
  const weir__message *m = c->m;
  if (m->cause == WEIR__MESSAGE_EXHAUSTED || m->cause == WEIR__MESSAGE_TOO_LARGE) {
    say_remedy(c,
               "    no          expandable_segments:True, moving_pages:True, and any other setting of the allocator: "
               "none can add memory that the device does not have\n");
    return;
  }
  if (m->cause != WEIR__MESSAGE_FRAGMENTED && m->cause != WEIR__MESSAGE_UNDECIDED)
    return;
  if (m->is_expandable)
    say_remedy(c, "    no          expandable_segments:True: it is on\n");
  else {
    say_remedy(c, "    possible    expandable_segments:True");
    say(c, m->kind == WEIR__MESSAGE_PARENTHESES ? ", with PyTorch 2.1 or newer" : "");
    say(c, ": free neighbours merge, and whole free pages in holes are returned\n");
  }
  if (m->library == WEIR__LIBRARY_TORCH && !m->is_hip && (!m->is_weirs || !m->is_expandable))
    say_remedy(c, "    possible    moving_pages:True, with Weir's allocator: free pages in holes are mapped where they "
                  "are needed\n");
  say_remedy(c,
             "    no          empty_cache() right before the request: the allocator had released all that it could\n");
}

static void say_limit_remedy(context *c) {
  const weir__message *m = c->m;
  if (m->bound != WEIR__BOUND_LIMIT && m->bound != WEIR__BOUND_EITHER)
    return;
  if (!m->allowed.is_known || !m->missing.is_known)
    say_remedy(c, "    possible    a higher limit\n");
  else if (is_xla(m))
    say_remedy(c, "    possible    a limit of {_needed}, if the device has it\n");
  else if (m->free.is_known && m->tried.least > m->free.most)
    say_remedy(c, "    no          a higher limit: the device had only {device_free=} free\n");
  else if (m->total.is_known && m->allowed.most + m->missing.most <= m->total.least)
    say_remedy(c, "    yes         a limit of {_needed}, which is set_per_process_memory_fraction({_fraction:.3})\n");
  else
    say_remedy(c,
               m->total.is_known ? "    no          a limit of {_needed}\n" : "    yes         a limit of {_needed}\n");
}

/* gpu_memory_utilization is a part of the device with two decimals, as vLLM's users write it. */
static void say_vllm_remedies(context *c) {
  const weir__message *m = c->m;
  if (m->cause == WEIR__MESSAGE_OCCUPIED) {
    if (m->total.is_known && m->total.most && m->free.is_known && m->free.least <= m->total.most)
      say_remedy(c, "    yes         gpu_memory_utilization of {_utilization:.2} or less, if nothing else takes memory "
                    "meanwhile\n");
    if (m->missing.is_known)
      say_remedy(c, "    yes         {missing.most} less in use by other programs on the device\n");
    return;
  }
  say_remedy(c, m->tokens_fit ? "    yes         max_model_len of {tokens_that_fit} or less, as vLLM estimates\n"
                              : "    possible    a smaller max_model_len\n");
  say_remedy(c, m->missing.is_known
                    ? "    possible    a higher gpu_memory_utilization, if the device has {missing} more that no other "
                      "program uses\n"
                    : "    possible    a higher gpu_memory_utilization, if the device has more that no other program "
                      "uses\n");
  say_remedy(c, "    possible    a smaller KV cache (kv_cache_dtype=fp8), or weights that take less: quantized, or of "
                "several devices (tensor_parallel_size)\n");
}

static void say_remedies(context *c) {
  const weir__message *m = c->m;
  if (m->library == WEIR__LIBRARY_VLLM) {
    say_vllm_remedies(c);
    return;
  }
  bool has_figures = m->request.is_known && m->cause != WEIR__MESSAGE_NOT_KNOWN;
  if ((!has_figures && m->bound == WEIR__BOUND_NOT_KNOWN) || m->cause == WEIR__MESSAGE_REFUSED ||
      m->cause == WEIR__MESSAGE_ADDRESS_SPACE)
    return;
  if (has_segments(m))
    say_settings(c);
  say_limit_remedy(c);
  if (m->others_suffice)
    say_remedy(c, "    yes         the device without the other processes, which hold {other_processes}\n");
  else if (m->process_count && m->others.is_known && m->bound == WEIR__BOUND_DEVICE)
    say_remedy(c, m->others.most < m->missing.least
                      ? "    no          the device without the other processes, which hold {other_processes}\n"
                      : "    possible    the device without the other processes, which hold {other_processes}\n");
  if (m->pools_suffice)
    say_remedy(c, "    possible    {_graphs} that share a pool, or fewer of them: {free_in_private_pools=} is free in "
                  "private pools\n");
  if (m->cause == WEIR__MESSAGE_EXHAUSTED && m->short_by.is_known)
    say_remedy(c, "    yes         {missing_without_fragmentation.most} less in use: a smaller batch, activation "
                  "checkpointing, sharding, or freeing what is no longer needed\n");
}

/* ---- What to do next ---- */

#define CODE WEIR__KEEP_LINE "                "

/* How the allocator leaves memory to the driver. */
static const char *reserve_sentence(const weir__message *m) {
  switch (m->library) {
  case WEIR__LIBRARY_TORCH:
    return "leave memory to the driver and the libraries, at the start of the program:\n" CODE
           "torch.cuda.set_per_process_memory_fraction(0.9)\n";
  case WEIR__LIBRARY_CUPY:
    return "leave memory to the driver and the libraries, at the start of the program (MemoryPool.set_limit):\n" CODE
           "cupy.get_default_memory_pool().set_limit(fraction=0.9)\n";
  case WEIR__LIBRARY_JAX:
    return "leave more memory to the driver and the libraries, in the environment of JAX, which takes 0.75 by "
           "default:\n" CODE "XLA_PYTHON_CLIENT_MEM_FRACTION=0.6\n";
  case WEIR__LIBRARY_TENSORFLOW:
    return "leave more memory to the driver and the libraries, by a limit, at the start of the program:\n" CODE
           "gpu = tf.config.list_physical_devices('GPU')[0]\n" CODE "tf.config.set_logical_device_configuration(\n" CODE
           "    gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=MIB)])\n";
  default:
    return "leave memory to the driver and the libraries, by a lower limit of the allocator that the program uses: "
           "torch.cuda.set_per_process_memory_fraction of PyTorch, MemoryPool.set_limit of CuPy, "
           "XLA_PYTHON_CLIENT_MEM_FRACTION of JAX\n";
  }
}

/* Where no history can be recorded that Weir explains. */
static const char *without_history(const weir__message *m) {
  switch (m->library) {
  case WEIR__LIBRARY_CUPY:
    return "serve CuPy's memory from Weir, whose history can be explained: weir.cupy.install() (docs/python/cupy.md)\n";
  case WEIR__LIBRARY_JAX:
    return "XLA_PYTHON_CLIENT_MEM_FRACTION in the environment sets how much of the device JAX takes, 0.75 by default; "
           "jax.local_devices()[0].memory_stats() has what it uses. Its history cannot be explained here\n";
  case WEIR__LIBRARY_TENSORFLOW:
    return "tf.config.set_logical_device_configuration sets how much of the device TensorFlow takes, nearly all by "
           "default; tf.config.experimental.get_memory_info('GPU:0') has its current and peak use. Its history cannot "
           "be "
           "explained here\n";
  case WEIR__LIBRARY_VLLM:
    return "vLLM's log says where the memory went: \"Model loading took\", \"Available KV cache memory\", \"Graph "
           "capturing finished\"; its model runs in PyTorch, whose history can be explained "
           "(docs/tools/guide-oom.md)\n";
  case WEIR__LIBRARY_RMM:
    return "ask the allocator for its statistics; only the history of PyTorch and Weir can be explained here\n";
  case WEIR__LIBRARY_TORCH_OTHER:
    return "ask PyTorch for the statistics of the device (memory_summary); its history can be explained here only with "
           "CUDA or ROCm\n";
  default:
    return NULL;
  }
}

/* PyTorch calls its observers, and records the failure, only after NVML has answered. */
static void say_catch(const context *c) {
  say(c, "record the history, and dump it where the error is caught:\n" CODE "import torch\n" CODE
         "torch.cuda.memory._record_memory_history(stacks=\"python\")\n" CODE "try:\n" CODE "    train()\n" CODE
         "except RuntimeError:\n" CODE "    torch.cuda.memory._dump_snapshot(\"oom.pickle\")\n" CODE "    raise\n"
         "              then ");
  weir__say_command(c->r, "explain", "", "oom.pickle");
  say(c,
      "              which explains the peak if the request that failed is not in the file. Where NVML works, the text "
      "has figures: a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility\n");
}

static void say_next(const context *c) {
  const weir__message *m = c->m;
  say(c, "  *next      *  ");
  if (m->kind == WEIR__MESSAGE_NVML)
    say_catch(c);
  else if (m->cause == WEIR__MESSAGE_TOO_LARGE)
    say(c, "the traceback shows the operation: check the shapes that it gets, or do it in parts\n");
  else if (m->cause == WEIR__MESSAGE_OUTSIDE) {
    say(c, reserve_sentence(m));
    say(c, m->is_hip ? "              and set AMD_SERIALIZE_KERNEL=3 once, so that the traceback shows the call that "
                       "failed\n"
                     : "              and set CUDA_LAUNCH_BLOCKING=1 once, so that the traceback shows the call that "
                       "failed\n");
  } else if (m->is_weirs) {
    say(c, "run it again with WEIR_RECORD=FOLDER, which records the history of each process in a file:\n" CODE
           "WEIR_RECORD=FOLDER WEIR_RECORD_STACKS=alloc PROGRAM ...\n              and explain the file: ");
    weir__say_command(c->r, "explain", "", "FOLDER/FILE");
  } else if (without_history(m))
    say(c, without_history(m));
  else {
    say(c, m->kind == WEIR__MESSAGE_ASYNC ? "without backend:cudaMallocAsync, record" : "record");
    say(c, " the history, and dump it when memory runs out:\n" CODE "import os, torch\n" CODE
           "torch.cuda.memory._record_memory_history(stacks=\"python\")\n" CODE
           "torch._C._cuda_attach_out_of_memory_observer(\n" CODE
           "    lambda **_: torch.cuda.memory._dump_snapshot(f\"oom-{{os.getpid()}.pickle\"))\n"
           "              at the start of the program (PyTorch 2.1 or newer); then ");
    weir__say_command(c->r, "explain", "", "oom-PID.pickle");
  }
}

static void say_message(context *c) {
  const weir__message *m = c->m;
  say(c, request_sentence(m));
  if (m->kind == WEIR__MESSAGE_VLLM && m->allowed.is_known)
    say(c, "  available   {limit=} for the KV cache\n");
  say_device(c);
  say(c, "  *why       *  ");
  say(c, cause_sentence(m));
  say_missing(c);
  say_margin(c);
  say_uses(c);
  say_program(c);
  say_outside(c);
  say_remedies(c);
  if (m->kind == WEIR__MESSAGE_PARENTHESES && !m->has_old_rules && m->cause != WEIR__MESSAGE_REFUSED)
    say(c, "  note        what is free in the pools of {_graphs} counts as unallocated in this version's message\n");
  if (m->reserved.is_known && m->total.is_known && m->reserved.least > m->total.most)
    say(c, "  note        more is reserved than the device has: the driver pages to host memory, as on Windows\n");
  if (has_segments(m) && m->tried.is_known)
    say(c, "  note        the text has rounded figures: what follows from them is a range\n");
  say_next(c);
  if (m->conf)
    say(c, m->is_hip ? "  *to paste  *  " WEIR__KEEP_LINE "export PYTORCH_HIP_ALLOC_CONF='{conf}'\n"
                     : "  *to paste  *  " WEIR__KEEP_LINE "export PYTORCH_CUDA_ALLOC_CONF='{conf}'\n");
}

/* ---- Several ---- */

/* How many there are of each cause. */
static void say_causes(weir__report *r, const weir__messages *all) {
  size_t counts[WEIR__MESSAGE_CAUSES] = {0};
  const char *between = "  *in short*    ";
  for (size_t i = 0; i < all->count; i++)
    counts[all->items[i].cause]++;
  WEIR__ROWS(r, JSON_OBJECT("_causes"));
  for (int i = 0; i < WEIR__MESSAGE_CAUSES; i++) {
    const weir__message_cause_name *cause = &weir__message_causes[i];
    WEIR__ROWS(r, JSON_NATURAL(cause->name, counts[i]));
    if (!counts[i])
      continue;
    weir__say(r, between);
    weir__say(r, cause->text);
    weir__say_of(r, cause->name, ": {$} of {_count}");
    between = "; ";
  }
  WEIR__ROWS(r, JSON_CLOSE);
  weir__say(r, ". The first failure in the file, which may have caused the others:\n");
}

void weir__messages_report(weir__report *r, const char *file, const weir__messages *all) {
  enum { SHOWN = 64 };
  const weir__message *m = &all->items[0];
  bool has_several = all->count > 1;
  char source[WEIR__MESSAGE_SOURCE_TEXT];
  weir__report_begin(r);
  WEIR__ROWS(r, ROW_FILE("file", file), JSON_NATURAL("lines", all->lines), JSON_NATURAL("failures", all->found),
             JSON_NATURAL("_count", all->count), JSON_NATURAL("_more", all->count - SHOWN));
  weir__say(r, "*{file}: out of memory*");
  if (has_several)
    weir__say(r, " at {_count} places, {failures message}\n  where         line        segment                 missing "
                 "unallocated  why\n");
  WEIR__ROWS(r, JSON_LIST("messages"));
  context c = {.r = r, .m = m, .at = r->count};
  for (size_t i = 0; i < all->count; i++) {
    const size_t processes = add_message(r, &all->items[i], has_several && i < SHOWN);
    c.processes = i ? c.processes : processes;
  }
  WEIR__ROWS(r, JSON_CLOSE);
  if (all->count > SHOWN)
    weir__say(r, "  and {_more} more\n");
  if (has_several)
    say_causes(r, all);
  r->scope = c.at;
  if (!has_several) {
    weir__say(r, *weir__message_source_text(m, source) ? ", line {line} of {lines}, {source}"
                                                       : ", line {line} of {lines}");
    weir__say(r, m->source && m->device >= 0 ? ", GPU {device}" : "");
    weir__say(r, m->repeated == 1 ? ", repeated once\n" : m->repeated ? ", repeated {repeated} times\n" : "\n");
  }
  say_message(&c);
}
