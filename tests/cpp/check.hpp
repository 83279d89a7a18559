/*
 * Assertions, and a stepped software device with two devices of 1 GiB behind a fault table. Not cmocka, whose failures
 * jump over destructors.
 */
#ifndef WEIR_TEST_CPP_CHECK_HPP
#define WEIR_TEST_CPP_CHECK_HPP

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "weir/weir.h"

namespace test {

inline int failures = 0;

inline bool check(bool is_true, const char *text, const char *file, int line) {
  if (!is_true) {
    std::fprintf(stderr, "%s:%d: failed: %s (the last error is \"%s\")\n", file, line, text, weir_last_error());
    failures++;
  }
  return is_true;
}

inline bool contains(const char *text, const char *part) {
  if (std::strstr(text, part))
    return true;
  std::fprintf(stderr, "\"%s\" does not contain \"%s\"\n", text, part);
  return false;
}

inline weir_driver *soft, *fault;

inline void need(weir_status status) {
  if (status == WEIR_OK)
    return;
  std::fprintf(stderr, "the test cannot run: %s: %s\n", weir_status_name(status), weir_last_error());
  std::exit(1);
}

// Runs a test on a fresh runtime. Afterwards nothing may be left on the device.
inline void run(const char *name, void (*body)()) {
  weir_soft_options options;
  weir_soft_options_init(&options);
  options.clock = WEIR_SOFT_STEPPED;
  options.devices = 2;
  options.bytes = 1ull << 30;
  need(weir_driver_open_soft(&options, &soft));
  need(weir_driver_open_fault(soft, &fault));
  need(weir_use_driver(fault));
  const int before = failures;
  body();
  weir_fault_clear(fault);
  need(weir_shutdown());
  weir_soft_census census;
  weir_soft_census_init(&census);
  if (weir_soft_get_census(soft, &census) == WEIR_OK) {
    const unsigned long left = census.contexts + census.streams + census.events + census.graphs + census.graph_execs +
                               census.modules + census.allocations + census.host_allocations;
    check(left == 0, "nothing is left on the device", name, 0);
  }
  need(weir_use_driver(nullptr));
  weir_driver_close(fault);
  weir_driver_close(soft);
  std::printf("%s: %s\n", failures == before ? "ok" : "failed", name);
}

} // namespace test

#define CHECK(condition) test::check((condition), #condition, __FILE__, __LINE__)

#endif
