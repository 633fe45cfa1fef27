/* The small data of kernels, and the results that they add to it. */
#ifndef SHERDI_ENGINE_RUN_SCALARS_H
#define SHERDI_ENGINE_RUN_SCALARS_H

#include "engine/run/engine_impl.h"

sherdi_optimizer_scalars sherdi_scalars_of_optimizer(const sherdi_scalars        *scalars,
                                                     const sherdi_plan_optimizer *of);
sherd_status             sherdi_scalars_open(sherd_engine *engine);
void                     sherdi_scalars_close(sherd_engine *engine);
/** Copies what kernels are told to the device, on the update lane. */
void sherdi_scalars_tell(sherd_engine *engine);
/** Gives the results of both sides together, with the norm normalised; adds the device's norms of tensors to the host's. Waits
 *  for the update lane, which must already follow the lanes that add to them. */
sherd_status sherdi_scalars_read(sherd_engine *engine, sherdi_scalars_head *out);
/** Sends the fingerprint of the update that was queued on the update lane, and does not wait for it. sherdi_scalars_sent waits and
 *  gives it, until the next walk or sherdi_scalars_read. Only with a device. */
void         sherdi_scalars_send(sherd_engine *engine);
sherd_status sherdi_scalars_sent(sherd_engine *engine, uint64_t *out);

#endif
