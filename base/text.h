/* Choices. */
#ifndef SHERDI_BASE_TEXT_H
#define SHERDI_BASE_TEXT_H

#include <stddef.h>

/** Returns whether `text` is one of the choices "a|b|c"; *out is then its number, from 0. */
int sherdi_text_choice(const char *choices, const char *text, int is_any_case, size_t *out);

#endif
