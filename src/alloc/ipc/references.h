/*
 * References to memory that was sent to other processes, in a file of shared memory.
 *
 * Every message (weir_ipc_send) has a reference of its own, which is one word of the file of the sender's allocator:
 *
 *   free  ->  sent (the message is under way)  ->  held (by a process that has received it)  ->  done  ->  free
 *
 * The word also has the process that holds the reference, or that is to get it, so that the sender can recognize
 * references of processes that have ended, at whatever point: a process is known by its id and the time of its start. A
 * generation, which counts how often the word was used, keeps an old message from being taken for a new one. The sender
 * alone takes and frees words; all changes are made by compare-and-swap, so no process can leave a lock behind.
 *
 * The file has no name in the file system. A receiver opens it through /proc, so it lives as long as it is in use, and
 * nothing is left of it when processes are killed.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { WEIR__REFERENCES_MAX = 65536 };

typedef enum weir__reference_state {
  WEIR__REFERENCE_FREE,
  WEIR__REFERENCE_SENT,
  WEIR__REFERENCE_HELD,
  WEIR__REFERENCE_DONE
} weir__reference_state;

/* A process: 22 bits of its id (Linux has no more), and 24 bits of the time of its start. 0 if it is not known. */
typedef uint64_t weir__process_identity;

/* The shared file. */
typedef struct weir__references {
  char magic[8];
  weir__process_identity owner;
  _Atomic uint64_t words[WEIR__REFERENCES_MAX];
} weir__references;

/* The name of a reference within a message. */
typedef struct weir__reference_name {
  weir__process_identity sender;
  int32_t file; /* the descriptor, in the sender */
  uint32_t slot;
  uint32_t generation;
  uint32_t gap; /* 0 */
} weir__reference_name;

/* 0 if there is no such process. */
weir__process_identity weir__process_identity_of(int process);
int weir__process_of(weir__process_identity identity);

/* False for 0, and for a process that may not be examined. */
bool weir__identity_has_ended(weir__process_identity identity);

/* ---- The sender ---- */

/* Creates the file. Returns NULL, with errno set, if that fails. */
weir__references *weir__references_new(int *file);
void weir__references_delete(weir__references *references, int file);

/* Takes a free word, and makes it a reference that was sent to a process; 0 if that is not known. False if all are in
 * use. */
bool weir__reference_take(weir__references *references, weir__process_identity receiver, uint32_t *slot,
                          uint32_t *generation);

/* The state, and the process that it is about. */
weir__reference_state weir__reference_read(const weir__references *references, uint32_t slot,
                                           weir__process_identity *process);

/* Sets the process that a reference was sent to. False if it has been received. */
bool weir__reference_address(weir__references *references, const weir__reference_name *name,
                             weir__process_identity receiver);

/* Withdraws a reference that has been sent and is not held. False if it is held, or done. */
bool weir__reference_withdraw(weir__references *references, uint32_t slot);

/* Ends a reference that is done, or whose holder has ended. */
void weir__reference_free(weir__references *references, uint32_t slot);

/* ---- The receiver ---- */

/* Maps the file of a sender. Returns NULL, with errno set, if that fails: ESRCH if the sender has ended or has deleted
 * the file. */
weir__references *weir__references_open(const weir__reference_name *name);

/* False once the sender has deleted the file: another one may have its name. */
bool weir__references_are_current(const weir__references *references);

void weir__references_close(weir__references *references);

/* Holds a reference that was sent, and tells which receiver the sender had named. False if it has been received before,
 * or was withdrawn. */
bool weir__reference_hold(weir__references *references, const weir__reference_name *name, weir__process_identity self,
                          weir__process_identity *receiver);

/* Ends it, or makes it a reference that was sent to that receiver again, for another attempt. */
void weir__reference_end(weir__references *references, const weir__reference_name *name, weir__process_identity self);
void weir__reference_return(weir__references *references, const weir__reference_name *name, weir__process_identity self,
                            weir__process_identity receiver);
