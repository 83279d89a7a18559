/*
 * Two models that take turns on a device which has room for one of them: while one sleeps, its memory serves the other,
 * and its addresses stay.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <weir/weir.h>

enum { LAYERS = 6, MIB = 1 << 20 };

static weir_stream stream; /* the default stream of the device */

typedef struct model {
  weir_tag *tag;
  void *layers[LAYERS];
} model;

static void check(weir_status status) {
  if (status != WEIR_OK) {
    fprintf(stderr, "%s: %s\n", weir_status_name(status), weir_last_error());
    exit(1);
  }
}

static void print(const char *when, const model *models) {
  printf("%-28s", when);
  for (int i = 0; i < 2; i++) {
    weir_tag_info info;
    weir_tag_info_init(&info);
    check(weir_tag_get_info(models[i].tag, &info));
    printf("  %s is %s: %3" PRIu64 " MiB on the device, %3" PRIu64 " MiB on the host", info.name,
           weir_tag_state_name(info.state), info.reserved_bytes / MIB, info.kept_bytes / MIB);
  }
  printf("\n");
}

static void load(weir_allocator *allocator, model *m, const char *name, uint8_t byte) {
  check(weir_tag_open(allocator, 0, name, &m->tag));
  check(weir_tag_begin(m->tag));
  for (int i = 0; i < LAYERS; i++) {
    check(weir_allocator_alloc(allocator, 0, 16 * MIB, NULL, &m->layers[i]));
    check(weir_fill_async(m->layers[i], (uint8_t)(byte + i), 16 * MIB, stream));
  }
  check(weir_tag_end(m->tag));
}

static void check_bytes(const model *m, uint8_t byte) {
  for (int i = 0; i < LAYERS; i++) {
    uint8_t last;
    check(weir_copy(&last, (const char *)m->layers[i] + 16 * MIB - 1, 1, stream));
    if (last != byte + i) {
      fprintf(stderr, "layer %d has other bytes after the wake\n", i);
      exit(1);
    }
  }
}

int main(void) {
  weir_driver *driver;
  weir_allocator *allocator;
  model models[2];
  check(weir_init());
  check(weir_get_driver(&driver));
  check(weir_device_set_current(0));
  check(weir_stream_default(0, &stream));
  check(weir_allocator_create(driver, NULL, &allocator));
  check(weir_allocator_set_limit(allocator, 0, 128 * MIB)); /* as if the device had no more */

  load(allocator, &models[0], "actor", 10);
  check(weir_tag_sleep(models[0].tag, WEIR_TAG_KEEP, NULL));
  load(allocator, &models[1], "critic", 20);
  print("critic is loaded:", models);

  /* Both do not fit: the wake fails, and the tag is asleep as before. */
  if (weir_tag_wake(models[0].tag, NULL) != WEIR_ERROR_OUT_OF_MEMORY)
    return 1;
  printf("%s\n", weir_last_error());

  for (int turn = 0; turn < 4; turn++) {
    const model *awake = &models[turn % 2], *other = &models[1 - turn % 2];
    check(weir_tag_sleep(other->tag, WEIR_TAG_KEEP, NULL));
    check(weir_tag_wake(awake->tag, NULL));
    check_bytes(awake, turn % 2 ? 20 : 10);
    print(turn % 2 ? "the turn of critic:" : "the turn of actor:", models);
  }
  weir_allocator_destroy(allocator);
  return 0;
}
