/* Choices, numbers and UTF-8 as text. */
#ifndef SHERDI_BASE_TEXT_H
#define SHERDI_BASE_TEXT_H

#include <stddef.h>

/** Returns whether `text` is one of the choices "a|b|c"; *out is then its number, from 0. */
int sherdi_text_choice(const char *choices, const char *text, int is_any_case, size_t *out);

/* Room for any number of sherdi_real_format, with its NUL. */
#define SHERDI_REAL_BYTES 32
/** Writes the fewest digits that read back as the same number, with a point whatever the locale is.
 *  The result is JSON, except for "nan" and "inf". */
void sherdi_real_format(double value, char out[SHERDI_REAL_BYTES]);

/** Returns the bytes of the well-formed UTF-8 sequence at `text` (Unicode 15, table 3-7); 0: it is
 *  malformed. */
size_t sherdi_utf8_bytes(const unsigned char *text, size_t left);
/** Returns 1 when the bytes are well-formed UTF-8. */
int sherdi_text_is_utf8(const char *text, size_t len_bytes);

#endif
