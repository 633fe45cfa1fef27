/* What sherd diff compares: fingerprints of units by step, from a log (diff_log.c) or from a
 * checkpoint (diff_checkpoint.c). diff.c has the command, and diff_compare.c the comparison. */
#ifndef SHERD_CLI_DIFF_H
#define SHERD_CLI_DIFF_H

#include "cli/cli.h"

/* What is counted of a unit, in the order in which it comes about in a step. Parts of the state
 * follow; the weights after the update are the last. */
enum { DIFF_BEFORE = 0, DIFF_GRADIENT, DIFF_PARTS };

/* Elements [first, end) of the model, by their numbers. */
typedef struct diff_range {
    uint64_t first, end;
} diff_range;

typedef struct diff_owned {
    diff_range *ranges;
    size_t      count;
} diff_owned;

typedef struct diff_unit {
    char       *name;
    diff_owned *owned; /* by owner: what a rank of a copy updates */
} diff_unit;

/* How a model was laid out on its ranks. */
typedef struct diff_layout {
    int        stage, ranks, copies;
    int        owners; /* ranks of a copy that have slices; 1: each rank has the whole */
    int        is_sliced, slices_gradients;
    uint64_t   elems; /* of the model, with frozen parameters */
    char     **parts; /* of the state, after the master */
    size_t     num_parts;
    diff_unit *units;
    size_t     num_units;
} diff_layout;

/* The fingerprints of one step. */
typedef struct diff_line {
    int64_t            number; /* of steps and skipped steps: lines of two runs go by it */
    int64_t            step;   /* the step that was made, or skipped */
    int                was_updated;
    uint64_t           fingerprint; /* of all weights */
    const diff_layout *layout;
    unsigned char     *has;   /* [units x kinds] */
    uint64_t          *words; /* [units x kinds x (1 + ranks)]: of all ranks, then of each */
} diff_line;

/* A run, or a checkpoint of one. */
typedef struct diff_run {
    const char   *path;
    diff_layout **layouts;
    size_t        num_layouts;
    diff_line    *lines; /* in the order of steps */
    size_t        count, capacity;
    int           is_checkpoint, is_damaged; /* bytes do not match their checksums */
    /* Of the first damage: the sentence about it, its tensor, and the number of the element with
     * which the tensor begins */
    char     damage[1024], tensor[512];
    uint64_t damaged_elem;
} diff_run;

/* Numbers of kinds, and the number of one. */
static inline size_t diff_kinds(const diff_layout *layout)
{
    return DIFF_PARTS + layout->num_parts + 1;
}
static inline size_t diff_weights(const diff_layout *layout)
{
    return DIFF_PARTS + layout->num_parts;
}
static inline size_t diff_at(const diff_layout *layout, size_t unit, size_t kind)
{
    return unit * diff_kinds(layout) + kind;
}
/** Returns the words of a unit of a kind: of all ranks, then of each. */
static inline uint64_t *diff_words(const diff_line *line, size_t unit, size_t kind)
{
    return line->words + diff_at(line->layout, unit, kind) * (1 + (size_t)line->layout->ranks);
}
/** Returns the name of a kind, for people. */
static inline const char *diff_kind_name(const diff_layout *layout, size_t kind)
{
    return kind == DIFF_BEFORE            ? "weights before the update"
           : kind == DIFF_GRADIENT        ? "gradient"
           : kind == diff_weights(layout) ? "weights"
                                          : layout->parts[kind - DIFF_PARTS];
}

/* All functions that return an int return 0, or 2 after they have said why. */

/** Makes room for one line more, which is zero but for its layout. */
int diff_line_add(diff_run *run, const diff_layout *layout, diff_line **out);
/** Frees what the run has; its path stays the caller's. */
void diff_run_close(diff_run *run);

/** Reads a log. */
int diff_log_read(const char *path, diff_run *out);
/** Makes the fingerprints of a checkpoint that `log` has of its step. NULL: each parameter is a
 *  unit, which one rank has. */
int diff_checkpoint_read(const char *path, const diff_run *log, diff_run *out);

/* Where two runs part. */
typedef struct diff_found {
    size_t  common;                /* steps that both have, up to the one where they part */
    int64_t first_step, last_step; /* of those that are equal; common - has_parted of them */
    int     has_parted;
    int64_t step;
    size_t  kind;      /* the first that differs */
    int     is_frozen; /* no unit differs, but the fingerprint of all weights does */
    /* Copies of one run differ; or nothing differs, but a checkpoint is damaged */
    const diff_run  *torn, *damaged;
    const diff_line *a, *b;
    size_t           unit; /* the first that differs in this kind, and how many do */
    size_t           num_units;
    int              has_ranks; /* the layouts agree, so ranks can be compared */
    int     rank, num_ranks;    /* the same of the ranks of the unit; rank -1: none is named */
    int64_t equal_step;         /* when this kind of the unit was last equal; -1: never */
} diff_found;

/** Compares two runs. */
int diff_compare(const diff_run *a, const diff_run *b, diff_found *out);
/** Prints the outcome of a comparison. Returns the exit status. */
int diff_print(const diff_run *a, const diff_run *b, const diff_found *found, int is_json);

#endif
