/* Prints the plan: a table for people, and one JSON object for programs. */
#include "engine/proof/emit.h"
#include "engine/elastic/sizes.h"
#include "engine/report.h"

#include "base/checked.h"
#include "engine/program/order.h"
#include "engine/proof/moves.h"
#include "engine/proof/names.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------- table -- */

typedef struct printer {
    sherd_write_fn write;
    void          *ctx;
    sherd_status   status; /* the first failure of write */
} printer;

static void print(printer *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void print(printer *out, const char *fmt, ...)
{
    char    text[512];
    va_list args;
    int     len;

    if (out->status != SHERD_OK) {
        return;
    }
    va_start(args, fmt);
    len = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    len         = len < (int)sizeof(text) ? len : (int)sizeof(text) - 1;
    out->status = out->write(out->ctx, text, (size_t)len);
}

static const char *const FILES[] = {"state with its spare", "parameters", "gradients",
                                    "activations"};

static double mib(size_t bytes)
{
    return (double)bytes / 0x1p20;
}

static void print_head(printer *out, const sherdi_plan *plan, const sherdi_model *model)
{
    print(out, "plan of rank %d of %d: stage %d, compute %s, wire %s, gradients stored in %s\n",
          sherdi_plan_rank_of_all(plan, plan->rank), sherdi_plan_all_ranks(plan),
          plan->settings.sharding.stage, sherd_dtype_name(plan->settings.numerics.compute_dtype),
          sherd_dtype_name(plan->settings.numerics.comm_dtype),
          sherd_dtype_name(plan->layout.types.grad));
    if (plan->num_replicas > 1) {
        print(out, "%d replicas: %d ranks share a copy of all that is sharded\n",
              plan->num_replicas, plan->world_size);
    }
    if (plan->copy_ranks > 1) {
        print(out, "second copies: %d ranks share one of the parameters\n", plan->copy_ranks);
    }
    print(out, "%zu parameters in %zu units, %zu elements (%zu trainable), %zu of padding\n\n",
          model->num_params, model->num_units, model->total_elems, model->trainable_elems,
          plan->layout.padding_elems);
}

/* Buffers that only offload uses are listed if they have bytes. */
static int is_listed(const sherdi_plan *plan, int b)
{
    return b < SHERDI_BUFFER_GRAD_STAGING || plan->packing.buffers[b].bytes > 0;
}

static void print_total(printer *out, const char *name, const char *tier, uint64_t bytes)
{
    print(out, "%-22s %-8s %16llu %12.2f\n", name, tier, (unsigned long long)bytes,
          (double)bytes / 0x1p20);
}

/* Prints the memory of the transport. */
static void print_measured(printer *out, const char *tier, size_t bytes)
{
    if (bytes > 0) {
        print(out, "%-22s %-8s %16zu %12.2f  measured, not planned\n", "transport", tier, bytes,
              mib(bytes));
    }
}

static void print_buffers(printer *out, const sherdi_plan *plan)
{
    print(out, "%-22s %-8s %16s %12s  %s\n", "buffer", "tier", "bytes", "MiB", "memory of");
    for (int b = 0; b < SHERDI_BUFFERS; b++) {
        const sherdi_plan_buffer *buffer = &plan->packing.buffers[b];

        if (!is_listed(plan, b)) {
            continue;
        }
        print(out, "%-22s %-8s %16zu %12.2f  %s%s\n", buffer->name,
              buffer->is_host ? "host" : "device", buffer->bytes, mib(buffer->bytes),
              buffer->is_shared ? "world" : "rank", buffer->is_pinned ? ", pinned" : "");
    }
    print_total(out, "total", "device", plan->packing.total_bytes - plan->packing.host_bytes);
    if (plan->packing.host_bytes > 0) {
        print_total(out, "total", "host", plan->packing.host_bytes);
        print_total(out, "of these pinned", "host", plan->packing.pinned_bytes);
    }
    for (int i = 0; i < 4; i++) {
        if (plan->nvme_bytes[i] > 0) {
            print_total(out, FILES[i], "nvme", plan->nvme_bytes[i]);
        }
    }
    if (plan->index_bytes > 0) {
        print_total(out, "index of the state", "nvme", plan->index_bytes);
    }
    if (plan->packing.receive_bytes > 0) {
        print_total(out, "room for reductions", "device", plan->packing.receive_bytes);
    }
    print_total(out, "while a checkpoint moves", "host", sherdi_plan_checkpoint_bytes(plan));
    print_measured(out, "host", plan->machine.transport_bytes);
    print_measured(out, "device", plan->machine.taken_bytes);
    print(out, "\n");
}

/* The media of which a plan says what passes between them. */
static const struct {
    sherdi_medium medium;
    const char   *name, *key;
} MEDIA[] = {{SHERDI_MOVES_DOWN, "device to host", "down"},
             {SHERDI_MOVES_UP, "host to device", "up"},
             {SHERDI_MOVES_READ, "nvme read", "nvme_read"},
             {SHERDI_MOVES_WRITTEN, "nvme written", "nvme_written"}};

#define NUM_MEDIA (sizeof(MEDIA) / sizeof(MEDIA[0]))

/* Prints what passes between the media in a step of this rank. */
static void print_moves(printer *out, const sherdi_plan *plan)
{
    const sherdi_plan_moves *moves = sherdi_plan_moves_of(plan);
    sherdi_plan_wear         wear  = sherdi_plan_drive_wear(plan);

    if (plan->packing.host_bytes == 0) {
        return;
    }
    print(out, "%-22s %16s %16s %16s\n", "moved", "per micro-batch", "per boundary", "per step");
    for (size_t i = 0; i < NUM_MEDIA; i++) {
        sherdi_medium medium = MEDIA[i].medium;

        print(out, "%-22s %16llu %16llu %16llu\n", MEDIA[i].name,
              (unsigned long long)moves->micro[medium], (unsigned long long)moves->step[medium],
              (unsigned long long)sherdi_plan_moved(plan, medium));
    }
    if (wear.written_bytes > 0) {
        print(out,
              "wear: %.2f GB written per step by this rank, %.2f TB a day to a drive at %.2f s a "
              "step "
              "(%s); one rated "
              "%.0f TBW lasts %.0f days\n",
              wear.written_bytes / 1e9, wear.bytes_a_day / 1e12, wear.step_seconds,
              wear.is_assumed ? "assumed: 2 GB/s and no compute" : "as given",
              wear.rated_bytes / 1e12, wear.days);
    }
    print(out, "\n");
}

/* Returns the name of a segment's optimizer; for a frozen segment `nothing`. */
static const char *optimizer_name(const sherdi_segment *segment, const char *nothing)
{
    return segment->optimizer == NULL ? nothing : sherdi_optimizer_name(segment->optimizer);
}

static void print_units(printer *out, const sherdi_plan *plan, const sherdi_model *model)
{
    int is_mixed = plan->layout.num_optimizers > 1;

    print(out, "%-28s %-15s %14s %12s %8s %7s%s\n", "unit", "segment", "elements", "slice",
          "padding", "blocks", is_mixed ? "  optimizer" : "");
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        const sherdi_segment *segment = &plan->layout.segments[s];

        print(out, "%-28.28s %-15s %14zu %12zu %8zu %7zu%s%s\n", model->units[segment->unit].name,
              sherdi_segment_name(segment), segment->elems, segment->slice_elems,
              segment->padded_elems - segment->elems, segment->num_blocks, is_mixed ? "  " : "",
              is_mixed ? optimizer_name(segment, "-") : "");
    }
    print(out, "\n");
}

static void print_live_ranges(printer *out, const char *title,
                              const sherdi_live_ranges *live_ranges, const sherdi_model *model)
{
    if (live_ranges->count == 0) {
        return;
    }
    print(out, "%-28s %14s %14s %7s %7s\n", title, "offset", "bytes", "from", "to");
    for (size_t i = 0; i < live_ranges->count; i++) {
        print(out, "  %-26.26s %14zu %14zu %7zu %7zu\n",
              model->units[live_ranges->items[i].unit].name, live_ranges->items[i].offset,
              live_ranges->items[i].bytes, live_ranges->items[i].first, live_ranges->items[i].last);
    }
    print(out, "\n");
}

/* The printed name of a collective: new values that are sent to all ranks are published. */
static const char *collective_name(const sherdi_plan *plan, sherdi_phase_name phase,
                                   const sherdi_op *op)
{
    switch (op->kind) {
    case SHERDI_OP_GATHER:
        return phase == SHERDI_IN_BOUNDARY && plan->layout.is_sliced ? "publish" : "all-gather";
    case SHERDI_OP_REDUCE:
        return "reduce-scatter";
    default:
        return sherdi_op_kind_name(op->kind);
    }
}

typedef struct op_printer {
    printer            *out;
    const sherdi_plan  *plan;
    const sherdi_model *model;
} op_printer;

static const char *op_unit(const sherdi_model *model, const sherdi_op *op)
{
    return op->unit < 0 ? NULL : model->units[op->unit].name;
}

static const char *op_segment(const sherdi_plan *plan, const sherdi_op *op)
{
    return op->segment < 0 ? NULL : sherdi_segment_name(&plan->layout.segments[op->segment]);
}

static sherd_status print_collective(void *ctx, sherdi_phase_name phase, const sherdi_op *op)
{
    const op_printer *p = ctx;

    if (sherdi_lane_is_wire(op->lane)) {
        print(p->out, "%-10s %-15s %-28.28s %-15s %16llu\n", sherdi_phase_name_text(phase),
              collective_name(p->plan, phase, op),
              op->unit < 0 ? "(control)" : op_unit(p->model, op),
              op->segment < 0 ? "" : op_segment(p->plan, op),
              (unsigned long long)sherdi_op_wire(p->plan, op));
    }
    return p->out->status;
}

static sherd_status print_ops(printer *out, const sherdi_plan *plan, const sherdi_model *model)
{
    op_printer p = {out, plan, model};

    print(out, "%-10s %-15s %-28s %-15s %16s\n", "phase", "collective", "unit", "segment",
          "bytes sent");
    SHERDI_TRY(sherdi_dry_emit(plan, model, SHERDI_EMIT_FIRST, print_collective, &p));
    print(out,
          "\nwire: %llu bytes sent by this rank per micro-batch, %llu per boundary, "
          "%llu per step of %d micro-batches\n",
          (unsigned long long)sherdi_plan_moves_of(plan)->micro[SHERDI_MOVES_WIRE],
          (unsigned long long)sherdi_plan_moves_of(plan)->step[SHERDI_MOVES_WIRE],
          (unsigned long long)sherdi_plan_moved(plan, SHERDI_MOVES_WIRE),
          plan->settings.batch.accumulation);
    if (plan->machine.num_hosts > 1) {
        print(out,
              "of these to other hosts: %llu bytes per micro-batch, %llu per boundary, %llu per "
              "step\n",
              (unsigned long long)sherdi_plan_moves_of(plan)->micro[SHERDI_MOVES_BETWEEN],
              (unsigned long long)sherdi_plan_moves_of(plan)->step[SHERDI_MOVES_BETWEEN],
              (unsigned long long)sherdi_plan_moved(plan, SHERDI_MOVES_BETWEEN));
    }
    return out->status;
}

static sherd_status print_size(void *ctx, const sherdi_elastic_size *size)
{
    printer *out = ctx;

    print(out,
          "%6d ranks %16zu bytes of each, %zu while it moves there from one rank less, %zu back\n",
          size->ranks, size->rank_bytes, size->grow_peak.host, size->shrink_peak.host);
    if (size->device_bytes > 0) {
        print(out, "%12s %16zu bytes of its device, %zu while it moves there, %zu back\n", "",
              size->device_bytes, size->grow_peak.device, size->shrink_peak.device);
    }
    if (size->disk_bytes > 0) {
        print(out, "%12s %16llu bytes of files of each, %llu of all while it moves there\n", "",
              (unsigned long long)size->disk_bytes, (unsigned long long)size->grow_disk_bytes);
    }
    return out->status;
}

static void print_sizes(printer *out, const sherdi_plan *plan, const sherdi_model *model)
{
    sherd_status status;

    if (!sherdi_is_elastic(&plan->settings)) {
        return;
    }
    print(out, "\nnumbers of ranks (sherd.elastic)\n");
    status      = sherdi_elastic_sizes(plan, model, print_size, out);
    out->status = out->status == SHERD_OK ? status : out->status;
}

static sherd_status table_write(const sherdi_plan *plan, const sherdi_model *model,
                                sherd_write_fn write, void *ctx)
{
    printer out = {write, ctx, SHERD_OK};

    print_head(&out, plan, model);
    print_buffers(&out, plan);
    print_moves(&out, plan);
    print_sizes(&out, plan, model);
    print_units(&out, plan, model);
    print_live_ranges(&out, "gathered in training", &plan->schedule.train.live_ranges, model);
    print_live_ranges(&out, "transient gradients", &plan->schedule.transients, model);
    return print_ops(&out, plan, model);
}

/* ------------------------------------------------------------------ json -- */

static json_t *json_size(size_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *buffers_json(const sherdi_plan *plan)
{
    json_t *list = json_array();

    for (int b = 0; b < SHERDI_BUFFERS; b++) {
        const sherdi_plan_buffer *buffer = &plan->packing.buffers[b];

        if (!is_listed(plan, b)) {
            continue;
        }
        (void)json_array_append_new(
            list, json_pack("{s:s, s:s, s:s, s:o, s:i, s:b, s:b}", "name", buffer->name, "purpose",
                            sherdi_mem_purpose_name(buffer->purpose), "tier",
                            buffer->is_host ? "host" : "device", "bytes", json_size(buffer->bytes),
                            "align_bytes", SHERD_ALIGN_BYTES, "is_shared", buffer->is_shared,
                            "is_pinned", buffer->is_pinned));
    }
    return list;
}

static json_t *segments_json(const sherdi_plan *plan, const sherdi_model *model)
{
    static const char *const KINDS[] = {"trainable", "frozen", "persistent"};

    json_t *list     = json_array();
    int     is_mixed = plan->layout.num_optimizers > 1;

    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        const sherdi_segment *segment = &plan->layout.segments[s];

        (void)json_array_append_new(
            list,
            json_pack("{s:s, s:s, s:s*, s:s*, s:o, s:o, s:o, s:o, s:b}", "unit",
                      model->units[segment->unit].name, "kind", KINDS[segment->kind], "dtype",
                      segment->is_wide ? sherd_dtype_name(segment->types.compute) : NULL,
                      "optimizer", is_mixed ? optimizer_name(segment, NULL) : NULL, "elems",
                      json_size(segment->elems), "slice_elems", json_size(segment->slice_elems),
                      "padded_elems", json_size(segment->padded_elems), "blocks",
                      json_size(segment->num_blocks), "is_resident", segment->is_resident));
    }
    return list;
}

static json_t *params_json(const sherdi_plan *plan, const sherdi_model *model)
{
    json_t *list = json_array();

    for (size_t p = 0; p < plan->layout.num_params; p++) {
        (void)json_array_append_new(
            list, json_pack("{s:s, s:i, s:o, s:o, s:o}", "name", model->params[p].name, "segment",
                            plan->layout.params[p].segment, "offset_elems",
                            json_size(plan->layout.params[p].offset_elems), "elems",
                            json_size(model->params[p].elems), "first_index",
                            json_size(model->params[p].first_index)));
    }
    return list;
}

static json_t *live_ranges_json(const sherdi_live_ranges *live_ranges, const sherdi_model *model)
{
    json_t *list = json_array();

    for (size_t i = 0; i < live_ranges->count; i++) {
        (void)json_array_append_new(list, json_pack("{s:s, s:o, s:o, s:o, s:o}", "unit",
                                                    model->units[live_ranges->items[i].unit].name,
                                                    "offset_bytes",
                                                    json_size(live_ranges->items[i].offset),
                                                    "bytes", json_size(live_ranges->items[i].bytes),
                                                    "first", json_size(live_ranges->items[i].first),
                                                    "last", json_size(live_ranges->items[i].last)));
    }
    return list;
}

/* Lists the program of the plain sequence of calls, with the operations that each operation
 * follows. */
typedef struct op_lister {
    const sherdi_plan  *plan;
    const sherdi_model *model;
    json_t             *collectives, *program;
    sherdi_order       *order;
    uint64_t            submitted[SHERDI_LANES];
} op_lister;

static json_t *uses_json(const sherdi_plan *plan, const sherdi_op *op)
{
    json_t *list = json_array();

    for (int role = 0; role < SHERDI_USES; role++) {
        const sherdi_range *use = &op->uses[role];

        if (use->where == SHERDI_AT_NOWHERE || use->bytes == 0) {
            continue;
        }
        (void)json_array_append_new(list, json_pack("{s:s, s:s, s:o, s:o, s:b}", "place",
                                                    sherdi_where_name(plan, use->where), "access",
                                                    sherdi_access_name((sherdi_access)use->access),
                                                    "offset", json_size(use->offset), "bytes",
                                                    json_size(use->bytes), "all_ranks",
                                                    use->is_all_ranks));
    }
    return list;
}

static void follow_json(json_t *list, sherdi_lane_id lane, uint64_t number)
{
    char text[48];

    (void)snprintf(text, sizeof(text), "%s %llu", sherdi_lane_name(lane),
                   (unsigned long long)number);
    (void)json_array_append_new(list, json_string(text));
}

static json_t *follows_json(const sherdi_order *order, const sherdi_op *op)
{
    json_t        *list = json_array();
    sherdi_follows follows;

    sherdi_order_follows(order, op, &follows);
    for (int lane = 0; lane < SHERDI_LANES; lane++) {
        if (follows.last[lane] != 0) {
            follow_json(list, (sherdi_lane_id)lane, follows.last[lane]);
        }
    }
    for (size_t i = 0; i < follows.num_drives; i++) {
        follow_json(list, SHERDI_LANE_DRIVE, follows.drives[i]);
    }
    return list;
}

static sherd_status op_list(void *ctx, sherdi_phase_name phase, const sherdi_op *op)
{
    op_lister *l = ctx;

    if (sherdi_lane_is_wire(op->lane)) {
        (void)json_array_append_new(
            l->collectives,
            json_pack("{s:s, s:s, s:s?, s:s?, s:o}", "phase", sherdi_phase_name_text(phase),
                      "collective", collective_name(l->plan, phase, op), "unit",
                      op_unit(l->model, op), "segment", op_segment(l->plan, op), "sent_bytes",
                      json_size(sherdi_op_wire(l->plan, op))));
    }
    (void)json_array_append_new(
        l->program,
        json_pack("{s:s, s:s, s:s, s:o, s:s?, s:s?, s:o, s:o}", "phase",
                  sherdi_phase_name_text(phase), "operation", sherdi_op_kind_name(op->kind), "lane",
                  sherdi_lane_name(op->lane), "number", json_size(++l->submitted[op->lane]), "unit",
                  op_unit(l->model, op), "segment", op_segment(l->plan, op), "uses",
                  uses_json(l->plan, op), "follows", follows_json(l->order, op)));
    sherdi_order_enter(l->order, op, l->submitted[op->lane]);
    return SHERD_OK;
}

static sherd_status program_json(json_t *root, const sherdi_plan *plan, const sherdi_model *model)
{
    op_lister l = {
        .plan = plan, .model = model, .collectives = json_array(), .program = json_array()};
    sherd_status status;

    l.order = sherdi_alloc(plan->mem, SHERDI_MEM_CONTROL, sizeof(*l.order));
    status  = l.order == NULL ? SHERD_E_NOMEM
                              : sherdi_dry_emit(plan, model, SHERDI_EMIT_FIRST, op_list, &l);
    sherdi_free(l.order);
    (void)json_object_set_new(root, "collectives", l.collectives);
    (void)json_object_set_new(root, "program", l.program);
    return status;
}

static json_t *moves_json(const sherdi_plan *plan)
{
    sherdi_plan_wear wear = sherdi_plan_drive_wear(plan);
    json_t          *root = json_object();
    char             key[48];

    for (size_t i = 0; i < NUM_MEDIA; i++) {
        (void)snprintf(key, sizeof(key), "%s_bytes_per_micro_batch", MEDIA[i].key);
        (void)json_object_set_new(root, key,
                                  json_size(sherdi_plan_moves_of(plan)->micro[MEDIA[i].medium]));
        (void)snprintf(key, sizeof(key), "%s_bytes_per_boundary", MEDIA[i].key);
        (void)json_object_set_new(root, key,
                                  json_size(sherdi_plan_moves_of(plan)->step[MEDIA[i].medium]));
    }
    (void)json_object_set_new(root, "wear_bytes_per_step", json_real(wear.written_bytes));
    (void)json_object_set_new(root, "wear_bytes_per_day", json_real(wear.bytes_a_day));
    (void)json_object_set_new(root, "wear_days", json_real(wear.days));
    return root;
}

/* Adds sizes: first by purpose, in all spaces (of the state one generation, without the spare);
 * then by space, for all purposes. */
static void sizes_set(json_t *root, const sherdi_plan *plan)
{
    const sherdi_plan_buffer *b    = plan->packing.buffers;
    const size_t             *nvme = plan->nvme_bytes;
    const struct {
        const char *name;
        size_t      bytes;
    } sizes[] = {
        {"params_bytes",
         b[SHERDI_BUFFER_PARAMS].bytes + b[SHERDI_BUFFER_HOST_PARAMS].bytes + nvme[1]},
        {"grads_bytes", b[SHERDI_BUFFER_GRADS].bytes + b[SHERDI_BUFFER_HOST_GRADS].bytes + nvme[2]},
        {"optimizer_bytes", b[SHERDI_BUFFER_STATE].bytes + b[SHERDI_BUFFER_HOST_STATE].bytes +
                                nvme[0] / (plan->has_generations ? 2 : 1)},
        {"activations_bytes", b[SHERDI_BUFFER_ACTIVATIONS].bytes},
        {"host_activations_bytes", b[SHERDI_BUFFER_HOST_ACTIVATIONS].bytes},
        {"nvme_activations_bytes", nvme[3]},
        {"gathered_bytes", b[SHERDI_BUFFER_GATHER].bytes},
        {"transient_bytes", b[SHERDI_BUFFER_TRANSIENT].bytes},
        {"receive_bytes", plan->packing.receive_bytes},
        {"transport_host_bytes", plan->machine.transport_bytes},
        {"transport_device_bytes", plan->machine.taken_bytes},
        {"device_bytes",
         plan->packing.total_bytes - plan->packing.host_bytes + plan->packing.receive_bytes},
        {"host_bytes", plan->packing.host_bytes},
        {"checkpoint_bytes", sherdi_plan_checkpoint_bytes(plan)},
        {"pinned_bytes", plan->packing.pinned_bytes},
        {"nvme_bytes", nvme[0] + nvme[1] + nvme[2] + nvme[3]},
        {"wire_bytes_per_micro_batch", sherdi_plan_moves_of(plan)->micro[SHERDI_MOVES_WIRE]},
        {"wire_bytes_per_boundary", sherdi_plan_moves_of(plan)->step[SHERDI_MOVES_WIRE]},
        {"between_bytes_per_micro_batch", sherdi_plan_moves_of(plan)->micro[SHERDI_MOVES_BETWEEN]},
        {"between_bytes_per_boundary", sherdi_plan_moves_of(plan)->step[SHERDI_MOVES_BETWEEN]},
        {"shard_size", (uint64_t)plan->world_size},
        {"copy_ranks", (uint64_t)plan->copy_ranks},
    };

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        (void)json_object_set_new(root, sizes[i].name, json_size(sizes[i].bytes));
    }
}

static sherd_status size_list(void *ctx, const sherdi_elastic_size *size)
{
    json_t *at =
        json_pack("{s:i, s:o, s:o, s:o, s:o, s:o}", "ranks", size->ranks, "rank_bytes",
                  json_size(size->rank_bytes), "grow_peak_bytes", json_size(size->grow_peak.host),
                  "shrink_peak_bytes", json_size(size->shrink_peak.host), "disk_bytes",
                  json_size(size->disk_bytes), "grow_disk_bytes", json_size(size->grow_disk_bytes));

    if (size->device_bytes > 0) {
        (void)json_object_set_new(at, "device_bytes", json_size(size->device_bytes));
        (void)json_object_set_new(at, "grow_device_bytes", json_size(size->grow_peak.device));
        (void)json_object_set_new(at, "shrink_device_bytes", json_size(size->shrink_peak.device));
    }
    (void)json_array_append_new(ctx, at);
    return SHERD_OK;
}

static json_t *plan_json(const sherdi_plan *plan, const sherdi_model *model)
{
    json_t *root =
        json_pack("{s:i, s:i, s:i, s:s, s:s, s:s, s:i, s:o, s:o, s:o}", "rank",
                  sherdi_plan_rank_of_all(plan, plan->rank), "world_size",
                  sherdi_plan_all_ranks(plan), "stage", plan->settings.sharding.stage,
                  "compute_dtype", sherd_dtype_name(plan->settings.numerics.compute_dtype),
                  "wire_dtype", sherd_dtype_name(plan->settings.numerics.comm_dtype), "grad_dtype",
                  sherd_dtype_name(plan->layout.types.grad), "accumulation",
                  plan->settings.batch.accumulation, "param_elems", json_size(model->total_elems),
                  "trainable_elems", json_size(model->trainable_elems), "padding_elems",
                  json_size(plan->layout.padding_elems));

    sizes_set(root, plan);
    (void)json_object_set_new(root, "moved", moves_json(plan));
    (void)json_object_set_new(root, "buffers", buffers_json(plan));
    (void)json_object_set_new(root, "segments", segments_json(plan, model));
    (void)json_object_set_new(root, "params", params_json(plan, model));
    (void)json_object_set_new(root, "gathers",
                              live_ranges_json(&plan->schedule.train.live_ranges, model));
    (void)json_object_set_new(root, "transients",
                              live_ranges_json(&plan->schedule.transients, model));
    return root;
}

static sherd_status sizes_json(json_t *root, const sherdi_plan *plan, const sherdi_model *model)
{
    json_t *list = json_array();

    (void)json_object_set_new(root, "elastic", list);
    return sherdi_is_elastic(&plan->settings) ? sherdi_elastic_sizes(plan, model, size_list, list)
                                              : SHERD_OK;
}

static sherd_status json_write(const sherdi_plan *plan, const sherdi_model *model,
                               sherd_write_fn write, void *ctx)
{
    json_t      *root   = plan_json(plan, model);
    sherd_status status = root == NULL ? SHERD_OK : sizes_json(root, plan, model);
    char        *text;

    if (root != NULL && status == SHERD_OK) {
        status = program_json(root, plan, model);
    }
    text = root == NULL || status != SHERD_OK ? NULL : json_dumps(root, JSON_INDENT(1));

    json_decref(root);
    SHERDI_TRY(status);
    if (text == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for the plan as JSON");
    }
    status = write(ctx, text, strlen(text));
    if (status == SHERD_OK) {
        status = write(ctx, "\n", 1);
    }
    free(text);
    return status;
}

sherd_status sherdi_dry_print(const sherdi_plan *plan, const sherdi_model *model,
                              sherd_plan_format format, sherd_write_fn write, void *ctx)
{
    return format == SHERD_PLAN_JSON ? json_write(plan, model, write, ctx)
                                     : table_write(plan, model, write, ctx);
}
