#include "offline/read/pickle_opcode.h"

#include <stddef.h>

const char *weir__pickle_refused(unsigned char op, const char **name) {
  static const char import[] = "it would import a name and so run code";
  static const char call[] = "it would call a function";
  static const char instance[] = "it would make an object of a class";
  static const char persistent[] = "it would ask the program for an object";
  static const char outside[] = "it needs a buffer that is not in the pickle";
  static const struct {
    unsigned char op;
    const char *name, *why;
  } refused[] = {
      {'c', "GLOBAL", import},        {0x93, "STACK_GLOBAL", import}, {0x82, "EXT1", import},
      {0x83, "EXT2", import},         {0x84, "EXT4", import},         {'R', "REDUCE", call},
      {'b', "BUILD", call},           {'i', "INST", instance},        {'o', "OBJ", instance},
      {0x81, "NEWOBJ", instance},     {0x92, "NEWOBJ_EX", instance},  {'P', "PERSID", persistent},
      {'Q', "BINPERSID", persistent}, {0x97, "NEXT_BUFFER", outside}, {0x98, "READONLY_BUFFER", outside},
  };
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
    if (refused[i].op == op) {
      *name = refused[i].name;
      return refused[i].why;
    }
  return NULL;
}
