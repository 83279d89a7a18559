#include "inspect/write_sink.h"

#include <errno.h>

#include "base/base.h"

void weir__sink_begin(weir__sink *sink, const weir__sink_format *format, FILE *file) {
  sink->format = format;
  sink->file = file;
  sink->error = 0;
  sink->used = 0;
  sink->line_depth = sink->depth = 0;
  sink->memos = 0;
  format->begin(sink);
}

void weir__sink_flush(weir__sink *sink) {
  errno = 0;
  if (!sink->error && sink->used && fwrite(sink->buffer, 1, sink->used, sink->file) != sink->used)
    sink->error = errno ? errno : EIO;
  sink->used = 0;
}

void weir__sink_put_long(weir__sink *sink, const void *bytes, size_t length) {
  for (const unsigned char *from = bytes; length;) {
    if (sink->used == WEIR__SINK_BUFFER)
      weir__sink_flush(sink);
    size_t part = WEIR__SINK_BUFFER - sink->used < length ? WEIR__SINK_BUFFER - sink->used : length;
    memcpy(sink->buffer + sink->used, from, part);
    sink->used += part;
    from += part;
    length -= part;
  }
}

weir_status weir__sink_end(weir__sink *sink, const char *caller) {
  sink->format->end(sink);
  weir__sink_flush(sink);
  errno = 0;
  if (!sink->error && fflush(sink->file) != 0)
    sink->error = errno ? errno : EIO;
  if (!sink->error)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_SYSTEM, "%s%sthe file could not be written completely: %s", caller ? caller : "",
                    caller ? ": " : "", strerror(sink->error));
}
