/* Prints rows of sherd plan: one row in words, several rows as a table. */
#include "cli/plan.h"

#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------ rates -- */

/* Whether a time of this row depends on a rate. A bound without time needs no rate. */
static int rate_is_used(const planning_row *row, planning_rate rate)
{
    const double *by_bound = row->time.by_bound;

    switch (rate) {
    case PLANNING_RATE_FLOPS:
        return by_bound[PLANNING_BOUND_COMPUTE] > 0;
    case PLANNING_RATE_WIRE:
        return row->traffic.wire_micro_planned + row->traffic.wire_step_planned >
               row->traffic.between_micro_planned + row->traffic.between_step_planned;
    case PLANNING_RATE_BETWEEN:
        return row->traffic.between_micro_planned + row->traffic.between_step_planned > 0;
    case PLANNING_RATE_DOWN:
        return row->traffic.down_micro_planned + row->traffic.down_step_planned > 0;
    case PLANNING_RATE_UP:
        return row->traffic.up_micro_planned + row->traffic.up_step_planned > 0;
    case PLANNING_RATE_NVME_READ:
        return row->traffic.read_micro_planned + row->traffic.read_step_planned > 0;
    case PLANNING_RATE_NVME_WRITE:
        return row->traffic.written_micro_planned + row->traffic.written_step_planned > 0;
    case PLANNING_RATE_DEVICE:
        return row->traffic.update_device_planned > 0;
    case PLANNING_RATE_HOST:
        return row->traffic.update_host_planned > 0;
    case PLANNING_RATE_PRODUCTS:
        return row->traffic.update_flops_planned > 0;
    case PLANNING_RATES:
        break;
    }
    return 0;
}

int plan_rate_is_assumed(const plan_entry *entry, planning_rate rate)
{
    return entry->request.rates.origins[rate] == PLANNING_ASSUMED &&
           rate_is_used(&entry->row, rate);
}

int plan_is_assumed(const plan_entry *entry)
{
    for (int i = 0; i < PLANNING_RATES; i++) {
        if (plan_rate_is_assumed(entry, (planning_rate)i)) {
            return 1;
        }
    }
    return 0;
}

/* ---------------------------------------------------------------- numbers -- */

/* Writes a number with three digits, or a dash for 0. */
static const char *figure_text(double value, char out[PLAN_BYTES_CHARS])
{
    const char *format = value >= 99.95 ? "%.0f" : value >= 9.995 ? "%.1f" : "%.2f";

    if (value == 0) {
        (void)snprintf(out, PLAN_BYTES_CHARS, "-");
    } else if (value < 0.01) {
        (void)snprintf(out, PLAN_BYTES_CHARS, "<0.01");
    } else {
        (void)snprintf(out, PLAN_BYTES_CHARS, format, value);
    }
    return out;
}

const char *plan_bytes_text(double bytes, char out[PLAN_BYTES_CHARS])
{
    static const char *const UNITS[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    char                     figure[PLAN_BYTES_CHARS];
    size_t                   unit = 0;

    while (bytes >= 999.5 && unit + 1 < sizeof(UNITS) / sizeof(UNITS[0])) {
        bytes /= 1024;
        unit++;
    }
    (void)figure_text(bytes, figure);
    if (bytes == 0) {
        (void)snprintf(out, PLAN_BYTES_CHARS, "-");
    } else if (unit == 0) {
        (void)snprintf(out, PLAN_BYTES_CHARS, "%.0f B", bytes);
    } else {
        (void)snprintf(out, PLAN_BYTES_CHARS, "%.10s %s", figure, UNITS[unit]);
    }
    return out;
}

static const char *seconds_text(double seconds, char out[PLAN_BYTES_CHARS])
{
    if (seconds == 0) {
        (void)snprintf(out, PLAN_BYTES_CHARS, "0");
    } else if (seconds < 1e-3) {
        (void)snprintf(out, PLAN_BYTES_CHARS, "%.1e", seconds);
    } else if (seconds < 0.1) {
        (void)snprintf(out, PLAN_BYTES_CHARS, "%.4f", seconds);
    } else {
        (void)snprintf(out, PLAN_BYTES_CHARS, seconds < 10 ? "%.3f" : "%.1f", seconds);
    }
    return out;
}

const char *plan_fit_text(const plan_entry *entry, char out[PLAN_FIT_CHARS])
{
    static const char *const SPACES[] = {"device", "host", "nvme"};
    plan_shortage            lack;
    char                     text[PLAN_BYTES_CHARS];
    size_t                   len = 0;

    plan_shortage_find(entry, &lack);
    (void)snprintf(out, PLAN_FIT_CHARS, "%s",
                   !entry->row.has_fit ? ""
                   : entry->row.fits   ? "yes"
                                       : "no:");
    for (int i = 0; i < 3 && entry->row.has_fit && !entry->row.fits; i++) {
        double bytes = i == 0 ? lack.device_bytes : i == 1 ? lack.host_bytes : lack.nvme_bytes;

        if (bytes > 0) {
            const char *comma = len > 0 ? "," : "";

            len = strlen(out);
            (void)snprintf(out + len, PLAN_FIT_CHARS - len, "%s %s +%s", comma, SPACES[i],
                           plan_bytes_text(bytes, text));
        }
    }
    return out;
}

/* ------------------------------------------------------------------- head -- */

/* Writes "2 sequences of 1024 tokens", or "" without a length. */
static const char *sequences_text(const plan_entry *entry, char out[96])
{
    const planning_request *request = &entry->request;

    out[0] = '\0';
    if (request->batch > 0) {
        (void)snprintf(
            out, 96, "%zu sequence%s of %zu tokens%s", request->batch,
            request->batch > 1 ? "s" : "", request->length,
            layer_place_is_recomputed(layer_place_of(&request->places, 0)) ? ", recomputed" : "");
    }
    return out;
}

static void model_print(const plan_entry *entry)
{
    const planning_row *row = &entry->row;

    (void)printf("%s: %zu parameters", entry->request.model->label, row->param_elems);
    if (row->trainable_elems != row->param_elems) {
        (void)printf(" (%zu trained)", row->trainable_elems);
    }
    (void)printf(", %s, on %s; rank %d\n", sherd_dtype_name(row->compute_dtype),
                 entry->request.backend, row->rank);
}

/* --------------------------------------------------------------- one row -- */

typedef struct purpose {
    const char *name;
    size_t      device, host, nvme;
} purpose;

#define NUM_PURPOSES 7

static void purposes_find(const planning_row *row, purpose out[NUM_PURPOSES])
{
    const sherd_memory_report *m = &row->memory;

    out[0] =
        (purpose){"parameters", m->params_planned, m->host_params_planned, m->nvme_params_planned};
    out[1] = (purpose){"gradients", m->grads_planned, m->host_grads_planned, m->nvme_grads_planned};
    out[2] = (purpose){m->has_spare_state ? "optimizer state, x2 on nvme" : "optimizer state",
                       m->state_planned, m->host_state_planned, m->nvme_state_planned};
    out[3] = (purpose){"gathered units", m->gather_planned, 0, 0};
    out[4] = (purpose){"gradients in backward", m->transient_planned, 0, 0};
    out[5] = (purpose){"buffers on the way", m->staging_planned, m->host_staging_planned, 0};
    out[6] = (purpose){"room for reductions", m->receive_planned, 0, 0};
}

static void spaces_print(const char *name, double device, double host, double nvme)
{
    char text[3][PLAN_BYTES_CHARS];

    (void)printf("%-28s %12s %12s %12s\n", name, plan_bytes_text(device, text[0]),
                 plan_bytes_text(host, text[1]), plan_bytes_text(nvme, text[2]));
}

/* Prints the needed bytes of a memory, and the remaining or missing ones. */
static void room_print(const char *whose, double need, size_t have)
{
    char text[3][PLAN_BYTES_CHARS];

    if (have > 0) {
        int is_enough = need <= (double)have;

        (void)printf(
            "%-28s %12s of %s: %s %s\n", whose, plan_bytes_text(need, text[0]),
            plan_bytes_text((double)have, text[1]), is_enough ? "left" : "missing",
            plan_bytes_text(is_enough ? (double)have - need : need - (double)have, text[2]));
    }
}

/* Prints a line for each optimizer, such as "state of an element: AdamW 10 bytes: master
 * bf16_beside 2, exp_avg fp32 4, exp_avg_sq fp32 4". A part in two encodings has both, each with
 * its share of the elements. */
static void state_print(const planning_row *row)
{
    const sherd_state_part *parts = row->state_parts;
    int                     end;

    for (int first = 0; first < row->num_state_parts; first = end) {
        double masters = 0;
        double bytes   = 0;

        for (end = first; end < row->num_state_parts &&
                          strcmp(parts[end].optimizer, parts[first].optimizer) == 0;
             end++) {
            masters += strcmp(parts[end].part, "master") == 0 ? (double)parts[end].elems : 0;
            bytes += (double)parts[end].bytes;
        }
        (void)printf("state of an element: %s %.5g bytes:", parts[first].optimizer,
                     bytes / masters);
        for (int i = first; i < end; i++) {
            const sherd_state_part *part = &parts[i];

            (void)printf("%s %s %s", i == first ? "" : ",", part->part, part->encoding);
            if (part->bytes > 0) {
                (void)printf(" %.5g", (double)part->bytes / (double)part->elems);
            }
            if ((double)part->elems < masters) {
                (void)printf(" (of %.3g %%)", 100 * (double)part->elems / masters);
            }
        }
        (void)printf("\n");
    }
}

static void memory_print(const plan_entry *entry)
{
    const planning_row *row = &entry->row;
    purpose             all[NUM_PURPOSES];
    char                text[2][PLAN_BYTES_CHARS];
    char                whose[64];
    int                 ranks = planning_ranks_per_host(&entry->request, row->layout.world_size);

    purposes_find(row, all);
    (void)printf("%-28s %12s %12s %12s\n", "bytes of this rank", "device", "host", "nvme");
    for (int i = 0; i < NUM_PURPOSES; i++) {
        if (i < 3 || all[i].device + all[i].host + all[i].nvme > 0) {
            spaces_print(all[i].name, (double)all[i].device, (double)all[i].host,
                         (double)all[i].nvme);
        }
    }
    spaces_print("total", (double)row->device_bytes, (double)row->host_bytes,
                 (double)row->nvme_bytes);
    if (row->pinned_bytes > 0) {
        spaces_print("  of these pinned", 0, (double)row->pinned_bytes, 0);
    }
    if (row->activation_bytes > 0) {
        spaces_print(entry->request.activation_bytes > 0 ? "activations, as given"
                                                         : "activations, the trainer's",
                     (double)row->activation_bytes, 0, 0);
    }
    if (row->has_fit) {
        (void)printf("\n");
    }
    if (row->lacks_activations) {
        (void)printf("activations are not known and not counted: --activations gives them\n");
    }
    room_print("a device", plan_device_need(entry), entry->request.device_bytes);
    (void)snprintf(whose, sizeof(whose), "a host, %d rank%s", ranks, ranks > 1 ? "s" : "");
    room_print(whose, plan_host_need(entry), entry->request.host_bytes);
    room_print("its drives", planning_nvme_need(&entry->request, row), entry->request.nvme_bytes);
    (void)printf("\nmodel state %s; by the ZeRO paper's formula %s\n",
                 plan_bytes_text((double)row->params_bytes + (double)row->grads_bytes +
                                     (double)row->optimizer_bytes,
                                 text[0]),
                 plan_bytes_text(row->paper_bytes, text[1]));
    state_print(row);
}

typedef struct move {
    const char *name;
    uint64_t    micro, step;
} move;

static void moves_print(const planning_row *row)
{
    const sherd_traffic_report *t       = &row->traffic;
    const move                  MOVES[] = {
                         {"wire, sent", t->wire_micro_planned, t->wire_step_planned},
                         {"  of these between hosts", t->between_micro_planned, t->between_step_planned},
                         {"link, device to host", t->down_micro_planned, t->down_step_planned},
                         {"link, host to device", t->up_micro_planned, t->up_step_planned},
                         {"nvme, read", t->read_micro_planned, t->read_step_planned},
                         {"nvme, written", t->written_micro_planned, t->written_step_planned},
    };
    char text[3][PLAN_BYTES_CHARS];

    (void)printf("\n%-28s %12s %12s %12s\n", "moved", "micro-batch", "boundary", "step");
    for (size_t i = 0; i < sizeof(MOVES) / sizeof(MOVES[0]); i++) {
        double micro = (double)MOVES[i].micro;
        double step  = (double)MOVES[i].step;

        if (micro + step > 0 || i == 0) {
            (void)printf("%-28s %12s %12s %12s\n", MOVES[i].name, plan_bytes_text(micro, text[0]),
                         plan_bytes_text(step, text[1]),
                         plan_bytes_text(row->accumulation * micro + step, text[2]));
        }
    }
    if (t->wear_days > 0) {
        (void)printf(
            "wear: a drive is written as often as it is rated for in %.0f days of steps of "
            "%.3g s, in %.0f of the predicted ones\n",
            t->wear_days, t->wear_step_s, t->wear_days * row->time.step_s / t->wear_step_s);
    }
}

/* Prints the rates of one bound and their origin, such as "flops 4e+14 assumed". */
static void origins_print(const plan_entry *entry, planning_bound bound)
{
    static const struct {
        planning_bound bound;
        planning_rate  rate;
    } OF[]            = {{PLANNING_BOUND_COMPUTE, PLANNING_RATE_FLOPS},
                         {PLANNING_BOUND_WIRE, PLANNING_RATE_WIRE},
                         {PLANNING_BOUND_WIRE, PLANNING_RATE_BETWEEN},
                         {PLANNING_BOUND_LINK, PLANNING_RATE_DOWN},
                         {PLANNING_BOUND_LINK, PLANNING_RATE_UP},
                         {PLANNING_BOUND_NVME, PLANNING_RATE_NVME_READ},
                         {PLANNING_BOUND_NVME, PLANNING_RATE_NVME_WRITE},
                         {PLANNING_BOUND_UPDATE, PLANNING_RATE_DEVICE},
                         {PLANNING_BOUND_UPDATE, PLANNING_RATE_HOST},
                         {PLANNING_BOUND_UPDATE, PLANNING_RATE_PRODUCTS}};
    const char *comma = "";

    for (size_t i = 0; i < sizeof(OF) / sizeof(OF[0]); i++) {
        if (OF[i].bound == bound && rate_is_used(&entry->row, OF[i].rate)) {
            (void)printf("%s%s %.3g/s %s", comma, planning_rate_name(OF[i].rate),
                         entry->request.rates.values[OF[i].rate],
                         planning_origin_name(entry->request.rates.origins[OF[i].rate]));
            comma = ", ";
        }
    }
}

static void time_print(const plan_entry *entry)
{
    const planning_row  *row  = &entry->row;
    const planning_time *time = &row->time;
    char                 text[4][PLAN_BYTES_CHARS];

    (void)printf("\n%-28s %12s\n", "predicted, busy in a step", "seconds");
    for (int i = 0; i < PLANNING_BOUNDS; i++) {
        if (time->by_bound[i] > 0) {
            (void)printf("%-28s %12s  ", planning_bound_name((planning_bound)i),
                         seconds_text(time->by_bound[i], text[0]));
            origins_print(entry, (planning_bound)i);
            (void)printf("\n");
        }
    }
    (void)printf("a step: %d x %s + %s at the boundary = %s s, %s s of it exposed, bound by %s%s\n",
                 row->accumulation, seconds_text(time->micro_s, text[0]),
                 seconds_text(time->boundary_s, text[1]), seconds_text(time->step_s, text[2]),
                 seconds_text(time->exposed_s, text[3]), planning_bound_name(time->bound),
                 time->by_bound[PLANNING_BOUND_COMPUTE] > 0
                     ? ""
                     : "; arithmetic is left out, --tokens says how much there is");
    if (time->beside_s > 0) {
        (void)printf("a queued step: %s s; its update takes %s s meanwhile, and is waited for "
                     "%s s\n",
                     seconds_text(time->queued_s, text[0]), seconds_text(time->beside_s, text[1]),
                     seconds_text(time->wait_update_s, text[2]));
    }
    if (entry->row.assumed.text[0] != '\0') {
        (void)printf("assumed, since the configuration leaves it to the trainer: %s\n",
                     entry->row.assumed.text);
    }
    if (plan_is_assumed(entry)) {
        (void)printf("rates that are assumed: sherd bench measures them (--rates), --rate gives "
                     "them\n");
    }
}

void plan_summary_print(const plan_options *options, const plan_entry *entry)
{
    const planning_row *row   = &entry->row;
    int                 world = row->layout.world_size;
    char                text[96];

    (void)options;
    model_print(entry);
    (void)printf("stage %d, offload %s, %d rank%s, %d to a host; a step is %d micro-batch%s",
                 row->layout.stage, planning_offload_name(row->layout.offload), world,
                 world > 1 ? "s" : "", planning_ranks_per_host(&entry->request, world),
                 row->accumulation, row->accumulation > 1 ? "es" : "");
    if (sequences_text(entry, text)[0] != '\0') {
        (void)printf(" of %s", text);
    }
    (void)printf("\n\n");
    memory_print(entry);
    moves_print(row);
    time_print(entry);
    if (row->has_fit) {
        char fit[PLAN_FIT_CHARS];

        (void)printf("\nfits: %s\n", plan_fit_text(entry, fit));
    }
}

/* ----------------------------------------------------------------- table -- */

static double wire_of(const planning_row *row)
{
    return (double)row->accumulation * (double)row->traffic.wire_micro_planned +
           (double)row->traffic.wire_step_planned;
}

typedef struct table_unit {
    const char *name;
    double      bytes;
} table_unit;

/* Chooses one unit for all columns. In GiB, the rows of a small model would show only zeros. */
static table_unit unit_choose(const plan_entry *entries, size_t count)
{
    double most = 0;

    for (size_t i = 0; i < count; i++) {
        const planning_row *row      = &entries[i].row;
        const double        spaces[] = {(double)row->device_bytes, (double)row->host_bytes,
                                        (double)row->nvme_bytes};

        for (size_t p = 0; p < 3; p++) {
            most = most > spaces[p] ? most : spaces[p];
        }
    }
    return most < 4 * 0x1p30 ? (table_unit){"MiB", 0x1p20} : (table_unit){"GiB", 0x1p30};
}

/* The columns that only plans of several hosts have. */
typedef struct table_columns {
    table_unit unit;
    int        has_sharing, has_between;
} table_columns;

static double between_of(const planning_row *row)
{
    return (double)row->accumulation * (double)row->traffic.between_micro_planned +
           (double)row->traffic.between_step_planned;
}

static table_columns columns_choose(const plan_entry *entries, size_t count)
{
    table_columns table = {.unit = unit_choose(entries, count)};

    for (size_t i = 0; i < count; i++) {
        const planning_layout *layout = &entries[i].asked;

        table.has_sharing |= layout->replica_ranks + layout->second_copy_ranks > 0;
        table.has_between |= between_of(&entries[i].row) > 0;
    }
    return table;
}

static void layout_print(const plan_entry *entry, const planning_layout *layout,
                         const table_columns *table)
{
    (void)printf("%5d %-14s ", layout->stage, planning_offload_name(layout->offload));
    if (table->has_sharing) {
        (void)printf("%-11s ", planning_sharing_name(&entry->asked));
    }
    (void)printf("%6d ", layout->world_size);
}

static void line_print(const plan_entry *entry, const table_columns *table)
{
    const planning_row *row       = &entry->row;
    const double        columns[] = {
               (double)row->params_bytes,
               (double)row->grads_bytes,
               (double)row->optimizer_bytes,
               (double)row->gathered_bytes,
               (double)row->transient_bytes + (double)row->staging_bytes,
               (double)row->device_bytes,
               (double)row->host_bytes,
               (double)row->nvme_bytes,
               wire_of(row),
    };
    char text[PLAN_FIT_CHARS];

    layout_print(entry, entry->refused[0] == '\0' ? &row->layout : &entry->asked, table);
    if (entry->refused[0] != '\0') {
        (void)printf(" cannot be: %s\n", entry->refused);
        return;
    }
    for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++) {
        (void)printf(" %8s", figure_text(columns[i] / table->unit.bytes, text));
    }
    if (table->has_between) {
        (void)printf(" %8s", figure_text(between_of(row) / table->unit.bytes, text));
    }
    (void)printf(" %8s  %-7s", seconds_text(row->time.step_s, text),
                 planning_bound_name(row->time.bound));
    if (row->has_fit) {
        (void)printf("  %s", plan_fit_text(entry, text));
    }
    (void)printf("\n");
}

/* Says what the columns of several hosts are. */
static void hosts_explain(const plan_entry *entries, size_t count, const table_columns *table)
{
    if (table->has_between) {
        (void)printf("between: the part of wire that goes to other hosts.\n");
    }
    for (size_t i = 0; i < count && table->has_sharing; i++) {
        const planning_layout *layout = &entries[i].asked;

        if (layout->replica_ranks > 0) {
            (void)printf("replicas: " PLANNING_REPLICA_KEY " %d, or the ranks of a host; second "
                         "copy: " PLANNING_SECOND_COPY_KEY ", likewise.\n",
                         layout->replica_ranks);
            return;
        }
    }
}

static void table_explain(const plan_entry *entries, size_t count, const plan_entry *first,
                          const table_columns *table)
{
    char text[PLAN_BYTES_CHARS];
    int  is_assumed  = 0;
    int  has_compute = 0;
    int  has_spare   = 0;

    for (size_t i = 0; i < count; i++) {
        is_assumed |= plan_is_assumed(&entries[i]);
        has_compute |= entries[i].row.time.by_bound[PLANNING_BOUND_COMPUTE] > 0;
        has_spare |= entries[i].row.memory.has_spare_state;
    }
    (void)printf(
        "\n%s of a rank. params, grads, state: wherever they rest; gathered: whole units in "
        "use;\nother: gradients in backward and buffers on the way; device, host, nvme: all "
        "of these by place%s;\nwire: sent in a step; step: predicted seconds, most of them "
        "the bound's.\n",
        table->unit.name, has_spare ? ", state twice on nvme" : "");
    hosts_explain(entries, count, table);
    state_print(&first->row);
    if (first->row.activation_bytes > 0) {
        (void)printf("Beside them a rank has %s of activations%s.\n",
                     plan_bytes_text((double)first->row.activation_bytes, text),
                     first->row.has_fit ? ", counted in what fits" : "");
    }
    if (first->row.lacks_activations) {
        (void)printf("Activations are not known and not counted: --activations gives them.\n");
    }
    if (!has_compute) {
        (void)printf("Arithmetic is left out of the step: --tokens says how much there is.\n");
    }
    if (first->row.assumed.text[0] != '\0') {
        (void)printf("Assumed, since the configuration leaves it to the trainer: %s.\n",
                     first->row.assumed.text);
    }
    if (is_assumed) {
        (void)printf("Rates are assumed where nobody gave them: sherd bench measures them "
                     "(--rates).\n");
    }
}

void plan_table_print(const plan_options *options, const plan_entry *entries, size_t count)
{
    const plan_entry *first = plan_first(entries, count);
    table_columns     table = columns_choose(entries, count);
    char              text[96];

    model_print(first);
    if (sequences_text(first, text)[0] != '\0' && options->num_worlds == 1) {
        (void)printf("a micro-batch: %s\n", text);
    }
    (void)printf("\n%5s %-14s ", "stage", "offload");
    if (table.has_sharing) {
        (void)printf("%-11s ", "copies");
    }
    (void)printf("%6s  %8s %8s %8s %8s %8s %8s %8s %8s %8s", "world", "params", "grads", "state",
                 "gathered", "other", "= device", "host", "nvme", "wire");
    if (table.has_between) {
        (void)printf(" %8s", "between");
    }
    (void)printf(" %8s  %-7s%s\n", "step", "bound", first->row.has_fit ? "  fits" : "");
    for (size_t i = 0; i < count; i++) {
        line_print(&entries[i], &table);
    }
    table_explain(entries, count, first, &table);
}
