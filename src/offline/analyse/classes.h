/*
 * What blocks are for: weights, gradients, optimizer state, activations, temporary memory. The class of a block follows
 * from its life, from phases (annotated ranges such as Optimizer.step and Optimizer.zero_grad, which PyTorch records,
 * and memory_phase()) and from the functions on its stack. It is "unknown" where these do not tell classes apart.
 *
 * The rule, for training:
 *
 *  - A step ends where gradients are freed together: in a range of Optimizer.zero_grad, or else in a row of frees
 *    without an allocation in between, of blocks that have the sizes of blocks which live through the whole recording.
 *    There must be two steps at least.
 *  - Gradients are what is freed there, and was allocated in that step.
 *  - Weights were allocated before the first activation, and live through the last step. If the recording begins late,
 *    weights and optimizer state cannot be told apart by their life.
 *  - Optimizer state was allocated during Optimizer.step (or else between the last gradient of a step and its end, with
 *    the size of a gradient), and outlives the step.
 *  - The backward pass of a step begins with the gradient of the loss: a block of up to 8 bytes before the first
 *    gradient.
 *  - Activations were allocated in a step before its backward pass and are in use when that begins.
 *  - Temporary is what a step allocates and frees again before its backward pass, or during it within an eighth of the
 *    step: the gradients of activations, workspaces, and activations that are computed again.
 *
 * Where stacks are recorded, they come first: a function of an optimizer, of the backward pass, of a module's forward
 * or of a module's conversion says where a block comes from, and its life whether it is kept.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offline/analyse/lives.h"
#include "offline/read/recording.h"

#define WEIR__CLASS_MAP(X)                                                                                             \
  X(UNKNOWN, "unknown")                                                                                                \
  X(WEIGHTS, "weights")                                                                                                \
  X(GRADIENTS, "gradients")                                                                                            \
  X(OPTIMIZER, "optimizer state")                                                                                      \
  X(ACTIVATIONS, "activations")                                                                                        \
  X(TEMPORARY, "temporary")

typedef enum weir__class {
#define X(name, text) WEIR__CLASS_##name,
  WEIR__CLASS_MAP(X)
#undef X
      WEIR__CLASSES
} weir__class;

/* "weights" and so on. */
const char *weir__class_name(weir__class number);

typedef struct weir__classes {
  uint8_t *of; /* weir__class of each of lives->blocks */
  size_t count;
  size_t steps;  /* of training that were found; 0 if none were */
  bool is_known; /* a block has a class other than unknown */
} weir__classes;

/* Finds the class of each block. `lives` are those of the device, or of pinned host memory if `device` is -1. */
weir_status weir__classes_make(const weir__recording *recording, int device, const weir__lives *lives,
                               weir__classes *classes);
void weir__classes_clear(weir__classes *classes);

/* Requested bytes in use by class after an entry. The sum is the allocated memory then. */
void weir__classes_sum(const weir__lives *lives, const weir__classes *classes, size_t entry,
                       uint64_t bytes[WEIR__CLASSES]);
