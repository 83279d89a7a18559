#include "offline/render/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/system.h"

#ifdef WEIR_HAVE_ZSTD
#include <zstd.h>
#endif

static weir_status failed(const weir__output_file *output, int error) {
  return weir__fail(WEIR_ERROR_SYSTEM, "%s: cannot write it: %s", output->path ? output->path : "the standard output",
                    strerror(error));
}

weir_status weir__output_file_begin(weir__output_file *output, const char *path, weir__outfile_use use) {
  *output = (weir__output_file){0};
  if (path && strcmp(path, "-") == 0)
    path = NULL;
  output->path = path ? strdup(path) : NULL;
  if (path && !output->path)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", path);
  int error = weir__outfile_open(&output->out, path, use);
  if (!error)
    return WEIR_OK;
  weir_status status = failed(output, error);
  free(output->path);
  *output = (weir__output_file){0};
  return status;
}

/* ---- Compressed ---- */

#ifdef WEIR_HAVE_ZSTD
typedef struct packer {
  FILE *file;
  ZSTD_CCtx *zstd;
  size_t size; /* of `out` */
  unsigned char out[];
} packer;

/* false, with errno, if not everything could be written. */
static bool pack(packer *p, const void *bytes, size_t size, ZSTD_EndDirective mode) {
  ZSTD_inBuffer in = {bytes, size, 0};
  for (;;) {
    ZSTD_outBuffer out = {p->out, p->size, 0};
    size_t left = ZSTD_compressStream2(p->zstd, &out, &in, mode);
    if (ZSTD_isError(left)) {
      errno = ENOMEM; /* nothing else can fail with these arguments */
      return false;
    }
    if (out.pos && fwrite(p->out, 1, out.pos, p->file) != out.pos)
      return false;
    if (mode == ZSTD_e_end ? left == 0 : in.pos == in.size)
      return true;
  }
}

static ssize_t pack_write(void *cookie, const char *bytes, size_t size) {
  return pack(cookie, bytes, size, ZSTD_e_continue) ? (ssize_t)size : 0;
}

static int pack_close(void *cookie) {
  packer *p = cookie;
  bool is_whole = pack(p, NULL, 0, ZSTD_e_end);
  int error = errno;
  if (fclose(p->file) != 0 && is_whole) {
    is_whole = false;
    error = errno;
  }
  ZSTD_freeCCtx(p->zstd);
  free(p);
  errno = error;
  return is_whole ? 0 : -1;
}

/* What is written to it comes to `file` compressed, and closing it closes both. NULL if there is no memory, and `file`
 * is as it was. */
static FILE *open_packed(FILE *file) {
  size_t size = ZSTD_CStreamOutSize();
  packer *p = malloc(sizeof *p + size);
  ZSTD_CCtx *zstd = ZSTD_createCCtx();
  FILE *packed = NULL;
  if (p && zstd) {
    *p = (packer){.file = file, .zstd = zstd, .size = size};
    ZSTD_CCtx_setParameter(zstd, ZSTD_c_checksumFlag, 1);
    packed = fopencookie(p, "w", (cookie_io_functions_t){.write = pack_write, .close = pack_close});
  }
  if (!packed) {
    ZSTD_freeCCtx(zstd);
    free(p);
  }
  return packed;
}
#endif

static bool is_compressed(const weir__output_file *output) {
  size_t length = output->path ? strlen(output->path) : 0;
  return length > 4 && strcmp(output->path + length - 4, ".zst") == 0;
}

weir_status weir__output_file_open(weir__output_file *output) {
#ifndef WEIR_HAVE_ZSTD
  if (is_compressed(output))
    return weir__fail(
        WEIR_ERROR_NOT_SUPPORTED,
        "%s: this Weir was built without zstd; leave .zst out of the name and compress the file afterwards, or install "
        "libzstd-dev (a Debian package) and build Weir again",
        output->path);
#endif
  int descriptor = weir__descriptor_copy(output->out.fd); /* closing the file leaves the output's own open */
  output->file = descriptor >= 0 ? fdopen(descriptor, "wb") : NULL;
  if (!output->file) {
    int error = errno;
    if (descriptor >= 0)
      close(descriptor);
    return failed(output, error);
  }
#ifdef WEIR_HAVE_ZSTD
  if (is_compressed(output)) {
    FILE *packed = open_packed(output->file);
    if (!packed)
      return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory to compress", output->path);
    output->file = packed;
  }
#endif
  return WEIR_OK;
}

weir_status weir__output_file_close(weir__output_file *output) {
  FILE *file = output->file;
  output->file = NULL;
  if (!file)
    return WEIR_OK;
  bool had_error = ferror(file);
  errno = EIO;
  return fclose(file) != 0 || had_error ? failed(output, errno) : WEIR_OK;
}

weir_status weir__output_file_keep(weir__output_file *output) {
  int error = weir__outfile_keep(&output->out);
  return error ? failed(output, error) : WEIR_OK;
}

void weir__output_file_end(weir__output_file *output) {
  if (output->file)
    fclose(output->file);
  weir__outfile_end(&output->out);
  free(output->path);
  *output = (weir__output_file){0};
}

weir_status weir__output_file_write(const char *path, weir_status (*write)(void *context, FILE *file), void *context) {
  weir__output_file output;
  weir_status status = weir__output_file_begin(&output, path, WEIR__OUTFILE_WRITE);
  if (status)
    return status;
  status = weir__output_file_open(&output);
  if (!status)
    status = write(context, output.file);
  if (!status)
    status = weir__output_file_close(&output);
  if (!status)
    status = weir__output_file_keep(&output);
  weir__output_file_end(&output);
  return status;
}
