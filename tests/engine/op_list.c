#include "tests/engine/op_list.h"

#include "tests/lib/check.h"
#include "engine/proof/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

sherd_status op_list_add(void *ctx, const sherdi_op *op)
{
    op_list *list = ctx;

    if (list->count == list->room) {
        list->room = 2 * list->room + 256;
        list->ops  = realloc(list->ops, list->room * sizeof(*list->ops));
        CHECK(list->ops != NULL);
    }
    list->ops[list->count++] = *op;
    return SHERD_OK;
}

void op_list_free(op_list *list)
{
    free(list->ops);
    *list = (op_list){0};
}

int op_is_alike(const sherdi_op *a, const sherdi_op *b)
{
    return a->kind == b->kind && a->lane == b->lane && a->unit == b->unit &&
           a->segment == b->segment && a->param == b->param && a->block == b->block &&
           a->flags == b->flags && a->from == b->from && a->to == b->to && a->elems == b->elems &&
           a->index == b->index && a->part == b->part && a->extent == b->extent &&
           a->ring == b->ring && a->sweep == b->sweep && a->space == b->space;
}

int op_is_same(const sherdi_op *a, const sherdi_op *b)
{
    for (int u = 0; u < SHERDI_USES; u++) {
        const sherdi_range *x = &a->uses[u];
        const sherdi_range *y = &b->uses[u];

        if (x->where != y->where ||
            (x->where != SHERDI_AT_NOWHERE &&
             (x->access != y->access || x->is_all_ranks != y->is_all_ranks ||
              x->offset != y->offset || x->bytes != y->bytes))) {
            return 0;
        }
    }
    return op_is_alike(a, b);
}

const char *op_list_text(const op_list *list, size_t at, char out[160])
{
    if (at >= list->count) {
        (void)snprintf(out, 160, "nothing more");
    } else {
        const sherdi_op *op = &list->ops[at];

        (void)snprintf(out, 160,
                       "%s (number %zu) on lane %s, unit %d, segment %d, %zu elements, to %d:%zu, "
                       "from %d:%zu",
                       sherdi_op_kind_name(op->kind), at, sherdi_lane_name(op->lane), op->unit,
                       op->segment, op->elems, op->uses[SHERDI_USE_DST].where,
                       op->uses[SHERDI_USE_DST].offset, op->uses[SHERDI_USE_SRC].where,
                       op->uses[SHERDI_USE_SRC].offset);
    }
    return out;
}
