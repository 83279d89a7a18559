/*
 * Work that can wait.
 *
 * A task is a function that does what is due, and says when it wants to be called again. All tasks of the process are
 * called by one function, weir__tasks_run. A worker calls it: one thread, which starts with the first task and ends
 * with the last one. Without a worker the program calls it (weir/maintain.h), or a test, which steps the time. Tasks
 * are called one after the other and without a lock, so one that waits delays the others.
 *
 * In the child of a fork there are no tasks: those that exist belong to the parent. New ones get a worker of their own.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/thread.h"

/* Times are those of weir__monotonic_ns, and WEIR__NO_DEADLINE stands for: when it is woken. */
typedef struct weir__task {
  uint64_t (*run)(void *context, uint64_t now); /* returns the time of its next call */
  void *context;
  _Atomic uint64_t due; /* changed under the lock */
  uint64_t pass;        /* in which it was called last; guarded by the lock, as is the next one */
  struct weir__task *next;
} weir__task;

/* Adds a task, which waits until it is woken. false if the worker cannot be started; then it is not added. */
bool weir__task_add(weir__task *task);

/* Afterwards the task is not being called, and never will be. Not for a task itself. Does nothing to one that was not
 * added, or belongs to the parent of a fork. */
void weir__task_remove(weir__task *task);

/* Makes a task due unless it has a time. What the caller wrote before, the task will see. */
void weir__task_wake(weir__task *task);

/* Calls each task that is due once, and returns when the next one will be. */
uint64_t weir__tasks_run(uint64_t now);
