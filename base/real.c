#include "base/real.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sherdi_real_format(double value, char out[SHERDI_REAL_BYTES])
{
    char *comma;

    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(out, SHERDI_REAL_BYTES, "%.*g", digits, value);
        if (strtod(out, NULL) == value) {
            break;
        }
    }
    comma = strchr(out, ',');
    if (comma != NULL) {
        *comma = '.';
    }
}
