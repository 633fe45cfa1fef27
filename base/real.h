/* Numbers as text. */
#ifndef SHERDI_BASE_REAL_H
#define SHERDI_BASE_REAL_H

/* Room for any number of sherdi_real_format, with its NUL. */
#define SHERDI_REAL_BYTES 32
/** Writes the fewest digits that read back as the same number, with a point whatever the locale is.
 *  The result is JSON, except for "nan" and "inf". */
void sherdi_real_format(double value, char out[SHERDI_REAL_BYTES]);

#endif
