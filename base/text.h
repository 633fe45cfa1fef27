/* Text that grows: for files of JSON that are written as a whole. A failure is kept, so that a writer looks at
 * `status` once, at its end; what is put behind it is dropped. */
#ifndef SHERDI_BASE_TEXT_H
#define SHERDI_BASE_TEXT_H

#include "base/mem.h"

typedef struct sherdi_text {
    sherdi_mem  *mem;
    char        *bytes; /* len_bytes of them, with a NUL behind; NULL: none yet */
    size_t       len_bytes, capacity_bytes;
    sherd_status status; /* of the first put that failed */
} sherdi_text;

/** Starts empty, without an allocation. The account must outlive the text. */
void sherdi_text_init(sherdi_text *text, sherdi_mem *mem);
/** Also of one that failed. */
void sherdi_text_fini(sherdi_text *text);

/* Room for any number below, with its NUL. */
#define SHERDI_REAL_BYTES 32
/** The shortest digits that read back as the same number, with a point whatever the locale says: JSON but for "nan" and
 *  "inf". */
void sherdi_real_format(double value, char out[SHERDI_REAL_BYTES]);

void sherdi_text_put(sherdi_text *text, const char *bytes, size_t len_bytes);
/** At most SHERDI_ERROR_BYTES - 1 bytes at a time. */
void sherdi_text_print(sherdi_text *text, const char *fmt, ...) SHERDI_PRINTF(2, 3);
/** `value` as a JSON string, with its quotes. E_INVAL (kept in `status`) where it is not UTF-8: no reader takes that. */
void sherdi_text_quote(sherdi_text *text, const char *value);

#endif
