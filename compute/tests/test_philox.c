/*
 * Philox4x32-10: known answers, and the order of cuRAND's counters.
 */
#include "kernels/philox.h"

#include "support/check.h"

static void assert_words(weir__philox_block block, unsigned a, unsigned b, unsigned c, unsigned d) {
  assert_int_equal(block.words[0], a);
  assert_int_equal(block.words[1], b);
  assert_int_equal(block.words[2], c);
  assert_int_equal(block.words[3], d);
}

/* The known answers of Random123 for ten rounds. */
TEST(known_answers) {
  weir__philox_block zeros = {{0, 0, 0, 0}}, ones = {{~0u, ~0u, ~0u, ~0u}};
  weir__philox_block pi = {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}};
  assert_words(weir__philox4x32(zeros, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  assert_words(weir__philox4x32(ones, ~0u, ~0u), 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd);
  assert_words(weir__philox4x32(pi, 0xa4093822, 0x299f31d0), 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
}

/* The seed is the key, the offset the lower and the subsequence the upper half of the counter, low words first. */
TEST(counters) {
  assert_words(weir__philox_at(0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  weir__philox_block pi = weir__philox_at(0x299f31d0a4093822ull, 0x0370734413198a2eull, 0x05a308d3243f6a88ull * 4);
  weir__philox_block same =
      weir__philox4x32((weir__philox_block){{0x243f6a88, 0x05a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0);
  assert_words(pi, same.words[0], same.words[1], same.words[2], same.words[3]);
}

TEST(floats) {
  assert_true(weir__philox_float(0) == 0x1p-33f);
  assert_true(weir__philox_float(1) == 0x1.8p-32f);
  assert_true(weir__philox_float(~0u) == 1.0f);
  assert_true(weir__philox_double(0, 0) == 0x1p-54);
  assert_true(weir__philox_double(~0u, 0) == 0xFFFFFFFFp-53 + 0x1p-54);
  assert_true(weir__philox_double(0, 1) == 0x1p-32 + 0x1p-54);
  assert_true(weir__philox_double(0x1FFFFF, ~0u) == 1.0);
  assert_int_equal(weir__philox_long(1, 2), 0x100000002ull);
}
