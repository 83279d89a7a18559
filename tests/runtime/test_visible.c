/*
 * CUDA_VISIBLE_DEVICES: parsing, and the effect on the runtime.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/runtime.h"

static const char *const uuids[] = {
    "GPU-9942190a-aa31-4ff1-4aa9-c388d80f85f1", "GPU-9e8d35e3-a134-0fdd-0e01-23811fdbd293",
    "GPU-e429a63e-c61c-4795-b757-5132caeb8e70", "GPU-eee1dfbc-0a0f-6ad8-5ff6-dc942a8b9d98",
    "GPU-bbcd6503-5150-4e92-c266-97cc4390d04e", "GPU-472ea263-58d7-410d-cc82-f7fdece5bd28",
    "GPU-e56257c4-947f-6a5b-7ec9-0f45567ccf4e", "GPU-1c20e77d-1c1a-d9ed-fe37-18b8466a78ad",
};
enum { COUNT = sizeof uuids / sizeof *uuids };

/* `expected` lists the ordinals as digits. */
static void expect(const char *text, const char *expected, int line) {
  int ordinals[WEIR_MAX_DEVICES];
  int visible = -1;
  char found[WEIR_MAX_DEVICES + 1] = "";
  assert_ok(weir_visible_devices(text, uuids, COUNT, ordinals, &visible));
  assert_in_range(visible, 0, COUNT);
  for (int i = 0; i < visible; i++) {
    assert_in_range(ordinals[i], 0, COUNT - 1);
    found[i] = (char)('0' + ordinals[i]);
  }
  found[visible] = '\0';
  if (strcmp(found, expected) == 0)
    return;
  print_error("\"%s\" leaves \"%s\", expected was \"%s\"\n", text ? text : "(unset)", found, expected);
  _fail(__FILE__, line);
}
#define LEAVES(expected, text) expect(text, expected, __LINE__)

FIXTURE(.prepare = runtime_need_device)

TEST(unset_is_all) { LEAVES("01234567", NULL); }

TEST(numbers) {
  LEAVES("0", "0");
  LEAVES("1", "1");
  LEAVES("10", "1,0");
  LEAVES("735", "7,3,5");
  LEAVES("01234567", "0,1,2,3,4,5,6,7");
}

TEST(spaces_and_signs) {
  LEAVES("12", " 1,2");
  LEAVES("12", "1 , 2 ");
  LEAVES("12", "\t1,\t2\n");
  LEAVES("12", "+1,+2");
  LEAVES("0", "-0");
  LEAVES("", "-1");
  LEAVES("0", "0,-1,2");
  LEAVES("", "--1");
  LEAVES("", "+");
  LEAVES("", "- 1");
}

/* As strtoul does: the leading number counts. */
TEST(what_follows_a_number) {
  LEAVES("1", "1gpu2");
  LEAVES("12", "1gpu2,2ampere");
  LEAVES("1", "1 2");
  LEAVES("0", "0x1"); /* not hexadecimal */
  LEAVES("1", "1.5");
}

TEST(garbage_ends_the_list) {
  LEAVES("", "");
  LEAVES("", " ");
  LEAVES("", ",");
  LEAVES("", ",0");
  LEAVES("", "none");
  LEAVES("", "gpu0");
  LEAVES("0", "0,");
  LEAVES("0", "0,,1");
  LEAVES("02", "0,2,seven,3");
  LEAVES("0", "0;1");
}

TEST(a_number_of_no_device_ends_the_list) {
  LEAVES("", "8");
  LEAVES("", "32");
  LEAVES("01", "0,1,8,2");
  LEAVES("", "99999999999999999999999999");
  LEAVES("", "4294967296"); /* is not 0 */
  LEAVES("", "18446744073709551616");
  LEAVES("3", "3,4294967297");
  LEAVES("7", "0000000000000000000000000007");
}

TEST(a_duplicate_leaves_nothing) {
  LEAVES("", "0,0");
  LEAVES("", "0,1,0");
  LEAVES("", "3,1,2,01");
  LEAVES("", "1,+1");
  LEAVES("", "0,1,1,nonsense");
  LEAVES("01", "0,1,nonsense,1"); /* the list ended before */
}

TEST(names) {
  LEAVES("0", "GPU-9942190a-aa31-4ff1-4aa9-c388d80f85f1");
  LEAVES("54", "GPU-472ea263-58d7-410d-cc82-f7fdece5bd28,GPU-bbcd6503-5150-4e92-c266-97cc4390d04e");
  LEAVES("1", "GPU-9e8d35e3");
  LEAVES("7", "GPU-1");
  LEAVES("23", "GPU-e4,GPU-ee");
}

TEST(an_ambiguous_name_ends_the_list) {
  LEAVES("", "GPU-");
  LEAVES("", "GPU-9");
  LEAVES("", "GPU-e,GPU-1");
  LEAVES("7", "GPU-1,GPU-e,GPU-b");
}

TEST(an_unknown_name_ends_the_list) {
  LEAVES("", "GPU-f00");
  LEAVES("4", "GPU-bbcd,GPU-f00,GPU-1");
  LEAVES("", "GPU-9942190a-aa31-4ff1-4aa9-c388d80f85f1x"); /* longer than the name */
  LEAVES("", "gpu-9942190a");
  LEAVES("4", "GPU-bbcd,0");
  LEAVES("4", "GPU-bbcd,MIG-1");
  LEAVES("4", "GPU-bbcd,");
  LEAVES("4", "GPU-bbcd, GPU-1");
  LEAVES("0", "0,GPU-bbcd");
}

TEST(an_empty_name_names_none) {
  int ordinals[WEIR_MAX_DEVICES], visible = -1;
  assert_ok(weir_visible_devices("GPU-", uuids, 1, ordinals, &visible)); /* although it would be unique */
  assert_int_equal(visible, 0);
  assert_ok(weir_visible_devices("GPU-9", uuids, 1, ordinals, &visible));
  assert_int_equal(visible, 1);
}

TEST(a_duplicate_name_leaves_nothing) {
  LEAVES("", "GPU-bbcd,GPU-bbcd");
  LEAVES("", "GPU-bbcd,GPU-1,GPU-bb");
}

TEST(mig_names_are_left_to_the_driver) {
  int ordinals[WEIR_MAX_DEVICES] = {77}, visible = -1;
  assert_error(NOT_SUPPORTED,
               weir_visible_devices("MIG-ea8a3b8a-4c3a-5dd5-a2a2-8b3d4b4a6d5e", uuids, COUNT, ordinals, &visible));
  assert_int_equal(visible, -1);
  assert_int_equal(ordinals[0], 77);
}

TEST(no_devices) {
  int ordinals[WEIR_MAX_DEVICES], visible = -1;
  assert_ok(weir_visible_devices(NULL, NULL, 0, ordinals, &visible));
  assert_int_equal(visible, 0);
  visible = -1;
  assert_ok(weir_visible_devices("0", NULL, 0, ordinals, &visible));
  assert_int_equal(visible, 0);
}

TEST(bad_arguments) {
  int ordinals[WEIR_MAX_DEVICES] = {77}, visible = -1;
  assert_error(INVALID_ARGUMENT, weir_visible_devices("0", uuids, -1, ordinals, &visible));
  assert_error(INVALID_ARGUMENT, weir_visible_devices("0", NULL, 1, ordinals, &visible));
  assert_error(INVALID_ARGUMENT, weir_visible_devices("0", uuids, COUNT, NULL, &visible));
  assert_error(INVALID_ARGUMENT, weir_visible_devices("0", uuids, COUNT, ordinals, NULL));
  assert_int_equal(visible, -1);
  assert_int_equal(ordinals[0], 77);
}

TEST(more_devices_than_maximum) {
  static char texts[100][48];
  const char *many[100];
  int ordinals[WEIR_MAX_DEVICES + 1], visible = -1;
  for (int i = 0; i < 100; i++) {
    snprintf(texts[i], sizeof texts[i], "GPU-%08x-0000-0000-0000-000000000000", (unsigned)i);
    many[i] = texts[i];
  }
  ordinals[WEIR_MAX_DEVICES] = 77;
  assert_ok(weir_visible_devices(NULL, many, 100, ordinals, &visible));
  assert_int_equal(visible, WEIR_MAX_DEVICES);
  assert_int_equal(ordinals[WEIR_MAX_DEVICES - 1], WEIR_MAX_DEVICES - 1);
  assert_int_equal(ordinals[WEIR_MAX_DEVICES], 77);

  char list[1000] = "";
  for (int i = 99; i >= 0; i--)
    snprintf(list + strlen(list), sizeof list - strlen(list), "%d,", i);
  assert_ok(weir_visible_devices(list, many, 100, ordinals, &visible));
  assert_int_equal(visible, WEIR_MAX_DEVICES);
  assert_int_equal(ordinals[0], 99);
  assert_int_equal(ordinals[WEIR_MAX_DEVICES], 77);
}

/* ---- Comparison with NVIDIA's driver, a process for each text. First, as no driver has been started yet ---- */

static void compare_counts(void *data) {
  const char *text = data;
  int before = -1, after = -1;
  choose_driver_by_environment();
  if (text)
    setenv("CUDA_VISIBLE_DEVICES", text, 1);
  else
    unsetenv("CUDA_VISIBLE_DEVICES");
  child_assert(weir_device_count(&before) == WEIR_OK);
  child_assert(weir_is_initialized() == 0);
  weir_status status = weir_init();
  child_assert(status == WEIR_OK || before == 0);
  child_assert(status == WEIR_ERROR_NO_DEVICE || before > 0);
  child_assert(weir_device_count(&after) == WEIR_OK);
  child_assert(before == after);
  if (status == WEIR_OK)
    child_assert(weir_shutdown() == WEIR_OK);
}

static char first_uuid[48];
static void find_uuid(void *data) {
  int out = *(int *)data;
  weir_device_properties p;
  weir_device_properties_init(&p);
  choose_driver_by_environment();
  child_assert(weir_device_get_properties(0, &p) == WEIR_OK);
  FILE *file = fdopen(out, "w");
  child_assert(file != NULL);
  child_assert(fwrite(p.uuid, 1, 40, file) == 40);
  child_assert(fclose(file) == 0);
  child_assert(weir_shutdown() == WEIR_OK);
}

TEST_SETUP(the_count_before_the_start_is_right, runtime_setup_none, runtime_teardown) {
  const char *inherited = getenv("CUDA_VISIBLE_DEVICES");
  if (!is_soft() && inherited && *inherited)
    WAIVE_TEST("CUDA_VISIBLE_DEVICES is set to \"%s\" here", inherited);
  FILE *file = tmpfile();
  assert_non_null(file);
  int number = fileno(file);
  in_process(find_uuid, &number);
  rewind(file);
  assert_int_equal(fread(first_uuid, 1, 40, file), 40);
  fclose(file);

  char cut[48], twice[100], wrong[48], with_number[48], with_comma[48];
  snprintf(cut, sizeof cut, "%.14s", first_uuid);
  snprintf(twice, sizeof twice, "%s,%s", first_uuid, first_uuid);
  snprintf(wrong, sizeof wrong, "%.39sz", first_uuid);
  snprintf(with_number, sizeof with_number, "%.40s,0", first_uuid);
  snprintf(with_comma, sizeof with_comma, "%.40s,", first_uuid);
  char *texts[] = {NULL,   "",      " ",     "0",    " 0",   "0 ",       "\t0",  "+0",        "-0",
                   "00",   "-1",    "0,0",   "0,+0", "0,-1", "0,x",      "x",    "32",        "1",
                   "0,1",  "0,32",  "0,1,0", ",0",   "0,",   "0,,0",     "0gpu", "0x0",       "0 1",
                   "GPU-", "MIG-1", "all",   cut,    twice,  first_uuid, wrong,  with_number, with_comma};
  bool all = true;
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    if (!succeeds_in_process(compare_counts, texts[i])) {
      print_error("that was with \"%s\"\n", texts[i] ? texts[i] : "(unset)");
      all = false;
    }
  assert_true(all);
}

/* ---- The effect on the runtime, with four software devices ---- */

static int count_with(const char *text) {
  int count = -1;
  if (text)
    setenv("CUDA_VISIBLE_DEVICES", text, 1);
  else
    unsetenv("CUDA_VISIBLE_DEVICES");
  assert_ok(weir_device_count(&count));
  return count;
}

TEST_SETUP(count_follows_the_variable_until_the_start, runtime_setup_four, runtime_teardown) {
  NEED_SOFT("NVIDIA's driver reads the variable once in a process");
  assert_int_equal(count_with(NULL), 4);
  assert_int_equal(count_with("32"), 0); /* PyTorch's test_lazy_init */
  assert_int_equal(weir_device_is_available(), 0);
  assert_int_equal(count_with("0"), 1);
  assert_int_equal(weir_device_is_available(), 1);
  assert_int_equal(count_with("1,0"), 2);
  assert_int_equal(count_with("0,0"), 0);
  assert_int_equal(count_with(""), 0);
  assert_int_equal(count_with("-1"), 0);
  assert_int_equal(count_with("3,2,x"), 2);
  assert_int_equal(count_with("MIG-1"), 0); /* it has none of these */
  assert_int_equal(count_with("2,1,0"), 3);
  assert_int_equal(weir_is_initialized(), 0);

  assert_ok(weir_init());
  assert_int_equal(count_with("0"), 3);
  assert_int_equal(count_with(NULL), 3);
  assert_ok(weir_device_set_current(2));
  assert_error(INVALID_DEVICE, weir_device_set_current(3));
  shut_down_clean();
  assert_int_equal(count_with(NULL), 4);
}

TEST_SETUP(devices_are_numbered_anew, runtime_setup_four, runtime_teardown) {
  NEED_SOFT("NVIDIA's driver reads the variable once in a process");
  char whole[4][48], text[48];
  for (int i = 0; i < 4; i++)
    uuid_of(i, whole[i]);
  assert_ok(weir_shutdown());

  setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
  assert_int_equal(devices(), 2);
  uuid_of(0, text);
  assert_string_equal(text, whole[1]);
  uuid_of(1, text);
  assert_string_equal(text, whole[0]);
  /* The runtime uses the numbers of the driver. */
  void *memory = device_memory(0, 1 << 20);
  weir_cu_device ordinal = -1;
  assert_cu(
      d->PointerGetAttribute(d, &ordinal, WEIR_CU_POINTER_ATTR_DEVICE_ORDINAL, (weir_cu_deviceptr)(uintptr_t)memory));
  assert_int_equal(ordinal, 0);
  assert_ok(weir_fill_async(memory, 9, 1 << 20, new_stream(0)));
  assert_filled(0, memory, 9, 1 << 20);
  free_device_memory(0, memory);
  assert_ok(weir_shutdown());

  char names[100];
  snprintf(names, sizeof names, "%s,%s", whole[3], whole[2]);
  setenv("CUDA_VISIBLE_DEVICES", names, 1);
  assert_int_equal(devices(), 2);
  uuid_of(0, text);
  assert_string_equal(text, whole[3]);
  uuid_of(1, text);
  assert_string_equal(text, whole[2]);
  unsetenv("CUDA_VISIBLE_DEVICES");
}

/* A copy between two devices that the variable renumbered. */
TEST_SETUP(copy_between_renumbered_devices, runtime_setup_four, runtime_teardown) {
  NEED_SOFT("NVIDIA's driver reads the variable once in a process");
  setenv("CUDA_VISIBLE_DEVICES", "3,1", 1);
  assert_int_equal(devices(), 2);
  void *a = device_memory(0, 1000), *b = device_memory(1, 1000);
  weir_stream stream = new_stream(0);
  unsigned long calls, faults;
  assert_ok(weir_fill_async(a, 4, 1000, stream));
  assert_ok(weir_copy_async(b, a, 1000, stream));
  assert_ok(weir_fault_counts(fault, WEIR_CALL_MemcpyPeerAsync, &calls, &faults));
  assert_int_equal(calls, 1); /* the devices were recognized as two */
  assert_ok(weir_stream_synchronize(stream));
  assert_filled(1, b, 4, 1000);
  assert_ok(weir_fill_async(a, 5, 1000, stream));
  assert_ok(weir_copy_peer_async(b, 1, a, 0, 1000, stream));
  assert_ok(weir_stream_synchronize(stream));
  assert_filled(1, b, 5, 1000);
  free_device_memory(0, a);
  free_device_memory(1, b);
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_SETUP(no_visible_device, runtime_setup_four, runtime_teardown) {
  NEED_SOFT("NVIDIA's driver reads the variable once in a process");
  setenv("CUDA_VISIBLE_DEVICES", "nothing", 1);
  int device = -7;
  assert_error_says(NO_DEVICE, "nothing", weir_init());
  assert_error(NO_DEVICE, weir_device_get_current(&device));
  assert_int_equal(device, -7);
  assert_int_equal(weir_is_initialized(), 0);
  unsetenv("CUDA_VISIBLE_DEVICES");
  assert_ok(weir_device_get_current(&device));
  assert_int_equal(device, 0);
}
