/* Choices that were measured, kept in a file so that later runs make the same: one a line, "key TAB value". Of several
 * lines with one key the last counts; what is no such line is passed over. The file is read when it is opened, and
 * written by appending whole lines, so several processes may. Nothing here knows what is chosen. */
#ifndef LLM_TUNED_H
#define LLM_TUNED_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tuned tuned;

/** `path` NULL: sherd/products.tsv in the user's cache (XDG_CACHE_HOME, else ~/.cache), whose folders are made. A file that is
 *  not there is made. NULL with a sentence in `why`: it cannot be read or written, no memory, no home. */
tuned *tuned_open(const char *path, char *why, size_t why_bytes);
void   tuned_close(tuned *t); /* accepts NULL */
/** The value of a key, or NULL; valid until the next call. */
const char *tuned_find(const tuned *t, const char *key);
/** Keeps it here and in the file. 0; -1 when it could not be written (errno): then it is kept here alone. Neither text
 *  has a tab or a newline in it. */
int         tuned_add(tuned *t, const char *key, const char *value);
const char *tuned_path(const tuned *t);

#ifdef __cplusplus
}
#endif

#endif
