/*
 * Texts, pools and contexts of the whole process, each known by a number.
 */
#pragma once

#include "base/intern.h"

extern weir__intern weir__texts;

uint32_t weir__text_number(const char *text);      /* 0 for NULL and "" */
const char *weir__text_of_number(uint32_t number); /* "" for 0 */
