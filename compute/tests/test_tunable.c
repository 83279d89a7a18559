/*
 * Tunable operations: which implementation is chosen, exactly in stepped time; settings, results and files.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/tunable.h"
#include "support/length.h"
#include "support/runtime.h"
#include "tests/numbers.h"
#include "weir/compute/array.h"
#include "weir/compute/blas.h"
#include "weir/compute/kernel.h"
#include "weir/compute/tunable.h"
#include "weir/copy.h"
#include "weir/graph.h"

static weir_stream stream;
static char folder[64], path[128];

static void reset_settings(void) {
  weir_tunable_set_enabled(1);
  weir_tunable_set_tuning(1);
  weir_tunable_set_record_untuned(0);
  weir_tunable_set_max_duration(30);
  weir_tunable_set_max_iterations(100);
  weir_tunable_set_max_warmup_duration(0);
  weir_tunable_set_max_warmup_iterations(0);
  weir_tunable_set_rotating_buffer_size(0);
  weir_tunable_set_write_results(1);
  assert_ok(weir_tunable_set_numerical_check(0, 1e-5, 1e-5));
}

static int setup(void **state) {
  int result = runtime_setup(state);
  strcpy(folder, "/tmp/weir-tunable-XXXXXX");
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/results.csv", folder);
  reset_settings();
  assert_ok(weir_tunable_set_filename(path, 0));
  stream = new_stream(0);
  return result;
}

static void remove_folder(void) {
  static const char *const names[] = {"results.csv", "other", "of_0.csv", "of_1.csv", "tunableop_untuned0.csv"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char name[128];
    snprintf(name, sizeof name, "%s/%s", folder, names[i]);
    unlink(name);
  }
  assert_int_equal(rmdir(folder), 0);
}

static int teardown(void **state) {
  assert_ok(weir_blas_clear_workspaces());
  weir_tunable_set_enabled(0);
  int result = runtime_teardown(state);
  remove_folder();
  return result;
}

static void prepare(void) {
  runtime_need_device();
  unsetenv("PYTORCH_TUNABLEOP_ENABLED");
}

FIXTURE(.prepare = prepare, .setup = setup, .teardown = teardown)

/* ---- An operation whose implementations take a given time ---- */

/* In real time a busy machine may delay any of them. */
#define NEED_EXACT_TIME()                                                                                              \
  do {                                                                                                                 \
    if (is_soft() && !is_stepped())                                                                                    \
      WAIVE_TEST("needs durations that are exact");                                                                    \
  } while (0)

enum { COUNT = 64 };

typedef struct implementation {
  double milliseconds;
  uint64_t cycles; /* instead, so that nothing is asked of the device */
  uint32_t value;  /* that it writes to all words of its output */
  bool is_unsupported;
  atomic_int runs, own_runs; /* of these, on the memory of the call */
  const void *own;
  void *seen[2000]; /* the output of each run */
} implementation;

static weir_status run(const weir_tunable_operand *operands, int count, const void *arguments, weir_stream on,
                       void *context) {
  implementation *i = context;
  (void)arguments;
  assert_int_equal(count, 1);
  if (i->is_unsupported)
    return WEIR_ERROR_NOT_SUPPORTED;
  int number = i->runs++;
  if (number < (int)(sizeof i->seen / sizeof *i->seen))
    i->seen[number] = operands[0].data;
  i->own_runs += operands[0].data == i->own;
  weir_status status = i->milliseconds > 0 ? weir_stream_spin(on, cycles_of(i->milliseconds))
                       : i->cycles         ? weir_stream_spin(on, i->cycles)
                                           : WEIR_OK;
  return status ? status : weir_fill32_async(operands[0].data, i->value, operands[0].bytes / 4, on);
}

typedef struct operation {
  weir_tunable_op *op;
  weir_tunable_operand operand;
  weir_tunable_call call;
} operation;

static operation new_operation(implementation *list, int count) {
  operation o = {.operand = {device_memory(0, COUNT * 4), COUNT * 4, 1, WEIR_INT32}};
  assert_ok(weir_tunable_op_create("Spin", run, &list[0], &o.op));
  for (int i = 1; i < count; i++) {
    char name[16];
    snprintf(name, sizeof name, "Spin_%d", i);
    assert_ok(weir_tunable_op_add(o.op, name, run, &list[i]));
  }
  for (int i = 0; i < count; i++)
    list[i].own = o.operand.data;
  weir_tunable_call_init(&o.call);
  o.call.params = "n_64";
  o.call.operand_count = 1;
  o.call.stream = stream;
  return o;
}

static weir_status run_operation(operation *o) {
  o->call.operands = &o->operand;
  return weir_tunable_op_run(o->op, &o->call);
}

static void end_operation(operation *o) {
  assert_ok(weir_stream_synchronize(stream));
  free_device_memory(0, o->operand.data);
  weir_tunable_op_destroy(o->op);
}

static int word_of(operation *o) {
  uint32_t words[COUNT];
  assert_ok(weir_copy(words, o->operand.data, sizeof words, stream));
  for (int i = 1; i < COUNT; i++)
    assert_int_equal(words[i], words[0]);
  return (int)words[0];
}

/* The only result of a device. */
static void assert_result(int device, const char *op, const char *params, const char *solution) {
  weir_tunable_result *results;
  size_t count;
  assert_ok(weir_tunable_list_results(device, &results, &count));
  assert_int_equal(count, 1);
  assert_string_equal(results[0].op, op);
  assert_string_equal(results[0].params, params);
  assert_string_equal(results[0].solution, solution);
  weir_tunable_free(results);
}

static size_t result_count(int device) {
  weir_tunable_result *results;
  size_t count;
  assert_ok(weir_tunable_list_results(device, &results, &count));
  weir_tunable_free(results);
  return count;
}

TEST(fastest_is_chosen) {
  NEED_EXACT_TIME();
  implementation list[] = {{.milliseconds = 1, .value = 1},
                           {.milliseconds = 3, .value = 2},
                           {.milliseconds = 0.25, .value = 3},
                           {.milliseconds = 0.3, .value = 4, .is_unsupported = true},
                           {.milliseconds = 2, .value = 5}};
  operation o = new_operation(list, 5);
  assert_ok(run_operation(&o));
  assert_int_equal(word_of(&o), 3);
  assert_result(0, "Spin", "n_64", "Spin_2");
  /* Only the chosen one wrote to the memory of the call, and runs from then on. */
  assert_int_equal(list[0].own_runs + list[1].own_runs + list[4].own_runs, 0);
  assert_int_equal(list[2].own_runs, 1);
  int others = list[0].runs + list[1].runs + list[4].runs;
  assert_ok(run_operation(&o));
  assert_int_equal(list[2].own_runs, 2);
  assert_int_equal(list[0].runs + list[1].runs + list[4].runs, others);
  /* Other parameters are tuned anew, and without tuning the default runs. */
  weir_tunable_set_tuning(0);
  o.call.params = "n_65";
  assert_ok(run_operation(&o));
  assert_int_equal(word_of(&o), 1);
  assert_int_equal(result_count(0), 1);
  weir_tunable_set_enabled(0);
  o.call.params = "n_64";
  assert_ok(run_operation(&o));
  assert_int_equal(word_of(&o), 1);
  end_operation(&o);
}

/* In stepped time a spin takes its cycles and one microsecond, and a fill its bytes and one microsecond. */
TEST(exact_times) {
  NEED_STEPPED();
  implementation list[] = {{.milliseconds = 0.5},
                           {.milliseconds = 0.499},
                           {.milliseconds = 0.499},
                           {.milliseconds = 0.6},
                           {.milliseconds = 5}};
  operation o = new_operation(list, 5);
  weir_tunable_set_max_duration(6); /* of 0.502 ms are 11 */
  assert_ok(run_operation(&o));
  weir_tunable_result *results;
  size_t count;
  assert_ok(weir_tunable_list_results(0, &results, &count));
  assert_string_equal(results[0].solution, "Spin_1"); /* the first of two that are equal */
  double fill = COUNT * 4 / 100e9 * 1e3;
  assert_true(fabs(results[0].milliseconds - (0.499 + 0.002 + fill)) < 2e-6);
  weir_tunable_free(results);
  /* The first run, 2 + 3 and 2 + 10 for an estimate, and 2 + 6 / 0.502 for the time. */
  assert_int_equal(list[0].runs, 1 + 5 + 12 + 2 + 11);
  assert_int_equal(list[1].runs, 1 + 5 + 12 + 2 + 11 + 1); /* and the operation itself */
  assert_int_equal(list[2].runs, 1 + 5 + 12 + 2 + 11);
  assert_int_equal(list[3].runs, 1 + 5 + 12); /* above 1.15 times the best */
  assert_int_equal(list[4].runs, 1 + 5);      /* above 1.5 times the best */
  end_operation(&o);
}

TEST(iterations) {
  NEED_STEPPED();
  static const struct {
    int duration, iterations, warmup_duration, warmup_iterations, estimates, warmups, timed;
  } rounds[] = {{0, 0, 0, 0, 13, 0, 100},   {0, 7, 0, 0, 3 + 7, 0, 7},   {30, 5, 0, 0, 3 + 5, 0, 5},
                {5, 0, 0, 0, 13, 0, 4},     {1, 0, 0, 0, 13, 0, 1},      {30, 3, 0, 9, 3 + 3, 9, 3},
                {30, 3, 5, 0, 3 + 3, 4, 3}, {30, 3, 50, 9, 3 + 3, 9, 3}, {30, 1, 3, 9, 1 + 1, 2, 1},
                {-5, -1, 0, 0, 13, 0, 100}};
  for (size_t r = 0; r < sizeof rounds / sizeof *rounds; r++) {
    implementation list[] = {{.milliseconds = 1.1}};
    operation o = new_operation(list, 1);
    weir_tunable_set_max_duration(rounds[r].duration);
    weir_tunable_set_max_iterations(rounds[r].iterations);
    weir_tunable_set_max_warmup_duration(rounds[r].warmup_duration);
    weir_tunable_set_max_warmup_iterations(rounds[r].warmup_iterations);
    assert_ok(run_operation(&o));
    assert_int_equal(list[0].runs, 1 + 3 * 2 + rounds[r].estimates + rounds[r].warmups + rounds[r].timed + 1);
    end_operation(&o);
    assert_ok(weir_tunable_forget(0));
    unlink(path);
  }
}

TEST(rotating_buffers) {
  NEED_SOFT("counts runs");
  for (int size = 0; size < 3; size++) {
    implementation list[] = {{.value = 1}, {.value = 2}};
    operation o = new_operation(list, 2);
    free_device_memory(0, o.operand.data);
    o.operand.bytes = 300 << 10;
    o.operand.data = device_memory(0, o.operand.bytes);
    list[0].own = list[1].own = o.operand.data;
    weir_tunable_set_rotating_buffer_size(size);
    weir_tunable_set_max_iterations(20);
    assert_ok(run_operation(&o));
    int copies = 1;
    while (copies < list[0].runs && list[0].seen[copies] != list[0].seen[0])
      copies++;
    assert_int_equal(copies, size ? (size << 20) / (300 << 10) + 1 : 1);
    for (int i = copies; i < list[0].runs - 1; i++)
      assert_ptr_equal(list[0].seen[i], list[0].seen[i - copies]);
    uint64_t bytes;
    assert_ok(weir_tunable_get_rotating_buffer_size(0, &bytes));
    assert_int_equal(bytes, (uint64_t)size << 20);
    end_operation(&o);
    assert_ok(weir_tunable_forget(0));
    unlink(path);
  }
  weir_device_properties properties;
  uint64_t bytes;
  weir_device_properties_init(&properties);
  assert_ok(weir_device_get_properties(0, &properties));
  weir_tunable_set_rotating_buffer_size(-1);
  assert_ok(weir_tunable_get_rotating_buffer_size(0, &bytes));
  assert_int_equal(bytes, properties.l2_cache_size);
}

TEST(numerical_check) {
  NEED_EXACT_TIME();
  implementation list[] = {{.milliseconds = 2, .value = 1000},
                           {.milliseconds = 0.1, .value = 1020},
                           {.milliseconds = 0.5, .value = 1001},
                           {.milliseconds = 0.3, .value = 3000}};
  operation o = new_operation(list, 4);
  assert_ok(weir_tunable_set_numerical_check(1, 0.5, 1e-3));
  assert_ok(run_operation(&o));
  assert_result(0, "Spin", "n_64", "Spin_2");
  assert_int_equal(word_of(&o), 1001);
  assert_ok(weir_tunable_forget(0));
  unlink(path);
  assert_ok(weir_tunable_set_numerical_check(1, 1e-5, 1e-5));
  assert_ok(run_operation(&o));
  assert_result(0, "Spin", "n_64", "Default");
  assert_ok(weir_tunable_forget(0));
  unlink(path);
  assert_ok(weir_tunable_set_numerical_check(0, 1e-5, 1e-5));
  assert_ok(run_operation(&o));
  assert_result(0, "Spin", "n_64", "Spin_1");
  end_operation(&o);
  int on;
  double atol, rtol;
  assert_error_says(INVALID_ARGUMENT, "Numerical check tolerances must be positive",
                    weir_tunable_set_numerical_check(1, 0, 1));
  assert_error(INVALID_ARGUMENT, weir_tunable_set_numerical_check(1, 1, NAN));
  assert_ok(weir_tunable_set_numerical_check(1, 2, 3));
  weir_tunable_get_numerical_check(&on, &atol, &rtol);
  assert_true(on == 1 && atol == 2 && rtol == 3);
}

/* A default that fails is not tuned, and its error is that of the call. */
TEST(failing_default) {
  collect_messages();
  implementation list[] = {{.is_unsupported = true}, {.value = 1}};
  operation o = new_operation(list, 2);
  assert_int_equal(run_operation(&o), WEIR_ERROR_NOT_SUPPORTED);
  assert_int_equal(messages_with(WEIR_LOG_WARN, "Spin(n_64) could not be tuned, Default is used"), 1);
  assert_int_equal(result_count(0), 0);
  list[0].is_unsupported = false;
  assert_ok(run_operation(&o)); /* it is not tried again */
  assert_int_equal(list[0].runs, 1);
  assert_int_equal(result_count(0), 0);
  end_operation(&o);
}

/* ---- Captures ---- */

TEST(capture) {
  NEED_EXACT_TIME();
  implementation list[] = {{.milliseconds = 1, .value = 1}, {.milliseconds = 0.1, .value = 2}};
  operation o = new_operation(list, 2);
  weir_graph *graph;
  assert_ok(weir_fill32_async(o.operand.data, 0, COUNT, stream));
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_stream_set_current(stream));
  for (int round = 0; round < 2; round++) {
    assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
    assert_ok(run_operation(&o));
    assert_ok(weir_graph_end_capture(graph));
    assert_int_equal(list[0].runs + list[1].runs, round ? list[0].runs + list[1].runs : 1);
    assert_int_equal(word_of(&o), round ? 2 : 0);
    assert_ok(weir_graph_replay(graph));
    assert_int_equal(word_of(&o), round ? 2 : 1); /* the default, then the fastest */
    assert_int_equal(result_count(0), (size_t)round);
    assert_ok(weir_graph_reset(graph));
    assert_ok(run_operation(&o)); /* tunes */
    assert_int_equal(result_count(0), 1);
  }
  weir_graph_destroy(graph);
  end_operation(&o);
}

/* ---- Threads and devices ---- */

static operation shared;

static void *run_shared(void *unused) {
  (void)unused;
  weir_tunable_call call = shared.call;
  call.operands = &shared.operand;
  for (int i = 0; i < 5; i++)
    assert_ok(weir_tunable_op_run(shared.op, &call));
  return NULL;
}

/* One thread searches while the others wait, and all use the result. */
TEST(two_threads_tune) {
  NEED_SOFT("counts runs");
  implementation list[] = {{.milliseconds = 0.2, .value = 1}, {.milliseconds = 0.05, .value = 2}};
  shared = new_operation(list, 2);
  weir_tunable_set_max_duration(0);
  weir_tunable_set_max_iterations(5);
  pthread_t threads[4];
  for (int i = 0; i < 4; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, run_shared, NULL), 0);
  for (int i = 0; i < 4; i++)
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  assert_int_equal(result_count(0), 1);
  assert_int_equal(list[0].runs - list[0].own_runs, 1 + 2 + 3 + 2 + 5 + 2 + 5); /* of one search */
  assert_int_equal(list[0].own_runs + list[1].own_runs, 4 * 5);
  assert_true(!list[0].own_runs || !list[1].own_runs);
  if (is_stepped())
    assert_result(0, "Spin", "n_64", "Spin_1");
  assert_int_equal(word_of(&shared), list[1].own_runs ? 2 : 1);
  end_operation(&shared);
}

TEST(devices) {
  NEED_EXACT_TIME();
  NEED_TWO_DEVICES();
  char name[128], other[128];
  snprintf(name, sizeof name, "%s/of_%%d.csv", folder);
  assert_ok(weir_tunable_set_filename(name, 1));
  for (int device = 0; device < 2; device++) {
    implementation list[] = {{.milliseconds = device ? 2 : 0.1, .value = 1}, {.milliseconds = 0.5, .value = 2}};
    operation o = new_operation(list, 2);
    free_device_memory(0, o.operand.data);
    o.operand.data = device_memory(device, o.operand.bytes);
    o.call.stream = new_stream(device);
    assert_ok(run_operation(&o));
    assert_ok(weir_stream_synchronize(o.call.stream));
    free_device_memory(device, o.operand.data);
    weir_tunable_op_destroy(o.op);
    assert_result(device, "Spin", "n_64", device ? "Spin_1" : "Default");
    snprintf(name, sizeof name, "%s/of_%d.csv", folder, device);
    assert_ok(weir_tunable_get_filename(device, other, sizeof other, NULL));
    assert_string_equal(other, name);
    assert_int_equal(access(name, R_OK), 0);
  }
  assert_error(INVALID_DEVICE, weir_tunable_read_file(devices(), NULL));
  /* A file that both share has the rows of both. */
  assert_ok(weir_tunable_set_filename(path, 0));
  assert_ok(weir_tunable_write_file(1, NULL));
  assert_ok(weir_tunable_forget(1));
  assert_result(1, "Spin", "n_64", "Spin_1");
}

/* ---- Files ---- */

static void write_text(const char *name, const char *text, size_t bytes) {
  FILE *file = fopen(name, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(text, 1, bytes, file), bytes);
  assert_int_equal(fclose(file), 0);
}

static char *read_text(const char *name) {
  static char text[1 << 16];
  FILE *file = fopen(name, "rb");
  assert_non_null(file);
  size_t bytes = fread(text, 1, sizeof text - 1, file);
  text[bytes] = 0;
  fclose(file);
  return text;
}

/* The validator lines of this machine, and then the rows. */
static char *with_validators(const char *rows) {
  static char text[1 << 16];
  weir_tunable_validator *list;
  size_t count, length = 0;
  assert_ok(weir_tunable_list_validators(0, &list, &count));
  for (size_t i = 0; i < count; i++)
    length += (size_t)snprintf(text + length, sizeof text - length, "Validator,%s,%s\n", list[i].key, list[i].value);
  snprintf(text + length, sizeof text - length, "%s", rows);
  weir_tunable_free(list);
  return text;
}

static void write_rows(const char *rows) {
  char *text = with_validators(rows);
  write_text(path, text, strlen(text));
}

TEST(file_is_written_and_read) {
  NEED_EXACT_TIME();
  implementation list[] = {{.milliseconds = 1, .value = 1}, {.milliseconds = 0.25, .value = 2}};
  operation o = new_operation(list, 2);
  assert_ok(run_operation(&o));
  char *text = read_text(path);
  assert_memory_equal(text, "Validator,", 10);
  char *row = strstr(text, "Spin,n_64,Spin_1,0.");
  assert_non_null(row);
  if (is_stepped())
    assert_string_equal(row, "Spin,n_64,Spin_1,0.252002\n");
  char kept[1024];
  snprintf(kept, sizeof kept, "%s", text);

  /* The file is read when the device is used again, and nothing is timed. */
  assert_ok(weir_tunable_forget(0));
  int runs = list[0].runs;
  assert_ok(run_operation(&o));
  assert_int_equal(list[0].runs, runs);
  assert_int_equal(word_of(&o), 2);

  /* Written again, it is the same; and it goes elsewhere if told so. */
  assert_ok(weir_tunable_write_file(0, NULL));
  assert_string_equal(read_text(path), kept);
  char other[128];
  snprintf(other, sizeof other, "%s/other", folder);
  assert_ok(weir_tunable_write_file(0, other));
  assert_string_equal(read_text(other), kept);
  assert_error(SYSTEM, weir_tunable_write_file(0, "/nowhere/at/all"));
  assert_error(SYSTEM, weir_tunable_read_file(0, "/nowhere/at/all"));
  assert_error(SYSTEM, weir_tunable_read_file(0, folder));

  /* Without writing, a new result stays in memory. */
  weir_tunable_set_write_results(0);
  o.call.params = "n_65";
  assert_ok(run_operation(&o));
  assert_string_equal(read_text(path), kept);
  weir_tunable_set_write_results(1);
  end_operation(&o);
  assert_ok(weir_shutdown());
  assert_non_null(strstr(read_text(path), "Spin,n_65,Spin_1,"));
}

TEST(stale_files) {
  collect_messages();
  write_rows("Spin,n_64,Spin_1,0.1\n");
  assert_ok(weir_tunable_read_file(0, NULL));
  assert_result(0, "Spin", "n_64", "Spin_1");
  /* Another value here, one that is missing in the file, and one that is missing here. */
  assert_ok(weir_tunable_set_validator("PT_VERSION", "2.11.0"));
  assert_error_says(BAD_STATE, "are stale: the validator PT_VERSION, here \"2.11.0\", is not in the file",
                    weir_tunable_read_file(0, NULL));
  write_rows("Spin,n_64,Spin_2,0.1\n");
  assert_ok(weir_tunable_set_validator("PT_VERSION", "2.12.0"));
  assert_error_says(BAD_STATE, "the validator PT_VERSION is \"2.11.0\" in the file and \"2.12.0\" here",
                    weir_tunable_read_file(0, NULL));
  assert_ok(weir_tunable_set_validator("PT_VERSION", NULL));
  assert_error_says(BAD_STATE, "the validator PT_VERSION, \"2.11.0\" in the file, does not exist here",
                    weir_tunable_read_file(0, NULL));
  assert_result(0, "Spin", "n_64", "Spin_1");
  write_text(path, "Spin,n_64,Spin_2\n", 17);
  assert_error_says(BAD_STATE, "is not in the file", weir_tunable_read_file(0, NULL));
  /* A stale file is not used, and replaced by the first new result. */
  assert_ok(weir_tunable_forget(0));
  implementation list[] = {{.value = 1}};
  operation o = new_operation(list, 1);
  assert_ok(run_operation(&o));
  assert_int_equal(messages_with(WEIR_LOG_WARN, "tuning results are not used: the results in"), 1);
  assert_result(0, "Spin", "n_64", "Default");
  assert_ok(weir_tunable_read_file(0, NULL));
  assert_null(strstr(read_text(path), "Spin_2"));
  end_operation(&o);
  assert_error(INVALID_ARGUMENT, weir_tunable_set_validator("", "1"));
  assert_error(INVALID_ARGUMENT, weir_tunable_set_validator("A,B", "1"));
  assert_error(INVALID_ARGUMENT, weir_tunable_set_validator("A", "1\n"));
}

/* Rows that another process has added to the file since this one read it are kept. */
TEST(rows_of_other_processes) {
  collect_messages();
  implementation list[] = {{.value = 1}};
  operation o = new_operation(list, 1);
  assert_ok(run_operation(&o));
  write_rows("Spin,n_64,Spin_7,0.1\nSpin,n_1,Spin_8,0.25\nGemm,n_64,Spin_9,0.5\nSpin,n_1,Spin_6,1\nnothing\n");
  o.call.params = "n_65";
  assert_ok(run_operation(&o));
  const char *text = read_text(path);
  assert_non_null(strstr(text, "Spin,n_64,Default,")); /* the results of this process take precedence */
  assert_non_null(strstr(text, "Spin,n_65,Default,"));
  assert_non_null(strstr(text, "Spin,n_1,Spin_8,0.25\nGemm,n_64,Spin_9,0.5\n"));
  assert_null(strstr(text, "Spin_7"));
  assert_null(strstr(text, "Spin_6"));
  assert_null(strstr(text, "nothing"));
  assert_int_equal(result_count(0), 2);

  /* So they are if the program has the device's file written, and not in a file that it names. */
  assert_ok(weir_tunable_write_file(0, NULL));
  assert_non_null(strstr(read_text(path), "Spin,n_1,Spin_8,0.25\n"));
  char other[128];
  snprintf(other, sizeof other, "%s/other", folder);
  text = with_validators("Spin,n_1,Spin_8,0.25\n");
  write_text(other, text, strlen(text));
  assert_ok(weir_tunable_write_file(0, other));
  assert_null(strstr(read_text(other), "Spin_8"));

  /* A file with other validators, or one that is damaged, is replaced. */
  static const char *const replaced[] = {"Validator,DEVICE,another\nSpin,n_1,Spin_8,0.25\n", "Spin,n_1,Spin_8,0.25\n",
                                         ""};
  for (size_t i = 0; i < sizeof replaced / sizeof *replaced; i++) {
    write_text(path, replaced[i], strlen(replaced[i]));
    assert_ok(weir_tunable_write_file(0, NULL));
    assert_null(strstr(read_text(path), "Spin_8"));
    assert_non_null(strstr(read_text(path), "Spin,n_65,Default,"));
  }
  write_text(path, "Spin\0,n_1", 9);
  assert_ok(weir_tunable_write_file(0, NULL));
  assert_int_equal(strlen(read_text(path)), strlen(read_text(other)));
  end_operation(&o);
}

enum { ADDING_THREADS = 4, ADDED = 3 };

static void *add_results(void *number) {
  char params[32];
  for (int i = 0; i < ADDED; i++) {
    snprintf(params, sizeof params, "t_%d_%d", *(const int *)number, i);
    weir__tunable_add(0, "Spin", params, "Default", 1);
  }
  return NULL;
}

/* A result that a thread adds while another one writes the file is in the file in the end. */
TEST(threads_add_results) {
  for (int round = 0; round < 40; round++) {
    pthread_t threads[ADDING_THREADS];
    int numbers[ADDING_THREADS];
    for (int i = 0; i < ADDING_THREADS; i++) {
      numbers[i] = i;
      assert_int_equal(pthread_create(&threads[i], NULL, add_results, &numbers[i]), 0);
    }
    for (int i = 0; i < ADDING_THREADS; i++)
      assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_ok(weir_tunable_forget(0));
    assert_int_equal(result_count(0), ADDING_THREADS * ADDED);
    assert_ok(weir_tunable_forget(0));
    unlink(path);
  }
}

TEST(damaged_files) {
  collect_messages();
  /* The time is optional, further fields are ignored, and the first of two rows counts. */
  write_rows("\r\nA,1,X\r\nB,1,Y,1e-3,BLAS_PARAMS: - { function: matmul, M: 3 }\nA,1,Z,3\nC,1,Z,0.033");
  assert_ok(weir_tunable_read_file(0, NULL));
  weir_tunable_result *results;
  size_t count;
  assert_ok(weir_tunable_list_results(0, &results, &count));
  assert_int_equal(count, 3);
  assert_string_equal(results[0].solution, "X");
  assert_true(results[0].milliseconds == 0);
  assert_true(fabs(results[1].milliseconds - 1e-3) < 1e-12);
  assert_true(fabs(results[2].milliseconds - 0.033) < 1e-12);
  weir_tunable_free(results);
  assert_int_equal(messages_with(WEIR_LOG_WARN, "skipped"), 0);
  /* Lines that are none. */
  assert_ok(weir_tunable_forget(0));
  write_rows("A\nA,1\n,,,\nA,,X,1\nA,1,X,one\nA,1,X,-1\nA,1,X,inf\nA,1,X,1e\nA,1,X,1e999\nA,1,X\033[2J,1\nB,1,X,2\n");
  assert_ok(weir_tunable_read_file(0, NULL));
  assert_result(0, "B", "1", "X");
  assert_int_equal(messages_with(WEIR_LOG_WARN, "10 lines were skipped, from line"), 2); /* and by the first use */
  /* A solution that does not exist. */
  assert_ok(weir_tunable_forget(0));
  write_rows("Spin,n_64,Gemm_Rocblas_1216,0.1\n");
  implementation list[] = {{.value = 1}, {.value = 2}};
  operation o = new_operation(list, 2);
  assert_ok(run_operation(&o));
  assert_int_equal(word_of(&o), 1);
  assert_int_equal(messages_with(WEIR_LOG_WARN, "a solution that does not exist: \"Gemm_Rocblas_1216\""), 1);
  end_operation(&o);
  /* No text. */
  char *text = with_validators("A,1,X,2\nB,1");
  size_t length = strlen(text);
  text[length - 5] = 0;
  write_text(path, text, length);
  assert_error_says(BAD_DATA, "is not a text", weir_tunable_read_file(0, NULL));
  write_text(path, "", 0);
  assert_error(BAD_STATE, weir_tunable_read_file(0, NULL));
  if (truncate(path, 70 << 20) == 0)
    assert_error_says(BAD_DATA, "larger than 64 MiB", weir_tunable_read_file(0, NULL));
}

/* Whatever a file contains, reading it ends with results or an error. */
TEST(random_files) {
  NEED_SOFT("needs no device");
  uint64_t seed = 5;
  static const char alphabet[] = ",,,\n\nValidator,0123456789.e-\r\t\"%sAX\377\200";
  collect_messages();
  for (int round = 0; round < usual_or_long(300, 20000); round++) {
    char *text = with_validators("A,1,X,2\nB,1,Y,0.125\nC,2,Z\n");
    size_t length = strlen(text);
    for (int i = 0, changes = (int)(next_random(&seed) % 8); i < changes; i++)
      text[next_random(&seed) % length] = alphabet[next_random(&seed) % (sizeof alphabet - 1)];
    if (next_random(&seed) % 4 == 0)
      length = next_random(&seed) % length;
    write_text(path, text, length);
    weir_status status = weir_tunable_read_file(0, NULL);
    assert_true(status == WEIR_OK || status == WEIR_ERROR_BAD_STATE || status == WEIR_ERROR_BAD_DATA);
    weir_tunable_result *results;
    size_t count;
    assert_ok(weir_tunable_list_results(0, &results, &count));
    for (size_t i = 0; i < count; i++)
      assert_true(results[i].milliseconds >= 0 && *results[i].op && *results[i].params && *results[i].solution);
    weir_tunable_free(results);
    assert_ok(weir_tunable_forget(0));
  }
}

TEST(file_names) {
  static const struct {
    const char *name;
    int inserts;
    const char *expected;
  } names[] = {{"a.csv", 0, "a.csv"},
               {"a.csv", 1, "a0.csv"},
               {"a%d.csv", 1, "a0.csv"},
               {"a%d.csv", 0, "a%d.csv"},
               {"a", 1, "a0"},
               {"x.y/a.b.c", 1, "x.y/a.b0.c"},
               {"x.y/a", 1, "x.y/a0"},
               {"../a", 1, "../a0"},
               {"x.y%d/a.csv", 1, "x.y0/a.csv"},
               {"%d%d", 1, "0%d"},
               {"", 0, "tunableop_results0.csv"},
               {NULL, 0, "tunableop_results0.csv"},
               {"%s%n.csv", 1, "%s%n0.csv"}};
  char text[64];
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    assert_ok(weir_tunable_set_filename(names[i].name, names[i].inserts));
    assert_ok(weir_tunable_get_filename(0, text, sizeof text, NULL));
    assert_string_equal(text, names[i].expected);
  }
  size_t length;
  assert_ok(weir_tunable_get_filename(0, text, 5, &length));
  assert_string_equal(text, "%s%n");
  assert_int_equal(length, strlen("%s%n0.csv"));
  char *name = malloc(6000);
  memset(name, 'x', 5999);
  name[5999] = 0;
  assert_error(INVALID_ARGUMENT, weir_tunable_set_filename(name, 0));
  free(name);
}

TEST(untuned_operations_are_recorded) {
  char before[1024];
  assert_non_null(getcwd(before, sizeof before));
  assert_int_equal(chdir(folder), 0);
  implementation list[] = {{.value = 1}, {.value = 2}};
  operation o = new_operation(list, 2);
  weir_tunable_set_tuning(0);
  weir_tunable_set_record_untuned(1);
  for (int i = 0; i < 3; i++)
    assert_ok(run_operation(&o));
  o.call.params = "n_65";
  assert_ok(run_operation(&o));
  assert_string_equal(read_text("tunableop_untuned0.csv"), "Spin,n_64\nSpin,n_65\n");
  assert_int_equal(result_count(0), 0);
  assert_int_equal(access(path, F_OK), -1);
  end_operation(&o);
  assert_int_equal(chdir(before), 0);
}

/* A sink may use what it is told about. */
static void list_results(void *context, weir_log_level level, const char *message) {
  (void)level;
  weir_tunable_result *results;
  size_t count;
  int *warnings = context;
  assert_ok(weir_tunable_list_results(0, &results, &count));
  weir_tunable_free(results);
  *warnings += strstr(message, "untuned operations are not saved: cannot write ") != NULL;
}

TEST(untuned_operations_that_cannot_be_saved) {
  char before[1024];
  int warnings = 0;
  assert_non_null(getcwd(before, sizeof before));
  assert_int_equal(chdir(folder), 0);
  assert_int_equal(mkdir("tunableop_untuned0.csv", 0700), 0);
  implementation list[] = {{.value = 1}, {.value = 2}};
  operation o = new_operation(list, 2);
  weir_tunable_set_tuning(0);
  weir_tunable_set_record_untuned(1);
  weir_log_set_sink(list_results, &warnings);
  assert_ok(run_operation(&o));
  weir_log_set_sink(NULL, NULL);
  assert_int_equal(warnings, 1);
  end_operation(&o);
  assert_int_equal(rmdir("tunableop_untuned0.csv"), 0);
  assert_int_equal(chdir(before), 0);
}

TEST(wrong_arguments) {
  weir_tunable_op *op;
  weir_tunable_result *results;
  weir_tunable_validator *validators;
  size_t count;
  implementation list[] = {{.value = 1}};
  operation o = new_operation(list, 1);
  assert_error(INVALID_ARGUMENT, weir_tunable_op_create(NULL, run, NULL, &op));
  assert_error(INVALID_ARGUMENT, weir_tunable_op_create("a", NULL, NULL, &op));
  assert_error(INVALID_ARGUMENT, weir_tunable_op_create("a", run, NULL, NULL));
  assert_error(INVALID_ARGUMENT, weir_tunable_op_create("a,b", run, NULL, &op));
  assert_error(INVALID_ARGUMENT, weir_tunable_op_create("Validator", run, NULL, &op));
  assert_error(INVALID_ARGUMENT, weir_tunable_op_add(NULL, "x", run, NULL));
  assert_error(INVALID_ARGUMENT, weir_tunable_op_add(o.op, NULL, run, NULL));
  assert_error(INVALID_ARGUMENT, weir_tunable_op_add(o.op, "x", NULL, NULL));
  assert_error(INVALID_ARGUMENT, weir_tunable_op_add(o.op, "", run, NULL));
  assert_error_says(INVALID_ARGUMENT, "Spin has a solution \"Default\" already",
                    weir_tunable_op_add(o.op, "Default", run, NULL));
  assert_error(INVALID_ARGUMENT, weir_tunable_op_run(NULL, &o.call));
  assert_error(INVALID_ARGUMENT, weir_tunable_op_run(o.op, NULL));
  weir_tunable_call call = o.call;
  call.operands = &o.operand;
  call.size = 0;
  assert_error(INVALID_ARGUMENT, weir_tunable_op_run(o.op, &call));
  call.size = sizeof call;
  call.params = "a,b";
  assert_error(INVALID_ARGUMENT, weir_tunable_op_run(o.op, &call));
  call.params = NULL;
  assert_error(INVALID_ARGUMENT, weir_tunable_op_run(o.op, &call));
  call.params = "a";
  call.operand_count = 17;
  assert_error(INVALID_ARGUMENT, weir_tunable_op_run(o.op, &call));
  call.operand_count = 1;
  call.operands = NULL;
  assert_error(INVALID_ARGUMENT, weir_tunable_op_run(o.op, &call));
  call.operands = &o.operand;
  call.stream.device = 77;
  assert_error(INVALID_DEVICE, weir_tunable_op_run(o.op, &call));
  call.stream.device = 0;
  o.operand.dtype = 99;
  assert_error(INVALID_ARGUMENT, weir_tunable_op_run(o.op, &call));
  weir_tunable_op_destroy(NULL);
  weir_tunable_call_init(NULL);
  weir_tunable_free(NULL);
  assert_error(INVALID_ARGUMENT, weir_tunable_list_results(0, NULL, &count));
  assert_error(INVALID_ARGUMENT, weir_tunable_list_results(0, &results, NULL));
  assert_error(INVALID_DEVICE, weir_tunable_list_results(1000, &results, &count));
  assert_error(INVALID_ARGUMENT, weir_tunable_list_validators(0, NULL, &count));
  assert_error(INVALID_DEVICE, weir_tunable_list_validators(1000, &validators, &count));
  assert_error(INVALID_ARGUMENT, weir_tunable_set_validator(NULL, "1"));
  assert_error(INVALID_ARGUMENT, weir_tunable_get_filename(0, NULL, 10, NULL));
  assert_error(INVALID_ARGUMENT, weir_tunable_get_rotating_buffer_size(0, NULL));
  assert_error(INVALID_DEVICE, weir_tunable_forget(1000));
  assert_error(INVALID_DEVICE, weir_tunable_write_file(1000, NULL));
  end_operation(&o);
}

/* ---- Every driver call fails once ---- */

enum { LARGE = 100000 }; /* words, of which there are three in 1 MiB */

/* A search with everything that it can do. */
static weir_status search(void) {
  static implementation list[2];
  list[0] = (implementation){.cycles = 10000, .value = 1};
  list[1] = (implementation){.cycles = 20000, .value = 1};
  weir_stream own;
  weir_array memory = {0};
  weir_tunable_op *op = NULL;
  weir_status status = weir_stream_create(0, 0, &own);
  if (!status)
    status = weir_array_empty(weir_place_device(0), WEIR_INT32, 1, (int64_t[]){LARGE}, own, &memory);
  if (!status)
    status = weir_tunable_op_create("Spin", run, &list[0], &op);
  if (!status)
    status = weir_tunable_op_add(op, "Spin_1", run, &list[1]);
  weir_tunable_operand operand = {memory.data, LARGE * 4, 1, WEIR_INT32};
  weir_tunable_call call = {
      .size = sizeof call, .params = "n", .operands = &operand, .operand_count = 1, .stream = own};
  if (!status)
    status = weir_tunable_op_run(op, &call);
  uint32_t words[COUNT] = {0};
  if (!status)
    status = weir_copy(words, memory.data, sizeof words, own);
  if (!status)
    assert_int_equal(words[COUNT - 1], 1);
  weir_array_release(&memory);
  weir_tunable_op_destroy(op);
  return status;
}

TEST(failing_driver_calls) {
  NEED_STEPPED();
  assert_int_equal(runtime_teardown(state), 0);
  bool has_failed = true;
  unsigned long n;
  for (n = 1; has_failed; n++) {
    assert_int_equal(runtime_setup_fault(state), 0);
    reset_settings();
    weir_tunable_set_max_iterations(2);
    weir_tunable_set_rotating_buffer_size(1);
    assert_ok(weir_tunable_set_numerical_check(1, 1e-5, 1e-5));
    collect_messages();
    unlink(path);
    has_failed = fails_at(n, search);
    assert_ok(search());
    assert_int_equal(runtime_teardown(state), 0);
    if (n > 60)
      n += (unsigned long)usual_or_long(20, 0);
  }
  assert_in_range(n, 50, 100000);
  assert_int_equal(runtime_setup(state), 0);
}
