/* A random layout: a model, a configuration, ranks and the events of training, all drawn from one
 * number. Every setting draws from a random stream of its own, so that one setting can be put back
 * to its plain value while the rest stays. That is how a failure is narrowed down. */
#ifndef TESTS_CAMPAIGN_LAYOUT_H
#define TESTS_CAMPAIGN_LAYOUT_H

#include "sherd.h"
#include "tests/engine/plain.h"

#define LAYOUT_UNITS   5
#define LAYOUT_PARAMS  15
#define LAYOUT_GROUPS  3
#define LAYOUT_PASS    7
#define LAYOUT_WINDOWS 7
#define LAYOUT_RANKS   8

/* The settings that can be put back: X(name). */
#define LAYOUT_SETTINGS(X)                                                                         \
    X(ranks)                                                                                       \
    X(processes)                                                                                   \
    X(large)                                                                                       \
    X(frozen)                                                                                      \
    X(groups)                                                                                      \
    X(atoms)                                                                                       \
    X(reads)                                                                                       \
    X(repeats)                                                                                     \
    X(bound)                                                                                       \
    X(stage)                                                                                       \
    X(precision)                                                                                   \
    X(optimizer)                                                                                   \
    X(accumulation)                                                                                \
    X(clipping)                                                                                    \
    X(deterministic)                                                                               \
    X(overlap)                                                                                     \
    X(gathering)                                                                                   \
    X(persistence)                                                                                 \
    X(blocks)                                                                                      \
    X(state)                                                                                       \
    X(parameters)                                                                                  \
    X(requests)                                                                                    \
    X(overflows)                                                                                   \
    X(discards)                                                                                    \
    X(undo)                                                                                        \
    X(short_windows)                                                                               \
    X(passes)                                                                                      \
    X(types)                                                                                       \
    X(mixed)                                                                                       \
    X(encoding)                                                                                    \
    X(rounding)                                                                                    \
    X(debug)                                                                                       \
    X(uses)                                                                                        \
    X(leaves)                                                                                      \
    X(writes)                                                                                      \
    X(open_windows)                                                                                \
    X(queued)                                                                                      \
    X(replicas)                                                                                    \
    X(copies)                                                                                      \
    X(host_sums)                                                                                   \
    X(weights)                                                                                     \
    X(fingerprints)

typedef enum layout_setting {
#define LAYOUT_ENUM(name) LAYOUT_##name,
    LAYOUT_SETTINGS(LAYOUT_ENUM)
#undef LAYOUT_ENUM
        LAYOUT_NUM_SETTINGS,
} layout_setting;

const char *layout_setting_name(int setting);

typedef struct layout_param {
    int         unit;
    int         ndim;
    size_t      shape[2];
    size_t      elems;
    int         group;
    int         is_frozen;
    size_t      atom_elems;
    sherd_dtype dtype, comm; /* the type of its compute values; the type to which a reduction of its
                              * gradient rounds */
} layout_param;

/* How a window ends. */
typedef enum layout_ending {
    LAYOUT_ENDS_BY_STEP,
    LAYOUT_ENDS_QUEUED,
    LAYOUT_ENDS_QUEUED_IN_HALVES, /* by sherd_step_prepare and sherd_step_apply */
    LAYOUT_ENDINGS,
} layout_ending;

/* When the trainer asks for the report of a queued step. */
typedef enum layout_asking {
    LAYOUT_ASKS_AT_ONCE,
    LAYOUT_ASKS_BEHIND_FORWARD, /* of the next micro-batch */
    LAYOUT_ASKS_LATE,           /* before the next boundary; never, if the window is undone */
    LAYOUT_ASKINGS,
} layout_asking;

/* One window of micro-batches. */
typedef struct layout_window {
    int    micro;   /* micro-batches of the window; other than accumulation: it is closed there */
    int    drop;    /* 0: the window is stepped; else it is discarded: 1 after `micro`
                  * micro-batches, 2 in the middle of the next backward, 3 instead of the update,
                  * when all were made */
    int    has_inf; /* the gradient of rank inf_rank has an Inf, in micro-batch inf_micro */
    int    inf_rank, inf_micro, inf_param;
    size_t inf_elem;
    int    is_undone;  /* the window is undone, after undo_micro micro-batches of the next one */
    int    undo_micro; /* below accumulation */
    int    has_eval;
    int    has_recompute;
    int    skipped;  /* the unit whose backward never comes; -1: none */
    int    off_plan; /* 0: backward visits units as planned; else the position at which the order is
                      * rotated */
    uint64_t skips;  /* 0: all ranks have data; else what decides which do */
    uint64_t uses;   /* 0: open-ended units are visited as planned; else what decides it */
    int      written; /* the parameter of which values are written before the window; -1: none */
    int is_left; /* before the window, and after leave_micro micro-batches of it, the engine ends
                       * and leaves its state; another engine resumes from it */
    int leave_micro; /* below accumulation */
    layout_ending ending;
    layout_asking asking;
} layout_window;

typedef struct layout {
    uint64_t      seed;
    int           world_size;
    int           num_hosts, hosts[LAYOUT_RANKS]; /* the ranks of each host; 0 hosts: one */
    int           adds_by_host;                   /* gradients are added up host by host */
    int           copy_ranks;   /* ranks that share a second copy; up to 1: none do */
    int           shard_size;   /* ranks that share one copy; world_size: all */
    int           is_processes; /* 1: the ranks are processes over shared memory; 0: threads */
    int           is_bound;
    int           num_units, num_params, num_groups;
    layout_param  params[LAYOUT_PARAMS];
    double        group_lr[LAYOUT_GROUPS], group_decay[LAYOUT_GROUPS];
    int           group_excludes[LAYOUT_GROUPS];
    const char   *group_optimizer[LAYOUT_GROUPS]; /* NULL: the configuration's optimizer */
    plain_kind    group_kind[LAYOUT_GROUPS];
    int           reads[LAYOUT_UNITS];  /* the parameter of another unit that the unit reads; -1:
                                         * none */
    int           forward[LAYOUT_PASS]; /* the units in the order of forward */
    int           num_forward;
    int           stage, accumulation;
    int           opens_windows; /* each window is closed by its trainer */
    uint64_t      most_weight;   /* 0: micro-batches have no weights */
    sherd_dtype   dtype, comm;   /* of parameters that do not stay fp32 */
    int           is_deterministic;
    double        clip;
    plain_rule    rule;
    double        loss_scale; /* the loss scale at the start */
    int           is_dynamic, scale_window, hysteresis;
    int           can_undo; /* all state rests on a drive */
    int           has_bf16_masters;
    int           moments;  /* the encoding of moments: 0 is fp32, 1 is bf16, 2 is fp8 */
    int           is_debug; /* with SHERD_DEBUG=1 */
    int           is_any[LAYOUT_UNITS]; /* the unit is declared with SHERD_USES_ANY */
    int           is_alike;             /* gathers meet, so all ranks use these units alike */
    char          json[4096];
    int           num_windows;
    layout_window windows[LAYOUT_WINDOWS];
} layout;

/** Draws a layout. `without` has a bit for each setting that stays plain, and files go to `folder`.
 *  On an emulated device, which is a hundred times slower, models and worlds are smaller. */
void layout_draw(uint64_t seed, uint64_t without, const char *folder, int is_device, layout *out);
/** Describes a layout in one line. */
void layout_describe(const layout *what, char *text, size_t len_bytes);

/** Gives the units that backward visits in a window, in their order. Returns how many there are. */
int layout_backward(const layout *what, const layout_window *window, int order[LAYOUT_PASS]);
/** Returns whether the unit's backward adds to this parameter's gradient. */
int layout_touches(const layout *what, int unit, int param);
/** Returns how often a rank visits a unit where the window's passes have it once. */
int layout_visits(const layout *what, const layout_window *window, int unit, int rank);
/** Returns whether a rank has no data in the k-th micro-batch of a window. */
int layout_skips(const layout *what, const layout_window *window, int k, int rank);
/** Returns the weight of the n-th micro-batch, counted over all ranks. */
uint64_t layout_weight(const layout *what, int64_t n);
/** Returns the first element of the parameter that a window writes; it writes all from there on. */
size_t layout_written_from(const layout *what, const layout_window *window);
/** Gives the value of an element that a window writes. */
float layout_written(const layout_window *window, size_t index);
/** Returns what the n-th micro-batch, counted over all ranks, adds to an element in the use-th
 *  visit of that backward. */
float layout_gradient(int64_t n, int param, int use, size_t index, float weight, float loss_scale);
/** Gives the first values of a parameter. */
sherd_status layout_fill(void *ctx, size_t first_elem, size_t count_elems, float *out);

/* What a window that is stepped must give. */
typedef struct layout_outcome {
    uint64_t fingerprint;
    double   norm;
    double   loss_scale;
    int      has_overflow;
    int      is_unseen; /* the trainer has not asked for the fingerprint */
} layout_outcome;

typedef struct layout_result {
    layout_outcome windows[LAYOUT_WINDOWS];
    uint64_t       undone[LAYOUT_WINDOWS];  /* the fingerprint after the undo */
    uint64_t       resumed[LAYOUT_WINDOWS]; /* and after the resume */
} layout_result;

/** Trains on one rank with an engine. The test fails if the engine breaks a promise that one rank
 *  can check. */
void layout_train(sherd_world *world, const layout *what, layout_result *out);
/** Trains the same without an engine. */
void layout_twin(const layout *what, layout_result *out);

#endif
