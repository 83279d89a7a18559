/*
 * Reads of bytes that were never written. They are known under valgrind, where this program runs itself again.
 */
#include "base/defined.h"
#include "guard_fixture.h"

#include <unistd.h>

#include "support/sanitized.h"
#include "weir/soft.h"

FIXTURE(.teardown = alloc_teardown)

#if defined VALGRIND_MAKE_MEM_UNDEFINED && !defined SANITIZED

/* ---- Kernels ---- */

/* Looks each byte up in a table: an address that depends on bytes that were never written is an error of memcheck. */
static weir_cu_result count_kernel(const weir_soft_launch *launch) {
  static const unsigned char table[256] = {0, 1, 2};
  const unsigned char *from;
  uint64_t *to, bytes, count = 0;
  memcpy(&to, launch->params[0], sizeof to);
  memcpy(&from, launch->params[1], sizeof from);
  memcpy(&bytes, launch->params[2], sizeof bytes);
  for (uint64_t i = 0; i < bytes; i++)
    count += table[from[i]];
  *to = count;
  return WEIR_CU_SUCCESS;
}

static void count_bytes(void *to, const void *from, uint64_t bytes, weir_cu_stream stream) {
  static const size_t sizes[] = {8, 8, 8};
  weir_cu_module module;
  weir_cu_function function;
  weir_soft_register_kernel(d, "count", count_kernel, 3, sizes); /* fails the second time */
  assert_cu(d->ModuleLoadData(d, &module, ".version 6.0\n.entry count(.param .u64 a, .param .u64 b, .param .u64 c)"));
  assert_cu(d->ModuleGetFunction(d, &function, module, "count"));
  void *params[] = {&to, &from, &bytes};
  assert_cu(d->LaunchKernel(d, function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
  soft_step_all();
  assert_cu(d->ModuleUnload(d, module));
}

static void to_host(const void *from, uint64_t bytes, weir_cu_stream stream) {
  static unsigned char host[4 * MIB];
  assert_cu(d->MemcpyAsync(d, (uint64_t)host, (uint64_t)from, bytes, stream));
  soft_step_all();
}

/* ---- Bugs ---- */

static void all_of_it(bool bug) {
  void *p = get(1000, NULL);
  if (!bug)
    write_bytes(p, 0, 1000, NULL);
  to_host(p, 1000, NULL);
  put(p);
}

static void the_last_byte(bool bug) {
  void *p = get(1000, NULL);
  write_bytes(p, 0, bug ? 999 : 1000, NULL);
  to_host(p, 1000, NULL);
  put(p);
}

static void a_hole(bool bug) {
  void *p = get(4096, NULL);
  write_bytes(p, 0, 100, NULL);
  write_bytes(p, bug ? 104 : 100, bug ? 3992 : 3996, NULL);
  to_host(p, 4096, NULL);
  put(p);
}

static void a_part(bool bug) {
  char *p = get(MIB, NULL);
  write_bytes(p, 0, MIB / 2, NULL);
  to_host(p + (bug ? MIB / 2 : 0), 64, NULL);
  put(p);
}

/* What the block had before is not its own. */
static void used_again(bool bug) {
  void *p = get(3000, NULL);
  write_bytes(p, 0, 3000, NULL);
  put(p);
  assert_ok(weir_allocator_empty_cache(allocator));
  p = get(3000, NULL);
  if (!bug)
    write_bytes(p, 0, 3000, NULL);
  to_host(p, 3000, NULL);
  put(p);
}

static void on_another_stream(bool bug) {
  weir_cu_stream stream = work_stream();
  void *p = get(3 * MIB, stream);
  write_bytes(p, 0, 3 * MIB - (bug ? 8 : 0), stream);
  to_host(p, 3 * MIB, stream);
  put(p);
}

static void through_a_copy(bool bug) {
  void *p = get(2000, NULL), *q = get(2000, NULL);
  write_bytes(p, 0, bug ? 1500 : 2000, NULL);
  assert_cu(d->MemcpyAsync(d, (uint64_t)q, (uint64_t)p, 2000, NULL));
  to_host(q, 2000, NULL);
  put(p);
  put(q);
}

static void by_a_kernel(bool bug) {
  void *to = get(8, NULL), *p = get(600, NULL);
  write_bytes(p, 0, bug ? 512 : 600, NULL);
  count_bytes(to, p, 600, NULL);
  put(p);
  put(to);
}

static void by_a_kernel_on_another_stream(bool bug) {
  weir_cu_stream stream = work_stream();
  void *to = get(8, stream), *p = get(70000, stream);
  if (!bug)
    write_bytes(p, 0, 70000, stream);
  count_bytes(to, p, 100, stream);
  put(p);
  put(to);
}

static void in_a_private_pool(bool bug) {
  weir_pool_id id = {0, 9};
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  void *p = get(2000, NULL);
  assert_ok(weir_pool_end(allocator, 0, id));
  write_bytes(p, bug ? 1 : 0, bug ? 1999 : 2000, NULL);
  to_host(p, 2000, NULL);
  put(p);
  assert_ok(weir_pool_release(allocator, 0, id));
}

static const planted bugs[] = {
    {.kind = "never_written", .run = all_of_it, .offset = 0},
    {.kind = "never_written", .run = the_last_byte, .offset = 999},
    {.kind = "never_written", .run = a_hole, .offset = 100},
    {.kind = "never_written", .run = a_part, .offset = MIB / 2},
    {.kind = "never_written", .run = used_again, .offset = 0},
    {.kind = "never_written", .run = on_another_stream, .offset = 3 * MIB - 8},
    {.kind = "never_written", .run = through_a_copy, .offset = 1500},
    {.kind = "never_written", .run = by_a_kernel, .offset = 512},
    {.kind = "never_written", .run = by_a_kernel_on_another_stream, .offset = 0},
    {.kind = "never_written", .run = in_a_private_pool, .offset = 0},
};

TEST(light) {
  if (!RUNNING_ON_VALGRIND)
    skip();
  run_planted("light", bugs, WEIR_COUNT_OF(bugs));
}

TEST(full) {
  if (!RUNNING_ON_VALGRIND)
    skip();
  run_planted("full", bugs, WEIR_COUNT_OF(bugs));
}

TEST(under_valgrind) {
  char self[512] = {0}, command[1024];
  if (RUNNING_ON_VALGRIND || system("valgrind --version > /dev/null 2>&1"))
    skip();
  assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  snprintf(command, sizeof command, "valgrind --log-file=/dev/null '%s' 2>&1 | grep -v '^weir: '", self);
  FILE *child = popen(command, "r");
  char text[32 * 1024] = {0};
  assert_non_null(child);
  text[fread(text, 1, sizeof text - 1, child)] = '\0';
  pclose(child);
  if (!strstr(text, "OK ] test_light") || !strstr(text, "OK ] test_full"))
    fail_msg("%s", text);
}

#else
TEST(under_valgrind) { skip(); }
#endif
