/* See text.h. */
#include "base/text.h"

#include <string.h>
#include <strings.h>

int sherdi_text_choice(const char *choices, const char *text, int is_any_case, size_t *out)
{
    size_t text_bytes = strlen(text);
    size_t bytes;

    for (size_t i = 0;; i++, choices += bytes + 1) {
        bytes = strcspn(choices, "|");
        if (bytes == text_bytes && (is_any_case ? strncasecmp(choices, text, bytes)
                                                : strncmp(choices, text, bytes)) == 0) {
            *out = i;
            return 1;
        }
        if (choices[bytes] == '\0') {
            return 0;
        }
    }
}
