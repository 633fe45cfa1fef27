/* Memory of the trainer and of the engine: memory that is bound to parameters, addresses that stay,
 * tensors of other libraries, activations, streams of a device. Calls of the modules "memory",
 * "dlpack", "activations" and "devices". sherd.h includes this header, and has the conventions. */
#ifndef SHERD_H
#include "sherd.h"
#elif !defined(SHERD_MEMORY_H)
#define SHERD_MEMORY_H

/** Binds memory of the trainer to a parameter, at stages 0 to 2 and before seal. `data` and `grad`
 *  have the parameter's shape and type, row-major, unpadded; `grad` is NULL for a frozen parameter.
 *  Both remain the property of the caller and must outlive the engine. Bind all trained parameters
 *  of a unit or none, and likewise all of its frozen parameters or none; otherwise seal returns
 *  E_INVAL.
 *
 *  The engine writes new values to `data`. It reads `grad` when the gradient is complete (at
 *  release(BACKWARD); for a unit with SHERD_USES_ANY at the step) and zeroes it at the next
 *  acquire(BACKWARD). A bound parameter that is never filled starts from the values that `data` has
 *  at the first acquire; they must be the same on all ranks. From then on `data` is read-only, like
 *  the memory of sherd_param_data: the master weights are stored elsewhere, and the next update
 *  overwrites anything that the trainer wrote. Errors: E_NOTSUP at stage 3; E_INVAL also for memory
 *  on which the engine's device cannot compute. */
SHERD_CALL sherd_param_bind(sherd_engine *engine, sherd_param param, void *data, void *grad);

/** Return the addresses that sherd_param_data and sherd_param_grad return whenever the unit is
 *  acquired. The addresses are constant from seal to destroy, or to a move (sherd_engine_move), so
 *  a table, a view or a captured graph may hold them. For bound parameters they are addresses of the trainer's memory. While the
 *  unit is not acquired, the memory may contain bytes of another unit, or NaN with SHERD_DEBUG=1
 *  (except a gradient with retain_grads). Local. NULL with sherd_last_error(): before seal
 *  (E_STATE), the gradient of a frozen parameter (E_STATE), a gathered parameter with
 *  sherd.free_packing, which has no fixed address (E_NOTSUP). */
SHERD_API void *sherd_param_address(sherd_engine *engine, sherd_param param);
SHERD_API void *sherd_param_grad_address(sherd_engine *engine, sherd_param param);

/* Declared in dlpack.h. Only programs that read its fields need that header. */
typedef struct DLManagedTensorVersioned DLManagedTensorVersioned;

/** Wraps the memory at sherd_param_address in a DLPack tensor (version 1.0), which PyTorch, CuPy
 *  and others read in place; in Python through a capsule named "dltensor_versioned". The tensor is
 *  row-major with strides, on the engine's device, and flagged read-only, because only the
 *  optimizer changes parameters. The call copies nothing and waits for nothing: the consumer works
 *  on sherd_engine_stream, or the two streams follow each other (sherd_cuda_follow). The elements
 *  of the tensor are the parameter while its unit is acquired. At other times they are undefined.
 *
 *  The tensor does not keep the engine alive. After sherd_engine_destroy (for a bound parameter:
 *  after the trainer's memory is freed) no program may touch its elements. The consumer of the
 *  tensor calls its deleter once, on any thread, also after sherd_engine_destroy. Called after
 *  seal. Local. Errors: E_STATE, E_NOTSUP (as sherd_param_address), E_NOMEM. */
SHERD_CALL sherd_param_dlpack(sherd_engine *engine, sherd_param param,
                              DLManagedTensorVersioned **out);
/** Does the same for sherd_param_grad_address; the consumer adds to the tensor. Its elements are
 *  the gradient while the unit is acquired for BACKWARD, or while the gradient is retained. E_STATE
 *  also for a frozen parameter. */
SHERD_CALL sherd_param_grad_dlpack(sherd_engine *engine, sherd_param param,
                                   DLManagedTensorVersioned **out);

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
SHERD_CALL sherd_activation_add(sherd_engine *engine, sherd_unit unit,
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
SHERD_CALL sherd_activation_put(sherd_engine *engine, sherd_unit unit, void **out);
/** Returns the activation on the device, at the address that sherd_activation_put returned. The
 *  trainer's lane waits for the bytes. They are read-only, and invalid after the unit is released
 *  for BACKWARD. Called while the unit is acquired for BACKWARD. Local. Blocks only for a drive.
 *  Errors  E_STATE (not acquired; nothing was put in this micro-batch), E_IO (the bytes are lost:
 *          the window has to be dropped with sherd_step_discard). */
SHERD_CALL sherd_activation_get(sherd_engine *engine, sherd_unit unit, void **out);

/** Returns the compute stream, a cudaStream_t as void *: the engine makes parameters readable on it
 *  and takes gradients from it. The trainer enqueues its kernels on this stream. It may use another
 *  stream instead if that stream waits for this one after acquire and this one waits for it before
 *  release. NULL on the CPU, where all work has ended when a call returns. Local. Valid until
 *  destroy, or the next sherd_engine_move. */
SHERD_API void *sherd_engine_stream(const sherd_engine *engine);
/** Makes a stream of the trainer's own the compute stream; it must outlive the engine. Handle 0 is
 *  the legacy default stream (cudaStreamLegacy), on which PyTorch works by default;
 *  sherd_engine_stream then returns cudaStreamLegacy. With cudaStreamPerThread, which is a
 *  different stream in every thread, only one thread may call the engine. Before seal. Local.
 *  Errors: E_STATE after seal, E_NOTSUP on the CPU. Typed: sherd_cuda.h. */
SHERD_CALL sherd_engine_set_stream(sherd_engine *engine, void *stream);

/** Returns how many devices of a backend ("cuda") this process can use; 0, with the reason in
 *  sherd_last_error(), also for NULL. */
SHERD_API int sherd_device_count(const char *backend);

/** Copies between host memory and memory that the engine returned (sherd_param_data,
 *  sherd_param_grad), after all work of the compute stream. Blocks until the bytes are copied. For
 *  programs that work on the host with any backend. Local. E_DEVICE. */
SHERD_CALL sherd_copy(sherd_engine *engine, void *dst, const void *src, size_t len_bytes);

#endif
