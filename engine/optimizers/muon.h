/* Optimizers that update whole matrices. */
#ifndef SHERDI_ENGINE_OPTIMIZERS_MUON_H
#define SHERDI_ENGINE_OPTIMIZERS_MUON_H

#include "engine/optimizers/optimizer.h"

/* A matrix of directions, row-major on the lane's device. */
typedef struct sherdi_matrix_args {
    float *matrix;
    size_t rows, cols;
    void  *workspace; /* workspace_bytes bytes */
} sherdi_matrix_args;

typedef struct sherdi_matrix_ops {
    /* Replaces a matrix of directions, in place, by its update. */
    void (*make)(const sherdi_backend *lane, const sherdi_settings *settings,
                 const sherdi_matrix_args *args);
    /* Returns the bytes of temporary memory for this, a multiple of SHERD_ALIGN_BYTES. */
    size_t (*workspace_bytes)(size_t rows, size_t cols);
} sherdi_matrix_ops;

#endif
