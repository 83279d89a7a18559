/*
 * Writing JSON, as much as the commands need.
 */
#ifndef WEIR_CLI_JSON_H
#define WEIR_CLI_JSON_H

/* Writes text to stdout as a JSON string, quotes and all. What is not UTF-8 becomes U+FFFD, and control characters are
 * escaped. */
void weir_cli_json_string(const char *text);

#endif
