#include "offline/input.h"

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
#ifdef WEIR_HAVE_ZLIB
#include <zlib.h>
#endif

enum { INPUT_SIZE = 256 * 1024, MAGIC_SIZE = 4 };

typedef enum packing { PLAIN, ZSTD, GZIP } packing;

struct weir__input {
  char *name;
  int file;                   /* -1: the input is all there is */
  unsigned char *buffer;      /* for a file: what `input` lies in */
  const unsigned char *input; /* bytes that came from the file and nobody has read */
  size_t input_size;
  uint64_t input_offset; /* of `input` in the file */
  packing packing;
  bool is_between_frames; /* of compressed data: nothing of a frame, or of a member of gzip's, is outstanding */
  uint64_t unpacked;      /* bytes that compressed data gave */
  unsigned char ahead[WEIR__SOURCE_PEEK]; /* bytes that were only looked at */
  size_t ahead_at, ahead_size;
#ifdef WEIR_HAVE_ZSTD
  ZSTD_DCtx *zstd;
#endif
#ifdef WEIR_HAVE_ZLIB
  z_stream gzip;
#endif
};

static weir_status failed(const weir__input *source, const char *what) {
  return weir__fail(WEIR_ERROR_SYSTEM, "%s: %s: %s", source->name, what, strerror(errno));
}

static weir_status read_file(weir__input *source, void *to, size_t room, size_t *got) {
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
static weir_status fill(weir__input *source, size_t wanted) {
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

static void consume(weir__input *source, size_t size) {
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

static bool begins_gzip(const unsigned char *bytes) {
  static const unsigned char magic[] = {0x1f, 0x8b, 8};
  return memcmp(bytes, magic, sizeof magic) == 0;
}

static weir_status no_memory(const weir__input *source) {
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no memory to decompress", source->name);
}

static weir_status begin_zstd(weir__input *source) {
#ifdef WEIR_HAVE_ZSTD
  source->zstd = ZSTD_createDCtx();
  return source->zstd != NULL ? WEIR_OK : no_memory(source);
#else
  return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                    "%s: it is compressed with zstd, and this build of Weir is without zstd; decompress it first",
                    source->name);
#endif
}

static weir_status begin_gzip(weir__input *source) {
#ifdef WEIR_HAVE_ZLIB
  if (inflateInit2(&source->gzip, 15 + 16) == Z_OK) /* the largest window; gzip's header and no other */
    return WEIR_OK;
  source->packing = PLAIN;
  return no_memory(source);
#else
  return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                    "%s: it is compressed with gzip, and this build of Weir is without zlib; decompress it first "
                    "(gzip -d), or install zlib1g-dev and build again",
                    source->name);
#endif
}

static weir_status begin(weir__input *source) {
  weir_status status = fill(source, MAGIC_SIZE);
  if (status != WEIR_OK || source->input_size < MAGIC_SIZE)
    return status;
  source->is_between_frames = true;
  if (begins_zstd(source->input)) {
    source->packing = ZSTD;
    return begin_zstd(source);
  }
  if (begins_gzip(source->input)) {
    source->packing = GZIP;
    return begin_gzip(source);
  }
  return WEIR_OK;
}

static weir__input *new_source(const char *name) {
  weir__input *source = calloc(1, sizeof *source);
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

static weir_status finish_open(weir__input *source, weir_status status, weir__input **out) {
  if (status == WEIR_OK)
    status = begin(source);
  if (status != WEIR_OK) {
    weir__input_close(source);
    return status;
  }
  *out = source;
  return WEIR_OK;
}

weir_status weir__input_open(const char *path, weir__input **out) {
  bool is_standard = strcmp(path, "-") == 0;
  weir__input *source = new_source(is_standard ? "standard input" : path);
  unsigned char *buffer = malloc(INPUT_SIZE);
  if (source == NULL || buffer == NULL) {
    free(buffer);
    weir__input_close(source);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no memory to read it", path);
  }
  source->buffer = buffer;
  source->file = is_standard ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0) : open(path, O_RDONLY | O_CLOEXEC);
  return finish_open(source, source->file < 0 ? failed(source, "open") : WEIR_OK, out);
}

weir_status weir__input_open_memory(const char *name, const void *data, size_t size, weir__input **out) {
  weir__input *source = new_source(name);
  if (source == NULL)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no memory to read it", name);
  source->input = data;
  source->input_size = size;
  return finish_open(source, WEIR_OK, out);
}

void weir__input_close(weir__input *source) {
  if (source == NULL)
    return;
#ifdef WEIR_HAVE_ZSTD
  ZSTD_freeDCtx(source->zstd);
#endif
#ifdef WEIR_HAVE_ZLIB
  if (source->packing == GZIP)
    inflateEnd(&source->gzip);
#endif
  if (source->file >= 0)
    close(source->file);
  free(source->buffer);
  free(source->name);
  free(source);
}

const char *weir__input_name(const weir__input *source) { return source->name; }

static weir_status read_plain(weir__input *source, void *to, size_t room, size_t *got) {
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

/* ---- Compressed ---- */

#if defined WEIR_HAVE_ZSTD || defined WEIR_HAVE_ZLIB
static weir_status bad_packing(const weir__input *source, const char *who, const char *why) {
  return weir__fail(WEIR_ERROR_BAD_DATA, "%s: byte %llu of the compressed file: %s%s%s", source->name,
                    (unsigned long long)source->input_offset, who, *who ? ": " : "", why);
}

static weir_status bad_end(const weir__input *source) {
  return bad_packing(source, "", "it ends in the middle of the compressed data");
}

/* Small files that unpack to very much are no histories. */
static weir_status check_ratio(weir__input *source, size_t got) {
  source->unpacked += got;
  if (source->unpacked <= WEIR__SOURCE_FREE ||
      (source->unpacked - WEIR__SOURCE_FREE) / WEIR__SOURCE_RATIO <= source->input_offset)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_BAD_DATA,
                    "%s: byte %llu of the compressed file: it unpacks to more than %u times its size", source->name,
                    (unsigned long long)source->input_offset, WEIR__SOURCE_RATIO);
}
#endif

#ifdef WEIR_HAVE_ZSTD
static weir_status read_zstd(weir__input *source, void *to, size_t room, size_t *got) {
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
      return no_memory(source);
    if (ZSTD_isError(left))
      return bad_packing(source, "zstd", ZSTD_getErrorName(left));
    source->is_between_frames = left == 0;
    if (source->input_size == 0 && out.pos == 0 && left > 0)
      return bad_end(source);
    consume(source, in.pos);
  }
  *got = out.pos;
  return check_ratio(source, out.pos);
}
#endif

#ifdef WEIR_HAVE_ZLIB
/* Behind a member there may be others, or zeros up to the end of a block of some device. */
static weir_status begin_member(weir__input *source, bool *is_end) {
  weir_status status = fill(source, MAGIC_SIZE);
  if (status != WEIR_OK)
    return status;
  while (source->input_size > 0 && source->input[0] == 0) {
    consume(source, 1);
    if (source->input_size == 0)
      status = fill(source, MAGIC_SIZE);
    if (status != WEIR_OK)
      return status;
  }
  *is_end = source->input_size == 0;
  if (!*is_end && inflateReset(&source->gzip) != Z_OK)
    return bad_packing(source, "gzip", "it cannot be continued");
  return WEIR_OK;
}

static weir_status read_gzip(weir__input *source, void *to, size_t room, size_t *got) {
  z_stream *z = &source->gzip;
  uInt most = room < UINT32_MAX ? (uInt)room : UINT32_MAX;
  z->next_out = to;
  z->avail_out = most;
  while (z->avail_out == most) {
    bool is_end = false;
    weir_status status = source->is_between_frames ? begin_member(source, &is_end)
                         : source->input_size == 0 ? fill(source, 1)
                                                   : WEIR_OK;
    if (status != WEIR_OK)
      return status;
    if (is_end)
      break;
    if (source->input_size == 0)
      return bad_end(source);
    source->is_between_frames = false;
    z->next_in = (z_const Bytef *)source->input;
    z->avail_in = source->input_size < UINT32_MAX ? (uInt)source->input_size : UINT32_MAX;
    uInt before = z->avail_in;
    int result = inflate(z, Z_NO_FLUSH);
    if (result == Z_MEM_ERROR)
      return no_memory(source);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
      return bad_packing(source, "gzip", z->msg != NULL ? z->msg : "the data are damaged");
    consume(source, before - z->avail_in);
    source->is_between_frames = result == Z_STREAM_END;
  }
  *got = most - z->avail_out;
  return check_ratio(source, *got);
}
#endif

static weir_status read_any(weir__input *source, void *to, size_t room, size_t *got) {
#ifdef WEIR_HAVE_ZSTD
  if (source->packing == ZSTD)
    return read_zstd(source, to, room, got);
#endif
#ifdef WEIR_HAVE_ZLIB
  if (source->packing == GZIP)
    return read_gzip(source, to, room, got);
#endif
  return read_plain(source, to, room, got);
}

weir_status weir__input_peek(weir__input *source, void *to, size_t room, size_t *got) {
  while (source->ahead_size < room) {
    size_t more = 0;
    weir_status status = read_any(source, source->ahead + source->ahead_size, room - source->ahead_size, &more);
    if (status != WEIR_OK)
      return status;
    if (more == 0)
      break;
    source->ahead_size += more;
  }
  *got = source->ahead_size < room ? source->ahead_size : room;
  memcpy(to, source->ahead, *got);
  return WEIR_OK;
}

weir_status weir__input_read(weir__input *source, void *to, size_t room, size_t *got) {
  size_t ahead = source->ahead_size - source->ahead_at;
  if (ahead == 0)
    return read_any(source, to, room, got);
  *got = room < ahead ? room : ahead;
  memcpy(to, source->ahead + source->ahead_at, *got);
  source->ahead_at += *got;
  return WEIR_OK;
}
