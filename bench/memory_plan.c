/* Plans of bench-memory: models by name, rows of a layout, the largest model that fits. See
 * memory.h. */
#include "bench/memory.h"

#include <stdlib.h>
#include <string.h>

/* Where a search begins, and how fine it ends. */
#define FIRST_ELEMS 1e7
#define FINE        1.005

planning_model *memory_model_find(const char *name, char *why, size_t why_bytes)
{
    arch   sizes;
    size_t elems;

    if (arch_preset(ARCH_GPT2, name, &sizes) == 0) {
        arch_complete(&sizes);
        return planning_model_from_arch(&sizes, name, why, why_bytes);
    }
    elems = planning_count_parse(name);
    if (elems == 0) {
        (void)snprintf(why, why_bytes,
                       "\"%.100s\" is neither a size of GPT-2 nor a count like 7.5B", name);
        return NULL;
    }
    return planning_model_from_count(elems, why, why_bytes);
}

sherd_status memory_plan(const planning_model *model, const char *backend,
                         const planning_layout *layout, planning_row *out)
{
    planning_request request = {.model = model, .backend = backend};

    planning_rates_assume(backend, &request.rates);
    return planning_row_make(&request, layout, out);
}

/* ------------------------------------------------------------ the largest -- */

typedef struct search {
    const memory_limits_params *params;
    planning_layout             layout;
    memory_limit               *best;
    int                         has_failed;
} search;

static int search_ranks_per_host(const search *s)
{
    return s->layout.world_size < s->params->ranks_per_host ? s->layout.world_size
                                                            : s->params->ranks_per_host;
}

/* The resource with the least room. */
static const char *bound_of(const search *s, const planning_request *request,
                            const planning_row *row)
{
    double ranks  = search_ranks_per_host(s);
    double device = (double)row->device_bytes / (double)s->params->device_bytes;
    double host   = ranks * (double)row->host_bytes / (double)s->params->host_bytes;
    double nvme   = planning_nvme_need(request, row) / (double)s->params->nvme_bytes;

    if (nvme > device && nvme > host) {
        return "nvme";
    }
    return host > device ? "host" : "device";
}

/* Whether a model of this number of elements fits; the largest fitting one is stored. */
static int search_try(search *s, double elems)
{
    char             why[256];
    planning_model  *model   = planning_model_from_count((size_t)elems, why, sizeof(why));
    planning_request request = {.model          = model,
                                .backend        = "cuda",
                                .ranks_per_host = search_ranks_per_host(s),
                                .device_bytes   = s->params->device_bytes,
                                .host_bytes     = s->params->host_bytes,
                                .nvme_bytes     = s->params->nvme_bytes};
    planning_row     row     = {.fits = 0};
    sherd_status     status;

    if (model == NULL) {
        s->best->bound = "count"; /* more than an engine declares */
        return 0;
    }
    planning_rates_assume("cuda", &request.rates);
    status = planning_row_make(&request, &s->layout, &row);
    if (status == SHERD_E_NOMEM) {
        /* more than a plan has; smaller tries may end for another reason */
        s->best->bound = "blocks";
    } else if (status != SHERD_OK) {
        (void)fprintf(stderr, "bench-memory: %s on %d GPUs: %s\n", model->label,
                      s->layout.world_size, sherd_last_error());
        s->has_failed = 1;
    } else if (row.fits) {
        s->best->elems = model->elems;
        s->best->plan  = row;
    } else {
        s->best->bound = bound_of(s, &request, &row);
    }
    planning_model_destroy(model);
    return row.fits;
}

int memory_limit_find(const memory_limits_params *params, int stage, planning_offload offload,
                      int gpus, memory_limit *out)
{
    search s    = {.params = params,
                   .layout = {.stage = stage, .offload = offload, .world_size = gpus},
                   .best   = out};
    double fits = 0;
    double too_large;

    *out = (memory_limit){.stage = stage, .offload = offload, .gpus = gpus, .bound = ""};
    for (too_large = FIRST_ELEMS; search_try(&s, too_large); too_large *= 4) {
        fits = too_large;
        if (memory_signal() != 0) {
            return -1;
        }
    }
    while (fits > 0 && too_large / fits > FINE && !s.has_failed && memory_signal() == 0) {
        double middle = (fits + too_large) / 2;

        if (search_try(&s, middle)) {
            fits = middle;
        } else {
            too_large = middle;
        }
    }
    return s.has_failed || memory_signal() != 0 ? -1 : 0;
}
