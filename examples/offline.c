/*
 * Reads a recording, replays it, and compares what the job needed with what it would need under other settings.
 *
 *     offline [FILE [SETTINGS]]
 *
 * Without a file it reads one of the recordings that the tests use, if it is run in the folder of the sources.
 */
#include <stdio.h>

#include "weir/offline.h"

static int fail(void) {
  fprintf(stderr, "%s\n", weir_offline_last_error());
  return 1;
}

static void print(const char *name, const weir_offline_result *result) {
  printf("%-12s %8.2f GiB reserved, %8.2f GiB allocated, %llu out of memory\n", name,
         (double)result->peak_reserved / (1 << 30), (double)result->peak_allocated / (1 << 30),
         (unsigned long long)result->ooms);
}

int main(int argc, char **argv) {
  const char *file = argc > 1 ? argv[1] : "tests/data/histories/capped_oom.pickle.zst";
  weir_offline_recording *recording = NULL;
  weir_offline_replayer *replayer = NULL;
  weir_offline_result result;
  weir_offline_explanation why;
  weir_offline_predict_options options;
  weir_offline_result_init(&result);
  weir_offline_explanation_init(&why);
  weir_offline_predict_options_init(&options);
  options.conf = argc > 2 ? argv[2] : "expandable_segments:True";

  if (weir_offline_recording_load(file, NULL, &recording) || weir_offline_replayer_create(recording, NULL, &replayer) ||
      weir_offline_replayer_check(replayer, &result))
    return fail();
  printf("%s: %llu entries, %s\n", file, (unsigned long long)result.events,
         result.is_exact ? "reproduced exactly" : result.first_difference);
  print("recorded", &result);
  if (weir_offline_replayer_predict(replayer, &options, &result))
    return fail();
  print("predicted", &result);
  if (weir_offline_recording_explain(recording, NULL, &why) == WEIR_OK)
    printf("entry %llu asked for %llu bytes and failed: %s%s%s\n", (unsigned long long)why.event,
           (unsigned long long)why.request, weir_offline_cause_name(why.cause),
           *why.conf ? "; this would have helped: " : "", why.conf);
  weir_offline_replayer_destroy(replayer);
  weir_offline_recording_destroy(recording);
  return 0;
}
