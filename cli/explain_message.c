/*
 * weir explain --message: why memory ran out, as far as the text of the error shows it.
 */
#include "explain_message.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "offline/analyse/message.h"
#include "offline/read/recording.h"
#include "offline/render/message_json.h"

/* A figure of the text itself, which is in the middle of its range. */
static const char *given(weir__figure f) {
  return f.is_known ? weir_cli_bytes(f.least + (f.most - f.least) / 2) : "not known";
}

static const char *bytes(uint64_t n) { return weir_cli_bytes(n); }

/* A figure that follows from others: a range, unless both ends are printed alike. */
static const char *range(weir__figure f) {
  const char *least = bytes(f.least), *most = bytes(f.most);
  bool is_open = f.least <= 1 && strcmp(least, most) != 0;
  return !f.is_known ? "not known" : weir_cli_range(is_open ? "up" : least, " to ", most);
}

static void label(const char *name) { printf("  %s%-10s%s  ", weir_cli_bold(), name, weir_cli_plain()); }

static bool is_xla(const weir__message *m) {
  return m->kind == WEIR__MESSAGE_XLA || m->kind == WEIR__MESSAGE_TENSORFLOW;
}

static const char *allocator_of(const weir__message *m) {
  return m->is_weirs ? "Weir" : is_xla(m) ? "the allocator of XLA" : "PyTorch";
}

static bool has_segments(const weir__message *m) {
  return m->kind == WEIR__MESSAGE_NATIVE || m->kind == WEIR__MESSAGE_PARENTHESES;
}

static const char *graphs_of(const weir__message *m) { return m->is_hip ? "HIP graphs" : "CUDA graphs"; }

static bool is_within(weir__figure a, weir__figure b) { return a.is_known && b.is_known && a.most <= b.least; }

/* ---- What the text says ---- */

static void print_request(const weir__message *m) {
  if (m->kind == WEIR__MESSAGE_HUGE) {
    puts("  request     more than 1 EB");
    return;
  }
  char longest[32] = "";
  if (m->tokens)
    snprintf(longest, sizeof longest, " of %llu tokens", (unsigned long long)m->tokens);
  if (m->kind == WEIR__MESSAGE_VLLM) {
    printf("  request     the KV cache of one request%s: %s\n", longest, given(m->tried));
    if (m->allowed.is_known)
      printf("  available   %s for the KV cache\n", given(m->allowed));
    return;
  }
  if (!m->tried.is_known) {
    if (*m->operation)
      printf("  request     not known: the text has the operation alone, %s\n", m->operation);
    else
      puts("  request     not known: the text has no size");
    return;
  }
  if (m->kind == WEIR__MESSAGE_VLLM_START) {
    printf("  request     %s, which is gpu_memory_utilization of the device\n", given(m->tried));
    return;
  }
  if (*m->tensor) {
    printf("  request     %s: a tensor %s\n", given(m->tried), m->tensor);
    return;
  }
  if (!has_segments(m)) {
    printf("  request     %s%s%s\n", given(m->tried), *m->operation ? ", by " : "", m->operation);
    return;
  }
  const char *segment = given(m->tried);
  if (m->request.least <= 1) {
    printf("  request     %s or less (%s prints the segment size, %s, not the request)\n", bytes(m->request.most),
           allocator_of(m), segment);
    return;
  }
  if (m->request.least == (1u << 20) + 1)
    printf("  request     above 1 MiB, up to %s", segment);
  else
    printf("  request     %s, or up to %d MiB less", segment, m->has_old_rules ? 1 : 2);
  printf(" (%s prints the segment size, not the request)\n", allocator_of(m));
}

static void print_device(const weir__message *m) {
  if (m->total.is_known && m->free.is_known)
    printf("  device      %s, of which %s was free\n", given(m->total), given(m->free));
  else if (m->total.is_known)
    printf("  device      %s\n", given(m->total));
  if (!m->allowed.is_known || m->kind == WEIR__MESSAGE_VLLM)
    return;
  printf("  limit       %s", given(m->allowed));
  if (m->kind == WEIR__MESSAGE_CUPY)
    printf(", set by the program (MemoryPool.set_limit)");
  else if (is_xla(m))
    printf(" of the allocator of XLA");
  else if (m->total.is_known && m->allowed.least >= m->total.most)
    printf(", which is the whole device");
  else
    printf(", set by the program (set_per_process_memory_fraction)");
  if (m->total.is_known && m->total.least && m->allowed.most < m->total.least)
    printf(": %.3f of the device", (double)m->allowed.most / (double)m->total.most);
  putchar('\n');
}

static void print_uses(const weir__message *m) {
  if (m->kind == WEIR__MESSAGE_ASYNC || m->kind == WEIR__MESSAGE_CUPY) {
    weir__figure held = m->reserved.is_known ? m->reserved : m->allocated;
    if (held.is_known)
      printf("  %s%s %s%s\n", weir_cli_bold(), given(held), m->reserved.is_known ? "reserved" : "allocated",
             weir_cli_plain());
    return;
  }
  if (!m->reserved.is_known)
    return;
  printf("  %s%s reserved by %s%s\n", weir_cli_bold(), range(m->reserved), allocator_of(m), weir_cli_plain());
  printf("    %11s  allocated\n", given(m->allocated));
  if (m->pools.is_known)
    printf("    %11s  of these: free, but kept for %s and other private pools\n", given(m->pools), graphs_of(m));
  printf("    %11s  unallocated: free, but not returned to the driver\n",
         m->kind == WEIR__MESSAGE_NATIVE || m->has_old_rules ? given(m->unallocated) : range(m->unallocated));
}

/* What a program that XLA compiled needs; a text that was cut off has a part of its table. */
static void print_program(const weir__message *m) {
  const struct {
    weir__figure figure;
    const char *name;
  } parts[] = {
      {m->arguments, "arguments"}, {m->results, "results"}, {m->temporaries, "temporary"}, {m->constants, "constants"}};
  const char *separator = "";
  if (m->program.is_known)
    printf("  program     %s for the compiled program", given(m->program));
  for (size_t i = 0; i < WEIR_COUNT_OF(parts); i++)
    if (parts[i].figure.is_known) {
      bool is_first = !*separator;
      printf("%s%s %s", is_first ? m->program.is_known ? ": " : "  program     the compiled program has " : separator,
             given(parts[i].figure), parts[i].name);
      separator = ", ";
    }
  if (m->program.is_known || *separator)
    putchar('\n');
  if (m->largest.is_known)
    printf("  largest     %s in one buffer%s%s\n", given(m->largest), *m->largest_name ? ": " : "", m->largest_name);
}

/* The only process in the text that uses enough memory to be this one. NULL if no process does, or several do. */
static const weir__message_process *find_self(const weir__message *m) {
  const weir__message_process *found = NULL;
  for (size_t i = 0; i < m->process_count && m->reserved.is_known; i++) {
    if (!m->processes[i].used.is_known || m->processes[i].used.most < m->reserved.least)
      continue;
    if (found)
      return NULL;
    found = &m->processes[i];
  }
  return found;
}

static void print_outside(const weir__message *m) {
  if (m->non_pytorch.is_known)
    printf("  outside     %s of this process is not the allocator's: the context, kernels, %s and other libraries\n",
           range(m->non_pytorch), m->is_hip ? "RCCL, rocBLAS" : "NCCL, cuBLAS");
  if (m->others.is_known && m->process_count) {
    printf("  others      %s in %s:", range(m->others), weir_cli_count(m->process_count, "other process"));
    for (size_t i = 0; i < m->process_count; i++)
      printf("%s %llu (%s)", i ? "," : "", (unsigned long long)m->processes[i].pid, given(m->processes[i].used));
    putchar('\n');
  }
  /* A little is the driver's own. */
  if (m->unlisted.is_known && m->unlisted.least > 512u << 20)
    printf(
        "  unlisted    %s of the device is in use, but by no process that the text lists: by other containers, or by "
        "the driver\n",
        range(m->unlisted));
  if (!m->own.is_known && m->outside.is_known) {
    printf("  outside     %s of the device is not reserved by this process: its context and libraries, and other "
           "processes\n",
           range(m->outside));
    const weir__message_process *self = find_self(m);
    if (self)
      printf("  note        process %llu, with %s, is probably this one: in a container the driver's process numbers "
             "are not those of the program\n",
             (unsigned long long)self->pid, given(self->used));
  }
}

/* ---- What follows ---- */

static void print_exhausted(const weir__message *m) {
  printf("Not enough memory: %s allocated and the request make at least %s, and no more than %s could be reserved. "
         "Fragmentation is excluded.\n",
         given(m->allocated), bytes(m->allocated.least + m->request.least), bytes(m->reserved.most + m->headroom.most));
}

static void print_cause(const weir__message *m) {
  const char *where = m->bound == WEIR__BOUND_LIMIT ? "below the limit" : "on the device";
  label("why");
  switch (m->cause) {
  case WEIR__MESSAGE_TOO_LARGE:
    if (m->kind == WEIR__MESSAGE_HUGE)
      puts("Wrong size: no device has that much. The size was computed from a negative or overflowing number.");
    else if (m->total.is_known && m->request.least > m->total.most)
      printf("Too large: the request alone needs more than the device has, %s.\n", given(m->total));
    else
      printf("Too large: the request alone exceeds the limit of %s.\n", given(m->allowed));
    break;
  case WEIR__MESSAGE_EXHAUSTED:
    print_exhausted(m);
    break;
  case WEIR__MESSAGE_FRAGMENTED:
    printf("Probably fragmentation: %s is unallocated, which is enough for the request, but not in a form that it "
           "can use: in pieces between live blocks, or belonging to other streams or pools.\n",
           range(m->unallocated));
    break;
  case WEIR__MESSAGE_UNDECIDED:
    if (is_within(m->request, m->usable))
      printf("Perhaps fragmentation: %s unallocated and %s left %s would together be enough, if they were in one "
             "piece.\n",
             range(m->unallocated), range(m->headroom), where);
    else
      printf("Not decided by the rounded figures: %s unallocated and %s left %s may just have been enough, if they "
             "had been in one piece.\n",
             range(m->unallocated), range(m->headroom), where);
    break;
  case WEIR__MESSAGE_OUTSIDE:
    if (m->kind == WEIR__MESSAGE_LIBRARY)
      puts("Outside the allocator: cuBLAS or cuDNN found no memory for itself. It takes it from the driver, and the "
           "allocator had left too little.");
    else
      puts("Outside the allocator: a driver call ran out of memory, for example while creating a context, loading a "
           "kernel or instantiating a graph. The text has no figures; the call that failed may be an earlier one.");
    break;
  case WEIR__MESSAGE_REFUSED:
    if (m->kind == WEIR__MESSAGE_NATIVE && !m->allowed.is_known && !m->is_weirs)
      puts("Refused although enough was free: probably by a limit of the program's own "
           "(set_per_process_memory_fraction), which PyTorch 2.1 to 2.4 do not print. Else memory was freed after the "
           "failure, or the system limits the process (WSL, MIG, a container).");
    else
      puts("Refused although enough was free: memory was freed after the failure, or the system limits the process "
           "(WSL, MIG, a container).");
    break;
  case WEIR__MESSAGE_ADDRESS_SPACE:
    printf("The request exceeds the addresses that an expandable segment reserves, %s. Memory itself may have been "
           "enough.\n",
           given(m->reserve));
    break;
  case WEIR__MESSAGE_NO_CACHE:
    puts("No room for the KV cache: the weights, the activations of the largest batch and the CUDA graphs take what "
         "gpu_memory_utilization lets vLLM use. The lines of its log \"Model loading took\" and \"Available KV cache "
         "memory\" say how much.");
    break;
  case WEIR__MESSAGE_OCCUPIED:
    puts("Other programs hold memory that vLLM was to take: it compares what is free at its start with "
         "gpu_memory_utilization of the whole device.");
    break;
  default:
    if (m->bound == WEIR__BOUND_LIMIT)
      puts("The limit that the program has set.");
    else if (m->is_drivers)
      printf("Not known: the driver had no memory left for %s, and the text does not say what uses it.\n",
             m->kind == WEIR__MESSAGE_RMM ? "RMM" : "the allocator of XLA");
    else if (m->kind == WEIR__MESSAGE_RMM)
      puts("Not known: the pool of RMM has reached its size, and the text does not say what it is used for.");
    else if (m->kind == WEIR__MESSAGE_THC)
      puts("Not known: the text has no figures. The allocator of PyTorch 0.4 and older says no more, and so do other "
           "calls of CUDA.");
    else if (m->kind == WEIR__MESSAGE_NVML)
      puts("Not known: PyTorch ran out of memory and then failed to describe it, since NVML refused its calls: as on "
           "MIG, "
           "on Jetson, or in a container without NVML. The text has no figures.");
    else if (m->program.is_known)
      printf("Not known: the compiled program needs %s at once, but the text does not say how much was free.\n",
             given(m->program));
    else if (m->temporaries.is_known)
      printf("Not known: the compiled program needs %s at once for temporary values alone, but the text does not say "
             "how much was free.\n",
             given(m->temporaries));
    else
      puts("Not known: the text has too few figures.");
    break;
  }
}

static void print_missing(const weir__message *m) {
  if (!m->missing.is_known) {
    if (m->cause != WEIR__MESSAGE_TOO_LARGE)
      puts("  missing     not known");
    return;
  }
  printf("  missing     %s%s", range(m->missing),
         m->library == WEIR__LIBRARY_VLLM ? ""
         : m->bound == WEIR__BOUND_LIMIT  ? ": the limit is that much too low"
         : m->bound == WEIR__BOUND_DEVICE ? ": that much more free memory was needed on the device"
                                          : "");
  if (m->cause == WEIR__MESSAGE_EXHAUSTED)
    printf("; %s if nothing were fragmented", range(m->short_by));
  putchar('\n');
}

/* How much the best setting can bring. */
static void print_margin(const weir__message *m) {
  if (m->cause != WEIR__MESSAGE_FRAGMENTED && m->cause != WEIR__MESSAGE_UNDECIDED)
    return;
  uint64_t left = m->usable.most > m->request.least ? m->usable.most - m->request.least : 0;
  double part = m->reserved.most ? 100 * (double)left / (double)(m->reserved.most + m->headroom.most) : 0;
  printf("  at best     %s would have been left after the request without any fragmentation: %.1f %% of what could be "
         "reserved%s\n",
         bytes(left), part, part < 5 ? ". The job is near its limit in any case" : "");
}

static bool has_row; /* of the remedies */

/* Prints a remedy, and above the first one the heading. */
static void row(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void row(const char *format, ...) {
  va_list arguments;
  if (!has_row)
    printf("  %swould it have helped?%s As far as the figures prove it\n", weir_cli_bold(), weir_cli_plain());
  has_row = true;
  va_start(arguments, format);
  vprintf(format, arguments);
  va_end(arguments);
}

static void print_settings(const weir__message *m) {
  if (m->cause == WEIR__MESSAGE_EXHAUSTED || m->cause == WEIR__MESSAGE_TOO_LARGE) {
    row("    no          expandable_segments:True, moving_pages:True, and any other setting of the allocator: "
        "none can add memory that the device does not have\n");
    return;
  }
  if (m->cause != WEIR__MESSAGE_FRAGMENTED && m->cause != WEIR__MESSAGE_UNDECIDED)
    return;
  if (m->is_expandable)
    row("    no          expandable_segments:True: it is on\n");
  else
    row("    possible    expandable_segments:True%s: free neighbours merge, and whole free pages in holes are "
        "returned\n",
        m->kind == WEIR__MESSAGE_PARENTHESES ? ", with PyTorch 2.1 or newer" : "");
  if (m->library == WEIR__LIBRARY_TORCH && !m->is_hip && (!m->is_weirs || !m->is_expandable))
    row("    possible    moving_pages:True, with Weir's allocator: free pages in holes are mapped where they are "
        "needed\n");
  row("    no          empty_cache() right before the request: the allocator had released all that it could\n");
}

static void print_limit_remedy(const weir__message *m) {
  if (m->bound != WEIR__BOUND_LIMIT && m->bound != WEIR__BOUND_EITHER)
    return;
  if (!m->allowed.is_known || !m->missing.is_known) {
    row("    possible    a higher limit\n");
    return;
  }
  uint64_t needed = m->allowed.most + m->missing.most;
  if (is_xla(m))
    row("    possible    a limit of %s, if the device has it\n", bytes(needed));
  else if (m->free.is_known && m->tried.least > m->free.most)
    row("    no          a higher limit: the device had only %s free\n", given(m->free));
  else if (m->total.is_known && needed <= m->total.least)
    row("    yes         a limit of %s, which is set_per_process_memory_fraction(%.3f)\n", bytes(needed),
        (double)needed / (double)m->total.least + 0.0005);
  else
    row("    %s         a limit of %s\n", m->total.is_known ? "no " : "yes", bytes(needed));
}

/* gpu_memory_utilization is a part of the device with two decimals, as vLLM's users write it. */
static void print_vllm_remedies(const weir__message *m) {
  if (m->cause == WEIR__MESSAGE_OCCUPIED) {
    if (m->total.is_known && m->total.most && m->free.is_known && m->free.least <= m->total.most)
      row("    yes         gpu_memory_utilization of %.2f or less, if nothing else takes memory meanwhile\n",
          (double)(unsigned)(100 * ((double)m->free.least / (double)m->total.most)) / 100);
    if (m->missing.is_known)
      row("    yes         %s less in use by other programs on the device\n", bytes(m->missing.most));
    return;
  }
  if (m->tokens_fit)
    row("    yes         max_model_len of %llu or less, as vLLM estimates\n", (unsigned long long)m->tokens_fit);
  else
    row("    possible    a smaller max_model_len\n");
  if (m->missing.is_known)
    row("    possible    a higher gpu_memory_utilization, if the device has %s more that no other program uses\n",
        range(m->missing));
  else
    row("    possible    a higher gpu_memory_utilization, if the device has more that no other program uses\n");
  row("    possible    a smaller KV cache (kv_cache_dtype=fp8), or weights that take less: quantized, or of several "
      "devices (tensor_parallel_size)\n");
}

static void print_remedies(const weir__message *m) {
  if (m->library == WEIR__LIBRARY_VLLM) {
    has_row = false;
    print_vllm_remedies(m);
    return;
  }
  bool has_figures = m->request.is_known && m->cause != WEIR__MESSAGE_NOT_KNOWN;
  if ((!has_figures && m->bound == WEIR__BOUND_NOT_KNOWN) || m->cause == WEIR__MESSAGE_REFUSED ||
      m->cause == WEIR__MESSAGE_ADDRESS_SPACE)
    return;
  has_row = false;
  if (has_segments(m))
    print_settings(m);
  print_limit_remedy(m);
  if (m->others_suffice)
    row("    yes         the device without the other processes, which hold %s\n", range(m->others));
  else if (m->process_count && m->others.is_known && m->bound == WEIR__BOUND_DEVICE)
    row("    %s    the device without the other processes, which hold %s\n",
        m->others.most < m->missing.least ? "no      " : "possible", range(m->others));
  if (m->pools_suffice)
    row("    possible    %s that share a pool, or fewer of them: %s is free in private pools\n", graphs_of(m),
        given(m->pools));
  if (m->cause == WEIR__MESSAGE_EXHAUSTED && m->short_by.is_known)
    row("    yes         %s less in use: a smaller batch, activation checkpointing, sharding, or freeing what "
        "is no longer needed\n",
        bytes(m->short_by.most));
}

static void code(const char *line) {
  weir_cli_keep_line();
  printf("                %s\n", line);
}

/* How the allocator leaves memory to the driver. */
static void print_reserve(const weir__message *m) {
  switch (m->library) {
  case WEIR__LIBRARY_TORCH:
    puts("leave memory to the driver and the libraries, at the start of the program:");
    code("torch.cuda.set_per_process_memory_fraction(0.9)");
    break;
  case WEIR__LIBRARY_CUPY:
    puts("leave memory to the driver and the libraries, at the start of the program (MemoryPool.set_limit):");
    code("cupy.get_default_memory_pool().set_limit(fraction=0.9)");
    break;
  case WEIR__LIBRARY_JAX:
    puts("leave more memory to the driver and the libraries, in the environment of JAX, which takes 0.75 by default:");
    code("XLA_PYTHON_CLIENT_MEM_FRACTION=0.6");
    break;
  case WEIR__LIBRARY_TENSORFLOW:
    puts("leave more memory to the driver and the libraries, by a limit, at the start of the program:");
    code("gpu = tf.config.list_physical_devices('GPU')[0]");
    code("tf.config.set_logical_device_configuration(");
    code("    gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=MIB)])");
    break;
  default:
    puts("leave memory to the driver and the libraries, by a lower limit of the allocator that the program uses: "
         "torch.cuda.set_per_process_memory_fraction of PyTorch, MemoryPool.set_limit of CuPy, "
         "XLA_PYTHON_CLIENT_MEM_FRACTION of JAX");
  }
}

/* Where no history can be recorded that Weir explains. */
static const char *without_history(const weir__message *m) {
  switch (m->library) {
  case WEIR__LIBRARY_CUPY:
    return "serve CuPy's memory from Weir, whose history can be explained: weir.cupy.install() (docs/python/cupy.md)";
  case WEIR__LIBRARY_JAX:
    return "XLA_PYTHON_CLIENT_MEM_FRACTION in the environment sets how much of the device JAX takes, 0.75 by default; "
           "jax.local_devices()[0].memory_stats() has what it uses. Its history cannot be explained here";
  case WEIR__LIBRARY_TENSORFLOW:
    return "tf.config.set_logical_device_configuration sets how much of the device TensorFlow takes, nearly all by "
           "default; tf.config.experimental.get_memory_info('GPU:0') has its current and peak use. Its history cannot "
           "be "
           "explained here";
  case WEIR__LIBRARY_VLLM:
    return "vLLM's log says where the memory went: \"Model loading took\", \"Available KV cache memory\", \"Graph "
           "capturing finished\"; its model runs in PyTorch, whose history can be explained (docs/tools/guide-oom.md)";
  case WEIR__LIBRARY_RMM:
    return "ask the allocator for its statistics; only the history of PyTorch and Weir can be explained here";
  case WEIR__LIBRARY_TORCH_OTHER:
    return "ask PyTorch for the statistics of the device (memory_summary); its history can be explained here only with "
           "CUDA or ROCm";
  default:
    return NULL;
  }
}

/* PyTorch calls its observers, and records the failure, only after NVML has answered. */
static void print_catch(void) {
  puts("record the history, and dump it where the error is caught:");
  code("import torch");
  code("torch.cuda.memory._record_memory_history(stacks=\"python\")");
  code("try:");
  code("    train()");
  code("except RuntimeError:");
  code("    torch.cuda.memory._dump_snapshot(\"oom.pickle\")");
  code("    raise");
  printf("              then ");
  weir_cli_keep_line();
  weir_cli_print_command("explain", "", "oom.pickle");
  puts(
      "              which explains the peak if the request that failed is not in the file. Where NVML works, the text "
      "has figures: a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility");
}

static void print_next(const weir__message *m) {
  label("next");
  if (m->kind == WEIR__MESSAGE_NVML) {
    print_catch();
    return;
  }
  if (m->cause == WEIR__MESSAGE_TOO_LARGE) {
    puts("the traceback shows the operation: check the shapes that it gets, or do it in parts");
    return;
  }
  if (m->cause == WEIR__MESSAGE_OUTSIDE) {
    print_reserve(m);
    printf("              and set %s once, so that the traceback shows the call that failed\n",
           m->is_hip ? "AMD_SERIALIZE_KERNEL=3" : "CUDA_LAUNCH_BLOCKING=1");
    return;
  }
  if (m->is_weirs) {
    puts("run it again with WEIR_RECORD=FOLDER, which records the history of each process in a file:");
    code("WEIR_RECORD=FOLDER WEIR_RECORD_STACKS=alloc PROGRAM ...");
    printf("              and explain the file: ");
    weir_cli_keep_line();
    weir_cli_print_command("explain", "", "FOLDER/FILE");
    return;
  }
  if (without_history(m)) {
    puts(without_history(m));
    return;
  }
  puts(m->kind == WEIR__MESSAGE_ASYNC
           ? "without backend:cudaMallocAsync, record the history, and dump it when memory runs out:"
           : "record the history, and dump it when memory runs out:");
  code("import os, torch");
  code("torch.cuda.memory._record_memory_history(stacks=\"python\")");
  code("torch._C._cuda_attach_out_of_memory_observer(");
  code("    lambda *_: torch.cuda.memory._dump_snapshot(f\"oom-{os.getpid()}.pickle\"))");
  printf("              at the start of the program (PyTorch 2.1 or newer); then ");
  weir_cli_keep_line();
  weir_cli_print_command("explain", "", "oom-PID.pickle");
}

static void print_message(const weir__message *m) {
  print_request(m);
  print_device(m);
  print_cause(m);
  print_missing(m);
  print_margin(m);
  print_uses(m);
  print_program(m);
  print_outside(m);
  print_remedies(m);
  if (m->kind == WEIR__MESSAGE_PARENTHESES && !m->has_old_rules && m->cause != WEIR__MESSAGE_REFUSED)
    printf("  note        what is free in the pools of %s counts as unallocated in this version's message\n",
           graphs_of(m));
  if (m->reserved.is_known && m->total.is_known && m->reserved.least > m->total.most)
    puts("  note        more is reserved than the device has: the driver pages to host memory, as on Windows");
  if (has_segments(m) && m->tried.is_known)
    puts("  note        the text has rounded figures: what follows from them is a range");
  print_next(m);
  if (m->conf) {
    label("to paste");
    weir_cli_keep_line();
    printf("export %s='%s'\n", m->is_hip ? "PYTORCH_HIP_ALLOC_CONF" : "PYTORCH_CUDA_ALLOC_CONF", m->conf);
  }
}

/* ---- Several ---- */

static void print_table(const weir__messages *all) {
  enum { SHOWN = 64 };
  size_t counts[WEIR__MESSAGE_CAUSES] = {0};
  printf("  %-13s %-7s %11s %23s %11s  %s\n", "where", "line", "segment", "missing", "unallocated", "why");
  for (size_t i = 0; i < all->count; i++) {
    const weir__message *m = &all->items[i];
    char source[WEIR__MESSAGE_SOURCE_TEXT];
    counts[m->cause]++;
    if (i >= SHOWN)
      continue;
    weir__message_source_text(m, source);
    printf("  %-13s %-7zu %11s %23s %11s  %s\n", *source ? source : "-", m->line, given(m->tried), range(m->missing),
           given(m->unallocated), weir__message_causes[m->cause].text);
  }
  if (all->count > SHOWN)
    printf("  and %zu more\n", all->count - SHOWN);
  printf("  %sin short%s    ", weir_cli_bold(), weir_cli_plain());
  bool is_first = true;
  for (int i = 0; i < WEIR__MESSAGE_CAUSES; i++)
    if (counts[i]) {
      printf("%s%s: %zu of %zu", is_first ? "" : "; ", weir__message_causes[i].text, counts[i], all->count);
      is_first = false;
    }
  puts(". The first failure in the file, which may have caused the others:");
}

static void print_json(const char *name, const weir__messages *all) {
  weir_cli_json_begin(0);
  weir__messages_json(&weir_cli_json_sink, name, all);
  weir_cli_json_end();
}

static void print_text(const char *name, const weir__messages *all) {
  const weir__message *m = &all->items[0];
  char source[WEIR__MESSAGE_SOURCE_TEXT];
  weir_cli_fold_begin();
  printf("%s%s: out of memory%s", weir_cli_bold(), weir_cli_input_name(name), weir_cli_plain());
  if (all->count > 1) {
    printf(" at %zu places, %s\n", all->count, weir_cli_count(all->found, "message"));
    print_table(all);
  } else {
    weir__message_source_text(m, source);
    printf(", line %zu of %zu%s%s", m->line, all->lines, *source ? ", " : "", source);
    if (m->source && m->device >= 0)
      printf(", GPU %d", m->device);
    if (m->repeated == 1)
      printf(", repeated once");
    else if (m->repeated)
      printf(", repeated %zu times", m->repeated);
    putchar('\n');
  }
  print_message(m);
}

/* ---- The command ---- */

static weir_status load(const char *name, weir__messages *messages) {
  weir__input *input;
  if (strcmp(name, "-") == 0 && isatty(STDIN_FILENO))
    fputs("weir explain: paste the text of the error, then press Ctrl-D\n", stderr);
  weir_status status = weir__input_open(name, &input);
  if (status)
    return status;
  status = weir__messages_read(input, messages);
  weir__input_close(input);
  if (!status)
    weir__messages_derive(messages);
  return status;
}

static void keep_device(weir__messages *messages, int device) {
  size_t kept = 0;
  for (size_t i = 0; i < messages->count; i++)
    if (messages->items[i].device == device)
      messages->items[kept++] = messages->items[i];
  messages->count = kept;
}

/* Whether it can be read a second time: a pipe cannot, and opening one would wait for a writer. */
static bool is_file(const char *name) {
  struct stat about;
  return stat(name, &about) == 0 && S_ISREG(about.st_mode);
}

static bool is_recording(const char *name) {
  weir__recording *recording;
  if (!is_file(name) || weir__recording_load(name, NULL, &recording))
    return false;
  weir__recording_free(recording);
  return true;
}

int weir_cli_explain_message(const char *name, int device, bool json) {
  weir__messages messages;
  if (load(name, &messages))
    return weir_cli_fail("%s", weir_last_error());
  if (device >= 0)
    keep_device(&messages, device);
  int code = WEIR_EXIT_OK;
  if (!messages.count && device >= 0)
    code = weir_cli_fail("%s: no message says that GPU %d ran out of memory", weir_cli_input_name(name), device);
  else if (!messages.count)
    code =
        is_recording(name)
            ? weir_cli_fail("%s: this is a recording: leave out --message", weir_cli_input_name(name))
            : weir_cli_fail("%s: found no out-of-memory error; expected a text such as 'CUDA out of memory. Tried to "
                            "allocate 20.00 MiB. GPU 0 has ...'",
                            weir_cli_input_name(name));
  else
    WEIR_CLI_PRINT_REPORT(json, print_json, print_text, name, &messages);
  weir__messages_free(&messages);
  return code;
}

bool weir_cli_has_message(const char *name) {
  weir__messages messages;
  if (!is_file(name) || load(name, &messages))
    return false;
  bool found = messages.count > 0;
  weir__messages_free(&messages);
  return found;
}
