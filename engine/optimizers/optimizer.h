/* What an optimizer is to the rest of the engine: one table each, in one file each, all named in list.h. The plan
 * sizes, lays out and counts the parts of a state, and the update runs sweeps over them, without knowing whose
 * they are. */
#ifndef SHERDI_ENGINE_OPTIMIZERS_OPTIMIZER_H
#define SHERDI_ENGINE_OPTIMIZERS_OPTIMIZER_H

#include "engine/config/config.h"
#include "engine/model.h"
#include "kernels/backend.h"
#include "kernels/updates/step.h"

#include <math.h>

enum {
    SHERDI_MOST_PARTS  = 4,
    SHERDI_MOST_SWEEPS = 2,
};

/* A part of the state: one value for each element. How it is stored is decided by segment (engine/plan/plan.h). */
typedef struct sherdi_optimizer_part {
    const char *name;
    int         is_never_negative; /* its sign says nothing: an encoding may keep something there */
} sherdi_optimizer_part;

/* What one call of a sweep works on: a block. Memory as kernels/backend.h says. */
typedef struct sherdi_sweep_args {
    const sherdi_span     *spans;
    size_t                 num_spans;
    const void            *coeffs; /* by group */
    const void            *grad;   /* of a sweep that reads directions: what became of them, fp32 */
    sherd_dtype            grad_dtype;
    void                  *parts[SHERDI_MOST_PARTS];
    const sherdi_encoding *encodings; /* by part */
    int                    ties_part; /* as in sherdi_update_args, */
    uint64_t               step;      /* ... too */
    void            *param; /* receives the new value in param_dtype; NULL: the master is it */
    sherd_dtype      param_dtype;
    float           *direction;   /* of the block, which a sweep that writes it makes */
    uint64_t        *fingerprint; /* the last sweep adds the block's share: sherdi_mix_element */
    sherdi_norm_acc *norms;       /* num_norms by parameter: the first of two sweeps adds to them */
    const float     *ratios;      /* by parameter, for the second */
} sherdi_sweep_args;

/* One pass over blocks: with norms of whole tensors over all of them, with matrices over those of a segment. The last sweep
 * writes the parameter. */
typedef struct sherdi_sweep {
    unsigned reads, writes; /* bit i: part i */
    int      reads_gradient;
    int      writes_direction, reads_direction; /* SHERDI_GRAIN_MATRIX only */
    int      writes_param;
    void (*run)(const sherdi_backend *lane, const sherdi_sweep_args *args);
} sherdi_sweep;

/* The smallest thing that an update can be made of alone. */
typedef enum sherdi_grain {
    SHERDI_GRAIN_ELEMENT = 0, /* one sweep */
    SHERDI_GRAIN_TENSOR, /* norms of whole tensors: two sweeps, the ranks add the norms between them; the first writes
                            nothing, so what fails in it leaves the old state whole */
    SHERDI_GRAIN_MATRIX, /* whole matrices: the first of two sweeps makes directions, which the ranks gather; another matrix is
                            made of each, and the second sweep updates by that */
} sherdi_grain;

/* What keys of optimizer.params are while nobody gives them; 0: what the key itself says. */
typedef struct sherdi_optimizer_defaults {
    double lr, betas[2], eps; /* a momentum is the first of the betas */
    int    is_nesterov;
} sherdi_optimizer_defaults;

/* From the norms of all parameters to what the second sweep is told. */
typedef struct sherdi_ratio_args {
    const sherdi_norm_acc *norms;  /* num_norms by parameter */
    const int32_t         *groups; /* by parameter; below 0: the ratio is 1 */
    const void            *coeffs; /* by group */
    float                 *ratios;
    size_t                 num_params;
} sherdi_ratio_args;

/* A matrix of directions, row-major on the lane's device. */
typedef struct sherdi_matrix_args {
    float *matrix;
    size_t rows, cols;
    void  *workspace; /* workspace_bytes of it */
} sherdi_matrix_args;

struct sherdi_optimizer {
    sherdi_optimizer_part parts[SHERDI_MOST_PARTS]; /* the first is the master */
    int                   num_parts;
    sherdi_sweep          sweeps[SHERDI_MOST_SWEEPS];
    int                   num_sweeps;
    sherdi_grain          grain;
    int      is_inference; /* it updates nothing: no parameter is trainable, no pass is BACKWARD */
    uint64_t state_tag;    /* in the hash by which state files are known: what the parts mean;
                                        0 adds nothing to it */

    /* Coefficients of a group's step, as the sweeps read them. */
    size_t coeff_bytes;
    void (*coeffs)(const sherdi_settings *settings, const sherdi_group_step *step, void *out);

    /* Configuration: keys (sherdi_config_id) that this optimizer alone reads, those that others read and it does
     * not, and what the type means while adam_w_mode is true; NULL: that key is not for it. */
    sherdi_optimizer_defaults      defaults;
    const int                     *keys, *unread;
    size_t                         num_keys, num_unread;
    const struct sherdi_optimizer *decoupled;
    /* Where beta1 is a momentum, which may be 0: what the type means without one, and with one. NULL: it is none. */
    const struct sherdi_optimizer *without_momentum, *with_momentum;

    /* Of SHERDI_GRAIN_TENSOR only. */
    size_t num_norms; /* sums of each tensor */
    int (*has_ratio)(const sherdi_settings *settings, const sherdi_model_group *group,
                     const sherdi_model_param *param);
    void (*ratios)(const sherdi_backend *host, const sherdi_ratio_args *args);

    /* Of SHERDI_GRAIN_MATRIX only: what is made of a matrix, in its place; the bytes that it takes meanwhile, a multiple of
     * SHERD_ALIGN_BYTES, and its operations of floating point. */
    void (*matrix)(const sherdi_backend *lane, const sherdi_settings *settings,
                   const sherdi_matrix_args *args);
    size_t (*workspace_bytes)(size_t rows, size_t cols);
    double (*matrix_flops)(const sherdi_settings *settings, size_t rows, size_t cols);
};

#define SHERDI_OPTIMIZER(type, table) extern const sherdi_optimizer table;
#include "engine/optimizers/list.h"
#undef SHERDI_OPTIMIZER
#define SHERDI_VARIANT(table, type, update, fields)                                                \
    extern const sherdi_optimizer sherdi_optimizer_##table;
#include "kernels/updates/rows.h"

/** "|AdamW|Adam|...": choice i of "optimizer.type", without the first bar, is optimizer i. */
extern const char sherdi_optimizer_types[];

size_t                  sherdi_optimizer_count(void);
const sherdi_optimizer *sherdi_optimizer_at(size_t index);
size_t                  sherdi_optimizer_index(const sherdi_optimizer *optimizer);
/** As "optimizer.type" has it: "AdamW". Static storage. */
const char *sherdi_optimizer_name(const sherdi_optimizer *optimizer);
/** What an optimizer means with a momentum, which may be 0. */
static inline const sherdi_optimizer *sherdi_optimizer_with_momentum(
    const sherdi_optimizer *optimizer, double momentum)
{
    return optimizer->with_momentum == NULL ? optimizer
           : momentum != 0                  ? optimizer->with_momentum
                                            : optimizer->without_momentum;
}
/** Where it has a momentum: the configuration's, or its own default. */
static inline double sherdi_optimizer_momentum(const sherdi_settings  *settings,
                                               const sherdi_optimizer *optimizer)
{
    return settings->sgd.has_momentum ? settings->sgd.momentum : optimizer->defaults.betas[0];
}
/** What an optimizer means in this configuration: adam_w_mode, momentum. */
static inline const sherdi_optimizer *sherdi_optimizer_in(const sherdi_settings  *settings,
                                                          const sherdi_optimizer *optimizer)
{
    return settings->decouples_decay && optimizer->decoupled != NULL
               ? optimizer->decoupled
               : sherdi_optimizer_with_momentum(optimizer,
                                                sherdi_optimizer_momentum(settings, optimizer));
}
/** The one that `name` means in this configuration, in any case; `who` names it, for the sentence. E_NOTSUP, with the
 *  names that there are. */
sherd_status sherdi_optimizer_find(const sherdi_settings *settings, const char *who,
                                   const char *name, const sherdi_optimizer **out);

/** The numbers of a group that gives none: the configuration's, where they are given, else the optimizer's. */
sherdi_optimizer_defaults sherdi_optimizer_numbers(const sherdi_settings  *settings,
                                                   const sherdi_optimizer *optimizer);

/** What updates the parameters of a group, which may have a momentum of its own. */
static inline const sherdi_optimizer *sherdi_group_optimizer(const sherdi_settings    *settings,
                                                             const sherdi_model_group *group)
{
    const sherdi_optimizer *optimizer =
        group->optimizer == NULL ? settings->optimizer : group->optimizer;

    return isnan(group->beta1) ? optimizer
                               : sherdi_optimizer_with_momentum(optimizer, group->beta1);
}

#endif
