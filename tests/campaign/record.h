/* What the engine does, as text: a fixed matrix of layouts, each trained for a few windows. See
 * record.c. */
#ifndef TESTS_CAMPAIGN_RECORD_H
#define TESTS_CAMPAIGN_RECORD_H

#include "sherd.h"

#include <stddef.h>

/* The most ranks of a layout. */
#define RECORD_RANKS 8

/* How a layout is driven, besides forward, backward and step. */
enum {
    RECORD_FROZEN      = 1 << 0, /* a parameter of one unit is frozen, and one whole unit */
    RECORD_TIED        = 1 << 1, /* the head reads the embedding */
    RECORD_REPEAT      = 1 << 2, /* a unit comes twice in a pass */
    RECORD_BOUND       = 1 << 3, /* the parameters are in the trainer's own memory */
    RECORD_NO_BACKWARD = 1 << 4, /* the declared backward leaves a unit out */
    RECORD_SKIP        = 1 << 5, /* the backward of a unit does not come, in one window */
    RECORD_OFF_PLAN    = 1 << 6, /* units come in another order, in one window */
    RECORD_NESTED      = 1 << 7, /* a unit is acquired before the unit ahead of it is released */
    RECORD_RECOMPUTE   = 1 << 8,
    RECORD_EVAL        = 1 << 9,  /* an EVAL pass after each micro-batch */
    RECORD_SHORT       = 1 << 10, /* one window is closed early */
    RECORD_OVERFLOW    = 1 << 11, /* the last rank has an Inf in one window */
    RECORD_PREPARE     = 1 << 12, /* prepare and apply instead of step */
    RECORD_DROP        = 1 << 13, /* a window is discarded after prepare */
    RECORD_DROP_MID    = 1 << 14, /* a window is discarded in the middle of its backward */
    RECORD_UNDO        = 1 << 15, /* a window is undone when it is over */
    RECORD_UNDO_MID    = 1 << 16, /* a window is undone in the middle of the next one */
    RECORD_RESUME      = 1 << 17, /* another engine goes on from the files */
    RECORD_GROUPS      = 1 << 18, /* two groups of parameters, and atoms that are kept whole */
    RECORD_LARGE       = 1 << 19, /* one unit is large, so that an operation which does not wait for
                                   * it shows */
};

/* A kind of layout, which is trained at several stages and with several worlds, types and
 * accumulations. */
typedef struct record_theme {
    const char *name;
    int         least_stage, most_stage;
    unsigned    ways;
    const char *zero; /* further keys of zero_optimization */
    const char *top;  /* further keys of the top level */
    int         lamb;
    int         dtype;         /* of all its layouts: sherd_dtype + 1; 0: any */
    int         accumulation;  /* of all its layouts; 0: any */
    int         is_everywhere; /* the short matrix takes it with all worlds too */
} record_theme;

extern const record_theme RECORD_THEMES[];
extern const size_t       RECORD_NUM_THEMES;

typedef struct record_layout {
    const record_theme *theme;
    char                name[96];
    int                 world_size, stage, accumulation;
    sherd_dtype         dtype;
} record_layout;

typedef struct record_text {
    char  *at;
    size_t len_bytes, room_bytes;
} record_text;

/* The lines of one rank. */
typedef struct record_lines {
    record_text steps; /* the same on all ranks */
    record_text end;
    record_text plan;
} record_lines;

/** Trains on one rank and writes its lines. A call that fails ends the test. */
void record_run(sherd_world *world, const record_layout *what, record_lines *out);

#endif
