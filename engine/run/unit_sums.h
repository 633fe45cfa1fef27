/* Fingerprints of each unit, by `sherd.fingerprints`: of its gradient, its weights and its state,
 * as the kernels of a step come by. unit_sums.c makes them, and unit_log.c writes them to the file,
 * which `sherd diff` reads. */
#ifndef SHERDI_ENGINE_RUN_UNIT_SUMS_H
#define SHERDI_ENGINE_RUN_UNIT_SUMS_H

#include "engine/program/program.h"
#include "engine/optimizers/optimizer.h"

/* Sums of gradients are counted modulo this prime. */
#define SHERDI_UNIT_SUM_PRIME (((uint64_t)1 << 61) - 1)

/* The words of a unit in the message of a rank. After them come those of the parts of its state, in
 * the order of sherdi_unit_parts. */
enum {
    SHERDI_UNIT_GRADIENT = 0, /* the exact sum of squares, modulo the prime */
    SHERDI_UNIT_BEFORE,       /* the master weights as an update finds them, and ... */
    SHERDI_UNIT_WEIGHTS,      /* ... as it leaves them: sums of sherdi_mix_element */
    SHERDI_UNIT_PARTS,
};

/* Names of parts after the master, over all optimizers of a plan. */
enum { SHERDI_UNIT_MOST_PARTS = 12 };
typedef struct sherdi_unit_parts {
    const char *names[SHERDI_UNIT_MOST_PARTS];
    size_t      count;
} sherdi_unit_parts;

/* A message of SHERDI_EXCHANGE_OUTCOME: it begins as a sherdi_word_message does. */
typedef struct sherdi_unit_message {
    uint64_t status, word;
    uint64_t words[]; /* of unit 0, then of unit 1, and so on */
} sherdi_unit_message;

typedef struct sherdi_unit_sums {
    sherdi_unit_parts       parts;
    size_t                  words;         /* of each unit: plan->layout.sum_words */
    size_t                  message_bytes; /* of a rank */
    sherdi_unit_message    *mine;
    unsigned char          *all;       /* [all ranks x message_bytes] */
    uint64_t               *gradients; /* by unit, of the window that is under way */
    unsigned char          *is_due;    /* by unit: the last update has counted what rests, too */
    int                     counts_gradient; /* the window's norm is not complete */
    int                     counts_update;   /* a walk of an update is under way */
    struct sherdi_unit_log *log;             /* of the rank that writes; else NULL */
    int                     is_line_due;     /* the last boundary is not written */
} sherdi_unit_sums;

typedef struct sherdi_sums_ops {
    /* A walk over the blocks begins, and has ended. On the thread that makes it. */
    void (*walk_begin)(sherd_engine *engine, sherdi_walk walk);
    void (*walk_end)(sherd_engine *engine);
    /* Executes the kernel of an operation, and counts what it adds to the sums. */
    void (*run)(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op);
    /* Returns this rank's message of an outcome. *all_out: room for those of all ranks. */
    void *(*message)(sherd_engine *engine, uint64_t own, void **all_out);
} sherdi_sums_ops;

/* A part of an engine. */
typedef struct sherdi_sums {
    const sherdi_sums_ops *ops; /* NULL: no fingerprints of units are made */
    sherdi_unit_sums      *own;
} sherdi_sums;

/** Gives the parts of the plan's optimizers. */
void sherdi_unit_parts_find(const sherdi_plan *plan, sherdi_unit_parts *out);
/** Returns the words of a unit in the message of a rank. */
static inline const uint64_t *sherdi_unit_words(const sherdi_unit_sums *sums, int rank, size_t unit)
{
    const sherdi_unit_message *message =
        (const void *)(sums->all + (size_t)rank * sums->message_bytes);

    return message->words + unit * sums->words;
}

/** Opens the file on the rank that writes it. E_IO, E_NOMEM. */
sherd_status sherdi_unit_log_open(sherd_engine *engine, struct sherdi_unit_log **out);
/** Writes the line of the last boundary. Where that fails, the line is dropped with a warning. */
void sherdi_unit_log_write(sherd_engine *engine);
/** Lets another engine write the file, or takes it back, where this rank writes one. */
void sherdi_unit_log_lock(const sherd_engine *engine, int is_held);
/** Accepts NULL. */
void sherdi_unit_log_close(struct sherdi_unit_log *log);

#endif
