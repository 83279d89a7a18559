#include "offline/render/report_parts.h"

void weir__steps_rows(weir__report *r, const weir__steps *steps) {
  WEIR__ROWS(r, JSON_OBJECT("steps"), JSON_TEXT("source", weir__steps_source_name(steps->source)),
             JSON_TEXT("name", *steps->name ? steps->name : NULL),
             ROW_REAL(true, "confidence", steps->confidence, 3, WEIR__UNIT_SHARE), JSON_NATURAL("count", steps->count),
             JSON_NATURAL("warm_up", steps->warm_up), JSON_LIST("boundaries"));
  for (size_t i = 0; steps->count && i <= steps->count && steps->count <= WEIR__STEPS_LISTED; i++)
    WEIR__ROWS(r, JSON_NATURAL(NULL, steps->begin[i]));
  WEIR__ROWS(r, JSON_CLOSE, JSON_CLOSE);
}

void weir__steps_say(weir__report *r, const weir__steps *steps) {
  static const char *const sentences[] = {
      [WEIR__STEPS_NONE] = "none found",
      [WEIR__STEPS_WINDOWS] = "none found; the history is divided into {steps.count} windows",
      [WEIR__STEPS_INFERRED] = "{steps.count}, inferred from the history, confidence {steps.confidence:.0}",
      [WEIR__STEPS_PHASES] = "{steps.count}, from phase '{steps.name}'",
      [WEIR__STEPS_ANNOTATIONS] = "{steps.count}, from annotation '{steps.name}'"};
  weir__say(r, sentences[steps->source]);
}

void weir__outside_rows(weir__report *r, const weir__recording_device *device) {
  if (device->peak_outside)
    WEIR__ROWS(r, JSON_OBJECT("outside"), ROW_BYTES("end", device->outside), ROW_BYTES("peak", device->peak_outside),
               JSON_CLOSE);
}

void weir__outside_say(weir__report *r, const char *label, const weir__recording_device *device) {
  if (!device->peak_outside)
    return;
  weir__say(r, label);
  weir__say(r,
            "{outside.end} at the end of the recording and {outside.peak} at most are in no figure here: the program "
            "created them itself (cuMemCreate)\n");
}

void weir__holder_say(weir__report *r, const char *indent, const weir__holder *holder, const char *stack) {
  weir__say(r, indent);
  weir__say(r, "{bytes:11}  {count block} ");
  weir__say_of(r, stack, holder->size ? "of {size}\n" : holder->stack ? "{$}\n" : "without a stack\n");
}

const char weir__record_advice[] =
    "record a history: call torch.cuda.memory._record_memory_history(stacks=\"python\") before the work and "
    "_dump_snapshot(\"job.pickle\") after it; for a program on Weir, set WEIR_RECORD=FOLDER\n";

const char *weir__stacks_option(const weir__recording *recording) {
  return recording->is_events_only ? "WEIR_RECORD_STACKS=alloc" : "_record_memory_history(stacks=\"python\")";
}
