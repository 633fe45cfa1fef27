/* Where activations rest: of the module activations. */
#ifndef SHERDI_ENGINE_PLAN_ACTIVATIONS_H
#define SHERDI_ENGINE_PLAN_ACTIVATIONS_H

#include "engine/plan/plan.h"
#include "offload/tier_kind.h"

#define SHERDI_NO_ACTIVATION SIZE_MAX
#define SHERDI_SPACES        3 /* values of sherdi_space */

/* The activation of a unit: bytes that its forward stores for its backward. Forward writes it to
 * its place on the device. Several activations share a place, and then each but the last leaves it
 * after the unit's forward: to its place in host memory, and from there, or from the device where
 * that is the host, to its extent. Backward brings it back by the same way. */
typedef struct sherdi_activation {
    int    unit;
    size_t bytes;  /* a multiple of SHERD_ALIGN_BYTES */
    size_t offset; /* of its place on the device, in SHERDI_BUFFER_ACTIVATIONS */
    size_t
        host_offset; /* in SHERDI_BUFFER_HOST_ACTIVATIONS; SHERDI_NO_OFFSET: it does not go there */
    size_t extent;   /* number of its extent; SHERDI_NO_OFFSET: it does not go to a file */
    /* The activations that have the same place on the device, and in host memory, and come next in
     * backward; SHERDI_NO_ACTIVATION: none */
    size_t next, next_on_host;
} sherdi_activation;

typedef struct sherdi_plan_activations {
    sherdi_activation *items; /* in the order of forward, by tier */
    size_t             count;
} sherdi_plan_activations;

/** Decides where activations rest. E_NOTSUP: a pass lists a unit with an activation more than once,
 *  or does not list it. */
sherd_status sherdi_plan_activations_lay_out(sherdi_plan *plan, const sherdi_model *model);
void         sherdi_plan_activations_destroy(sherdi_plan *plan);

/** Declares the activation of a unit; its tier is found already (NULL: as in the configuration). */
sherd_status sherdi_model_add_activation(sherdi_model *model, int unit, size_t len_bytes,
                                         const struct sherdi_tier_kind *tier);

#endif
