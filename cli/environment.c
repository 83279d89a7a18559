/*
 * The help on environment variables, of the table with which they are read.
 */
#include "help.h"

#define WEIR__GROUP(heading) {.group = heading},
#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})
#define WEIR__VARIABLE(id, names, kind, from, to, values, preset, help) {NULL, NAMES names, values, preset, help},
const weir_cli_variable weir_cli_environment[] = {
#include "base/environment_table.h"
    {0}};

const char *weir_cli_variable_names(const weir_cli_variable *variable, char *text, size_t size) {
  size_t used = 0;
  for (size_t i = 0; variable->names[i] && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "", variable->names[i]);
  return text;
}
