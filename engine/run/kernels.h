/* Kernels: the operations that are enqueued on a lane, cannot fail at once, and are executed in the
 * lane's order. run.c enqueues them. */
#ifndef SHERDI_ENGINE_RUN_KERNELS_H
#define SHERDI_ENGINE_RUN_KERNELS_H

#include "engine/run/engine_impl.h"

/** Returns where a range of an operation lies, in this rank's memory or the trainer's; NULL: the
 *  operation has none in that role. */
void *sherdi_run_address(const sherd_engine *engine, const sherdi_op *op, int role);
/** Returns the name of the unit that an operation is about; NULL: of none. */
const char *sherdi_run_subject(const sherd_engine *engine, const sherdi_op *op);
/** Returns on whose behalf the calling thread works. */
sherdi_user sherdi_run_user(const sherd_engine *engine);
/** Queues the kernels of an operation on the lane. Failures of a device are returned by its next
 *  wait. */
void sherdi_run_kernel(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op);

/** Queues the sweep of an update over some of its block's spans, or over parts of them. */
void sherdi_run_update(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op,
                       const sherdi_span *spans, size_t num_spans);

/** An operation that is enqueued on a lane, and executed in the lane's order. */
typedef void (*sherdi_kernel_fn)(sherd_engine *engine, const sherdi_backend *lane,
                                 const sherdi_op *op);

/* Kernels of modules. */
#define SHERDI_KERNEL(kind, kernel)                                                                \
    void kernel(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op);
#include "engine/run/kernel_list.h"
#undef SHERDI_KERNEL
#define SHERDI_INSTEAD(condition, kernel)                                                          \
    void kernel(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op);
#include "engine/run/instead_list.h"
#undef SHERDI_INSTEAD

#endif
