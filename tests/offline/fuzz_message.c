/*
 * A libFuzzer target, see scripts/fuzz: the text of errors. Figures are ranges, conclusions follow from them, and a
 * report has them.
 */
#include <stdlib.h>
#include <string.h>

#include "fuzz_report.h"
#include "offline/analyse/message.h"
#include "offline/render/message_report.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_figure(weir__figure f) {
  if (f.is_known && f.least > f.most)
    abort();
}

static void check(const weir__message *m) {
  const weir__figure figures[] = {m->tried,       m->total,    m->free,        m->allowed,  m->own,
                                  m->allocated,   m->pools,    m->unallocated, m->reserved, m->reserve,
                                  m->request,     m->headroom, m->usable,      m->missing,  m->short_by,
                                  m->non_pytorch, m->others,   m->outside,     m->unlisted};
  for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
    check_figure(figures[i]);
  if (m->process_count > WEIR__MESSAGE_PROCESSES || m->line == 0)
    abort();
  if (m->cause == WEIR__MESSAGE_EXHAUSTED && m->request.least <= m->usable.most)
    abort();
  if (m->cause == WEIR__MESSAGE_FRAGMENTED && m->tried.most > m->unallocated.least)
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  weir__messages messages;
  char *text = malloc(size ? size : 1); /* of exactly that size, so that reads beyond it are seen */
  if (!text)
    return 0;
  memcpy(text, data, size);
  if (weir__messages_find(text, size, &messages) == WEIR_OK) {
    weir__messages_derive(&messages);
    if (messages.count > messages.found)
      abort();
    for (size_t i = 0; i < messages.count; i++)
      check(&messages.items[i]);
    if (messages.count) {
      weir__report report;
      weir__messages_report(&report, "fuzz", &messages);
      fuzz_report(&report);
    }
    weir__messages_free(&messages);
  }
  free(text);
  return 0;
}
