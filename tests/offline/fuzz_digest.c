/*
 * A libFuzzer target, see scripts/fuzz: digests. What is read is written, and read and written again: both lines must
 * be equal. It is also united and redacted.
 */
#include <stdlib.h>
#include <string.h>

#include "offline/render/digest_merge.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  weir__digest digest, again;
  weir__digest_line once = {0}, twice = {0};
  weir__digest_union all = {0};
  size_t line = size ? strnlen((const char *)data, size) : 0;
  if (weir__digest_parse("fuzz", 1, (const char *)data, line, &digest))
    return 0;
  if (!weir__digest_write(&digest, &once)) {
    if (weir__digest_parse("fuzz", 1, once.text, once.size, &again))
      abort();
    if (!weir__digest_write(&again, &twice) && strcmp(once.text, twice.text) != 0)
      abort();
    weir__digest_clear(&again);
  }
  if (!weir__digest_union_add(&all, &digest) && !weir__digest_union_add(&all, &digest)) {
    weir__digest_union_finish(&all);
    if (all.count != 1)
      abort();
  }
  weir__digest_union_clear(&all);
  weir__digest_redact(&digest, "salt", 4);
  weir__digest_clear(&digest);
  weir__digest_line_clear(&once);
  weir__digest_line_clear(&twice);
  return 0;
}
