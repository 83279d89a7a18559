/*
 * Compilation: the source for the host's compiler, its errors, NVRTC, and images that a device refuses.
 */
#include "src/compile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/runtime.h"
#include "weir/soft.h"

/* ---- The source for the host ---- */

/* The text without the first #line, from which the source begins. */
static char *prepare(const char *source, int name_count, const char *const *names) {
  weir_compile_options options;
  weir_compile_options_init(&options);
  options.names = names;
  options.name_count = name_count;
  weir__bytes text = {0};
  weir__soft_source(source, &options, &text);
  weir__bytes_add(&text, "", 1);
  assert_false(text.failed);
  return (char *)text.data;
}

static void use_soft_device(void) {
  setenv("WEIR_TEST_DRIVER", "soft", 1);
  runtime_need_device();
}

FIXTURE(.prepare = use_soft_device, .setup = runtime_setup, .teardown = runtime_teardown)

#define assert_source(words, source)                                                                                   \
  do {                                                                                                                 \
    char *text_ = prepare(source, 0, NULL);                                                                            \
    if (!strstr(text_, words))                                                                                         \
      fail_msg("\"%s\" is not in:\n%s", words, text_);                                                                 \
    free(text_);                                                                                                       \
  } while (0)
#define assert_no_kernels(source)                                                                                      \
  do {                                                                                                                 \
    char *text_ = prepare(source, 0, NULL);                                                                            \
    if (strstr(text_, "WEIR_SOFT_ENTRY"))                                                                              \
      fail_msg("%s", text_);                                                                                           \
    free(text_);                                                                                                       \
  } while (0)

TEST_SETUP(kernels_are_listed, NULL, NULL) {
  assert_source("WEIR_SOFT_ENTRY(\"f\", &f)", "extern \"C\" __global__ void f(int) {}");
  assert_source("WEIR_SOFT_ENTRY(\"f\", &f)", "extern \"C\" void __global__ __launch_bounds__(128, 2) f() {}");
  assert_source("WEIR_SOFT_ENTRY(\"g\", &g)", "extern \"C\" {\nint h() { return 1; }\n__global__ void g() {}\n}");
  assert_source("WEIR_SOFT_ENTRY(\"f\", &a::b::f)",
                "namespace a { namespace b { extern \"C\" __global__ void f() {} } }");
  assert_source("WEIR_SOFT_ENTRY(\"f\", &f)", "template <class T> void h() {}\nextern \"C\" __global__ void f() {}");
  assert_no_kernels("__global__ void f() {}");
  assert_no_kernels("extern \"C\" { } __global__ void f() {}");
  assert_no_kernels("extern \"C\" int x; __global__ void f() {}");
  assert_no_kernels("template <class T> __global__ void f(T) {}");
  assert_no_kernels("// extern \"C\" __global__ void f() {}\n/* extern \"C\" __global__ void f() {} */");
  assert_no_kernels("const char *s = \"extern \\\"C\\\" __global__ void f() {}\";");
  assert_no_kernels("#define K extern \"C\" __global__ \\\n void f() {}\n");
  /* Once, if it is declared first. */
  char *text = prepare("extern \"C\" __global__ void f();\nextern \"C\" __global__ void f() {}", 0, NULL);
  char *first = strstr(text, "WEIR_SOFT_ENTRY");
  assert_null(strstr(first + 1, "WEIR_SOFT_ENTRY"));
  free(text);
  text = prepare("", 2, (const char *const[]){"f<int, 'a'>", "&g<\"x\">"});
  assert_non_null(strstr(text, "WEIR_SOFT_ENTRY(\"f<int, 'a'>\", &f<int, 'a'>)"));
  assert_non_null(strstr(text, "WEIR_SOFT_ENTRY(\"&g<\\\"x\\\">\", &g<\"x\">)"));
  free(text);
}

TEST_SETUP(dynamic_shared_memory, NULL, NULL) {
  assert_source("float *const s = reinterpret_cast<float *>(weir_soft::current().dynamic);",
                "void f() { extern __shared__ float s[]; }");
  assert_source("T *const s = ", "template <class T> void f() { extern __shared__ __align__(16) T s[]; }");
  assert_source("static const weir_soft::dynamic_array<char> all{};", "extern __shared__ char all[];");
  assert_source("static const weir_soft::dynamic_array<int> all{};", "namespace x { extern __shared__ int all[]; }");
  assert_source("extern int x;", "extern int x;");
  /* Lines keep their numbers. */
  assert_source("dynamic)\n;\nint b;", "void f() { extern __shared__\nfloat s[];\nint b; }");
}

/* ---- The host's compiler ---- */

TEST(errors_of_the_source) {
  weir_module *module = NULL;
  assert_error_says(INVALID_ARGUMENT,
                    "kernel.cu:2:", weir_module_compile(0, "int a;\nint b = nowhere;\n", NULL, &module));
  assert_non_null(strstr(weir_last_error(), "nowhere"));
  assert_null(strstr(weir_last_error(), "/tmp/"));
  assert_error_says(
      INVALID_ARGUMENT, "__match_any_sync is not available on the software device",
      weir_module_compile(0, "extern \"C\" __global__ void f(int *p) { *p = __match_any_sync(1, 2); }", NULL, &module));
  assert_null(module);
  assert_error_says(INVALID_ARGUMENT, "source is NULL", weir_module_compile(0, NULL, NULL, &module));
  weir_compile_options options;
  weir_compile_options_init(&options);
  options.name_count = 1;
  assert_error_says(INVALID_ARGUMENT, "1 names", weir_module_compile(0, "", &options, &module));
  options.names = (const char *const[]){NULL};
  assert_error_says(INVALID_ARGUMENT, "names[0] is NULL", weir_module_compile(0, "", &options, &module));
}

TEST(options_and_headers) {
  weir_compile_options options;
  weir_compile_options_init(&options);
  options.options = (const char *const[]){"-DVALUE=41", "--use_fast_math"};
  options.option_count = 2;
  options.header_names = (const char *const[]){"sub/one.h"};
  options.headers = (const char *const[]){"#define ONE 1\n"};
  options.header_count = 1;
  static const char source[] = "#include \"sub/one.h\"\n"
                               "extern \"C\" __global__ void f(int *p) { *p = VALUE + ONE; }\n"
                               "extern \"C\" __global__ void stops(int *p) { assert(*p == 0); __syncthreads(); }\n";
  weir_module *module;
  weir_kernel *f, *stops;
  assert_ok(weir_module_compile(0, source, &options, &module));
  assert_ok(weir_module_kernel(module, "f", &f));
  assert_ok(weir_module_kernel(module, "stops", &stops));
  int *p = device_memory(0, 4);
  weir_param params[] = {WEIR_PARAM(p)};
  weir_launch_dims dims = {.grid = {1}, .block = {1}};
  assert_ok(weir_kernel_launch(f, dims, default_stream(0), params, 1));
  assert_ok(weir_device_synchronize(0));
  assert_int_equal(*p, 42);
  weir_module_destroy(module);
  free_device_memory(0, p);
  options.header_names = (const char *const[]){"../one.h"};
  options.no_cache = 1;
  assert_error_says(INVALID_ARGUMENT, "../one.h", weir_module_compile(0, source, &options, &module));
}

TEST(a_failed_assertion_breaks_the_context) {
  static const char source[] = "extern \"C\" __global__ void f(int n) { __syncthreads(); assert(threadIdx.x < n); }\n";
  weir_module *module;
  weir_kernel *f;
  int n = 5;
  weir_param params[] = {WEIR_PARAM(n)};
  assert_ok(weir_module_compile(0, source, NULL, &module));
  assert_ok(weir_module_kernel(module, "f", &f));
  weir_launch_dims dims = {.grid = {1}, .block = {32}};
  n = 32;
  params[0] = (weir_param)WEIR_PARAM(n);
  assert_ok(weir_kernel_launch(f, dims, default_stream(0), params, 1));
  assert_ok(weir_device_synchronize(0));
  n = 5;
  assert_ok(weir_kernel_launch(f, dims, default_stream(0), params, 1));
  assert_error_says(DEVICE_FAULT, "CUDA_ERROR_ASSERT", weir_device_synchronize(0));
  weir_module_destroy(module);
}

TEST(without_a_compiler) {
  weir_module *module = NULL;
  char *path = strdup(getenv("PATH"));
  setenv("WEIR_CXX", "/nowhere/c++", 1);
  assert_error_says(NOT_SUPPORTED, "WEIR_CXX=/nowhere/c++ is not a program", weir_module_compile(0, "", NULL, &module));
  unsetenv("WEIR_CXX");
  setenv("PATH", "/nowhere", 1);
  assert_error_says(NOT_SUPPORTED, "install g++ or clang", weir_module_compile(0, "", NULL, &module));
  setenv("PATH", path, 1);
  setenv("WEIR_CXX", "false", 1); /* fails without a word */
  assert_error_says(INVALID_ARGUMENT, "does not compile",
                    weir_module_compile(0, "int unique_to_this_test;", NULL, &module));
  unsetenv("WEIR_CXX");
  assert_null(module);
  free(path);
}

TEST(without_a_temporary_folder) {
  weir_module *module = NULL;
  setenv("TMPDIR", "/nowhere", 1);
  assert_error_says(SYSTEM, "temporary folder", weir_module_compile(0, "int also_unique_to_this_test;", NULL, &module));
  unsetenv("TMPDIR");
}

/* ---- Images ---- */

static weir_cu_result set_42(const weir_soft_launch *launch) {
  **(int **)launch->params[0] = 42;
  return WEIR_CU_SUCCESS;
}

TEST(images) {
  static const char ptx[] = ".version 6.0\n.target sm_50\n.visible .entry set(.param .u64 p) { ret; }\n"
                            ".visible .entry other() { ret; }\n";
  weir_module *module = NULL;
  weir_kernel *kernel;
  assert_error_says(INVALID_ARGUMENT, "neither PTX, a cubin nor a fatbin", weir_module_load(0, "garbage", 7, &module));
  assert_error_says(NOT_SUPPORTED, "cannot run a cubin", weir_module_load(0, "\177ELF\2\1\1", 7, &module));
  assert_error_says(NOT_SUPPORTED, "cannot run a fatbin", weir_module_load(0, "\x50\xed\x55\xba\1\1\1", 7, &module));
  assert_null(module);
  const size_t bytes[] = {8};
  assert_ok(weir_soft_register_kernel(soft, "set", set_42, 1, bytes));
  assert_ok(weir_module_load(0, ptx, strlen(ptx), &module));
  assert_error_says(NOT_SUPPORTED, "no function is registered for other", weir_module_kernel(module, "other", &kernel));
  assert_ok(weir_module_kernel(module, "set", &kernel));
  int *p = device_memory(0, 4);
  weir_param params[] = {WEIR_PARAM(p)};
  assert_ok(weir_kernel_launch(kernel, (weir_launch_dims){.grid = {1}, .block = {1}}, default_stream(0), params, 1));
  assert_ok(weir_device_synchronize(0));
  assert_int_equal(*p, 42);
  free_device_memory(0, p);
  weir_module_destroy(module);
}

/* ---- NVRTC ---- */

/* A compiler whose n-th call fails. */
static int calls, failing_call, live_programs;
static int failing_log_size, failing_log, failing_end; /* results of calls that a compilation can do without */

static int count_call(void) { return ++calls == failing_call ? 1 : 0; }
static int fake_version(int *major, int *minor) {
  *major = 12;
  *minor = 9;
  return count_call();
}
static const char *fake_text(int result) { return result == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR"; }
static int fake_create(void **program, const char *source, const char *name, int count, const char *const *headers,
                       const char *const *header_names) {
  (void)name, (void)count, (void)headers, (void)header_names;
  if (count_call())
    return 1;
  *program = strdup(source);
  live_programs++;
  return 0;
}
static int fake_destroy(void **program) {
  free(*program);
  live_programs--;
  return failing_end;
}
static int fake_compile(void *program, int count, const char *const *options) {
  assert_string_equal(options[0], "--gpu-architecture=sm_90");
  assert_in_range(count, 2, 4);
  return strstr(program, "bad") ? 6 : count_call();
}
static int fake_size(void *program, size_t *bytes) {
  *bytes = strlen(program) + 1;
  return count_call();
}
static int fake_get(void *program, char *code) {
  strcpy(code, program);
  return count_call();
}
static int fake_log_size(void *program, size_t *bytes) {
  (void)program;
  *bytes = sizeof "a warning";
  return failing_log_size;
}
static int fake_log(void *program, char *log) {
  (void)program;
  strcpy(log, "a warning");
  return failing_log;
}
static int fake_add(void *program, const char *name) {
  (void)program, (void)name;
  return count_call();
}
static int fake_lowered(void *program, const char *name, const char **lowered) {
  (void)program, (void)name;
  *lowered = "_Z5scaleIfE";
  return count_call();
}
static int fake_arch_count(int *count) {
  *count = 2;
  return count_call();
}
static int fake_archs(int *archs) {
  archs[0] = 75;
  archs[1] = 90;
  return count_call();
}
static const weir__nvrtc fake = {fake_version, fake_text, fake_create,  fake_destroy,    fake_compile,
                                 fake_size,    fake_get,  fake_size,    fake_get,        fake_log_size,
                                 fake_log,     fake_add,  fake_lowered, fake_arch_count, fake_archs};

static weir_status compile_nvrtc(const char *source, weir_compile_options *options, weir__binary *code) {
  weir__on_device on;
  weir__bytes key = {0};
  assert_ok(weir__compute_enter("weir_test", 0, &on));
  weir_status status = weir__nvrtc_key("weir_test", &on, source, options, &key);
  if (!status)
    status = weir__nvrtc_compile("weir_test", &on, source, options, code);
  weir__bytes_end(&key);
  weir__compute_leave(&on);
  return status;
}

TEST(failing_calls_of_nvrtc) {
  weir_compile_options options;
  weir_compile_options_init(&options);
  options.names = (const char *const[]){"scale<float>"};
  options.name_count = 1;
  weir__nvrtc_replace(&fake);
  weir_status status = WEIR_ERROR_DRIVER;
  for (failing_call = 1; status; failing_call++) {
    weir__binary code = {0};
    calls = 0;
    status = compile_nvrtc("code", &options, &code);
    if (status) {
      assert_int_equal(status, WEIR_ERROR_HOST_OUT_OF_MEMORY);
      assert_non_null(strstr(weir_last_error(), "weir_test: nvrtc"));
    } else {
      assert_string_equal(code.data, "code");
      assert_string_equal(code.log, "a warning");
      assert_string_equal(code.names[0], "scale<float>");
      assert_string_equal(code.lowered[0], "_Z5scaleIfE");
    }
    weir__binary_end(&code);
    assert_int_equal(live_programs, 0);
  }
  assert_in_range(failing_call, 10, 20);
  failing_call = 0;
  weir__binary code = {0};
  int *const needless[] = {&failing_log_size, &failing_log, &failing_end};
  for (int i = 0; i < 3; i++) {
    *needless[i] = 1;
    assert_ok(compile_nvrtc("code", &options, &code));
    assert_string_equal(code.data, "code");
    assert_int_equal(code.log != NULL, i == 2);
    weir__binary_end(&code);
    code = (weir__binary){0};
    assert_int_equal(compile_nvrtc("bad", &options, &code), WEIR_ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(weir_last_error(), i == 2 ? "a warning" : "NVRTC gives no reason"));
    weir__binary_end(&code);
    code = (weir__binary){0};
    *needless[i] = 0;
    assert_int_equal(live_programs, 0);
  }
  assert_int_equal(compile_nvrtc("bad", &options, &code), WEIR_ERROR_INVALID_ARGUMENT);
  assert_non_null(strstr(weir_last_error(), "a warning"));
  weir__binary_end(&code);
  weir__nvrtc_replace(NULL);
}

/* The real one needs no GPU to compile. */
TEST(nvrtc) {
  char path[1024];
  const char *how;
  if (weir_library_find("nvrtc", path, sizeof path, NULL, &how))
    WAIVE_TEST("needs NVRTC");
  weir_compile_options options;
  weir_compile_options_init(&options);
  options.names = (const char *const[]){"scale<float>"};
  options.name_count = 1;
  options.target = WEIR_COMPILE_PTX;
  weir__binary code = {0};
  assert_ok(compile_nvrtc("template <class T> __global__ void scale(T *p) { *p *= 2; }", &options, &code));
  char entry[256];
  snprintf(entry, sizeof entry, ".entry %s", code.lowered[0]);
  assert_non_null(strstr((char *)code.data, entry));
  weir__binary_end(&code);
  options.target = WEIR_COMPILE_BINARY;
  assert_ok(compile_nvrtc("template <class T> __global__ void scale(T *p) { *p *= 2; }", &options, &code));
  assert_memory_equal(code.data, "\177ELF", 4);
  weir__binary_end(&code);
  options.name_count = 0;
  /* CUDA's headers, where they are installed. */
  if (!compile_nvrtc("#include <cuda_fp16.h>\nextern \"C\" __global__ void f(__half *p) { *p = __hadd(*p, *p); }",
                     &options, &code))
    assert_null(code.log); /* no remarks about precompiled headers */
  else
    assert_non_null(strstr(weir_last_error(), "cuda_fp16.h"));
  weir__binary_end(&code);
  assert_int_equal(compile_nvrtc("int x = nowhere;", &options, &code), WEIR_ERROR_INVALID_ARGUMENT);
  assert_non_null(strstr(weir_last_error(), "\"nowhere\" is undefined"));
  weir__binary_end(&code);
}
