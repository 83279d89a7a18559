#include "offline/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"

#ifdef WEIR_HAVE_ZSTD
#include <zstd.h>
#include <zstd_errors.h>
#endif

enum { INPUT_SIZE = 256 * 1024, MAGIC_SIZE = 4 };

struct weir__source {
  char *name;
  int file;                   /* -1: the input is all there is */
  unsigned char *buffer;      /* for a file: what `input` lies in */
  const unsigned char *input; /* bytes that came from the file and nobody has read */
  size_t input_size;
  uint64_t input_offset; /* of `input` in the file */
  bool is_zstd;
#ifdef WEIR_HAVE_ZSTD
  ZSTD_DCtx *zstd;
  bool is_between_frames; /* nothing of a frame is outstanding */
#endif
};

static weir_status failed(const weir__source *source, const char *what) {
  return weir__fail(WEIR_ERROR_SYSTEM, "%s: %s: %s", source->name, what, strerror(errno));
}

static weir_status read_file(weir__source *source, void *to, size_t room, size_t *got) {
  ssize_t n;
  do
    n = read(source->file, to, room);
  while (n < 0 && errno == EINTR);
  if (n < 0)
    return failed(source, "read");
  *got = (size_t)n;
  return WEIR_OK;
}

/* Reads on until there are `wanted` bytes of input or no more. */
static weir_status fill(weir__source *source, size_t wanted) {
  if (source->file < 0)
    return WEIR_OK;
  if (source->input_size > 0)
    memmove(source->buffer, source->input, source->input_size);
  source->input = source->buffer;
  while (source->input_size < wanted) {
    size_t got = 0;
    weir_status status = read_file(source, source->buffer + source->input_size, INPUT_SIZE - source->input_size, &got);
    if (status != WEIR_OK)
      return status;
    if (got == 0)
      break;
    source->input_size += got;
  }
  return WEIR_OK;
}

static void consume(weir__source *source, size_t size) {
  source->input += size;
  source->input_size -= size;
  source->input_offset += size;
}

/* A zstd frame, or one of the frames that a reader has to skip. */
static bool begins_zstd(const unsigned char *bytes) {
  static const unsigned char magic[] = {0x28, 0xb5, 0x2f, 0xfd}, skippable[] = {0x2a, 0x4d, 0x18};
  return memcmp(bytes, magic, sizeof magic) == 0 ||
         ((bytes[0] & 0xf0) == 0x50 && memcmp(bytes + 1, skippable, sizeof skippable) == 0);
}

static weir_status begin(weir__source *source) {
  weir_status status = fill(source, MAGIC_SIZE);
  if (status != WEIR_OK)
    return status;
  source->is_zstd = source->input_size >= MAGIC_SIZE && begins_zstd(source->input);
  if (!source->is_zstd)
    return WEIR_OK;
#ifdef WEIR_HAVE_ZSTD
  source->zstd = ZSTD_createDCtx();
  source->is_between_frames = true;
  return source->zstd != NULL ? WEIR_OK
                              : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no memory to decompress", source->name);
#else
  return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                    "%s: it is compressed with zstd, and this build of Weir is without zstd; decompress it first",
                    source->name);
#endif
}

static weir__source *new_source(const char *name) {
  weir__source *source = calloc(1, sizeof *source);
  if (source == NULL)
    return NULL;
  source->file = -1;
  source->name = strdup(name);
  if (source->name == NULL) {
    free(source);
    return NULL;
  }
  return source;
}

static weir_status finish_open(weir__source *source, weir_status status, weir__source **out) {
  if (status == WEIR_OK)
    status = begin(source);
  if (status != WEIR_OK) {
    weir__source_close(source);
    return status;
  }
  *out = source;
  return WEIR_OK;
}

weir_status weir__source_open(const char *path, weir__source **out) {
  weir__source *source = new_source(path);
  unsigned char *buffer = malloc(INPUT_SIZE);
  if (source == NULL || buffer == NULL) {
    free(buffer);
    weir__source_close(source);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no memory to read it", path);
  }
  source->buffer = buffer;
  source->file = open(path, O_RDONLY | O_CLOEXEC);
  return finish_open(source, source->file < 0 ? failed(source, "open") : WEIR_OK, out);
}

weir_status weir__source_open_memory(const char *name, const void *data, size_t size, weir__source **out) {
  weir__source *source = new_source(name);
  if (source == NULL)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no memory to read it", name);
  source->input = data;
  source->input_size = size;
  return finish_open(source, WEIR_OK, out);
}

void weir__source_close(weir__source *source) {
  if (source == NULL)
    return;
#ifdef WEIR_HAVE_ZSTD
  ZSTD_freeDCtx(source->zstd);
#endif
  if (source->file >= 0)
    close(source->file);
  free(source->buffer);
  free(source->name);
  free(source);
}

const char *weir__source_name(const weir__source *source) { return source->name; }

static weir_status read_plain(weir__source *source, void *to, size_t room, size_t *got) {
  if (source->input_size > 0) {
    size_t n = room < source->input_size ? room : source->input_size;
    memcpy(to, source->input, n);
    consume(source, n);
    *got = n;
    return WEIR_OK;
  }
  *got = 0;
  return source->file < 0 ? WEIR_OK : read_file(source, to, room, got);
}

#ifdef WEIR_HAVE_ZSTD
static weir_status read_zstd(weir__source *source, void *to, size_t room, size_t *got) {
  ZSTD_outBuffer out = {to, room, 0};
  while (out.pos == 0) {
    if (source->input_size == 0) {
      weir_status status = fill(source, 1);
      if (status != WEIR_OK)
        return status;
    }
    if (source->input_size == 0 && source->is_between_frames)
      break;
    ZSTD_inBuffer in = {source->input, source->input_size, 0};
    size_t left = ZSTD_decompressStream(source->zstd, &out, &in);
    if (ZSTD_getErrorCode(left) == ZSTD_error_memory_allocation)
      return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no memory to decompress", source->name);
    if (ZSTD_isError(left))
      return weir__fail(WEIR_ERROR_BAD_DATA, "%s: byte %llu of the compressed file: zstd: %s", source->name,
                        (unsigned long long)source->input_offset, ZSTD_getErrorName(left));
    source->is_between_frames = left == 0;
    if (source->input_size == 0 && out.pos == 0 && left > 0)
      return weir__fail(WEIR_ERROR_BAD_DATA,
                        "%s: byte %llu of the compressed file: it ends in the middle of the compressed data",
                        source->name, (unsigned long long)source->input_offset);
    consume(source, in.pos);
  }
  *got = out.pos;
  return WEIR_OK;
}
#endif

weir_status weir__source_read(weir__source *source, void *to, size_t room, size_t *got) {
#ifdef WEIR_HAVE_ZSTD
  if (source->is_zstd)
    return read_zstd(source, to, room, got);
#endif
  return read_plain(source, to, room, got);
}
