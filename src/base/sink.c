#include "base/sink.h"

#include "base/base.h"

void weir__sink_begin(weir__sink *sink, const weir__sink_format *format, weir_write_fn write, void *context) {
  sink->format = format;
  sink->write = write;
  sink->context = context;
  sink->error = 0;
  sink->used = 0;
  sink->line_depth = sink->depth = 0;
  sink->memos = 0;
  format->begin(sink);
}

void weir__sink_flush(weir__sink *sink) {
  if (!sink->error && sink->used)
    sink->error = sink->write(sink->context, sink->buffer, sink->used);
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
  return sink->error ? weir__fail_output(caller, sink->error) : WEIR_OK;
}
