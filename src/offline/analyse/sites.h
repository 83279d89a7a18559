/*
 * Which frames stand for a stack: the innermost one, and the innermost of the program's own code.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "offline/read/recording.h"

#define WEIR__NO_FRAME UINT32_MAX

/* The innermost frame, and the innermost one of the program's own code, or else of a library other than PyTorch. Native
 * frames are skipped if there are Python frames, and Weir's own always. WEIR__NO_FRAME if there is none, or if `own` is
 * the same. */
typedef struct weir__site {
  uint32_t inner, own;
} weir__site;

/* What the name of a file says. Names have many frames, and looking for words in them takes long, so a caller with many
 * stacks keeps it for each string of the recording: zeroes at first. */
typedef struct weir__file_place {
  bool is_known, is_python, is_named, is_weir;
  unsigned char distance;      /* if all frames are native, or it is a file of Python */
  unsigned char beside_python; /* if it is native, and other frames of the stack are Python's */
} weir__file_place;

/* `places` may be NULL. */
weir__site weir__site_of(const weir__recording *recording, uint32_t stack, weir__file_place *places);

/* Whether a file is where installed code is. */
bool weir__lies_in_library(const char *file);
