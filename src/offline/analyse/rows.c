#include "offline/analyse/rows.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"

static const char *ns_text(double ns, char text[WEIR__ROW_TEXT]) {
  static const struct {
    double from, unit;
    const char *name;
  } units[] = {{1e9, 1e9, "s"}, {1e6, 1e6, "ms"}, {0, 1e3, "us"}};
  size_t i = 0;
  while (ns < units[i].from)
    i++;
  double number = ns / units[i].unit;
  snprintf(text, WEIR__ROW_TEXT, "%.*f %s", number < 10 ? 2 : number < 100 ? 1 : 0, number, units[i].name);
  return text;
}

const char *weir__unit_text(weir__unit unit, double value, char text[WEIR__ROW_TEXT]) {
  if (unit == WEIR__UNIT_BYTES)
    return weir__format_bytes((uint64_t)value, text);
  if (unit == WEIR__UNIT_NS)
    return ns_text(value, text);
  bool is_share = unit == WEIR__UNIT_SHARE;
  snprintf(text, WEIR__ROW_TEXT, is_share ? "%.1f %%" : "%.0f", is_share ? 100 * value : value);
  return text;
}

const char *weir__count_text(uint64_t count, const char *noun, char text[WEIR__ROW_TEXT]) {
  const size_t length = strlen(noun);
  bool ends_in_y = length && noun[length - 1] == 'y', ends_in_s = length && noun[length - 1] == 's';
  if (count == 1)
    snprintf(text, WEIR__ROW_TEXT, "1 %s", noun);
  else
    snprintf(text, WEIR__ROW_TEXT, "%llu %.*s%s", (unsigned long long)count, (int)(length - ends_in_y), noun,
             ends_in_y   ? "ies"
             : ends_in_s ? "es"
                         : "s");
  return text;
}

const char *weir__range_text(const char *least, const char *to, const char *most, char text[WEIR__ROW_TEXT]) {
  const char *unit = strrchr(least, ' '), *same = strrchr(most, ' ');
  bool has_same_unit = unit && same && strcmp(unit, same) == 0;
  if (strcmp(least, most) == 0)
    snprintf(text, WEIR__ROW_TEXT, "%s", least);
  else
    snprintf(text, WEIR__ROW_TEXT, "%.*s%s%s", has_same_unit ? (int)(unit - least) : (int)strlen(least), least, to,
             most);
  return text;
}

const char *weir__row_text(const weir__row *row, char text[WEIR__ROW_TEXT]) {
  bool is_rising = row->value < row->other;
  char least[WEIR__ROW_TEXT], most[WEIR__ROW_TEXT];
  weir__unit_text(row->unit, is_rising ? row->value : row->other, least);
  weir__unit_text(row->unit, is_rising ? row->other : row->value, most);
  return weir__range_text(least, " to ", most, text);
}
