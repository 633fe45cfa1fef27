/* Parameters and gradients as DLPack tensors: the address that they keep for the life of the
 * engine, with shape, type and device. The structs are DLPack's ABI (https://dmlc.github.io/dlpack,
 * version 1.0), laid out as in its header. The library needs no more of DLPack; programs that
 * consume a tensor have dlpack.h. */
#include "engine/run/engine_impl.h"

#include "engine/run/memory.h"

#include <stdlib.h>

typedef struct dlpack_type {
    uint8_t  code, bits;
    uint16_t lanes;
} dlpack_type;

typedef struct dlpack_tensor {
    void       *data;
    int32_t     device_type, device_id;
    int32_t     ndim;
    dlpack_type type;
    int64_t    *shape, *strides;
    uint64_t    byte_offset;
} dlpack_tensor;

struct DLManagedTensorVersioned {
    uint32_t major, minor;
    void    *manager;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t      flags;
    dlpack_tensor tensor;
};

_Static_assert(sizeof(DLManagedTensorVersioned) == 80 &&
                   offsetof(DLManagedTensorVersioned, tensor) == 32 &&
                   offsetof(DLManagedTensorVersioned, tensor.type) == 52,
               "as in dlpack.h");

#define FLAG_READ_ONLY 1u

/* The tensor with its arrays. The consumer frees it, on any thread and maybe after the engine is
 * destroyed, so the engine's account does not count this memory. */
typedef struct exported {
    DLManagedTensorVersioned managed;
    int64_t                  shape[SHERD_MAX_NDIM], strides[SHERD_MAX_NDIM];
} exported;

static void exported_free(DLManagedTensorVersioned *self)
{
    free(self); /* `managed` is the first member */
}

static dlpack_type type_of(sherd_dtype dtype)
{
    enum { IEEE_FLOAT = 2, BFLOAT = 4 };

    return (dlpack_type){.code  = dtype == SHERD_BF16 ? BFLOAT : IEEE_FLOAT,
                         .bits  = (uint8_t)(8 * sherd_dtype_bytes(dtype)),
                         .lanes = 1};
}

/* Strides are set although NULL would have the same meaning: later versions of DLPack require
 * them. */
static void shape_fill(exported *made, const sherdi_model_param *param)
{
    int64_t stride = 1;

    for (int i = param->ndim - 1; i >= 0; i--) {
        made->shape[i]   = (int64_t)param->shape[i];
        made->strides[i] = stride;
        stride *= made->shape[i];
    }
    made->managed.tensor.ndim    = param->ndim;
    made->managed.tensor.shape   = made->shape;
    made->managed.tensor.strides = made->strides;
}

static void device_fill(const sherd_engine *engine, dlpack_tensor *tensor)
{
    enum { CPU = 1 };

    tensor->device_type = CPU;
    if (engine->backend->device->lane_dlpack != NULL) {
        engine->backend->device->lane_dlpack(engine->backend, &tensor->device_type,
                                             &tensor->device_id);
    }
}

/* Makes the tensor of a parameter, which must exist. */
static sherd_status exported_make(const sherd_engine *engine, sherd_param number, void *data,
                                  uint64_t flags, DLManagedTensorVersioned **out)
{
    const sherdi_model_param *param   = &engine->model.params[number];
    const sherdi_segment     *segment = sherdi_param_segment(engine->plan, (size_t)number);
    exported                 *made    = calloc(1, sizeof(*made));

    if (made == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for the DLPack tensor of parameter %s",
                           param->name);
    }
    made->managed.major       = 1;
    made->managed.deleter     = exported_free;
    made->managed.flags       = flags;
    made->managed.tensor.data = param->elems == 0 ? NULL : data;
    made->managed.tensor.type = type_of(segment->types.compute);
    shape_fill(made, param);
    device_fill(engine, &made->managed.tensor);
    *out = &made->managed;
    return SHERD_OK;
}

sherd_status sherd_param_dlpack(sherd_engine *engine, sherd_param param,
                                DLManagedTensorVersioned **out)
{
    void *data = NULL;

    SHERDI_TRY(sherdi_api_check_out(out, "sherd_param_dlpack"));
    SHERDI_TRY(sherdi_param_locate(engine, "sherd_param_dlpack", param, &data));
    return exported_make(engine, param, data, FLAG_READ_ONLY, out);
}

sherd_status sherd_param_grad_dlpack(sherd_engine *engine, sherd_param param,
                                     DLManagedTensorVersioned **out)
{
    void *data = NULL;

    SHERDI_TRY(sherdi_api_check_out(out, "sherd_param_grad_dlpack"));
    SHERDI_TRY(sherdi_param_locate_grad(engine, "sherd_param_grad_dlpack", param, &data));
    return exported_make(engine, param, data, 0, out);
}
