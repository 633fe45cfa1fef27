/* Table and JSON lines of bench-memory. See memory.h. */
#include "bench/memory.h"

static double mib(double bytes)
{
    return bytes / 0x1p20;
}

void memory_print_head(FILE *out)
{
    (void)fprintf(
        out,
        "# MiB of a rank; system: proportional set size at rest less the platform's; group: the "
        "same of the control group\n");
    (void)fprintf(out, "%-6s %5s %-14s %5s %11s %11s %11s %11s %11s %8s %8s %11s %11s %11s %11s\n",
                  "model", "stage", "offload", "world", "planned", "on device", "held", "system",
                  "group", "platform", "diff %", "peak", "group peak", "paper", "drive");
}

static void number_print(FILE *out, int is_there, double bytes)
{
    (void)(is_there ? fprintf(out, " %11.1f", mib(bytes)) : fprintf(out, " %11s", "-"));
}

void memory_print_row(FILE *out, const memory_row *row)
{
    int has_group = row->is_real && row->ranks.has_group;

    (void)fprintf(out, "%-6s %5d %-14s %5d", row->model, row->layout.stage,
                  planning_offload_name(row->layout.offload), row->layout.world_size);
    number_print(out, 1, (double)row->planned_bytes);
    number_print(out, 1, (double)row->plan.device_bytes);
    number_print(out, row->is_real, (double)row->held_bytes);
    number_print(out, row->is_real, row->system_bytes);
    number_print(out, has_group, row->group_bytes);
    if (row->is_real) {
        (void)fprintf(out, " %8.1f %8.2f", mib((double)row->platform_bytes), 100 * row->difference);
    } else {
        (void)fprintf(out, " %8s %8s", "-", "-");
    }
    number_print(out, row->is_real, row->peak_bytes);
    number_print(out, has_group, row->group_peak_bytes);
    number_print(out, 1, row->plan.paper_bytes);
    number_print(out, 1, (double)row->plan.nvme_bytes);
    (void)fprintf(out, "%s%s%s\n",
                  row->is_real && !row->is_equal   ? "  NOT AS PLANNED"
                  : row->is_real && !row->is_close ? "  OFF"
                                                   : "",
                  row->why[0] != '\0' ? "  " : "", row->why);
}

/* ------------------------------------------------------------------- JSON -- */

static void json_text(FILE *out, const char *text)
{
    (void)fputc('"', out);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') {
            (void)fputc('\\', out);
        }
        if ((unsigned char)*text >= 0x20) {
            (void)fputc(*text, out);
        }
    }
    (void)fputc('"', out);
}

/* planning's lines end where ours go on. */
static sherd_status json_write(void *ctx, const char *text, size_t len_bytes)
{
    for (size_t i = 0; i < len_bytes; i++) {
        if (text[i] != '\n' && fputc(text[i], ctx) == EOF) {
            return SHERD_E_IO;
        }
    }
    return SHERD_OK;
}

static void seen_json(FILE *out, const char *name, const memory_seen *seen)
{
    (void)fprintf(out,
                  "\"%s\": {\"pss_bytes\": %zu, \"anonymous_bytes\": %zu, \"shared_bytes\": %zu,"
                  " \"resident_bytes\": %zu, \"locked_bytes\": %zu, \"page_table_bytes\": %zu,"
                  " \"device_free_bytes\": %zu}",
                  name, seen->pss, seen->anonymous, seen->shared, seen->resident, seen->locked,
                  seen->page_tables, seen->device_free);
}

/* Sums over the ranks as they were read, so that every figure can be made again. */
static void ranks_json(FILE *out, const memory_ranks *ranks)
{
    static const char *const NAMES[MEMORY_MARKS] = {"platform", "sealed", "filled", "stepped"};

    (void)fputs(", \"all_ranks\": {", out);
    for (int mark = 0; mark < MEMORY_MARKS; mark++) {
        seen_json(out, NAMES[mark], &ranks->seen[mark]);
        (void)fputs(", ", out);
    }
    (void)fprintf(out, "\"peak_pss_bytes\": %zu, \"samples\": %zu, \"seconds\": %.2f",
                  ranks->peak_pss, ranks->samples, ranks->seconds);
    if (ranks->has_group) {
        (void)fprintf(out,
                      ", \"group_platform_bytes\": %zu, \"group_resting_bytes\": %zu,"
                      " \"group_peak_bytes\": %zu",
                      ranks->group.platform, ranks->group.resting, ranks->group.peak);
    }
    (void)fputc('}', out);
}

int memory_json_row(FILE *out, const planning_request *request, const memory_row *row)
{
    (void)fputs("{\"model\": ", out);
    json_text(out, row->model);
    (void)fprintf(out,
                  ", \"stage\": %d, \"offload\": \"%s\", \"world\": %d, \"is_real\": %s,"
                  " \"planned_bytes\": %zu, \"paper_bytes\": %.0f",
                  row->layout.stage, planning_offload_name(row->layout.offload),
                  row->layout.world_size, row->is_real ? "true" : "false", row->planned_bytes,
                  row->plan.paper_bytes);
    if (row->is_real) {
        (void)fprintf(
            out,
            ", \"held_bytes\": %zu, \"system_bytes\": %.0f, \"device_system_bytes\": %.0f,"
            " \"platform_bytes\": %zu, \"difference_bytes\": %.0f, \"difference\": %.6f,"
            " \"peak_bytes\": %.0f, \"is_equal\": %s, \"is_close\": %s",
            row->held_bytes, row->system_bytes, row->device_bytes, row->platform_bytes,
            row->off_bytes, row->difference, row->peak_bytes, row->is_equal ? "true" : "false",
            row->is_close ? "true" : "false");
        ranks_json(out, &row->ranks);
    }
    if (row->is_real && row->ranks.has_group) {
        (void)fprintf(out, ", \"group_bytes\": %.0f, \"group_peak_bytes\": %.0f", row->group_bytes,
                      row->group_peak_bytes);
    }
    if (row->why[0] != '\0') {
        (void)fputs(", \"why\": ", out);
        json_text(out, row->why);
    }
    (void)fputs(", \"plan\": ", out);
    if (planning_row_write(request, &row->plan, json_write, out) != SHERD_OK) {
        return -1;
    }
    return fputs("}\n", out) == EOF || fflush(out) != 0 ? -1 : 0;
}

/* -------------------------------------------------------------- the largest -- */

static void elems_print(FILE *out, size_t elems)
{
    char text[32];

    (void)snprintf(text, sizeof(text), elems >= 1e12 ? "%.2fT" : "%.2fB",
                   (double)elems / (elems >= 1e12 ? 1e12 : 1e9));
    (void)fprintf(out, " %10s", text);
}

void memory_print_limits(FILE *out, const memory_limit *limits, size_t count)
{
    (void)fprintf(out, "%5s %-14s", "stage", "offload");
    for (size_t i = 0;
         i < count && limits[i].stage == limits[0].stage && limits[i].offload == limits[0].offload;
         i++) {
        (void)fprintf(out, " %7d GPU", limits[i].gpus);
    }
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || limits[i].stage != limits[i - 1].stage ||
            limits[i].offload != limits[i - 1].offload) {
            (void)fprintf(out, "\n%5d %-14s", limits[i].stage,
                          planning_offload_name(limits[i].offload));
        }
        elems_print(out, limits[i].elems);
        (void)fputc(limits[i].bound[0] == '\0' ? ' ' : limits[i].bound[0], out);
    }
    (void)fputc('\n', out);
}

int memory_json_limit(FILE *out, const memory_limit *limit)
{
    (void)fprintf(out,
                  "{\"largest\": true, \"stage\": %d, \"offload\": \"%s\", \"gpus\": %d,"
                  " \"elems\": %zu, \"bound\": \"%s\", \"device_bytes\": %zu, \"host_bytes\": %zu,"
                  " \"nvme_bytes\": %zu}\n",
                  limit->stage, planning_offload_name(limit->offload), limit->gpus, limit->elems,
                  limit->bound, limit->plan.device_bytes, limit->plan.host_bytes,
                  limit->plan.nvme_bytes);
    return fflush(out) != 0 ? -1 : 0;
}
