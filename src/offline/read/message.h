/*
 * Out of memory, explained from the text of the error alone: whole logs with tracebacks, of several ranks, coloured,
 * quoted, wrapped, and with a prefix on each line.
 *
 * Figures in such a text are rounded to two decimals, so every figure is a range, and what follows from them is a range
 * too. A statement holds for every value within the ranges, or is marked as undecided.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offline/read/input.h"

/* The most that is read, and the most messages that are kept. */
enum {
  WEIR__MESSAGE_INPUT = 64 << 20,
  WEIR__MESSAGE_MAX = 4096,
  WEIR__MESSAGE_PROCESSES = 16,
  WEIR__MESSAGE_NAME = 96
};

typedef enum weir__message_kind {
  WEIR__MESSAGE_NATIVE,      /* PyTorch from 2.1 on, and Weir: "GPU 0 has a total capacity of ..." */
  WEIR__MESSAGE_PARENTHESES, /* PyTorch up to 2.0: "(GPU 0; 15.90 GiB total capacity; ...)" */
  WEIR__MESSAGE_ASYNC,       /* PyTorch and Weir with backend:cudaMallocAsync */
  WEIR__MESSAGE_REJECTED,    /* throw_on_cudamalloc_oom */
  WEIR__MESSAGE_HUGE,        /* more than 1 EB */
  WEIR__MESSAGE_THC,         /* PyTorch up to 0.4, and parts of it later: "cuda runtime error (2)" */
  WEIR__MESSAGE_CUDA,        /* an error of CUDA without figures */
  WEIR__MESSAGE_LIBRARY,     /* cuBLAS or cuDNN could not allocate */
  WEIR__MESSAGE_NVML,        /* PyTorch could not describe its failure: "NVML_SUCCESS == r INTERNAL ASSERT FAILED" */
  WEIR__MESSAGE_CUPY,
  WEIR__MESSAGE_RMM,
  WEIR__MESSAGE_XLA,        /* the allocator of JAX and TensorFlow */
  WEIR__MESSAGE_TENSORFLOW, /* "OOM when allocating tensor with shape[...]" */
  WEIR__MESSAGE_VLLM,       /* no room for vLLM's KV cache */
  WEIR__MESSAGE_VLLM_START, /* too little is free when vLLM starts */
  WEIR__MESSAGE_KINDS
} weir__message_kind;

/* The library that a text is of, as far as it shows. */
typedef enum weir__message_library {
  WEIR__LIBRARY_NOT_KNOWN,
  WEIR__LIBRARY_TORCH,       /* with CUDA or ROCm, or Weir, whose text is the same */
  WEIR__LIBRARY_TORCH_OTHER, /* PyTorch with other devices: XPU, NPU */
  WEIR__LIBRARY_CUPY,
  WEIR__LIBRARY_RMM,
  WEIR__LIBRARY_JAX,
  WEIR__LIBRARY_TENSORFLOW,
  WEIR__LIBRARY_VLLM
} weir__message_library;

/* Where the prefix of a line says that it comes from. */
typedef enum weir__message_source {
  WEIR__SOURCE_NONE,
  WEIR__SOURCE_RANK,    /* "[rank3]:", "rank 3: " */
  WEIR__SOURCE_LOCAL,   /* "[default3]:", "local_rank=3 ", a rank on its machine */
  WEIR__SOURCE_TASK,    /* "3: " of srun, "[1,3]<stderr>:" of mpirun, "worker-3 | " of Docker */
  WEIR__SOURCE_PROCESS, /* "(Worker pid=1234)" */
  WEIR__SOURCE_END      /* see weir__message_squeeze */
} weir__message_source;

/* A number of bytes that is at least `least` and at most `most`. */
typedef struct weir__figure {
  bool is_known;
  uint64_t least, most;
} weir__figure;

typedef enum weir__message_cause {
  WEIR__MESSAGE_NOT_KNOWN,     /* the text has too few figures */
  WEIR__MESSAGE_TOO_LARGE,     /* the request alone is more than all that there is */
  WEIR__MESSAGE_EXHAUSTED,     /* even without fragmentation the request could not have been served */
  WEIR__MESSAGE_FRAGMENTED,    /* the allocator held enough free memory, but not in a form that the request could use */
  WEIR__MESSAGE_UNDECIDED,     /* the free memory of the allocator and of the device together may have been enough */
  WEIR__MESSAGE_OUTSIDE,       /* memory that is not PyTorch's own allocator's */
  WEIR__MESSAGE_REFUSED,       /* enough was free, and yet the driver or a limit that is not printed refused */
  WEIR__MESSAGE_ADDRESS_SPACE, /* the request exceeds the reserve of an expandable segment */
  WEIR__MESSAGE_NO_CACHE,      /* what vLLM may use has no room for the KV cache of one request */
  WEIR__MESSAGE_OCCUPIED,      /* other programs hold what vLLM was to take */
  WEIR__MESSAGE_CAUSES
} weir__message_cause;

typedef enum weir__message_bound {
  WEIR__BOUND_NOT_KNOWN,
  WEIR__BOUND_DEVICE,
  WEIR__BOUND_LIMIT,  /* one that the program has set */
  WEIR__BOUND_EITHER, /* the rounded figures allow both */
  WEIR__BOUNDS
} weir__message_bound;

typedef struct weir__message_process {
  uint64_t pid;
  weir__figure used;
} weir__message_process;

typedef struct weir__message {
  weir__message_kind kind;
  weir__message_library library;
  weir__message_source source;
  uint64_t source_number;
  size_t line;        /* of the file, from 1 */
  size_t repeated;    /* how often the same rank or device failed after that */
  int device;         /* -1 if it is not named */
  bool is_weirs;      /* Weir's own message */
  bool has_old_rules; /* PyTorch 1.0 to 1.3: "cached" */
  bool is_expandable; /* the text says that expandable segments are on */
  bool is_drivers;    /* RMM, XLA: the driver refused what the allocator wanted from it */
  bool is_hip;        /* of ROCm */

  /* As the text has them. */
  weir__figure tried; /* the segment that was to be allocated; for other allocators the request */
  weir__figure total, free, allowed;
  weir__figure own;       /* of this process, according to the driver */
  weir__figure allocated; /* with `pools` */
  weir__figure pools;     /* of these: free, but in private pools */
  weir__figure unallocated, reserved;
  weir__figure reserve; /* of an expandable segment, if it is less than the request */
  weir__message_process processes[WEIR__MESSAGE_PROCESSES];
  size_t process_count; /* the other processes, or all of them if `own` is not known */

  /* What a program compiled by XLA needs, from its table "BufferAssignment stats", and the largest of its buffers. */
  weir__figure program, arguments, results, temporaries, constants, largest;
  char largest_name[WEIR__MESSAGE_NAME]; /* of the operation that makes the largest buffer, "" if it is not known */
  char tensor[WEIR__MESSAGE_NAME];       /* TensorFlow: "[32,1024,64,64] of float" */
  char operation[WEIR__MESSAGE_NAME]; /* that failed: a program of XLA, an operation of TensorFlow; "" if not known */
  uint64_t tokens;                    /* vLLM: of the longest request; 0 if it is not known */
  uint64_t tokens_fit;                /* and of the longest that would fit, as vLLM estimates it */

  /* What follows. */
  weir__figure request;     /* what the program asked for, rounded as the allocator rounds */
  weir__figure headroom;    /* what could still be reserved: free on the device, and below the limit */
  weir__figure missing;     /* how much more headroom would have served the request */
  weir__figure usable;      /* unallocated and headroom: what the best conceivable allocator could have used */
  weir__figure short_by;    /* `request` less `usable`: missing even without any fragmentation */
  weir__figure non_pytorch; /* of this process, outside the allocator: context, kernels, libraries */
  weir__figure others;      /* on the device, of other processes */
  weir__figure unlisted;    /* in use on the device, but by no process that the text lists */
  weir__figure outside;     /* on the device, and not reserved here: the three above together */
  weir__message_cause cause;
  weir__message_bound bound;
  bool others_suffice; /* without the other processes the request would have been served */
  bool pools_suffice;  /* as would it with the memory that is free in private pools */
  const char *conf;    /* a setting of PyTorch that is worth a try, NULL if there is none */
} weir__message;

typedef struct weir__messages {
  weir__message *items; /* the first failure of each rank, or of each device where ranks are not known */
  size_t count;
  size_t found; /* all failures */
  size_t lines; /* of the file */
} weir__messages;

/* Reads a text and finds the failures in it, of which weir__messages_derive() computes the rest. There may be none. The
 * input must not be longer than WEIR__MESSAGE_INPUT: WEIR_ERROR_BAD_DATA otherwise. */
weir_status weir__messages_read(weir__input *input, weir__messages *messages);
void weir__messages_free(weir__messages *messages);

/* The same for a text in memory, which is overwritten. */
weir_status weir__messages_find(char *text, size_t size, weir__messages *messages);

/* Removes colours, prefixes, blanks and all that is not ASCII from a text. Newlines stay. The source of a line is
 * written at its beginning as the byte weir__message_source, a number, and the byte WEIR__SOURCE_END. Returns the new
 * size. */
size_t weir__message_squeeze(char *text, size_t size);
