/* The same training, done in two ways, has to give the same bits. Several test programs share these
 * functions. */
#ifndef TESTS_ENGINE_WAYS_H
#define TESTS_ENGINE_WAYS_H

#include "tests/engine/rig.h"

#include "base/mem.h"

/* A way of training: declares a model, trains it, and returns the fingerprint. */
typedef uint64_t (*way_fn)(sherd_world *world, const rig_options *options);

/* The settings in which a training is done both ways. */
#define WAYS_NUM_KINDS 5
extern const rig_options WAYS_KINDS[WAYS_NUM_KINDS];

/** Trains both ways on all stages up to `last_stage`, on 1 to 3 ranks, in all kinds of training. */
void ways_expect_same(way_fn one, way_fn other, int last_stage);
/** Runs the body on every stage, with `world_size` ranks; `ctx` of the body is its rig_options. */
void ways_on_every_stage(int world_size, void (*body)(sherd_world *world, void *ctx));

/** Declares an embedding, a layer and a head; the test itself ties them. */
void ways_declare_tied(rig *r, sherd_world *world, const rig_options *options);
/** Declares four units of two parameters each; one unit has a frozen parameter too. */
void ways_declare_layers(rig *r, sherd_world *world, const rig_options *options);
/** Closes a rig after `steps` steps and returns its fingerprint, which the last report must have
 *  too. */
uint64_t ways_close(rig *r, int64_t steps);
/** Trains the layers for four micro-batches, in the order of the plan. */
uint64_t ways_train_as_planned(sherd_world *world, const rig_options *options);

/* Memory of the trainer's own for each parameter, where the engine computes. */
typedef struct ways_bound {
    sherd_world *world;
    sherdi_mem   mem;
    void        *data[RIG_PARAMS], *grad[RIG_PARAMS];
} ways_bound;

/** Allocates memory of the device on which this world's engines compute, counted in `mem`;
 *  ways_free frees it. */
void *ways_alloc(sherd_world *world, sherdi_mem *mem, size_t len_bytes);
void  ways_free(sherd_world *world, void *memory);

void ways_bind(rig *r, ways_bound *memory);
void ways_unbind(ways_bound *memory);

#endif
