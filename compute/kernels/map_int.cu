/* Elementwise operations on integers and bool. */
#include "map.h"

MAP(weir_map_int, long long)
