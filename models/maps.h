/* Lists that say which parameter of a model each tensor of a file holds; sherd_export_params and
 * sherd_import_params take them. hf.h and llmc.h make such lists. */
#ifndef SHERD_MODELS_MAPS_H
#define SHERD_MODELS_MAPS_H

#include "models/arch.h"
#include "sherd.h"

typedef struct maps {
    sherd_tensor_map *tensors;
    size_t            count;
    char (*names)[ARCH_NAME_BYTES]; /* of the tensors; the same as of the parameters */
} maps;

/** Makes room for `most` tensors. Returns -1 when there is no memory. */
int maps_open(maps *list, size_t most);
/** Adds a tensor like the parameter. The caller changes the entries that differ in the file. */
sherd_tensor_map *maps_add(maps *list, const arch_param *param);
void              maps_close(maps *list);

#endif
