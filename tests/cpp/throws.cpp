// Must not compile with -fno-exceptions: the constructor throws.
#include "weir/weir.hpp"

int main() { weir::buffer<int> buffer(1, weir::stream()); }
