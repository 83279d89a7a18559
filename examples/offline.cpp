/*
 * Reads a recording in C++, and compares what the job needed with what it would need under other settings.
 *
 *     offline_cpp [FILE]
 */
#include <cstdio>
#include <weir/offline.hpp>

int main(int argc, char **argv) {
  try {
    const weir::offline::recording recording(argc > 1 ? argv[1] : "tests/data/histories/capped_oom.pickle.zst");
    for (const weir_offline_info &info : recording.devices())
      std::printf("device %d: %llu entries\n", info.device, static_cast<unsigned long long>(info.events));
    const weir::offline::replayer replayer(recording);
    const weir_offline_result result = replayer.predict("expandable_segments:True");
    std::printf("%llu bytes at the peak\n", static_cast<unsigned long long>(result.peak_reserved));
    std::printf("memory ran out: %s\n", weir::offline::name(recording.explain().cause));
  } catch (const weir::error &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
