/* Sizes and names of element types. */
#include "sherd.h"

static const struct {
    size_t      bytes;
    const char *name;
} TYPES[] = {[SHERD_F32] = {4, "fp32"}, [SHERD_BF16] = {2, "bf16"}, [SHERD_F16] = {2, "fp16"}};

static int is_known(sherd_dtype dtype)
{
    return (size_t)dtype < sizeof(TYPES) / sizeof(TYPES[0]);
}

size_t sherd_dtype_bytes(sherd_dtype dtype)
{
    return is_known(dtype) ? TYPES[dtype].bytes : 0;
}

const char *sherd_dtype_name(sherd_dtype dtype)
{
    return is_known(dtype) ? TYPES[dtype].name : "unknown";
}
