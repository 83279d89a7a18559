#include "offline/analyse/cost.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/system.h"

enum { MAX_BYTES = 1 << 16 };

/* Measured on an NVIDIA H200 with driver 580 and CUDA 13.0. A pair of cuMemAlloc and cuMemFree takes 62 to 94 us, half
 * of which is assigned to each. cuMemRelease takes 15, 28 and 48 us for 2, 20 and 64 MiB; the linear fit is within a
 * tenth. The other calls cost the same for handles of any size. cuMemAddressReserve takes 9 to 66 us. */
void weir__costs_default(weir__costs *costs) {
  *costs = (weir__costs){.of = {[WEIR__METER_ALLOC] = {39000, 0},
                                [WEIR__METER_FREE] = {39000, 0},
                                [WEIR__METER_RESERVE] = {37500, 0},
                                [WEIR__METER_UNRESERVE] = {22000, 0},
                                [WEIR__METER_CREATE] = {13000, 0},
                                [WEIR__METER_MAP] = {1300, 0},
                                [WEIR__METER_SET_ACCESS] = {33000, 0},
                                [WEIR__METER_UNMAP] = {21500, 0},
                                [WEIR__METER_RELEASE] = {15000, 530},
                                [WEIR__METER_STREAM_QUERY] = {370, 0}}};
}

/* The number of a key; NULL if there is no such key. */
static double *find(weir__costs *costs, const char *key, size_t length) {
  bool is_mib = length > 4 && memcmp(key + length - 4, "_mib", 4) == 0;
  if (is_mib)
    length -= 4;
  for (int kind = 0; kind < WEIR__METER_KINDS; kind++) {
    const char *name = weir__meter_name((weir__meter_kind)kind);
    if (strlen(name) == length && memcmp(name, key, length) == 0)
      return is_mib ? &costs->of[kind].mib : &costs->of[kind].handle;
  }
  return NULL;
}

/* What separates words, in lines and in JSON. */
static const char separators[] = " \t\r\n,:={}\"";

static const char *skip(const char *at, int *line) {
  for (; *at && (strchr(separators, *at) || *at == '#'); at++) {
    if (*at == '#')
      at += strcspn(at, "\n");
    *line += *at == '\n';
    if (!*at)
      break;
  }
  return at;
}

weir_status weir__costs_parse(const char *name, const char *text, weir__costs *costs) {
  weir__costs read = *costs;
  int line = 1;
  for (const char *at = skip(text, &line); *at; at = skip(at, &line)) {
    size_t length = strcspn(at, separators);
    double *number = find(&read, at, length);
    if (!number)
      return weir__fail(WEIR_ERROR_BAD_DATA,
                        "%s: line %d: there is no key '%.*s'; there are alloc, free, reserve, unreserve, create, map, "
                        "set_access, unmap, release, stream_query, and each of them with _mib",
                        name, line, (int)(length < 80 ? length : 80), at);
    const char *value = skip(at + length, &line);
    char *end;
    errno = 0;
    *number = strtod(value, &end);
    if (end == value || (*end && !strchr(separators, *end)) || errno || !isfinite(*number) || *number < 0 ||
        *number > 1e12)
      return weir__fail(WEIR_ERROR_BAD_DATA, "%s: line %d: %.*s: '%.*s' is not a number of nanoseconds from 0 to 1e12",
                        name, line, (int)length, at,
                        (int)(strcspn(value, separators) < 80 ? strcspn(value, separators) : 80), value);
    at = end;
  }
  *costs = read;
  return WEIR_OK;
}

weir_status weir__costs_load(const char *path, weir__costs *costs) {
  int standard = strcmp(path, "-") == 0 ? weir__descriptor_copy(STDIN_FILENO) : -1;
  FILE *file = standard >= 0 ? fdopen(standard, "rb") : fopen(path, "rb");
  if (!file)
    return weir__fail(WEIR_ERROR_SYSTEM, "%s: %s", path, strerror(errno));
  char *text = malloc(MAX_BYTES + 1);
  size_t size = text ? fread(text, 1, MAX_BYTES + 1, file) : 0;
  weir_status status = WEIR_OK;
  if (!text)
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", path);
  else if (ferror(file))
    status = weir__fail(WEIR_ERROR_SYSTEM, "%s: %s", path, strerror(errno));
  else if (size > MAX_BYTES || memchr(text, 0, size))
    status = weir__fail(WEIR_ERROR_BAD_DATA, "%s: not a table of costs", path);
  else {
    text[size] = 0;
    status = weir__costs_parse(path, text, costs);
  }
  free(text);
  fclose(file);
  return status;
}

double weir__costs_estimate(const weir__costs *costs, const weir__meter_counts *counts) {
  double sum = 0;
  for (int kind = 0; kind < WEIR__METER_KINDS; kind++) {
    const weir__meter_count *c = &counts->of[kind];
    sum += costs->of[kind].handle * (double)(c->handles + c->failed);
    sum += costs->of[kind].mib * ((double)c->bytes / (1 << 20));
  }
  return sum;
}
