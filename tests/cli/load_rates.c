/* load_rates BACKEND FILE RATE...: whether a plan for BACKEND takes FILE's rates, all that are
 * named and no others but flops. */
#include "planning/rates.h"

#include <stdio.h>
#include <string.h>

static int is_named(const char *name, int argc, char **argv)
{
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], name) == 0) {
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    planning_rates rates;
    char           why[512];
    int            failed = 0;

    planning_rates_assume("cpu", &rates);
    if (argc < 3 || planning_rates_load(argv[2], argv[1], &rates, why, sizeof(why)) != 0) {
        (void)fprintf(stderr, "not ok: %s\n", argc < 3 ? "no file" : why);
        return 1;
    }
    for (int i = 0; i < PLANNING_RATES; i++) {
        const char *name    = planning_rate_name((planning_rate)i);
        int         is_read = rates.origins[i] == PLANNING_MEASURED;

        if (is_read != is_named(name, argc, argv) || !(rates.values[i] > 0)) {
            (void)fprintf(stderr, "not ok: %s is %s, %g\n", name,
                          planning_origin_name(rates.origins[i]), rates.values[i]);
            failed = 1;
        }
    }
    return failed;
}
