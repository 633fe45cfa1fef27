/* The same training done in two ways has to give the same bits: what several test programs share. */
#ifndef TESTS_ENGINE_WAYS_H
#define TESTS_ENGINE_WAYS_H

#include "tests/engine/rig.h"

/* A way of training: declares, trains, leaves the fingerprint. */
typedef uint64_t (*way_fn)(sherd_world *world, const rig_options *options);

/* The kinds of training that both ways are done in. */
#define WAYS_NUM_KINDS 5
extern const rig_options WAYS_KINDS[WAYS_NUM_KINDS];

/** On all stages up to `last_stage`, 1 to 3 ranks, all kinds. */
void ways_expect_same(way_fn one, way_fn other, int last_stage);
/** On every stage, with so many ranks; `ctx` of the body is its rig_options. */
void ways_on_every_stage(int world_size, void (*body)(sherd_world *world, void *ctx));

/** Embedding, a layer, a head; nothing is tied yet. */
void ways_declare_tied(rig *r, sherd_world *world, const rig_options *options);
/** Four units of two parameters each; one has a frozen parameter too. */
void ways_declare_layers(rig *r, sherd_world *world, const rig_options *options);
/** Closes a rig after so many steps and gives its fingerprint, which the last report has too. */
uint64_t ways_close(rig *r, int64_t steps);
/** Four micro-batches of the layers, as the plan has them. */
uint64_t ways_train_as_planned(sherd_world *world, const rig_options *options);

/* Memory of the trainer's, for each parameter. */
typedef struct ways_bound {
    void *data[RIG_PARAMS], *grad[RIG_PARAMS];
} ways_bound;

void ways_bind(rig *r, ways_bound *memory);
void ways_unbind(ways_bound *memory);

#endif
