/* Text that grows, for JSON files that are written as a whole. The first failure is kept, so a
 * writer checks `status` only once, at its end; what is added after a failure is dropped. */
#ifndef SHERDI_BASE_JSON_TEXT_H
#define SHERDI_BASE_JSON_TEXT_H

#include "base/mem.h"

typedef struct sherdi_text {
    sherdi_mem  *mem;
    char        *bytes; /* [len_bytes] and a NUL; NULL: none yet */
    size_t       len_bytes, capacity_bytes;
    sherd_status status; /* of the first addition that failed */
} sherdi_text;

/** Returns the bytes of the well-formed UTF-8 sequence at `text` (Unicode 15, table 3-7); 0: it is
 *  malformed. */
size_t sherdi_utf8_bytes(const unsigned char *text, size_t left);
/** Returns 1 when the bytes are well-formed UTF-8. */
int sherdi_text_is_utf8(const char *text, size_t len_bytes);

/** The order of two names, for qsort and bsearch over an array of `const char *`. */
int sherdi_text_order(const void *a, const void *b);

/** Initialises an empty text; allocates nothing. The account must outlive the text. */
void sherdi_text_init(sherdi_text *text, sherdi_mem *mem);
/** Frees a text, also one with a failure. */
void sherdi_text_fini(sherdi_text *text);

void sherdi_text_put(sherdi_text *text, const char *bytes, size_t len_bytes);
/** At most SHERDI_ERROR_BYTES - 1 bytes at a time. */
void sherdi_text_print(sherdi_text *text, const char *fmt, ...) SHERDI_PRINTF(2, 3);
/** Adds `value` as a JSON string, with its quotes. E_INVAL (kept in `status`) if it is not UTF-8,
 *  because no reader accepts that. */
void sherdi_text_quote(sherdi_text *text, const char *value);

#endif
