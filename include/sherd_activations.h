/* Activations: bytes that the forward of a unit stores for its backward, and whose memory the plan
 * reserves. Calls of the module "activations". sherd.h includes this header, and has the
 * conventions. */
#ifndef SHERD_ACTIVATIONS_H
#define SHERD_ACTIVATIONS_H

#include "sherd.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sherd_activation_params {
    size_t struct_size;
    size_t len_bytes; /* length for one micro-batch on one rank; at least 1 */
    /* Where the bytes wait between forward and backward: "none" (on the device), "cpu" (host
     * memory), "nvme" (files in sherd.activations.nvme_path); NULL, the default: the value of
     * sherd.activations.device. Copied */
    const char *device;
} sherd_activation_params;
SHERD_API void sherd_activation_params_init(sherd_activation_params *params);
/** Declares the activation of a unit: the bytes that its forward stores for its backward. The plan
 *  reserves memory for the activation; sherd_activation_put and _get move it. Called before seal,
 *  at most once for a unit, with the same arguments on all ranks. The passes must list the unit
 *  once for FORWARD and once for BACKWARD. Errors: E_STATE; E_INVAL (no such unit, a second
 *  declaration, no bytes, an unknown device, nvme without a folder); E_NOTSUP (a unit with
 *  SHERD_USES_ANY, or an engine without an optimizer; at seal, a unit that a pass lists more than
 *  once). */
SHERD_API SHERD_MUST_USE sherd_status sherd_activation_add(sherd_engine *engine, sherd_unit unit,
                                                           const sherd_activation_params *params);
/** Returns the memory [sherd_activation_params.len_bytes] into which the unit's forward writes its
 *  activation. It is on the engine's device and aligned to 4096 bytes. The trainer's lane waits
 *  until the memory is free. The memory belongs to the trainer until the unit is released for
 *  FORWARD; from then on the engine may move its bytes to another space. An activation is discarded
 *  when the micro-batch ends or the window is dropped. For EVAL the memory is scratch memory, which
 *  is discarded at the release. Called while the unit is acquired for FORWARD or EVAL. Local: some
 *  ranks may put an activation while others do not. Does not block, except with
 *  device nvme.
 *  Errors  E_STATE (not acquired; no activation is declared for the unit; already put; the place
 *          contains an activation that cannot be moved, because the units do not run in the order
 *          of the passes: the message names it), E_IO.
 */
SHERD_API SHERD_MUST_USE sherd_status sherd_activation_put(sherd_engine *engine, sherd_unit unit,
                                                           void **out);
/** Returns the activation on the device, at the address that sherd_activation_put returned. The
 *  trainer's lane waits for the bytes. They are read-only, and invalid after the unit is released
 *  for BACKWARD. Called while the unit is acquired for BACKWARD. Local. Blocks only for a drive.
 *  Errors  E_STATE (not acquired; nothing was put in this micro-batch), E_IO (the bytes are lost:
 *          the window has to be dropped with sherd_step_discard). */
SHERD_API SHERD_MUST_USE sherd_status sherd_activation_get(sherd_engine *engine, sherd_unit unit,
                                                           void **out);

#ifdef __cplusplus
}
#endif
#endif
