/* See places.h. The table here counts CPUs and binds no thread. */
#include "kernels/cpu/places.h"

#include "base/absent.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

sherd_status sherdi_threads_read(int *threads)
{
    const char *text = getenv("SHERD_THREADS");
    char       *end;
    long        value;

    if (*threads > 0 || text == NULL || text[0] == '\0') {
        return SHERD_OK;
    }
    value = strtol(text, &end, 10);
    if (*end != '\0' || value < 1 || value > SHERDI_MOST_CPU_THREADS) {
        return sherdi_fail(SHERD_E_INVAL, "SHERD_THREADS is \"%s\", not a number from 1 to %d",
                           text, SHERDI_MOST_CPU_THREADS);
    }
    *threads = (int)value;
    return SHERD_OK;
}

/* The system places the threads. More CPUs than a set holds are counted as those that are online.
 * */
static sherd_status anywhere_find(const sherdi_cpu_params *params, sherdi_cpu_binding *out)
{
    const char       *text  = getenv("SHERD_CPU_BIND");
    sherdi_cpu_params asked = *params;
    int               cpus;

    if (text != NULL && text[0] != '\0' && strcmp(text, "none") != 0) {
        return sherdi_absent("binding", "SHERD_CPU_BIND");
    }
    memset(out, 0, sizeof(*out));
    cpus = sched_getaffinity(0, sizeof(out->allowed), &out->allowed) == 0
               ? CPU_COUNT(&out->allowed)
               : (int)sysconf(_SC_NPROCESSORS_ONLN);
    SHERDI_TRY(sherdi_threads_read(&asked.threads));
    out->threads    = sherdi_threads_of(cpus, &asked);
    out->is_crowded = sherdi_is_crowded(cpus, out->threads, params->shares);
    return SHERD_OK;
}

const sherdi_places sherdi_places_anywhere = {.find = anywhere_find};

const sherdi_places *sherdi_places_first(void)
{
#define SHERDI_PLACES(table) &(table),
    static const sherdi_places *const TABLES[] = {
#include "kernels/cpu/place_list.h"
    };
#undef SHERDI_PLACES

    return TABLES[0];
}
