/* See maps.h. */
#include "models/maps.h"

#include <stdlib.h>
#include <string.h>

int maps_open(maps *list, size_t most)
{
    *list = (maps){.tensors = calloc(most, sizeof(*list->tensors)),
                   .names   = calloc(most, sizeof(*list->names))};
    if (list->tensors == NULL || list->names == NULL) {
        maps_close(list);
        return -1;
    }
    return 0;
}

sherd_tensor_map *maps_add(maps *list, const arch_param *param)
{
    sherd_tensor_map *added = &list->tensors[list->count];
    char             *name  = list->names[list->count++];

    memcpy(name, param->name, ARCH_NAME_BYTES);
    *added = (sherd_tensor_map){.struct_size = sizeof(*added),
                                .name        = name,
                                .param       = name,
                                .ndim        = param->ndim,
                                .shape       = {param->shape[0], param->shape[1]}};
    return added;
}

void maps_close(maps *list)
{
    free(list->tensors);
    free(list->names);
    *list = (maps){0};
}
