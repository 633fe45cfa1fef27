/* Sizes and names of element types. */
#include "sherd.h"

size_t sherd_dtype_bytes(sherd_dtype dtype)
{
    switch (dtype) {
    case SHERD_F32:
        return 4;
    case SHERD_BF16:
    case SHERD_F16:
        return 2;
    }
    return 0;
}

const char *sherd_dtype_name(sherd_dtype dtype)
{
    switch (dtype) {
    case SHERD_F32:
        return "fp32";
    case SHERD_BF16:
        return "bf16";
    case SHERD_F16:
        return "fp16";
    }
    return "unknown";
}
