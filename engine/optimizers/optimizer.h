/* The interface of an optimizer to the rest of the engine: one table each; all are named in list.h.
 * The tables of element-wise optimizers are made in elementwise.c from the rows of
 * kernels/updates/, each other one stands in a file of its own. The plan sizes, lays out and counts
 * the parts of a state, and the update runs sweeps over them, without knowing which optimizer they
 * belong to. */
#ifndef SHERDI_ENGINE_OPTIMIZERS_OPTIMIZER_H
#define SHERDI_ENGINE_OPTIMIZERS_OPTIMIZER_H

#include "engine/config/config.h"
#include "engine/model.h"
#include "kernels/backend.h"
#include "kernels/updates/step.h"

#include <math.h>

enum {
    SHERDI_MOST_PARTS  = SHERDI_UPDATE_MOST_PARTS,
    SHERDI_MOST_SWEEPS = 2,
};

/* A part of the state: one value for each element. How a part is stored is decided for each segment
 * (engine/plan/plan.h). */
typedef struct sherdi_optimizer_part {
    const char *name;
    int         is_never_negative; /* its sign is free: an encoding may store something there */
} sherdi_optimizer_part;

/* One pass over blocks: over all of them for an optimizer with norms of whole tensors, over those
 * of a segment for one with matrices. The last sweep writes the parameter. */
typedef struct sherdi_sweep {
    unsigned reads, writes; /* bit i: part i */
    int      reads_gradient;
    int      writes_direction, reads_direction; /* SHERDI_GRAIN_MATRIX only */
    int      writes_param;
    /* `direction`: of the block; a sweep that writes directions makes it. A sweep that reads them
     * gets what became of them in place of the gradient, in fp32 */
    void (*run)(const sherdi_backend *lane, const sherdi_update_args *args, float *direction);
} sherdi_sweep;

/* The grain of an optimizer: the smallest thing that can be updated by itself. */
typedef enum sherdi_grain {
    SHERDI_GRAIN_ELEMENT = 0, /* one sweep */
    /* Norms of whole tensors, in two sweeps; the ranks add the norms between them. The first sweep
     * writes nothing, so a failure in it leaves the old state whole */
    SHERDI_GRAIN_TENSOR,
    /* Whole matrices, in two sweeps. The first makes directions, which the ranks gather; another
     * matrix is made of each, and the second sweep updates by that */
    SHERDI_GRAIN_MATRIX,
} sherdi_grain;

/* The values of keys of optimizer.params that nobody gives; 0: the default of the key itself. */
typedef struct sherdi_optimizer_defaults {
    double lr, betas[2], eps; /* a momentum is the first of the betas */
    int    is_nesterov;
} sherdi_optimizer_defaults;

struct sherdi_optimizer {
    sherdi_optimizer_part parts[SHERDI_MOST_PARTS]; /* the first is the master */
    int                   num_parts;
    sherdi_sweep          sweeps[SHERDI_MOST_SWEEPS];
    int                   num_sweeps;
    sherdi_grain          grain;
    int is_inference; /* 1: updates nothing: no parameter is trainable, no pass BACKWARD */
    /* The meaning of the parts: a number that no other table with a state has, except that Adam and
     * AdamW share 0. State in files or in a checkpoint goes on only with a table that has its tag.
     * 0 adds nothing to the hash by which state files are identified */
    uint64_t state_tag;

    /* Coefficients of a group's step, as the sweeps read them. */
    size_t coeff_bytes;
    void (*coeffs)(const sherdi_settings *settings, const sherdi_group_step *step, void *out);

    /* Configuration. keys, of optimizer.params: "a|b|c", those that this optimizer alone reads.
     * unread: those that others read and it does not. NULL: none. decoupled: the optimizer that the
     * type means while adam_w_mode is true; NULL: that key does not concern it. */
    sherdi_optimizer_defaults      defaults;
    const char                    *keys, *unread;
    const struct sherdi_optimizer *decoupled;
    /* Where beta1 is a momentum, which may be 0: the optimizer that the type means without one, and
     * with one. NULL: beta1 is no momentum. */
    const struct sherdi_optimizer *without_momentum, *with_momentum;

    size_t num_norms;                      /* sums of each tensor, for SHERDI_GRAIN_TENSOR only */
    const struct sherdi_ratio_ops *ratios; /* as well (lamb.h) */
    /* For SHERDI_GRAIN_MATRIX only (muon.h), and the floating-point operations of a matrix. */
    const struct sherdi_matrix_ops *matrices;
    double (*matrix_flops)(const sherdi_settings *settings, size_t rows, size_t cols);
};

#define SHERDI_OPTIMIZER(type, table) extern const sherdi_optimizer table;
#include "engine/optimizers/list.h"
#undef SHERDI_OPTIMIZER
#define SHERDI_VARIANT(table, type, update, fields)                                                \
    extern const sherdi_optimizer sherdi_optimizer_##table;
#include "kernels/updates/rows.h"

/** "|AdamW|Adam|...": the choices of "optimizer.type"; without the first bar, choice i is optimizer
 *  i. */
extern const char sherdi_optimizer_types[];

/** Returns an optimizer by index; NULL past the last. */
const sherdi_optimizer *sherdi_optimizer_at(size_t index);
size_t                  sherdi_optimizer_index(const sherdi_optimizer *optimizer);
/** Returns the name as "optimizer.type" has it: "AdamW". Static storage. */
const char *sherdi_optimizer_name(const sherdi_optimizer *optimizer);
/** Returns the optimizer that `optimizer` means in this configuration: adam_w_mode decides, and
 *  `beta1` where it is a momentum; NaN: the configuration's, or the optimizer's default. */
const sherdi_optimizer *sherdi_optimizer_in(const sherdi_settings  *settings,
                                            const sherdi_optimizer *optimizer, double beta1);
/** Finds the optimizer that `name`, in any case, means in this configuration; `who` says in the
 *  message whose name it is. E_NOTSUP, with the names that exist. */
sherd_status sherdi_optimizer_find(const sherdi_settings *settings, const char *who,
                                   const char *name, const sherdi_optimizer **out);

/** Returns the numbers of a group that sets none: the configuration's if they are set, else the
 *  optimizer's. */
sherdi_optimizer_defaults sherdi_optimizer_numbers(const sherdi_settings  *settings,
                                                   const sherdi_optimizer *optimizer);

/** Returns the optimizer that updates the parameters of a group, which may have a momentum of its
 *  own. */
static inline const sherdi_optimizer *sherdi_group_optimizer(const sherdi_settings    *settings,
                                                             const sherdi_model_group *group)
{
    return sherdi_optimizer_in(
        settings, group->optimizer == NULL ? settings->update.optimizer : group->optimizer,
        group->beta1);
}

#endif
