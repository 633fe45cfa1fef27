/* Lists of operations of the program, and whether two of them are the same. */
#ifndef TESTS_ENGINE_OP_LIST_H
#define TESTS_ENGINE_OP_LIST_H

#include "engine/program/program.h"

typedef struct op_list {
    sherdi_op *ops;
    size_t     count, room;
} op_list;

/** Adds a copy of an operation to the list `ctx` (sherdi_op_fn). */
sherd_status op_list_add(void *ctx, const sherdi_op *op);
void         op_list_free(op_list *list);
/** Whether two operations are the same but for their uses and moves. */
int op_is_alike(const sherdi_op *a, const sherdi_op *b);
/** Whether they are the same. */
int op_is_same(const sherdi_op *a, const sherdi_op *b);
/** Returns a text such as "update (number 34) on lane host, unit 1, segment 2, 512 elements ...";
 *  after the last: "nothing more". */
const char *op_list_text(const op_list *list, size_t at, char out[160]);

#endif
