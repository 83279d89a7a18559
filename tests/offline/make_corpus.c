/*
 * Takes pickle_cases.bin apart: make_corpus FILE FOLDER writes each case's data to a file of its own, for the fuzzers
 * to begin with. What the file looks like is said in tests/data/make_pickles.py.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words) {
  if (count != 3) {
    fprintf(stderr, "usage: make_corpus FILE FOLDER\n");
    return 2;
  }
  FILE *in = fopen(words[1], "rb");
  if (!in) {
    perror(words[1]);
    return 1;
  }
  char line[256], name[64], path[1024];
  int protocol;
  unsigned long text_size, data_size;
  while (fgets(line, sizeof line, in)) {
    if (sscanf(line, "%63s %d %lu %lu", name, &protocol, &text_size, &data_size) != 4 || data_size > 1 << 20) {
      fprintf(stderr, "%s: this is no case: %s", words[1], line);
      return 1;
    }
    unsigned char *data = malloc(data_size + 1);
    snprintf(path, sizeof path, "%s/%s-%d", words[2], name, protocol);
    FILE *out = data ? fopen(path, "wb") : NULL;
    bool done = out && !fseek(in, (long)text_size, SEEK_CUR) && fread(data, 1, data_size, in) == data_size &&
                fwrite(data, 1, data_size, out) == data_size;
    if (out && fclose(out))
      done = false;
    free(data);
    if (!done) {
      perror(path);
      return 1;
    }
  }
  fclose(in);
  return 0;
}
