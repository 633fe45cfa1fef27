/* Lists of tensors of a file with the parameters of a model that they hold: what sherd_export_params and
 * sherd_import_params take. hf.h and llmc.h make them. */
#ifndef SHERD_MODELS_MAPS_H
#define SHERD_MODELS_MAPS_H

#include "models/arch.h"
#include "sherd.h"

typedef struct maps {
    sherd_tensor_map *tensors;
    size_t            count;
    char (*names)[ARCH_NAME_BYTES]; /* of the tensors, which are those of the parameters */
} maps;

/** Room for `most` tensors. -1: no memory. */
int maps_open(maps *list, size_t most);
/** The parameter as it is; what differs in the file is for the caller to say. */
sherd_tensor_map *maps_add(maps *list, const arch_param *param);
void              maps_close(maps *list);

#endif
