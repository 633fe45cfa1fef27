/* Reads the file of sherd.fingerprints, for tests. */
#ifndef TESTS_ENGINE_UNIT_LINES_H
#define TESTS_ENGINE_UNIT_LINES_H

#include <stddef.h>
#include <stdint.h>

#define UNIT_LINES_BYTES ((size_t)512 << 10)

/** Returns the text of a file, in a static buffer; fails the test if there is none. */
const char *unit_lines_read(const char *path);
/** Returns the last line that begins with `start`, in the text; NULL: there is none. */
const char *unit_lines_last(const char *text, const char *start);
/** Returns the last line of a step that was made; fails the test if there is none. */
const char *unit_lines_step(const char *text, long long step);
/** Returns a word of a unit in the list "gradients" or "weights": column 0 is of all ranks, column
 *  1 of rank 0, and so on. */
uint64_t unit_lines_word(const char *line, const char *list, int unit, int column);
/** Returns whether the line has what rested of a unit; *out is then a word of it: item 0 is its
 *  weights before the update, and item 1 the first part of its state after it. */
int unit_lines_state(const char *line, int unit, int item, int column, uint64_t *out);

#endif
