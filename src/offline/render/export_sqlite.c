/*
 * One transaction without a journal: the file is new, and removed if anything fails. Indices are created last, so that
 * SQLite sorts once; it sorts large tables in files, so its memory stays small.
 */
#include "base/base.h"
#include "offline/render/export.h"

#ifndef WEIR_HAVE_SQLITE

weir_status weir__export_sqlite(const weir__recording *recording, int device, weir__step step, void *step_context,
                                const char *name, const char *path) {
  (void)recording, (void)device, (void)step, (void)step_context, (void)path;
  return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                    "%s: this build of Weir is without SQLite; install libsqlite3-dev and build again", name);
}

#else

#include <sqlite3.h>

typedef struct base {
  weir__rows rows;
  sqlite3 *db;
  sqlite3_stmt *insert;
  int column;       /* of the next value, from 1; -1 if a value of the row could not be bound */
  const char *name; /* for errors */
} base;

static weir_status failed(base *b) {
  return weir__fail(WEIR_ERROR_SYSTEM, "%s: SQLite: %s", b->name, b->db ? sqlite3_errmsg(b->db) : "out of host memory");
}

static weir_status run(base *b, const char *sql) {
  return sqlite3_exec(b->db, sql, NULL, NULL, NULL) == SQLITE_OK ? WEIR_OK : failed(b);
}

/* A value that cannot be bound is reported at the end of the row. */
static void bound(base *b, int result) {
  if (result != SQLITE_OK)
    b->column = -1;
  else if (b->column > 0)
    b->column++;
}

static void integer(weir__rows *to, int64_t value) {
  base *b = (base *)to;
  bound(b, b->column > 0 ? sqlite3_bind_int64(b->insert, b->column, value) : SQLITE_OK);
}

static void natural(weir__rows *to, uint64_t value) { integer(to, (int64_t)value); }

static void text(weir__rows *to, const char *value) {
  base *b = (base *)to;
  bound(b, b->column > 0 ? sqlite3_bind_text(b->insert, b->column, value, -1, SQLITE_STATIC) : SQLITE_OK);
}

static void nothing(weir__rows *to) {
  base *b = (base *)to;
  bound(b, b->column > 0 ? sqlite3_bind_null(b->insert, b->column) : SQLITE_OK);
}

static weir_status row(weir__rows *to) {
  base *b = (base *)to;
  if (b->column < 0 || sqlite3_step(b->insert) != SQLITE_DONE)
    return failed(b);
  sqlite3_reset(b->insert);
  b->column = 1;
  return WEIR_OK;
}

static weir_status begin(weir__rows *to, weir__export_table table, const weir__export_column *columns, size_t count) {
  static const char *const keys[] = {
#define X(name, text, sql) sql,
      WEIR__EXPORT_MAP(X)
#undef X
  };
  base *b = (base *)to;
  char create[1024], insert[256];
  size_t at = (size_t)snprintf(create, sizeof create, "CREATE TABLE %s (", weir__export_table_name(table));
  size_t in = (size_t)snprintf(insert, sizeof insert, "INSERT INTO %s VALUES (", weir__export_table_name(table));
  for (size_t i = 0; i < count; i++) {
    at += (size_t)snprintf(create + at, sizeof create - at, "%s %s, ", columns[i].name,
                           columns[i].is_text ? "TEXT" : "INTEGER");
    in += (size_t)snprintf(insert + in, sizeof insert - in, "%s", i ? ", ?" : "?");
  }
  snprintf(create + at, sizeof create - at, "%s) WITHOUT ROWID", keys[table]);
  snprintf(insert + in, sizeof insert - in, ")");
  weir_status status = run(b, create);
  if (!status && sqlite3_prepare_v2(b->db, insert, -1, &b->insert, NULL) != SQLITE_OK)
    status = failed(b);
  b->column = 1;
  return status;
}

static weir_status end(weir__rows *to) {
  base *b = (base *)to;
  sqlite3_finalize(b->insert); /* its error was reported by the row */
  b->insert = NULL;
  return WEIR_OK;
}

weir_status weir__export_sqlite(const weir__recording *recording, int device, weir__step step, void *step_context,
                                const char *name, const char *path) {
  static const char before[] = "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA temp_store = FILE; BEGIN";
  static const char after[] = "CREATE INDEX segments_address ON segments (device, address);"
                              "CREATE INDEX blocks_segment ON blocks (segment);"
                              "CREATE INDEX blocks_address ON blocks (device, address);"
                              "CREATE INDEX blocks_stack ON blocks (stack);"
                              "CREATE INDEX events_address ON events (address);"
                              "CREATE INDEX events_time ON events (time_us);"
                              "CREATE INDEX events_stack ON events (stack);"
                              "CREATE INDEX events_action ON events (action);"
                              "CREATE INDEX work_start ON work (start_ns);"
                              "CREATE INDEX stacks_frame ON stacks (frame);"
                              "CREATE INDEX frames_name ON frames (name);"
                              "CREATE INDEX frames_filename ON frames (filename, line);"
                              "CREATE VIEW stack_frames AS SELECT stack, depth, frame, name, filename, line FROM "
                              "stacks JOIN frames USING (frame);"
                              "COMMIT";
  base b = {.rows = {.begin = begin,
                     .integer = integer,
                     .natural = natural,
                     .text = text,
                     .nothing = nothing,
                     .row = row,
                     .end = end},
            .name = name};
  weir_status status = WEIR_OK;
  if (sqlite3_open_v2(path, &b.db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL) != SQLITE_OK)
    status = failed(&b);
  if (!status)
    status = run(&b, before);
  for (int table = 0; table < WEIR__EXPORT_TABLES && !status; table++)
    status = weir__export_rows(recording, device, (weir__export_table)table, step, step_context, &b.rows);
  if (!status)
    status = run(&b, after);
  if (sqlite3_close(b.db) != SQLITE_OK && !status)
    status = weir__fail(WEIR_ERROR_SYSTEM, "%s: SQLite: it cannot be closed", name);
  return status;
}

#endif
