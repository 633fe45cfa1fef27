/* The CUDA kind of a build without CUDA: it has no devices, and says so. */
#include "kernels/devices.h"

#include <stdio.h>

static int none_count(char *why, size_t why_bytes)
{
    (void)snprintf(why, why_bytes,
                   "sherd was built without CUDA; meson -Dcuda=enabled says what is "
                   "missing");
    return 0;
}

static sherd_status none_create(int index, sherdi_mem *mem, sherdi_backend **out)
{
    (void)index;
    (void)mem;
    (void)out;
    return sherdi_fail(SHERD_E_NOTSUP, "sherd was built without CUDA");
}

static void none_describe(int index, char *text, size_t text_bytes)
{
    (void)index;
    (void)snprintf(text, text_bytes, "none");
}

static uint64_t none_identity(int index)
{
    (void)index;
    return 0;
}

const sherdi_device_kind sherdi_device_kind_cuda = {
    .name     = "cuda",
    .count    = none_count,
    .create   = none_create,
    .describe = none_describe,
    .identity = none_identity,
};
