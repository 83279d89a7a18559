#include "compute/compute.h"

void weir__modules_end(void) {}
