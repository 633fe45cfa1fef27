/* The numbers of ranks that a run may have (sherd.elastic): what each of them needs. */
#ifndef SHERDI_ENGINE_ELASTIC_SIZES_H
#define SHERDI_ENGINE_ELASTIC_SIZES_H

#include "engine/elastic/peak.h"

/* A number of ranks; bytes are of one rank. */
typedef struct sherdi_elastic_size {
    int    ranks;
    size_t rank_bytes;   /* of the host */
    size_t device_bytes; /* 0: there is no device */
    /* most while it moves from one rank less to this, and back; and between the plan's own number
     * and this; 0: there is no such move */
    sherdi_move_peak grow_peak, shrink_peak;
    sherdi_move_peak here_peak;
    uint64_t         disk_bytes;      /* of its files */
    uint64_t         grow_disk_bytes; /* of all ranks, while it moves from one rank less to this */
    const sherdi_plan *at, *below;    /* its plan, and that of one rank less; NULL: there is none */
} sherdi_elastic_size;

typedef sherd_status (*sherdi_elastic_fn)(void *ctx, const sherdi_elastic_size *size);

/** Returns whether a run of these settings may change its number of ranks. */
static inline int sherdi_is_elastic(const sherdi_settings *settings)
{
    return settings->elastic[1] > 0;
}
/** Makes a plan for each number from MIN to MAX, and gives its sizes to `fn`. E_NOMEM; E_INVAL: the
 *  model cannot be shared among that many. */
sherd_status sherdi_elastic_sizes(const sherdi_plan *plan, const sherdi_model *model,
                                  sherdi_elastic_fn fn, void *ctx);

/** Hooks of the module: lay_out, check, storage_open and unit_acquiring. */
sherd_status sherdi_elastic_lay_out(sherdi_plan *plan, const sherdi_model *model);
sherd_status sherdi_elastic_check(sherd_engine *engine);
sherd_status sherdi_elastic_disk_check(sherd_engine *engine);
sherd_status sherdi_share_check(sherd_engine *engine, int unit, sherd_pass pass);

#endif
