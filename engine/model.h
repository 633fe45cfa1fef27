/* The model as the trainer declared it: groups, units, parameters, which unit reads which, and the
 * order of the passes. Plain data, the same on every rank. engine.c fills it before seal; the plan
 * (engine/plan/plan.h) is made from it. */
#ifndef SHERDI_ENGINE_MODEL_H
#define SHERDI_ENGINE_MODEL_H

#include "base/mem.h"
#include "base/names.h"
#include "sherd.h"

/* Most units, and most acquires of a pass. A schedule compares each acquire with those that follow
 * it, which limits their number. */
#define SHERDI_MOST_UNITS ((size_t)1 << 17)
/* Most parameters. */
#define SHERDI_MOST_PARAMS ((size_t)1 << 20)

typedef struct sherdi_model_param {
    char    *name;
    int      unit;
    int      group;
    int      ndim;
    size_t   shape[SHERD_MAX_NDIM];
    size_t   elems;
    size_t   atom_elems;  /* at least 1 */
    uint64_t first_index; /* elements of all earlier parameters: the global element index */
    int      is_frozen;
    int      dtype;      /* sherd_dtype; -1: the engine's compute type */
    void    *bound_data; /* the trainer's own memory, or NULL */
    void    *bound_grad;
} sherdi_model_param;

typedef struct sherdi_model_unit {
    char  *name;
    int   *params; /* indices, in order of declaration */
    size_t num_params, cap_params;
    int   *reads; /* other units that are acquired together with this one; no repeats */
    size_t num_reads, cap_reads;
    int    has_any_uses; /* SHERD_USES_ANY, as the trainer declared it */
    int    retains_grads;
    size_t activation_bytes; /* 0: none is declared */
    /* Where it waits; NULL: as in the configuration. And its number; UINT64_MAX */
    const struct sherdi_tier_kind *activation_tier;
    uint64_t                       activation_tier_number;
} sherdi_model_unit;

struct sherdi_optimizer; /* engine/optimizers/optimizer.h */

typedef struct sherdi_model_group {
    char *name;
    char *optimizer_name; /* as in the optimizer's table; NULL: the configuration's */
    const struct sherdi_optimizer *optimizer;   /* found by that name; NULL too */
    double lr, weight_decay, beta1, beta2, eps; /* NaN: as in the configuration */
    int    exclude_1d;                          /* below 0: as in the configuration */
} sherdi_model_group;

/* An acquire of a pass. Its release comes after `held` further acquires; if there are fewer, at the
 * end of the micro-batch. */
typedef struct sherdi_model_use {
    int unit;
    int held;
} sherdi_model_use;

typedef struct sherdi_model_pass {
    sherdi_model_use *uses;
    size_t            num_uses, cap_uses;
} sherdi_model_pass;

typedef struct sherdi_model {
    sherdi_mem         *mem; /* account of everything here */
    sherdi_model_param *params;
    size_t              num_params, cap_params;
    sherdi_model_unit  *units;
    size_t              num_units, cap_units;
    sherdi_model_group *groups;
    size_t              num_groups, cap_groups;
    int                 first_trained; /* first group with a trainable parameter; -1: none */
    sherdi_model_pass   passes[3];     /* as the trainer listed them; see sherdi_model_order */
    size_t              total_elems, trainable_elems;
    sherdi_names        unit_names, param_names;
} sherdi_model;

/** Makes a model with group 0 only. E_NOMEM. */
sherd_status sherdi_model_init(sherdi_model *model, sherdi_mem *mem);
void         sherdi_model_fini(sherdi_model *model);

/** Records that a parameter of the group is trainable. */
static inline void sherdi_model_trains(sherdi_model *model, int group)
{
    model->first_trained =
        model->first_trained < 0 || group < model->first_trained ? group : model->first_trained;
}

sherd_status sherdi_model_add_unit(sherdi_model *model, const sherd_unit_params *params, int *out);
sherd_status sherdi_model_add_param(sherdi_model *model, int unit, const sherd_param_params *params,
                                    int *out);
/** Checks a number of declarations. A model with more is a mistake; its names and tables would take
 *  all memory there is. */
sherd_status sherdi_model_check_count(const char *what, size_t count, size_t most);
/** E_INVAL: the unit, or the parameter, does not exist; the message begins with `call`, if it is not
 *  NULL. */
sherd_status sherdi_model_check_unit(const sherdi_model *model, const char *call, int unit);
sherd_status sherdi_model_check_param(const sherdi_model *model, const char *call, int param);
/** Returns the n-th unit that an acquire of `unit` reaches: the unit itself, then those it reads;
 *  -1: there are no more. */
int          sherdi_model_reached(const sherdi_model *model, int unit, size_t n);
sherd_status sherdi_model_add_read(sherdi_model *model, int unit, int param);

/** Return the number of acquires of a pass, and acquire `index`: as the trainer listed them, else by
 *  the default orders. */
size_t           sherdi_model_order_len(const sherdi_model *model, sherd_pass pass);
sherdi_model_use sherdi_model_order(const sherdi_model *model, sherd_pass pass, size_t index);

#endif
