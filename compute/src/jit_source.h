/*
 * The source of elementwise functions (weir/compute/jiterator.h).
 */
#pragma once

/* The name in "template <typename T> T name(...) {...}", in memory of malloc; NULL if the code is something else. */
char *weir__jit_parse_name(const char *code);
