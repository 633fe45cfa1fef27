/* Writes a row as one JSON object; docs/planning.md lists the fields. */
#include "planning/row.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void size_set(json_t *root, const char *name, uint64_t value)
{
    (void)json_object_set_new(root, name, json_integer((json_int_t)value));
}

static void real_set(json_t *root, const char *name, double value)
{
    (void)json_object_set_new(root, name, isfinite(value) ? json_real(value) : json_null());
}

static void text_set(json_t *root, const char *name, const char *value)
{
    (void)json_object_set_new(root, name, json_string(value));
}

static void sharing_set(json_t *root, const planning_layout *layout)
{
    if (layout->replica_ranks > 0) {
        size_set(root, "shard_size", (uint64_t)layout->replica_ranks);
    }
    if (layout->second_copy_ranks > 0) {
        size_set(root, "zero_hpz_partition_size", (uint64_t)layout->second_copy_ranks);
    }
}

static void layout_set(json_t *root, const planning_request *request, const planning_row *row)
{
    text_set(root, "model", request->model->label);
    size_set(root, "param_elems", row->param_elems);
    size_set(root, "trainable_elems", row->trainable_elems);
    text_set(root, "backend", request->backend);
    (void)json_object_set_new(root, "stage", json_integer(row->layout.stage));
    text_set(root, "offload", planning_offload_name(row->layout.offload));
    (void)json_object_set_new(root, "world_size", json_integer(row->layout.world_size));
    (void)json_object_set_new(
        root, "ranks_per_host",
        json_integer(planning_ranks_per_host(request, row->layout.world_size)));
    (void)json_object_set_new(root, "rank", json_integer(row->rank));
    sharing_set(root, &row->layout);
    text_set(root, "compute_dtype", sherd_dtype_name(row->compute_dtype));
    (void)json_object_set_new(root, "accumulation", json_integer(row->accumulation));
}

static void bytes_set(json_t *root, const planning_row *row)
{
    size_set(root, "params_bytes", row->params_bytes);
    size_set(root, "grads_bytes", row->grads_bytes);
    size_set(root, "optimizer_bytes", row->optimizer_bytes);
    size_set(root, "gathered_bytes", row->gathered_bytes);
    size_set(root, "transient_bytes", row->transient_bytes);
    size_set(root, "staging_bytes", row->staging_bytes);
    size_set(root, "spare_bytes",
             row->memory.has_spare_state ? row->memory.nvme_state_planned / 2 : 0);
    size_set(root, "device_bytes", row->device_bytes);
    size_set(root, "host_bytes", row->host_bytes);
    size_set(root, "pinned_bytes", row->pinned_bytes);
    size_set(root, "nvme_bytes", row->nvme_bytes);
    size_set(root, "activation_bytes", row->activation_bytes);
    size_set(root, "padding_elems", row->memory.padding_elems);
    real_set(root, "paper_bytes", row->paper_bytes);
}

static void state_set(json_t *root, const planning_row *row)
{
    json_t *all = json_array();

    for (int i = 0; i < row->num_state_parts; i++) {
        const sherd_state_part *part = &row->state_parts[i];
        json_t                 *one  = json_object();

        text_set(one, "optimizer", part->optimizer);
        text_set(one, "part", part->part);
        text_set(one, "encoding", part->encoding);
        size_set(one, "elems", part->elems);
        size_set(one, "bytes", part->bytes);
        (void)json_array_append_new(all, one);
    }
    (void)json_object_set_new(root, "state", all);
    real_set(root, "state_bytes_per_elem", planning_state_bytes(row, 0));
}

static void traffic_set(json_t *root, const planning_row *row)
{
    const sherd_traffic_report *t     = &row->traffic;
    uint64_t                    micro = (uint64_t)row->accumulation;
    const struct {
        const char *name;
        uint64_t    micro, step;
    } MOVES[] = {
        {"wire", t->wire_micro_planned, t->wire_step_planned},
        {"between", t->between_micro_planned, t->between_step_planned},
        {"link_down", t->down_micro_planned, t->down_step_planned},
        {"link_up", t->up_micro_planned, t->up_step_planned},
        {"nvme_read", t->read_micro_planned, t->read_step_planned},
        {"nvme_written", t->written_micro_planned, t->written_step_planned},
    };

    for (size_t i = 0; i < sizeof(MOVES) / sizeof(MOVES[0]); i++) {
        char name[64];

        (void)snprintf(name, sizeof(name), "%s_bytes_per_micro_batch", MOVES[i].name);
        size_set(root, name, MOVES[i].micro);
        (void)snprintf(name, sizeof(name), "%s_bytes_per_boundary", MOVES[i].name);
        size_set(root, name, MOVES[i].step);
        (void)snprintf(name, sizeof(name), "%s_bytes_per_step", MOVES[i].name);
        size_set(root, name, MOVES[i].micro * micro + MOVES[i].step);
    }
    size_set(root, "update_bytes_per_step", t->update_device_planned + t->update_host_planned);
    size_set(root, "update_flops_per_step", t->update_flops_planned);
    if (t->wear_days > 0) {
        real_set(root, "wear_days", t->wear_days);
        real_set(root, "wear_step_s", t->wear_step_s);
    }
}

static void time_set(json_t *root, const planning_request *request, const planning_row *row)
{
    json_t *rates = json_object();

    for (int i = 0; i < PLANNING_BOUNDS; i++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "%s_s", planning_bound_name((planning_bound)i));
        real_set(root, name, row->time.by_bound[i]);
    }
    real_set(root, "micro_s", row->time.micro_s);
    real_set(root, "boundary_s", row->time.boundary_s);
    real_set(root, "exposed_s", row->time.exposed_s);
    real_set(root, "step_s", row->time.step_s);
    real_set(root, "queued_s", row->time.queued_s);
    real_set(root, "beside_s", row->time.beside_s);
    real_set(root, "wait_update_s", row->time.wait_update_s);
    if (row->layout.ratio > 0) {
        real_set(root, "ratio", row->layout.ratio);
    }
    if (row->layout.buffers > 0) {
        size_set(root, "buffer_count", (size_t)row->layout.buffers);
    }
    text_set(root, "bound", planning_bound_name(row->time.bound));
    for (int i = 0; i < PLANNING_RATES; i++) {
        (void)json_object_set_new(rates, planning_rate_name((planning_rate)i),
                                  json_pack("{s:f, s:s}", "value", request->rates.values[i],
                                            "origin",
                                            planning_origin_name(request->rates.origins[i])));
    }
    (void)json_object_set_new(root, "rates", rates);
}

/* Writes an object as a line, and frees it. */
static sherd_status line_write(json_t *root, sherd_write_fn write, void *ctx)
{
    char        *text = root == NULL ? NULL : json_dumps(root, JSON_COMPACT);
    sherd_status status;

    json_decref(root);
    if (text == NULL) {
        return SHERD_E_NOMEM;
    }
    status = write(ctx, text, strlen(text));
    if (status == SHERD_OK) {
        status = write(ctx, "\n", 1);
    }
    free(text);
    return status;
}

sherd_status planning_row_write(const planning_request *request, const planning_row *row,
                                sherd_write_fn write, void *ctx)
{
    json_t *root = json_object();

    layout_set(root, request, row);
    bytes_set(root, row);
    state_set(root, row);
    traffic_set(root, row);
    (void)json_object_set_new(root, "fits", row->has_fit ? json_boolean(row->fits) : json_null());
    if (row->why[0] != '\0') {
        text_set(root, "why", row->why);
    }
    if (row->assumed.text[0] != '\0') {
        text_set(root, "assumed", row->assumed.text);
    }
    time_set(root, request, row);
    return line_write(root, write, ctx);
}

sherd_status planning_refused_write(const planning_request *request, const planning_layout *layout,
                                    const char *refused, sherd_write_fn write, void *ctx)
{
    json_t *root = json_object();

    text_set(root, "model", request->model->label);
    text_set(root, "backend", request->backend);
    (void)json_object_set_new(root, "stage", json_integer(layout->stage));
    text_set(root, "offload", planning_offload_name(layout->offload));
    (void)json_object_set_new(root, "world_size", json_integer(layout->world_size));
    sharing_set(root, layout);
    text_set(root, "refused", refused);
    return line_write(root, write, ctx);
}
