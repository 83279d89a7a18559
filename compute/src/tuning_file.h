/*
 * Files of tuning results, in the format of PyTorch's TunableOp: lines of fields that are separated by commas, without
 * quotes.
 *
 *     Validator,DEVICE,NVIDIA H200
 *     GemmTunableOp_float_NN,nn_64_64_64_ld_64_64_64,Gemm_CublasLt_2,0.0072
 *
 * Validators say under which circumstances the results were measured. The other lines have an operation, its
 * parameters, the fastest solution and, optionally, its time in milliseconds; further fields are ignored.
 */
#pragma once

#include <stddef.h>

#include "src/base.h"

typedef struct weir__tuning_validator {
  char *key, *value;
} weir__tuning_validator;

typedef struct weir__tuning_row {
  char *op, *params, *solution;
  double milliseconds; /* 0 if the file has no time */
} weir__tuning_row;

/* {0} is empty. */
typedef struct weir__tuning_file {
  weir__tuning_validator *validators; /* each key once */
  size_t validator_count, validator_room;
  weir__tuning_row *rows;
  size_t row_count, row_room;
  size_t skipped;       /* lines that could not be read */
  size_t first_skipped; /* the number of the first of them, from 1 on */
} weir__tuning_file;

/* Adds or replaces a validator. Commas and line breaks, which the format cannot express, become spaces. False if the
 * host has no memory. */
bool weir__tuning_file_set(weir__tuning_file *file, const char *key, const char *value);

/* NULL if there is none. */
const char *weir__tuning_file_find(const weir__tuning_file *file, const char *key);

/* Adds a line. The texts must pass weir__tuning_text_is_valid. False if the host has no memory. */
bool weir__tuning_file_add(weir__tuning_file *file, const char *op, const char *params, const char *solution,
                           double milliseconds);

/* Whether a text can be a field: not empty, and without commas and control characters. */
bool weir__tuning_text_is_valid(const char *text);

/* Adds what a file contains to *file, which must be cleared whatever the result. Lines that cannot be read are counted
 * and skipped, as PyTorch does. WEIR_ERROR_BAD_DATA for a file that is not a text or larger than 64 MiB,
 * WEIR_ERROR_SYSTEM for one that cannot be opened. */
weir_status weir__tuning_file_read(const char *caller, const char *path, weir__tuning_file *file);

/* Replaces the file at `path` as a whole. */
weir_status weir__tuning_file_write(const char *caller, const char *path, const weir__tuning_file *file);

/* Excludes other processes and threads that lock the same file, so that it can be read, added to and replaced. It uses
 * the file `path`.weir-lock, which exists only meanwhile, because `path` itself is replaced. Where that cannot be
 * locked, or is for longer than ten seconds, the caller goes on without: concurrent updates may then be lost. `path`
 * itself need not exist. */
typedef struct weir__tuning_lock {
  char *path; /* of the lock's file */
  int file;   /* -1 if it is not locked */
} weir__tuning_lock;
weir__tuning_lock weir__tuning_file_lock(const char *path);
void weir__tuning_file_unlock(weir__tuning_lock *lock);

/* Whether there is a regular file at `path`, which is read without waiting for anything. */
bool weir__tuning_file_exists(const char *path);

/* Fails with WEIR_ERROR_BAD_STATE unless the validators of a file that was read from `path` are the expected ones, and
 * the text names the first that differs. */
weir_status weir__tuning_file_check(const char *caller, const char *path, const weir__tuning_file *file,
                                    const weir__tuning_file *expected);

void weir__tuning_file_clear(weir__tuning_file *file);
