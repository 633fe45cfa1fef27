/* Shared by the parts of the program: operations, exchanges, the table of offload, and the progress.
 * See program.h. */
#include "engine/program/offload.h"

#include "engine/modules.h"

sherdi_op sherdi_op_of(sherdi_op_kind kind, sherdi_lane_id lane)
{
    sherdi_op op = {.kind = kind, .lane = lane, .unit = -1, .segment = -1, .param = -1};

    for (int role = 0; role < SHERDI_USES; role++) {
        op.uses[role].where = SHERDI_AT_NOWHERE;
    }
    return op;
}

sherdi_op sherdi_op_of_segment(const sherdi_plan *plan, sherdi_op_kind kind, sherdi_lane_id lane,
                               const sherdi_segment *segment)
{
    sherdi_op op = sherdi_op_of(kind, lane);

    op.unit    = segment->unit;
    op.segment = (int)(segment - plan->layout.segments);
    op.elems   = segment->slice_elems;
    return op;
}

sherdi_op sherdi_op_of_block(const sherdi_plan *plan, sherdi_op_kind kind,
                             const sherdi_block *block)
{
    sherdi_op op = sherdi_op_of_segment(plan, kind, sherdi_lane_at(block->space),
                                        sherdi_block_segment(plan, block));

    op.block = block;
    op.elems = block->elems;
    op.space = block->space;
    return op;
}

void sherdi_op_use(sherdi_op *op, int role, sherdi_access access, sherdi_range range)
{
    range.access   = (uint8_t)access;
    op->uses[role] = range;
}

sherd_status sherdi_program_emit(const sherdi_program *program, const sherdi_op *op)
{
    sherdi_op    flagged;
    sherd_status status;

    if (program->progress->flags != 0) {
        flagged = *op;
        flagged.flags |= program->progress->flags;
        op = &flagged;
    }
    status = program->fn(program->ctx, op);
    program->progress->met += status == SHERD_OK && (op->flags & SHERDI_OP_MEETS) != 0;
    return status;
}

uint32_t sherdi_program_flag(const sherdi_program *program, uint32_t flags)
{
    uint32_t before = program->progress->flags;

    program->progress->flags |= flags;
    return before;
}

sherd_status sherdi_program_make(const sherdi_program *program, sherdi_op op, sherdi_range dst)
{
    sherdi_op_use(&op, SHERDI_USE_DST, SHERDI_WRITES, dst);
    return sherdi_program_emit(program, &op);
}

sherd_status sherdi_program_move(const sherdi_program *program, sherdi_op op, sherdi_range dst,
                                 sherdi_range src)
{
    if (op.kind == SHERDI_OP_COPY) {
        dst.bytes = src.bytes;
    }
    sherdi_op_use(&op, SHERDI_USE_DST, SHERDI_WRITES, dst);
    sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS, src);
    return sherdi_program_emit(program, &op);
}

sherd_status sherdi_program_gather(const sherdi_program *program, const sherdi_segment *segment,
                                   sherd_dtype dtype, uint32_t flags, sherdi_range whole)
{
    const sherdi_plan *plan   = program->plan;
    size_t             slice  = whole.bytes / (size_t)plan->world_size;
    sherdi_range       before = whole;
    sherdi_range       own    = whole;
    sherdi_range       behind = whole;
    sherdi_op          op = sherdi_op_of_segment(plan, SHERDI_OP_GATHER, SHERDI_LANE_WIRE, segment);

    op.from = op.to  = dtype;
    op.flags         = flags;
    before.bytes     = (size_t)plan->rank * slice;
    own.offset       = whole.offset + before.bytes;
    own.bytes        = slice;
    behind.offset    = own.offset + slice;
    behind.bytes     = whole.offset + whole.bytes - behind.offset;
    own.is_all_ranks = 1;
    sherdi_op_use(&op, SHERDI_USE_BEHIND, SHERDI_WRITES, behind);
    return sherdi_program_move(program, op, before, own);
}

_Static_assert(sizeof(sherdi_word_message) == SHERDI_WORDS_OF_OUTCOME * sizeof(uint64_t) &&
                   sizeof(sherdi_norm_message) == SHERDI_WORDS_OF_NORM * sizeof(uint64_t),
               "the list has the words of each message");

const char *sherdi_exchange_name(sherdi_exchange_kind kind)
{
    static const char *const NAMES[] = {
#define SHERDI_EXCHANGE(kind, words, name, ...) name,
#include "engine/program/exchange_list.h"
#undef SHERDI_EXCHANGE
    };

    return NAMES[kind];
}

size_t sherdi_exchange_bytes(const sherdi_plan *plan, sherdi_exchange_kind kind)
{
    const size_t words[] = {
#define SHERDI_EXCHANGE(kind, words, name, ...) (words __VA_ARGS__),
#include "engine/program/exchange_list.h"
#undef SHERDI_EXCHANGE
    };

    return words[kind] * sizeof(uint64_t);
}

sherd_status sherdi_program_exchange(const sherdi_program *program, sherdi_exchange_kind kind)
{
    sherdi_op op = sherdi_op_of(SHERDI_OP_EXCHANGE, SHERDI_LANE_WIRE);

    op.flags = SHERDI_OP_MEETS | SHERDI_OP_WAITS;
    op.part  = (int)kind;
    op.elems = sherdi_exchange_bytes(program->plan, kind);
    return sherdi_program_emit(program, &op);
}

#define SHERDI_OFFLOAD(table) &(table),
static const sherdi_program_offload_ops *const TABLE[] = {
#include "engine/program/offload_list.h"
    NULL};
#undef SHERDI_OFFLOAD

const sherdi_program_offload_ops *sherdi_program_offload(void)
{
    return TABLE[0];
}

sherd_status sherdi_progress_open(sherdi_progress *progress, const sherdi_plan *plan,
                                  const sherdi_model *model, sherdi_mem *mem)
{
    progress->units = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, plan->layout.num_units,
                                         sizeof(*progress->units));
    if (progress->units == NULL) {
        return SHERD_E_NOMEM;
    }
    for (size_t u = 0; u < plan->layout.num_units; u++) {
        progress->units[u].uses_left = plan->layout.units[u].backward_uses;
    }
    progress->train.sequence = &plan->schedule.train;
    progress->eval.sequence  = &plan->schedule.eval;
    return sherdi_modules_progress_open(progress, plan, model, mem);
}

void sherdi_progress_close(sherdi_progress *progress)
{
    sherdi_free(progress->units);
    sherdi_modules_progress_close(progress);
    *progress = (sherdi_progress){0};
}
