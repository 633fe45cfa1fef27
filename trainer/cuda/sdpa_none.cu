/* sdpa.h in a build without the header of cuDNN: its attention is not available. */
#include "sdpa.h"

#include <stdio.h>
#include <string.h>

static void refuse(char *why, size_t why_bytes)
{
    (void)snprintf(why, why_bytes, "the trainer was built without the header of cuDNN 9.8 or newer");
}

sdpa *sdpa_create(const sdpa_shape *, char *why, size_t why_bytes)
{
    refuse(why, why_bytes);
    return NULL;
}

int sdpa_check(const sdpa_shape *, const char *, sdpa_info *, char *why, size_t why_bytes)
{
    refuse(why, why_bytes);
    return -1;
}

const char *sdpa_fault_of(size_t, const sdpa_shape *)
{
    return NULL;
}

void sdpa_destroy(sdpa *)
{
}

int sdpa_is_of(const sdpa *, const sdpa_shape *)
{
    return 0;
}

/* Is never called, since create always fails. */
sdpa_info sdpa_describe(const sdpa *)
{
    sdpa_info info;

    memset(&info, 0, sizeof(info));
    return info;
}

int sdpa_forward(sdpa *, const heads_args *, void *, float *, cudaStream_t, char *why, size_t why_bytes)
{
    refuse(why, why_bytes);
    return -1;
}

int sdpa_backward(sdpa *, const heads_args *, const sdpa_back_args *, cudaStream_t, char *why, size_t why_bytes)
{
    refuse(why, why_bytes);
    return -1;
}
