/*
 * Finds messages in a text without blanks, and reads their figures.
 */
#include "offline/read/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

/* ---- Figures ---- */

/* PyTorch does not allocate more than 1 EB. What NVML calls "not available" is printed as 17179869184.00 GiB. */
static const uint64_t MAX_BYTES = 1ull << 60;

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* The bytes of `number` / `scale` units, rounded towards zero, or up. */
static uint64_t to_bytes(uint64_t number, uint64_t scale, uint64_t unit, bool up) {
  uint64_t whole = number / scale, rest = number % scale;
  if (whole >= UINT64_MAX / unit)
    return UINT64_MAX;
  return whole * unit + (rest * unit + (up ? scale - 1 : 0)) / scale;
}

/* The library that rounded a figure. */
typedef enum writer { PYTORCH, XLA, OTHER } writer;

/* Reads "1.82GiB", "1024bytes" or "25,600,000bytes", and for others than PyTorch "512B". A number with decimals is one
 * that was rounded, so that it stands for half a unit of its last place on both sides. Returns what follows, NULL if
 * there is no figure. */
static const char *read_rounded(const char *at, writer by, weir__figure *figure) {
  static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
  uint64_t number = 0, scale = 1, unit = 1;
  int digits = 0, decimals = 0;
  bool has_point = false;
  for (;; at++) {
    if (*at == ',' && digits && !has_point && is_digit(at[1]))
      continue;
    if (*at == '.' && digits && !has_point && is_digit(at[1])) {
      has_point = true;
      continue;
    }
    if (!is_digit(*at))
      break;
    if (++digits > 15 && has_point)
      continue; /* decimals beyond these make no difference */
    if (digits > 19)
      return NULL;
    number = number * 10 + (uint64_t)(*at - '0');
    decimals += has_point;
  }
  if (!digits)
    return NULL;
  if (strncmp(at, "bytes", 5) == 0 && !has_point) {
    *figure = number <= MAX_BYTES ? (weir__figure){true, number, number} : (weir__figure){0};
    return at + 5;
  }
  if (*at == 'B' && by != PYTORCH && !has_point) {
    *figure = number <= MAX_BYTES ? (weir__figure){true, number, number} : (weir__figure){0};
    return at + 1;
  }
  for (size_t i = 0; unit == 1; i++) {
    if (i == WEIR_COUNT_OF(units))
      return NULL;
    if (strncmp(at, units[i], 3) == 0)
      unit = 1ull << (10 * (i + 1));
  }
  if (decimals > 6)
    return NULL;
  for (int i = 0; i < decimals; i++)
    scale *= 10;
  if (number > UINT64_MAX / 4)
    return NULL;
  uint64_t least = number ? 2 * number - 1 : 0, most = 2 * number + 1;
  *figure = (weir__figure){true, to_bytes(least, 2 * scale, unit, true), to_bytes(most, 2 * scale, unit, false)};
  if (figure->most > MAX_BYTES) {
    *figure = (weir__figure){0};
    return at + 3;
  }
  if (figure->least > figure->most) /* less than a byte */
    figure->least = figure->most;
  if (by == XLA) /* it drops what is less than the next smaller unit before it rounds */
    figure->most += unit >> 10;
  if (decimals == 2 && by == PYTORCH) { /* it takes a unit for more than one of it */
    if (figure->least <= unit && figure->most > unit)
      figure->least = unit + 1;
    if (unit < 1ull << 30 && figure->least <= unit * 1024 && figure->most > unit * 1024)
      figure->most = unit * 1024;
  }
  return at + 3;
}

static const char *read_figure(const char *at, weir__figure *figure) { return read_rounded(at, PYTORCH, figure); }

/* The number of bytes that follows a rounded figure: "(7915110400bytes)", "(184549376B)". */
static bool read_exact(const char *at, weir__figure *figure) {
  const char *end = *at == '(' ? read_rounded(at + 1, OTHER, figure) : NULL;
  return end && *end == ')' && figure->is_known;
}

/* "7406166528bytes", "176.00MiB(184549376B)", "3.39G(3640655872bytes)", "4.00GiB(roundedto4294967296)". */
static void read_xla(const char *at, weir__figure *figure) {
  enum { LONGEST = 16 };
  static const char rounded[] = "(roundedto";
  const uint64_t step = 256; /* of the allocator */
  *figure = (weir__figure){0};
  read_rounded(at, XLA, figure);
  const char *open = strchr(at, '(');
  if (!is_digit(*at) || !open || open - at > LONGEST)
    return;
  weir__figure exact = {0};
  if (read_exact(open, &exact))
    *figure = exact;
  else if (strncmp(open, rounded, strlen(rounded)) == 0 && is_digit(open[strlen(rounded)])) {
    uint64_t bytes = strtoull(open + strlen(rounded), NULL, 10);
    if (bytes >= step && bytes <= MAX_BYTES)
      *figure = (weir__figure){true, bytes - step + 1, bytes};
  }
}

/* ---- The parts of a message ---- */

/* How far the next part may be, since lines of other output may be in between. */
enum { NEAR = 400 };

/* What follows `phrase`, if that is near. NULL otherwise. */
static const char *after(const char *at, const char *phrase) {
  const char *found = strstr(at, phrase);
  return found && found - at <= NEAR ? found + strlen(phrase) : NULL;
}

/* A figure between two phrases. The text continues behind it, or where it was if there is none. */
static const char *between(const char *at, const char *before, const char *behind, weir__figure *figure) {
  const char *start = after(at, before), *next = start ? read_figure(start, figure) : NULL;
  if (!next || strncmp(next, behind, strlen(behind)) != 0) {
    *figure = (weir__figure){0};
    return at;
  }
  return next + strlen(behind);
}

/* A figure before a phrase: "12.58GiBallowed;". */
static const char *ahead(const char *at, const char *behind, weir__figure *figure) {
  const char *found = strstr(at, behind), *start = found;
  if (!found || found - at > NEAR)
    return at;
  while (start > at && found - start < 24 && (is_digit(start[-1]) || strchr(".,KMGTiBbytes", start[-1])))
    start--;
  for (; start < found; start++) {
    if (!is_digit(*start) || (start > at && is_digit(start[-1])))
      continue; /* not at the beginning of a number */
    if (read_figure(start, figure) == found)
      return found + strlen(behind);
  }
  *figure = (weir__figure){0};
  return at;
}

static const char *read_device(const char *at, const char *before, weir__message *m) {
  const char *start = after(at, before);
  if (!start || !is_digit(*start))
    return at;
  int device = 0;
  for (; is_digit(*start) && device < 100000; start++)
    device = device * 10 + (*start - '0');
  m->device = device;
  return start;
}

/* "Process1246069has577.00MiBmemoryinuse." and "Includingnon-PyTorchmemory,thisprocesshas15.32GiBmemoryinuse.", in any
 * order. */
static const char *read_processes(const char *at, weir__message *m) {
  static const char in_use[] = "memoryinuse", own[] = "memory,thisprocesshas";
  for (;;) {
    const char *end = after(at, in_use);
    if (!end)
      return at;
    const char *process = strstr(at, "Process"), *self = strstr(at, own);
    if (self && self < end) {
      read_figure(self + strlen(own), &m->own);
    } else if (process && process < end) {
      const char *pid = process + strlen("Process"), *has = pid;
      while (is_digit(*has))
        has++;
      weir__figure used = {0};
      if (has > pid && has - pid < 19 && strncmp(has, "has", 3) == 0 && read_figure(has + 3, &used) &&
          m->process_count < WEIR__MESSAGE_PROCESSES)
        m->processes[m->process_count++] = (weir__message_process){strtoull(pid, NULL, 10), used};
    }
    at = end;
  }
}

static void read_native(const char *at, weir__message *m) {
  at = between(at, "", "", &m->tried);
  at = read_device(at, "GPU", m);
  at = between(at, "capacityof", "", &m->total);
  if (!m->total.is_known)
    at = between(at, "capactyof", "", &m->total); /* PyTorch 2.1 */
  at = between(at, "ofwhich", "isfree", &m->free);
  at = read_processes(at, m);
  at = ahead(at, "allowed;", &m->allowed);
  at = between(at, "Oftheallocatedmemory", "isallocatedby", &m->allocated);
  m->is_weirs = m->allocated.is_known && strncmp(at, "Weir", 4) == 0;
  at = between(at, "with", "allocatedinprivatepools", &m->pools);
  at = ahead(at, "isreservedby", &m->unallocated);
  m->is_expandable = after(at, "expandable_segmentsisenabled") || after(at, "expandable-segmentreserve");
  between(at, "expandable-segmentreserveof", "", &m->reserve);
}

static void read_parentheses(const char *at, weir__message *m) {
  at = between(at, "", "", &m->tried);
  at = read_device(at, "(GPU", m);
  at = ahead(at, "totalcapacity", &m->total);
  at = ahead(at, "alreadyallocated", &m->allocated);
  at = ahead(at, "free", &m->free);
  at = ahead(at, "allowed;", &m->allowed);
  const char *before = at;
  at = ahead(at, "reservedintotalby", &m->reserved);
  if (at != before)
    return;
  ahead(at, "cached)", &m->unallocated);
  m->has_old_rules = m->unallocated.is_known;
}

static void read_async(const char *at, weir__message *m) {
  at = between(at, "Currentlyallocated:", "", &m->allocated);
  at = between(at, "Requested:", "", &m->tried);
  at = between(at, "Devicelimit:", "", &m->total);
  at = between(at, "Free(accordingtoCUDA):", "", &m->free);
  m->is_weirs = after(at, "Weirlimit(") != NULL;
  between(at, "memoryfraction):", "", &m->allowed);
}

/* "Outofmemoryallocating1,024bytes(allocatedsofar:512bytes,limitsetto:1,024bytes).", and the older
 * "outofmemorytoallocate1024bytes(total1536bytes,limitsetto2048bytes)", where the total has the request. */
static void read_cupy(const char *at, weir__message *m) {
  at = between(at, "", "", &m->tried);
  at = between(at, "allocatedsofar:", "", &m->reserved);
  weir__figure sum = {0};
  at = between(at, "(total", "", &sum);
  if (sum.is_known && m->tried.is_known && sum.least >= m->tried.least)
    m->reserved = (weir__figure){true, sum.least - m->tried.least, sum.least - m->tried.least};
  weir__figure limit = {0};
  const char *found = after(at, "limitsetto");
  if (found && read_figure(found + (*found == ':'), &limit))
    m->allowed = limit;
}

static uint64_t read_number(const char *at) {
  return is_digit(*at) && strspn(at, "0123456789") <= 18 ? strtoull(at, NULL, 10) : 0;
}

/* Copies what is before one of the characters of `end`. */
static void read_name(const char *at, const char *end, char name[WEIR__MESSAGE_NAME]) {
  size_t length = strcspn(at, end);
  if (length >= WEIR__MESSAGE_NAME)
    length = WEIR__MESSAGE_NAME - 1;
  memcpy(name, at, length);
  name[length] = 0;
}

/* What a compiled program needs: "BufferAssignmentstats:parameterallocation:6.00MiB...Peakbuffers:Buffer1:Size:3.83GiB
 * Operator:op_name="jit(train)/dot"...". */
static void read_program(const char *at, weir__message *m) {
  const struct {
    const char *label;
    weir__figure *figure;
  } rows[] = {{"parameterallocation:", &m->arguments},
              {"constantallocation:", &m->constants},
              {"maybe_live_outallocation:", &m->results},
              {"preallocatedtempallocation:", &m->temporaries},
              {"totalallocation:", &m->program}};
  at = after(at, "BufferAssignmentstats:");
  for (size_t i = 0; at && i < WEIR_COUNT_OF(rows); i++) {
    const char *value = after(at, rows[i].label);
    if (value && read_rounded(value, XLA, rows[i].figure))
      at = value;
  }
  const char *peak = at ? after(at, "Peakbuffers:") : NULL;
  const char *size = peak ? after(peak, "Buffer1:Size:") : NULL;
  if (!size || !read_rounded(size, XLA, &m->largest))
    return;
  const char *next = strstr(size, "Buffer2:"), *name = after(size, "op_name=\"");
  if (name && (!next || name < next))
    read_name(name, "\"", m->largest_name);
}

/* "1.95GiBwithallocatorGPU_0_bfcondevice0.[executable_name='jit_greater'][tf-allocator-allocation-error='']". */
static void read_executable(const char *at, weir__message *m) {
  const char *name = after(at, "[executable_name='");
  if (name)
    read_name(name, "'", m->operation);
}

/* "32,1024,64,64]andtypefloaton/job:localhost/replica:0/task:0/device:GPU:0byallocatorGPU_0_bfc". */
static void read_tensor(const char *at, weir__message *m) {
  static const struct {
    const char *name;
    unsigned bytes;
  } types[] = {{"float", 4}, {"double", 8}, {"half", 2},   {"bfloat16", 2},  {"int8", 1},       {"uint8", 1},
               {"int16", 2}, {"uint16", 2}, {"int32", 4},  {"uint32", 4},    {"int64", 8},      {"uint64", 8},
               {"bool", 1},  {"qint8", 1},  {"quint8", 1}, {"complex64", 8}, {"complex128", 16}};
  char shape[WEIR__MESSAGE_NAME], type[16] = "";
  read_name(at, "]", shape);
  const char *behind = after(at, "]andtype");
  for (size_t i = 0; behind && i < WEIR_COUNT_OF(types); i++) {
    size_t length = strlen(types[i].name);
    if (strncmp(behind, types[i].name, length) != 0 || strncmp(behind + length, "on", 2) != 0)
      continue;
    uint64_t bytes = types[i].bytes;
    for (const char *part = shape; part && bytes <= MAX_BYTES;
         part = strchr(part, ',') ? strchr(part, ',') + 1 : NULL) {
      uint64_t n = read_number(part);
      bytes = n && bytes > MAX_BYTES / n ? MAX_BYTES + 1 : bytes * n;
    }
    if (bytes && bytes <= MAX_BYTES)
      m->tried = (weir__figure){true, bytes, bytes};
    snprintf(type, sizeof type, "%s", types[i].name);
  }
  if (strspn(shape, "0123456789,") == strlen(shape))
    snprintf(m->tensor, sizeof m->tensor, "[%.60s]%s%s", shape, *type ? " of " : "", type);
  read_device(at, "device:GPU:", m);
}

/* A figure whose unit is that of a later one: "6.9/8.0GiB". */
static void read_shared_unit(const char *at, const char *unit, weir__figure *figure) {
  char text[32];
  size_t length = strspn(at, "0123456789.");
  *figure = (weir__figure){0};
  if (!length || length > 16)
    return;
  snprintf(text, sizeof text, "%.*s%.3s", (int)length, at, unit);
  read_rounded(text, OTHER, figure);
}

/* "Toserveatleastonerequestwiththemodel'smaxseqlen(40960),(10.00GiBKVcacheisneeded,whichislargerthantheavailableKVcache
 * memory(1.25GiB).Basedontheavailablememory,theestimatedmaximummodellengthis2368.", and older texts without sizes. */
static void read_vllm(const char *before, const char *body, const char *phrase, weir__message *m) {
  const char *length = strstr(before, "maxseqlen(");
  m->tokens = length ? read_number(length + strlen("maxseqlen(")) : 0;
  if (strstr(phrase, "tokensthatcanbestored")) {
    m->tokens_fit = read_number(body);
    return;
  }
  if (!strstr(phrase, "isneeded"))
    return;
  const char *needed = before + strlen(before);
  while (needed > before && strchr("0123456789.KMGTiB", needed[-1]))
    needed--;
  read_rounded(needed, OTHER, &m->tried);
  read_rounded(body, OTHER, &m->allowed);
  const char *fits = after(body, "estimatedmaximummodellengthis");
  m->tokens_fit = fits ? read_number(fits) : 0;
}

/* "Freememoryondevicecuda:0(6.9/8.0GiB)onstartupislessthandesiredGPUmemoryutilization(0.9,7.2GiB)." */
static void read_vllm_start(const char *before, const char *body, weir__message *m) {
  const char *open = strrchr(before, '('), *slash = open ? strchr(open, '/') : NULL;
  if (slash) {
    const char *unit = slash + 1 + strspn(slash + 1, "0123456789.");
    read_shared_unit(open + 1, unit, &m->free);
    read_rounded(slash + 1, OTHER, &m->total);
  }
  read_device(before, "devicecuda:", m);
  const char *comma = strchr(body, ',');
  if (comma && comma - body < 16)
    read_rounded(comma + 1, OTHER, &m->tried);
}

/* ---- Finding them ---- */

typedef struct anchor {
  const char *phrase;
  weir__message_kind kind;
} anchor;

/* Where a message begins to have figures. A phrase that is part of another one comes after it. */
static const anchor anchors[] = {
    {"outofmemory.Triedtoallocatemorethan1EB", WEIR__MESSAGE_HUGE},
    {"outofmemory.Triedtoallocate", WEIR__MESSAGE_NATIVE}, /* or PARENTHESES */
    {"outofmemory.Allocationwaspreemptivelyrejected", WEIR__MESSAGE_REJECTED},
    {"wouldexceedallowedmemory.(outofmemory)", WEIR__MESSAGE_ASYNC},
    {"Outofmemoryallocating", WEIR__MESSAGE_CUPY}, /* or XLA */
    {"outofmemorytoallocate", WEIR__MESSAGE_CUPY},
    {"Outofmemorywhiletryingtoallocate", WEIR__MESSAGE_XLA},
    {"Failedtoallocaterequestfor", WEIR__MESSAGE_XLA},
    {"ranoutofmemorytryingtoallocate", WEIR__MESSAGE_XLA},
    {"Maximumpoolsizeexceeded", WEIR__MESSAGE_RMM},
    {"cudaruntimeerror(2):outofmemory", WEIR__MESSAGE_THC},
    {"CUDAerror:outofmemory", WEIR__MESSAGE_CUDA},
    {"Cudafailure2'outofmemory'", WEIR__MESSAGE_CUDA}, /* NCCL */
    {"Cudafailure'outofmemory'", WEIR__MESSAGE_CUDA},
    {"CUDAdrivererror:outofmemory", WEIR__MESSAGE_CUDA},
    {"cudaMallocfailed:outofmemory", WEIR__MESSAGE_CUDA},
    {"cudaErrorMemoryAllocation", WEIR__MESSAGE_CUDA}, /* or RMM */
    {"CUDA_ERROR_OUT_OF_MEMORY", WEIR__MESSAGE_CUDA},  /* or XLA */
    {"HIPerror:outofmemory", WEIR__MESSAGE_CUDA},
    {"hipErrorOutOfMemory", WEIR__MESSAGE_CUDA},
    {"OOMwhenallocatingtensorwithshape[", WEIR__MESSAGE_TENSORFLOW},
    {"failedtoallocatememory[Op:", WEIR__MESSAGE_TENSORFLOW},
    {"KVcacheisneeded,whichislargerthantheavailableKVcachememory(", WEIR__MESSAGE_VLLM},
    {"islargerthanthemaximumnumberoftokensthatcanbestoredinKVcache(", WEIR__MESSAGE_VLLM},
    {"Noavailablememoryforthecacheblocks", WEIR__MESSAGE_VLLM},
    {"islessthandesiredGPUmemoryutilization(", WEIR__MESSAGE_VLLM_START},
    {"Stats:Limit:", WEIR__MESSAGE_KINDS}, /* no message: what XLA's allocator adds to its last one */
    {"CUBLAS_STATUS_ALLOC_FAILED", WEIR__MESSAGE_LIBRARY},
    {"CUDNN_STATUS_ALLOC_FAILED", WEIR__MESSAGE_LIBRARY},
    {"NVML_SUCCESS==", WEIR__MESSAGE_NVML},
};

typedef struct finder {
  const char *text, *end;
  weir__messages *out;
  size_t room;
} finder;

/* Where a line comes from. */
typedef struct origin {
  weir__message_source source;
  uint64_t number;
} origin;

/* Reads the mark at the beginning of a line. Returns what follows it. */
static const char *read_origin(const finder *f, const char *at, origin *from) {
  *from = (origin){0};
  if (at == f->end || *at < WEIR__SOURCE_RANK || *at > WEIR__SOURCE_PROCESS)
    return at;
  from->source = (weir__message_source)*at++;
  for (; at < f->end && is_digit(*at); at++)
    from->number = from->number * 10 + (uint64_t)(*at - '0');
  return at < f->end && *at == WEIR__SOURCE_END ? at + 1 : at;
}

/* Whether a line can continue a text: it comes from the same rank, or does not say where it comes from. */
static bool continues(origin line, origin from) {
  return !line.source || (line.source == from.source && line.number == from.number);
}

/* Where a phrase ends that begins at `at`; NULL if it does not begin there. It may continue on the next lines. */
static const char *match(const finder *f, const char *at, const char *phrase, origin from) {
  while (*phrase) {
    if (at == f->end)
      return NULL;
    if (*at == '\n') {
      origin line;
      at = read_origin(f, at + 1, &line);
      if (!continues(line, from))
        return NULL;
    } else if (*at++ != *phrase++)
      return NULL;
  }
  return at;
}

enum { BODY = 4096, SCANNED = 4 * BODY };

/* Copies at most `room` characters of what follows a phrase, without the lines of other ranks. */
static void copy(const finder *f, const char *at, origin from, char *body, size_t room) {
  size_t size = 0;
  const char *most = f->end - at > SCANNED ? at + SCANNED : f->end;
  while (at < most && size < room) {
    if (*at != '\n') {
      body[size++] = *at++;
      continue;
    }
    origin line;
    at = read_origin(f, at + 1, &line);
    if (!continues(line, from))
      while (at < most && *at != '\n')
        at++;
  }
  body[size] = 0;
}

/* The same up to the next message. */
static void gather(const finder *f, const char *at, origin from, char body[BODY + 1]) {
  copy(f, at, from, body, BODY);
  for (size_t i = 0; i < WEIR_COUNT_OF(anchors); i++) {
    char *next = strstr(body, anchors[i].phrase);
    if (next)
      *next = 0;
  }
}

/* Whether a phrase of XLA is a message. Other programs use these words, too, but without a size; and XLA's allocator
 * has a warning for a request that is tried in another way: "... trying to allocate 3.37GiB with freed_by_count=0. The
 * caller indicates that this is not a failure, ...". */
static bool is_failure(const finder *f, const anchor *phrase, const char *end, origin from) {
  enum { LOOKED_AT = 128 };
  char body[LOOKED_AT + 1];
  copy(f, end, from, body, LOOKED_AT);
  char *next = strstr(body, phrase->phrase);
  if (next)
    *next = 0;
  return is_digit(body[0]) && !strstr(body, "isnotafailure");
}

/* Whether an assertion about NVML is the allocator's, which calls it only to describe that memory ran out:
 * "NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":830". */
static bool is_allocators(const finder *f, const char *end, origin from) {
  enum { LOOKED_AT = 320, EXPRESSION = 100 };
  static const char failed[] = "INTERNALASSERTFAILEDat";
  char body[LOOKED_AT + 1];
  copy(f, end, from, body, LOOKED_AT);
  const char *at = strstr(body, failed), *file = at ? strstr(at, "CUDACachingAllocator") : NULL;
  return file && at - body <= EXPRESSION;
}

/* Whether the name of an error is in the advice that PyTorch adds to its message: "Search for
 * `cudaErrorMemoryAllocation' in https://docs.nvidia.com/ ...". */
static bool is_advice(const finder *f, const char *end, origin from) {
  static const char reference[] = "'inhttp";
  char body[sizeof reference];
  copy(f, end, from, body, sizeof reference - 1);
  return strcmp(body, reference) == 0;
}

static bool ends_with(const char *text, const char *end) {
  size_t length = strlen(text), part = strlen(end);
  return length >= part && strcmp(text + length - part, end) == 0;
}

/* What a library without figures of its own says before the error of CUDA: "std::bad_alloc: out_of_memory: CUDA error
 * (failed to allocate 512 bytes) at: ", "failed to allocate 3.39G (3640655872 bytes) from device: ". */
static void read_drivers(weir__message *m, const char *before) {
  const char *size = strstr(before, "failedtoallocate");
  size = size ? size + strlen("failedtoallocate") : "";
  if (strstr(before, "bad_alloc")) {
    m->kind = WEIR__MESSAGE_RMM;
    m->is_drivers = true;
    read_rounded(size, OTHER, &m->tried);
  } else if (*size && ends_with(before, "fromdevice:")) {
    m->kind = WEIR__MESSAGE_XLA;
    m->is_drivers = true;
    read_xla(size, &m->tried);
  }
}

static const char *const xla[] = {"RESOURCE_EXHAUSTED", "Resourceexhausted", "jax", "xla", "Xla", NULL};
/* The sources of XLA and its allocator as they are named in logs of TensorFlow, but not of JAX. */
static const char *const tensorflow[] = {"tensorflow/core/",       "local_tsl/", "local_xla/", "tensorflow.python",
                                         "ResourceExhaustedError", NULL};

static bool has_any(const char *text, const char *const *words) {
  for (; *words; words++)
    if (strstr(text, *words))
      return true;
  return false;
}

/* From the words before an error of CUDA on its line, and those after it. */
static weir__message_library find_library(const weir__message *m, const char *before, const char *body) {
  static const char *const cupy[] = {"cupy", "CUDARuntimeError", "CUDADriverError", NULL};
  static const char *const torch[] = {"torch", "RuntimeError:", "cuDNNerror:", NULL};
  switch (m->kind) {
  case WEIR__MESSAGE_CUPY:
    return WEIR__LIBRARY_CUPY;
  case WEIR__MESSAGE_RMM:
    return WEIR__LIBRARY_RMM;
  case WEIR__MESSAGE_XLA:
    return has_any(before, tensorflow) ? WEIR__LIBRARY_TENSORFLOW : WEIR__LIBRARY_JAX;
  case WEIR__MESSAGE_TENSORFLOW:
    return WEIR__LIBRARY_TENSORFLOW;
  case WEIR__MESSAGE_VLLM:
  case WEIR__MESSAGE_VLLM_START:
    return WEIR__LIBRARY_VLLM;
  case WEIR__MESSAGE_CUDA:
  case WEIR__MESSAGE_LIBRARY:
    if (has_any(before, cupy))
      return WEIR__LIBRARY_CUPY;
    if (has_any(before, xla))
      return WEIR__LIBRARY_JAX;
    return has_any(before, torch) || after(body, "kernelerrorsmightbeasynchronously") ? WEIR__LIBRARY_TORCH
                                                                                      : WEIR__LIBRARY_NOT_KNOWN;
  default:
    return ends_with(before, "XPU") || ends_with(before, "NPU") || ends_with(before, "MUSA") ? WEIR__LIBRARY_TORCH_OTHER
                                                                                             : WEIR__LIBRARY_TORCH;
  }
}

/* `before` is what the line has before the phrase, `body` what follows it. */
static void read_body(weir__message *m, const char *phrase, const char *before, const char *body) {
  static const char failed[] = "(failedtoallocate";
  if (m->kind == WEIR__MESSAGE_CUPY && has_any(before, xla))
    m->kind = WEIR__MESSAGE_XLA;
  switch (m->kind) {
  case WEIR__MESSAGE_NATIVE: {
    const char *old = strstr(body, "(GPU");
    if (old && old - body < 24) {
      m->kind = WEIR__MESSAGE_PARENTHESES;
      read_parentheses(body, m);
    } else
      read_native(body, m);
    break;
  }
  case WEIR__MESSAGE_ASYNC: {
    read_async(body, m);
    /* "Allocationondevice0wouldexceed..." */
    const char *end = before + strlen(before), *digits = end;
    while (digits > before && is_digit(digits[-1]))
      digits--;
    if (digits < end && end - digits < 6 && strstr(before, "Allocationondevice"))
      m->device = atoi(digits);
    break;
  }
  case WEIR__MESSAGE_REJECTED:
    between(body, "Requestedsize:", "", &m->tried);
    break;
  case WEIR__MESSAGE_CUPY:
    read_cupy(body, m);
    break;
  case WEIR__MESSAGE_XLA:
    read_xla(body, &m->tried);
    read_device(before, "Allocator(GPU_", m);
    read_device(body, "ondeviceordinal", m);
    read_device(body, "withallocatorGPU_", m);
    read_executable(body, m);
    read_program(body, m);
    break;
  case WEIR__MESSAGE_TENSORFLOW:
    if (strstr(phrase, "[Op:")) {
      read_name(body, "]", m->operation);
      read_device(before, "device:GPU:", m);
    } else
      read_tensor(body, m);
    break;
  case WEIR__MESSAGE_VLLM:
    read_vllm(before, body, phrase, m);
    break;
  case WEIR__MESSAGE_VLLM_START:
    read_vllm_start(before, body, m);
    break;
  case WEIR__MESSAGE_RMM:
    if (strncmp(body, failed, strlen(failed)) == 0)
      read_rounded(body + strlen(failed), OTHER, &m->tried);
    break;
  case WEIR__MESSAGE_CUDA:
    read_drivers(m, before);
    break;
  default:
    break;
  }
  m->library = find_library(m, before, body);
}

/* The size that the driver refused to XLA's allocator is not that of the program's request, and may be tried again
 * with less. */
static bool has_figures(const weir__message *m) {
  return m->tried.is_known && !(m->kind == WEIR__MESSAGE_XLA && m->is_drivers);
}

/* TensorFlow reports a failure twice: by the log of the allocator, and by the exception that follows. */
static bool is_same_failure(const weir__message *old, const weir__message *m) {
  return m->kind == WEIR__MESSAGE_TENSORFLOW && old->kind == WEIR__MESSAGE_XLA && !*old->tensor &&
         old->library == WEIR__LIBRARY_TENSORFLOW && old->tried.is_known && m->tried.is_known &&
         m->tried.least <= old->tried.most && old->tried.least <= m->tried.most;
}

/* Keeps the first failure of a rank, or of a device. A later one takes its place only if that one has no figures. */
static weir_status keep(finder *f, const weir__message *m) {
  weir__messages *out = f->out;
  out->found++;
  for (size_t i = out->count; i-- > 0;) {
    weir__message *old = &out->items[i];
    if (old->source != m->source || old->source_number != m->source_number)
      continue;
    if (!m->source && m->device >= 0 && old->device >= 0 && m->device != old->device)
      continue;
    if (is_same_failure(old, m)) {
      memcpy(old->tensor, m->tensor, sizeof old->tensor);
      out->found--;
      return WEIR_OK;
    }
    size_t repeated = old->repeated + 1;
    if (has_figures(m) && !has_figures(old))
      *old = *m;
    old->repeated = repeated;
    return WEIR_OK;
  }
  if (out->count == WEIR__MESSAGE_MAX)
    return WEIR_OK;
  if (out->count == f->room) {
    f->room = f->room ? 2 * f->room : 16;
    weir__message *items = realloc(out->items, f->room * sizeof *items);
    if (!items)
      return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for %zu messages", f->room);
    out->items = items;
  }
  out->items[out->count++] = *m;
  return WEIR_OK;
}

/* "Stats:Limit:7266126234InUse:7259951104MaxInUse:7265472256NumAllocs:2041...": the state of XLA's allocator, at the
 * end of the list of its chunks. It belongs to the last failure of the same process. */
static void add_statistics(finder *f, origin from, const char *body) {
  for (size_t i = f->out->count; i-- > 0;) {
    weir__message *m = &f->out->items[i];
    if (m->source != from.source || m->source_number != from.number)
      continue;
    const char *used = after(body, "InUse:");
    uint64_t limit = read_number(body), in_use = used ? read_number(used) : 0;
    if (m->kind != WEIR__MESSAGE_XLA || m->allowed.is_known || !used || in_use > limit || limit > MAX_BYTES)
      return;
    m->allowed = m->reserved = (weir__figure){true, limit, limit};
    m->allocated = (weir__figure){true, in_use, in_use};
    return;
  }
}

static const anchor *find_anchor(const finder *f, const char *at, origin from, const char **end) {
  for (size_t i = 0; i < WEIR_COUNT_OF(anchors); i++)
    if (*at == anchors[i].phrase[0] && (*end = match(f, at, anchors[i].phrase, from)) != NULL)
      return &anchors[i];
  return NULL;
}

static weir_status find_all(finder *f) {
  enum { PARSED = 4 * WEIR__MESSAGE_MAX }; /* so that a text that is full of messages takes no longer than any other */
  origin from;
  size_t line_number = 1;
  const char *at = read_origin(f, f->text, &from), *line = at, *end = NULL;
  char body[BODY + 1], before[NEAR + 1];
  while (at < f->end) {
    if (*at == '\n') {
      line_number++;
      line = at = read_origin(f, at + 1, &from);
      continue;
    }
    const anchor *found = find_anchor(f, at, from, &end);
    if (!found || (found->kind == WEIR__MESSAGE_XLA && !is_failure(f, found, end, from)) ||
        (found->kind == WEIR__MESSAGE_NVML && !is_allocators(f, end, from)) ||
        (f->out->found && is_advice(f, end, from))) {
      at++;
      continue;
    }
    if (found->kind == WEIR__MESSAGE_KINDS) {
      gather(f, end, from, body);
      add_statistics(f, from, body);
      at++;
      continue;
    }
    if (f->out->found >= PARSED) {
      f->out->found++;
      at++;
      continue;
    }
    weir__message m = {
        .kind = found->kind, .source = from.source, .source_number = from.number, .line = line_number, .device = -1};
    gather(f, end, from, body);
    /* The line may be long; what matters is near. */
    size_t length = at - line > NEAR ? NEAR : (size_t)(at - line);
    memcpy(before, at - length, length);
    before[length] = 0;
    read_body(&m, found->phrase, before, body);
    m.is_hip =
        ends_with(before, "HIP") || strncmp(found->phrase, "HIP", 3) == 0 || strncmp(found->phrase, "hip", 3) == 0;
    weir_status status = keep(f, &m);
    if (status)
      return status;
    at++;
  }
  f->out->lines = line_number - (f->end > f->text && f->end[-1] == '\n');
  return WEIR_OK;
}

weir_status weir__messages_find(char *text, size_t size, weir__messages *messages) {
  weir__messages found = {0};
  size = weir__message_squeeze(text, size);
  finder f = {.text = text, .end = text + size, .out = &found};
  weir_status status = size ? find_all(&f) : WEIR_OK;
  if (status)
    weir__messages_free(&found);
  else
    *messages = found;
  return status;
}

weir_status weir__messages_read(weir__input *input, weir__messages *messages) {
  size_t size = 0, room = 64 * 1024, got = 0;
  char *text = NULL;
  weir_status status = WEIR_OK;
  do {
    if (!text || size == room) {
      room = text ? 2 * room : room;
      char *more = realloc(text, room);
      if (!more) {
        free(text);
        return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for %zu bytes",
                          weir__input_name(input), room);
      }
      text = more;
    }
    status = weir__input_read(input, text + size, room - size, &got);
    size += status ? 0 : got;
  } while (!status && got && size <= WEIR__MESSAGE_INPUT);
  if (!status && size > WEIR__MESSAGE_INPUT)
    status = weir__fail(WEIR_ERROR_BAD_DATA,
                        "%s: the text has more than %d MiB; cut out the part with the messages, such as by "
                        "grep -A 20 'out of memory'",
                        weir__input_name(input), WEIR__MESSAGE_INPUT >> 20);
  if (!status)
    status = weir__messages_find(text, size, messages);
  free(text);
  return status;
}

void weir__messages_free(weir__messages *messages) {
  free(messages->items);
  *messages = (weir__messages){0};
}
