#include "offline/read/digest.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"

#define AT(field) offsetof(weir__digest, field)
#define NATURAL(name, place, text)                                                                                     \
  { #name, WEIR__DIGEST_NATURAL, place, NULL, NULL, 0, text, 0 }
#define NATURAL_TO(name, place, most, text)                                                                            \
  { #name, WEIR__DIGEST_NATURAL, place, NULL, NULL, 0, text, most }
#define INTEGER(name, place, text)                                                                                     \
  { #name, WEIR__DIGEST_INTEGER, place, NULL, NULL, 0, text, 0 }
#define HASH(name, place, text)                                                                                        \
  { #name, WEIR__DIGEST_HASH, place, NULL, NULL, 0, text, 0 }
#define WORD(name, place, list, text)                                                                                  \
  { #name, WEIR__DIGEST_WORD, place, list, NULL, 0, text, 0 }
#define OBJECT(name, fields, text)                                                                                     \
  { #name, WEIR__DIGEST_OBJECT, 0, NULL, fields, 0, text, 0 }
#define NATURALS(name, place, text)                                                                                    \
  { #name, WEIR__DIGEST_NATURALS, place, NULL, NULL, sizeof(uint64_t), text, 0 }
#define HASHES(name, place, text)                                                                                      \
  { #name, WEIR__DIGEST_HASHES, place, NULL, NULL, sizeof(uint64_t), text, 0 }
#define OBJECTS(name, place, fields, type, text)                                                                       \
  { #name, WEIR__DIGEST_OBJECTS, place, NULL, fields, sizeof(type), text, 0 }
#define END                                                                                                            \
  { NULL, WEIR__DIGEST_NATURAL, 0, NULL, NULL, 0, NULL, 0 }

static const char *const ends[] = {"unknown", "closed", "exited", "killed", NULL};
static const char *const verdicts[] = {"fits", "grows", "out of memory", "not known", NULL};
static const char *const sources[] = {"none", "annotations", "phases", "inferred", "windows", NULL};

/* Members of objects inside the document have their place in the whole. */
static const weir__digest_field history[] = {
    NATURAL(entries, AT(history.entries), "entries of the device"),
    NATURAL(allocations, AT(history.allocations), "requests that were served"),
    NATURAL(frees, AT(history.frees), "frees that were completed"),
    NATURAL(unknown_frees, AT(history.unknown_frees), "frees of what was allocated before the first entry"),
    NATURAL(dropped, AT(history.dropped), "older entries that made room for later ones"),
    NATURAL(lost, AT(history.lost), "entries for which there was no room"),
    NATURAL_TO(is_complete, AT(history.is_complete), 1, "1 if the state before the first entry is known"),
    WORD(ended, AT(history.ended), ends, "how the process left the recording"),
    NATURAL(first_us, AT(history.first_us), "microseconds since 1970; 0 if not recorded"),
    NATURAL(last_us, AT(history.last_us), "of the last entry"),
    END};

static const weir__digest_field memory[] = {
    NATURAL(device, AT(memory.device), "bytes of the device; 0 if not recorded"),
    NATURAL(limit, AT(memory.limit), "bytes that may be reserved; 0 if there is no limit, or it is not recorded"),
    NATURAL(outside, AT(memory.outside), "bytes of the process in no allocator, at the end"),
    NATURAL(peak_outside, AT(memory.peak_outside), "the most of these"),
    NATURAL(peak_allocated, AT(memory.peak_allocated), "the most requested bytes in use"),
    NATURAL(peak_reserved, AT(memory.peak_reserved), "the most bytes of segments"),
    NATURAL(peak_entry, AT(memory.peak_entry), "the entry of peak_allocated"),
    NATURAL(peak_step, AT(memory.peak_step), "its step"),
    NATURAL(reserved_at_peak, AT(memory.reserved_at_peak), "bytes of segments when peak_allocated was reached"),
    NATURAL(end_allocated, AT(memory.end_allocated), "requested bytes in use at the end"),
    NATURAL(end_reserved, AT(memory.end_reserved), "bytes of segments at the end"),
    NATURAL(segments_allocated, AT(memory.segments_allocated), "segments and pages that were obtained"),
    NATURAL(segments_released, AT(memory.segments_released), "segments and pages that were released"),
    END};

static const weir__digest_field growth[] = {
    NATURAL(bytes, AT(growth.bytes), "by which the level at the ends of steps rose up to the end; 0 if it did not"),
    NATURAL(first_step, AT(growth.first_step), "since when"), END};

static const weir__digest_field failure[] = {
    NATURAL(count, AT(failure.count), "requests that ran out of memory; the rest is about the first"),
    NATURAL(entry, AT(failure.entry), "its entry"),
    NATURAL(step, AT(failure.step), "its step"),
    NATURAL(time_us, AT(failure.time_us), "its time"),
    NATURAL(bytes, AT(failure.bytes), "what was asked for"),
    NATURAL(free, AT(failure.free), "what the device had"),
    HASH(stack, AT(failure.stack), "the name of its stack"),
    END};

static const weir__digest_field steps[] = {
    WORD(source, AT(steps.source), sources, "what the steps are taken from"),
    HASH(name, AT(steps.name), "what marks them"),
    NATURAL_TO(confidence, AT(steps.confidence), 1000, "in thousandths"),
    NATURAL(count, AT(steps.count), "complete steps"),
    NATURAL(width, AT(steps.width), "steps in a group, a power of two; the lists have an item for each group"),
    NATURAL(setup, AT(steps.setup), "entries before the first step"),
    NATURALS(entry, AT(steps.entry), "the first entry of the group"),
    NATURALS(time_us, AT(steps.time_us), "its time"),
    NATURALS(peak, AT(steps.peak), "the most requested bytes in use"),
    NATURALS(level, AT(steps.level), "those in use at its end"),
    NATURALS(reserved, AT(steps.reserved), "the most bytes of segments"),
    NATURALS(requests, AT(steps.requests), "requests in it"),
    HASHES(sequence, AT(steps.sequence), "of all allocations with their sizes, and frees, up to its end"),
    HASHES(shape, AT(steps.shape), "the same without sizes"),
    END};

static const weir__digest_field intervals[] = {
    NATURAL(width, AT(time.width), "entries in an interval; the lists have an item for each interval"),
    NATURALS(allocated, AT(time.allocated), "the most requested bytes in use"),
    NATURALS(reserved, AT(time.reserved), "the most bytes of segments"),
    NATURALS(free, AT(time.free), "at its end: bytes of segments that are not in use"),
    NATURALS(hole, AT(time.hole), "at its end: the largest piece of these"),
    END};

static const weir__digest_field size_fields[] = {
    NATURAL(least, offsetof(weir__digest_size, least), "requests from this power of two on, up to the next"),
    NATURAL(allocations, offsetof(weir__digest_size, allocations), "their number"),
    NATURAL(total, offsetof(weir__digest_size, total), "their bytes"), END};

#define HOLDER(field) offsetof(weir__digest_holder, field)
#define HOLDER_FIELDS                                                                                                  \
  HASH(name, HOLDER(name), "what it is: see names"), NATURAL(allocations, HOLDER(allocations), "requests"),            \
      NATURAL(total, HOLDER(total), "the sum of their bytes"), NATURAL(peak, HOLDER(peak), "the most bytes in use"),   \
      NATURAL(at_peak, HOLDER(at_peak), "bytes in use at memory.peak_allocated"),                                      \
      NATURAL(end, HOLDER(end), "bytes in use at the end")

static const weir__digest_field stack_fields[] = {
    HOLDER_FIELDS, NATURALS(peaks, HOLDER(peaks), "the most bytes in use in each group of steps"), END};
static const weir__digest_field holder_fields[] = {HOLDER_FIELDS, END};

static const weir__digest_field name_fields[] = {
    HASH(name, offsetof(weir__digest_name, name), "the hash that stands for the text"),
    {"text", WEIR__DIGEST_STRING, offsetof(weir__digest_name, text), NULL, NULL, 0, "the text", 0},
    END};

static const weir__digest_field lost[] = {
    NATURAL(stacks, AT(lost.stacks), "items of that list that the limit of size left out, the smallest"),
    NATURAL(phases, AT(lost.phases), "likewise"),
    NATURAL(texts, AT(lost.texts), "likewise"),
    NATURAL(pools, AT(lost.pools), "likewise"),
    NATURAL(streams, AT(lost.streams), "likewise"),
    NATURAL(names, AT(lost.names), "names without a text: they are too many, or were removed"),
    NATURAL(intervals, AT(lost.intervals), "1 if groups of steps and intervals are longer than usual"),
    NATURAL(bytes, AT(lost.bytes), "a stack that is not listed had at most so many bytes at the peak and at the end"),
    END};

#define HOLDERS(name, fields, text) OBJECTS(name, AT(name), fields, weir__digest_holder, text)

const weir__digest_field weir__digest_fields[] = {
    HASH(id, AT(id), "of the rest of the document"),
    INTEGER(rank, AT(rank), "of the process in its job; -1 if not known"),
    NATURAL(device, AT(device), "the number of the device in the process"),
    HASH(host, AT(host), "a name; sixteen zeros if not known, as for all names"),
    HASH(role, AT(role), "a name: what the user calls the part of the job"),
    HASH(file, AT(file), "a name: the recording's, without its folder"),
    NATURAL(pid, AT(pid), "of the process"),
    HASH(settings, AT(settings), "a name: the text of the settings"),
    WORD(verdict, AT(verdict), verdicts, "the outcome"),
    OBJECT(history, history, "what was recorded"),
    OBJECT(memory, memory, "peaks, and what there is"),
    OBJECT(growth, growth, "of the level from step to step"),
    OBJECT(failure, failure, "requests that ran out of memory"),
    OBJECT(steps, steps, "the steps of the job"),
    OBJECT(time, intervals, "the history in equal parts"),
    OBJECTS(sizes, AT(sizes), size_fields, weir__digest_size, "requests by size"),
    HOLDERS(stacks, stack_fields, "by stack, or by size where there are no stacks"),
    HOLDERS(phases, holder_fields, "by phase"),
    HOLDERS(texts, holder_fields, "by the text that the program set: user metadata, tags"),
    HOLDERS(pools, holder_fields, "by pool"),
    HOLDERS(streams, holder_fields, "by stream, in the order of their first use"),
    OBJECTS(names, AT(names), name_fields, weir__digest_name, "all texts"),
    OBJECT(lost, lost, "what the limit of size left out"),
    END};

uint64_t weir__digest_hash(const char *text) {
  uint64_t hash = *text ? weir__hash_bytes(0x77656972, text, strlen(text)) : 0;
  return hash || !*text ? hash : 1;
}

const char *weir__digest_text(const weir__digest *digest, uint64_t name) {
  const weir__digest_name *names = digest->names.items;
  size_t low = 0, high = digest->names.count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (names[middle].name < name)
      low = middle + 1;
    else
      high = middle;
  }
  return low < digest->names.count && names[low].name == name ? names[low].text : NULL;
}

void weir__digest_clear(weir__digest *digest) {
  weir__chunks_clear(&digest->memory_of);
  *digest = (weir__digest){0};
}
