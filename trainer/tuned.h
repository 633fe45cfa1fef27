/* A file of measured choices, so that later runs choose the same. Each line is "key TAB value". If
 * several lines have one key, the last counts; other lines are skipped. The file is read when it is
 * opened and written by appending whole lines, so several processes may write to it. This code does
 * not know the meaning of the choices; cuda/lt.cu does. */
#ifndef LLM_TUNED_H
#define LLM_TUNED_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tuned tuned;

/** Opens the file, and makes it if it does not exist. `path` NULL: sherd/products.tsv in the user's
 *  cache (XDG_CACHE_HOME, else ~/.cache), whose folders are made. Returns NULL with a sentence in
 *  `why` if the file cannot be read or written, or if there is no memory or no home folder. */
tuned *tuned_open(const char *path, char *why, size_t why_bytes);
void   tuned_close(tuned *t); /* accepts NULL */
/** Returns the value of a key, or NULL; valid until the next call. */
const char *tuned_find(const tuned *t, const char *key);
/** Keeps a value in memory and in the file. Returns 0; -1 with errno if it could not be written to
 *  the file: then it is stored in memory only. `key` and `value` must have no tab and no
 *  newline. */
int         tuned_add(tuned *t, const char *key, const char *value);
const char *tuned_path(const tuned *t);

#ifdef __cplusplus
}
#endif

#endif
