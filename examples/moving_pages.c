/*
 * Holes in a segment, and a block that none of them can hold: without moving pages the allocator obtains new memory,
 * with them it maps the free pages where they are needed.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <weir/weir.h>

enum { BLOCKS = 16, MIB = 1 << 20 };

static void check(weir_status status) {
  if (status != WEIR_OK) {
    fprintf(stderr, "%s: %s\n", weir_status_name(status), weir_last_error());
    exit(1);
  }
}

static int64_t stat(weir_allocator *allocator, const char *name) {
  int64_t value;
  check(weir_allocator_stat(allocator, 0, name, &value));
  return value;
}

/* Frees every other block of 40 MiB, and asks for as much memory as lies free in the holes. */
static void run(weir_driver *driver, const char *conf) {
  weir_allocator_options options;
  weir_allocator *allocator;
  void *blocks[BLOCKS], *large;
  weir_allocator_options_init(&options);
  options.conf = conf;
  check(weir_allocator_create(driver, &options, &allocator));
  for (int i = 0; i < BLOCKS; i++)
    check(weir_allocator_alloc(allocator, 0, 40 * MIB, NULL, &blocks[i]));
  for (int i = 0; i < BLOCKS; i += 2)
    check(weir_allocator_free(allocator, blocks[i]));

  int64_t before = stat(allocator, "reserved_bytes.all.current");
  check(weir_allocator_alloc(allocator, 0, BLOCKS / 2 * 40ull * MIB, NULL, &large));
  int64_t after = stat(allocator, "reserved_bytes.all.current");
  printf("%s: reserved %" PRId64 " MiB before the large block, %" PRId64 " MiB after it\n", conf, before / MIB,
         after / MIB);
  printf("  %" PRId64 " pages made, %" PRId64 " moved (%" PRId64 " MiB), %" PRId64 " old mappings kept\n",
         stat(allocator, "moving.pages_made"), stat(allocator, "moving.pages_moved"),
         stat(allocator, "moving.moved_bytes") / MIB, stat(allocator, "moving.aliases"));

  /* Memory that is registered with a network card or NCCL stays where it is, even after its free. */
  check(weir_allocator_fix_pages(allocator, large));
  check(weir_allocator_free(allocator, large));
  for (int i = 1; i < BLOCKS; i += 2)
    check(weir_allocator_free(allocator, blocks[i]));
  weir_allocator_destroy(allocator);
}

int main(void) {
  weir_driver *driver;
  check(weir_device_set_current(0));
  check(weir_get_driver(&driver));
  run(driver, "expandable_segments:True");
  run(driver, "moving_pages:True");
  check(weir_shutdown());
  return 0;
}
