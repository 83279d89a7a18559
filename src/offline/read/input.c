#include "offline/read/input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/system.h"

#ifdef WEIR_HAVE_ZSTD
#include <zstd.h>
#include <zstd_errors.h>
#endif
#ifdef WEIR_HAVE_ZLIB
#include <zlib.h>
#endif

enum { INPUT_SIZE = 256 * 1024, MAGIC_SIZE = 4 };

typedef weir_status read_function(weir__input *input, void *to, size_t room, size_t *got);

struct weir__input {
  char *name;
  int file;                   /* -1 if there is none */
  weir__input_source *source; /* NULL if there is none. Without file and source, all data are in `input` */
  void *source_context;
  unsigned char *buffer;      /* for a file or source: the buffer of `input` */
  const unsigned char *input; /* unread bytes of the file */
  size_t input_size;
  uint64_t input_offset; /* of `input` in the file */
  read_function *read;
  bool is_between_frames;                /* of compressed data: at the end of a frame, or of a gzip member */
  uint64_t unpacked;                     /* decompressed bytes */
  unsigned char ahead[WEIR__INPUT_PEEK]; /* bytes that were peeked at */
  size_t ahead_at, ahead_size;
#ifdef WEIR_HAVE_ZSTD
  ZSTD_DCtx *zstd;
#endif
#ifdef WEIR_HAVE_ZLIB
  z_stream gzip;
#endif
};

static weir_status failed(const weir__input *input, const char *what) {
  return weir__fail(WEIR_ERROR_SYSTEM, "%s: %s: %s", input->name, what, strerror(errno));
}

static weir_status read_file(weir__input *input, void *to, size_t room, size_t *got) {
  if (input->source) {
    *got = input->source(input->source_context, to, room);
    return WEIR_OK;
  }
  ssize_t n;
  do
    n = read(input->file, to, room);
  while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EISDIR)
    return weir__fail(WEIR_ERROR_SYSTEM, "%s: this is a folder; name a file in it", input->name);
  if (n < 0)
    return failed(input, "cannot read it");
  *got = (size_t)n;
  return WEIR_OK;
}

/* Reads until there are `wanted` bytes of input, or the file ends. */
static weir_status fill(weir__input *input, size_t wanted) {
  if (!input->buffer)
    return WEIR_OK;
  if (input->input_size > 0)
    memmove(input->buffer, input->input, input->input_size);
  input->input = input->buffer;
  while (input->input_size < wanted) {
    size_t got = 0;
    weir_status status = read_file(input, input->buffer + input->input_size, INPUT_SIZE - input->input_size, &got);
    if (status)
      return status;
    if (got == 0)
      break;
    input->input_size += got;
  }
  return WEIR_OK;
}

static void consume(weir__input *input, size_t size) {
  input->input += size;
  input->input_size -= size;
  input->input_offset += size;
}

static weir_status read_plain(weir__input *input, void *to, size_t room, size_t *got) {
  if (input->input_size > 0) {
    size_t n = room < input->input_size ? room : input->input_size;
    memcpy(to, input->input, n);
    consume(input, n);
    *got = n;
    return WEIR_OK;
  }
  *got = 0;
  return input->buffer ? read_file(input, to, room, got) : WEIR_OK;
}

/* ---- Compressed ---- */

#if defined(WEIR_HAVE_ZSTD) || defined(WEIR_HAVE_ZLIB)
static weir_status no_memory(const weir__input *input) {
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no memory to decompress", input->name);
}

static weir_status bad_packing(const weir__input *input, const char *library, const char *why) {
  return weir__fail(WEIR_ERROR_BAD_DATA, "%s: byte %llu of the compressed file: %s%s%s", input->name,
                    (unsigned long long)input->input_offset, library, *library ? ": " : "", why);
}

static weir_status bad_end(const weir__input *input) {
  return bad_packing(input, "",
                     "it ends in the middle of the compressed data: the file is incomplete; copy or record it again");
}

/* Refuses small files that unpack to very much. */
static weir_status check_ratio(weir__input *input, size_t got) {
  input->unpacked += got;
  if (input->unpacked <= WEIR__INPUT_FREE ||
      (input->unpacked - WEIR__INPUT_FREE) / WEIR__INPUT_RATIO <= input->input_offset)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_BAD_DATA,
                    "%s: byte %llu of the compressed file: it unpacks to more than %u times its size", input->name,
                    (unsigned long long)input->input_offset, WEIR__INPUT_RATIO);
}
#endif

#if !defined(WEIR_HAVE_ZSTD) || !defined(WEIR_HAVE_ZLIB)
static weir_status no_library(const weir__input *input, const char *format, const char *library, const char *package) {
  return weir__fail(
      WEIR_ERROR_NOT_SUPPORTED,
      "%s: it is compressed with %s, and this Weir was built without %s; decompress the file first (%s -d), "
      "or install %s (a Debian package) and build Weir again",
      input->name, format, library, format, package);
}
#endif

#ifdef WEIR_HAVE_ZSTD
static weir_status read_zstd(weir__input *input, void *to, size_t room, size_t *got) {
  ZSTD_outBuffer out = {to, room, 0};
  while (out.pos == 0) {
    if (input->input_size == 0) {
      weir_status status = fill(input, 1);
      if (status)
        return status;
    }
    if (input->input_size == 0 && input->is_between_frames)
      break;
    ZSTD_inBuffer in = {input->input, input->input_size, 0};
    size_t left = ZSTD_decompressStream(input->zstd, &out, &in);
    if (ZSTD_getErrorCode(left) == ZSTD_error_memory_allocation)
      return no_memory(input);
    if (ZSTD_isError(left))
      return bad_packing(input, "zstd", ZSTD_getErrorName(left));
    input->is_between_frames = left == 0;
    if (input->input_size == 0 && out.pos == 0 && left > 0)
      return bad_end(input);
    consume(input, in.pos);
  }
  *got = out.pos;
  return check_ratio(input, out.pos);
}

static weir_status begin_zstd(weir__input *input) {
  input->read = read_zstd;
  input->zstd = ZSTD_createDCtx();
  return input->zstd ? WEIR_OK : no_memory(input);
}
#else
static weir_status begin_zstd(weir__input *input) { return no_library(input, "zstd", "libzstd", "libzstd-dev"); }
#endif

#ifdef WEIR_HAVE_ZLIB
/* Other members, or padding with zeros, may follow a member. */
static weir_status begin_member(weir__input *input, bool *is_end) {
  weir_status status = fill(input, MAGIC_SIZE);
  if (status)
    return status;
  while (input->input_size > 0 && input->input[0] == 0) {
    consume(input, 1);
    if (input->input_size == 0)
      status = fill(input, MAGIC_SIZE);
    if (status)
      return status;
  }
  *is_end = input->input_size == 0;
  if (!*is_end && inflateReset(&input->gzip) != Z_OK)
    return bad_packing(input, "gzip", "it cannot be continued");
  return WEIR_OK;
}

static weir_status read_gzip(weir__input *input, void *to, size_t room, size_t *got) {
  z_stream *z = &input->gzip;
  uInt most = room < UINT32_MAX ? (uInt)room : UINT32_MAX;
  z->next_out = to;
  z->avail_out = most;
  while (z->avail_out == most) {
    bool is_end = false;
    weir_status status = input->is_between_frames ? begin_member(input, &is_end)
                         : input->input_size == 0 ? fill(input, 1)
                                                  : WEIR_OK;
    if (status)
      return status;
    if (is_end)
      break;
    if (input->input_size == 0)
      return bad_end(input);
    input->is_between_frames = false;
    z->next_in = (z_const Bytef *)input->input;
    z->avail_in = input->input_size < UINT32_MAX ? (uInt)input->input_size : UINT32_MAX;
    uInt before = z->avail_in;
    int result = inflate(z, Z_NO_FLUSH);
    if (result == Z_MEM_ERROR)
      return no_memory(input);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
      return bad_packing(input, "gzip", z->msg ? z->msg : "the data are damaged");
    consume(input, before - z->avail_in);
    input->is_between_frames = result == Z_STREAM_END;
  }
  *got = most - z->avail_out;
  return check_ratio(input, *got);
}

static weir_status begin_gzip(weir__input *input) {
  if (inflateInit2(&input->gzip, 15 + 16) != Z_OK) /* the largest window; a gzip header */
    return no_memory(input);
  input->read = read_gzip;
  return WEIR_OK;
}
#else
static weir_status begin_gzip(weir__input *input) { return no_library(input, "gzip", "zlib", "zlib1g-dev"); }
#endif

/* ---- Opening and closing ---- */

/* A zstd frame, or a skippable frame. */
static bool begins_zstd(const unsigned char *bytes) {
  static const unsigned char magic[] = {0x28, 0xb5, 0x2f, 0xfd}, skippable[] = {0x2a, 0x4d, 0x18};
  return memcmp(bytes, magic, sizeof magic) == 0 ||
         ((bytes[0] & 0xf0) == 0x50 && memcmp(bytes + 1, skippable, sizeof skippable) == 0);
}

static bool begins_gzip(const unsigned char *bytes) {
  static const unsigned char magic[] = {0x1f, 0x8b, 8};
  return memcmp(bytes, magic, sizeof magic) == 0;
}

static weir_status begin(weir__input *input) {
  weir_status status = fill(input, MAGIC_SIZE);
  if (status || input->input_size < MAGIC_SIZE)
    return status;
  input->is_between_frames = true;
  if (begins_zstd(input->input))
    return begin_zstd(input);
  return begins_gzip(input->input) ? begin_gzip(input) : WEIR_OK;
}

static weir__input *new_source(const char *name) {
  weir__input *input = calloc(1, sizeof *input);
  if (!input)
    return NULL;
  input->file = -1;
  input->read = read_plain;
  input->name = strdup(name);
  if (!input->name) {
    free(input);
    return NULL;
  }
  return input;
}

static weir_status finish_open(weir__input *input, weir_status status, weir__input **out) {
  if (!status)
    status = begin(input);
  if (status) {
    weir__input_close(input);
    return status;
  }
  *out = input;
  return WEIR_OK;
}

weir_status weir__input_open(const char *path, weir__input **out) {
  bool is_standard = strcmp(path, "-") == 0;
  weir__input *input = new_source(is_standard ? "standard input" : path);
  unsigned char *buffer = malloc(INPUT_SIZE);
  if (!input || !buffer) {
    free(buffer);
    weir__input_close(input);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no memory to read it", path);
  }
  input->buffer = buffer;
  input->file = is_standard ? weir__descriptor_copy(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
  return finish_open(input, input->file < 0 ? failed(input, "cannot open it") : WEIR_OK, out);
}

weir_status weir__input_open_source(const char *name, weir__input_source *source, void *context, weir__input **out) {
  weir__input *input = new_source(name);
  unsigned char *buffer = malloc(INPUT_SIZE);
  if (!input || !buffer) {
    free(buffer);
    weir__input_close(input);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no memory to read it", name);
  }
  input->buffer = buffer;
  input->source = source;
  input->source_context = context;
  return finish_open(input, WEIR_OK, out);
}

weir_status weir__input_open_memory(const char *name, const void *data, size_t size, weir__input **out) {
  weir__input *input = new_source(name);
  if (!input)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no memory to read it", name);
  input->input = data;
  input->input_size = size;
  return finish_open(input, WEIR_OK, out);
}

void weir__input_close(weir__input *input) {
  if (!input)
    return;
#ifdef WEIR_HAVE_ZSTD
  ZSTD_freeDCtx(input->zstd);
#endif
#ifdef WEIR_HAVE_ZLIB
  if (input->read == read_gzip)
    inflateEnd(&input->gzip);
#endif
  if (input->file >= 0)
    close(input->file);
  free(input->buffer);
  free(input->name);
  free(input);
}

const char *weir__input_name(const weir__input *input) { return input->name; }

weir_status weir__input_peek(weir__input *input, void *to, size_t room, size_t *got) {
  while (input->ahead_size < room) {
    size_t more = 0;
    weir_status status = input->read(input, input->ahead + input->ahead_size, room - input->ahead_size, &more);
    if (status)
      return status;
    if (more == 0)
      break;
    input->ahead_size += more;
  }
  *got = input->ahead_size < room ? input->ahead_size : room;
  memcpy(to, input->ahead, *got);
  return WEIR_OK;
}

weir_status weir__input_read(weir__input *input, void *to, size_t room, size_t *got) {
  size_t ahead = input->ahead_size - input->ahead_at;
  if (ahead == 0)
    return input->read(input, to, room, got);
  *got = room < ahead ? room : ahead;
  memcpy(to, input->ahead + input->ahead_at, *got);
  input->ahead_at += *got;
  return WEIR_OK;
}
