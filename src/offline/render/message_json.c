/*
 * The object of `weir explain --message --json`.
 */
#include "offline/render/message_json.h"

#include "offline/analyse/message.h"

static void json_figure(weir__sink *sink, const char *key, weir__figure figure) {
  if (figure.is_known)
    WEIR__JSON(sink, JSON_OBJECT(key), JSON_NATURAL("least", figure.least), JSON_NATURAL("most", figure.most),
               JSON_CLOSE);
  else
    WEIR__JSON(sink, JSON_NULL(key));
}

static void json_message(weir__sink *sink, const weir__message *m) {
  char source[WEIR__MESSAGE_SOURCE_TEXT];
  bool has_rank = m->source == WEIR__SOURCE_RANK || m->source == WEIR__SOURCE_LOCAL || m->source == WEIR__SOURCE_TASK;
  WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_TEXT("source", weir__message_source_text(m, source)),
             JSON_NATURAL_IF(has_rank, "rank", m->source_number), JSON_NATURAL_IF(m->device >= 0, "device", m->device),
             JSON_NATURAL("line", m->line), JSON_NATURAL("repeated", m->repeated),
             JSON_TEXT("wording", weir__message_kinds[m->kind]), JSON_BOOL("weir", m->is_weirs),
             JSON_TEXT("cause", weir__message_causes[m->cause].name),
             JSON_TEXT("bound", weir__message_bounds[m->bound]));
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
                 {"largest_buffer", m->largest}};
  for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
    json_figure(sink, figures[i].key, figures[i].figure);
  WEIR__JSON(sink, JSON_TEXT("largest_buffer_name", *m->largest_name ? m->largest_name : NULL),
             JSON_TEXT("tensor", *m->tensor ? m->tensor : NULL),
             JSON_TEXT("operation", *m->operation ? m->operation : NULL),
             JSON_NATURAL_IF(m->tokens > 0, "tokens", m->tokens),
             JSON_NATURAL_IF(m->tokens_fit > 0, "tokens_that_fit", m->tokens_fit), JSON_LIST("processes"));
  for (size_t i = 0; i < m->process_count; i++) {
    WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_NATURAL("pid", m->processes[i].pid));
    json_figure(sink, "used", m->processes[i].used);
    WEIR__JSON(sink, JSON_CLOSE);
  }
  WEIR__JSON(sink, JSON_CLOSE, JSON_BOOL("other_processes_suffice", m->others_suffice),
             JSON_BOOL("private_pools_suffice", m->pools_suffice), JSON_TEXT("conf", m->conf), JSON_CLOSE);
}

void weir__messages_json(weir__sink *sink, const char *name, const weir__messages *messages) {
  WEIR__JSON(sink, JSON_TEXT("file", name), JSON_NATURAL("lines", messages->lines),
             JSON_NATURAL("failures", messages->found), JSON_LIST("messages"));
  for (size_t i = 0; i < messages->count; i++)
    json_message(sink, &messages->items[i]);
  WEIR__JSON(sink, JSON_CLOSE);
}
