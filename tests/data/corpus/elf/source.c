/* scripts/fuzz compiles this into an object and into libraries with and without a symbol table: the initial inputs of
 * fuzz_elf. */
int variable = 1;
static int local(int x) { return x + variable; }
int function(int x) { return local(x) * 2; }
