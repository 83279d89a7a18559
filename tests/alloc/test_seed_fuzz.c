/*
 * PyTorch's test_allocator_fuzz: ten thousand operations that allocate a block of 2 to 200 MB, free one or empty the
 * cache, with data in the blocks that is checked at the end. Only both ends of a block are written, because the machine
 * may be small.
 */
#include "support/alloc.h"

enum { MAX = 600, EDGE = 1024 };

typedef struct tensor {
  int *memory;
  size_t count;
  int value;
} tensor;

static tensor tensors[MAX];
static int tensor_count;
static size_t total; /* elements */

static void fill(const tensor *t) {
  assert_cu(d->MemsetD32Async(d, (weir_cu_deviceptr)t->memory, (unsigned)t->value, EDGE, NULL));
  assert_cu(d->MemsetD32Async(d, (weir_cu_deviceptr)(t->memory + t->count - EDGE), (unsigned)t->value, EDGE, NULL));
}

static void alloc_one(int value) {
  size_t count = 2 * MIB / 4 + soft_random(198 * MIB / 4);
  void *memory = NULL;
  assert_ok(weir_allocator_alloc(allocator, 0, count * 4, NULL, &memory));
  assert_true(tensor_count < MAX);
  tensors[tensor_count] = (tensor){memory, count, value};
  fill(&tensors[tensor_count++]);
  total += count;
}

static void free_one(void) {
  int i = (int)soft_random((uint64_t)tensor_count);
  tensor t = tensors[i];
  tensors[i] = tensors[--tensor_count];
  assert_cu(d->StreamSynchronize(d, NULL));
  for (size_t k = 0; k < EDGE; k++) {
    assert_int_equal(t.memory[k], t.value);
    assert_int_equal(t.memory[t.count - 1 - k], t.value);
  }
  assert_ok(weir_allocator_free(allocator, t.memory));
  total -= t.count;
}

static void fuzz(const char *conf) {
  soft_seed(123);
  alloc_open(conf, 8 * GIB);
  tensor_count = 0;
  total = 0;
  for (int i = 0; i < 10000; i++) {
    while (total >= GIB / 4)
      free_one();
    uint64_t choice = soft_random(tensor_count ? 21 : 11);
    if (choice < 10)
      alloc_one(i);
    else if (choice == 10)
      assert_ok(weir_allocator_empty_cache(allocator));
    else
      free_one();
    if (i % 20 == 0)
      assert_valid();
  }
  while (tensor_count)
    free_one();
  empty_cache();
  assert_int_equal(reserved(), 0);
  alloc_close();
}

FIXTURE(.teardown = alloc_teardown)

TEST(fixed) { fuzz(NULL); }

TEST(split_limit) { fuzz("max_split_size_mb:100"); }

TEST(expandable) { fuzz("expandable_segments:True"); }
