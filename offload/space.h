/* Spaces: where something rests, by what can address it there. */
#ifndef SHERDI_OFFLOAD_SPACE_H
#define SHERDI_OFFLOAD_SPACE_H

typedef enum sherdi_space {
    SHERDI_SPACE_DEVICE = 0, /* the device's kernels */
    SHERDI_SPACE_HOST,       /* the host's kernels */
    SHERDI_SPACE_STORAGE,    /* no kernels: it is transferred, through buffers in host memory */
} sherdi_space;

#endif
