/* Describes a checkpoint, as text for people and as JSON. A manifest may come from anywhere, so
 * control characters are removed from its strings before they reach a terminal. */
#include "engine/checkpoint/fit.h"
#include "engine/checkpoint/tools.h"

#include "base/api.h"
#include "base/json_text.h"
#include "base/format.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define SHAPE_BYTES 256 /* eight numbers of 20 digits fit */

static int is_control(const unsigned char *at)
{
    return at[0] < ' ' || at[0] == 0x7f || (at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0);
}

static void put_plain(sherdi_text *text, const char *value)
{
    for (const unsigned char *at = (const unsigned char *)value; *at != '\0'; at++) {
        if (is_control(at)) {
            sherdi_text_put(text, "?", 1);
            at += at[0] == 0xc2;
        } else {
            sherdi_text_put(text, (const char *)at, 1);
        }
    }
}

/* -------------------------------------------------------------------- table -- */

static void put_time(sherdi_text *text, int64_t saved_s)
{
    time_t    at = (time_t)saved_s;
    struct tm when;
    char      line[64] = "?";

    if (gmtime_r(&at, &when) != NULL) {
        (void)strftime(line, sizeof(line), "%Y-%m-%d %H:%M:%S UTC", &when);
    }
    sherdi_text_print(text, "%s", line);
}

/* Writes an optimizer's name, and the names of the parts whose bits are in `which`. */
static void put_optimizer(sherdi_text *text, const sherdi_manifest *m, const char *name,
                          unsigned which)
{
    int is_first = 1;

    put_plain(text, name);
    for (int i = 0; i < m->num_parts; i++) {
        if (which >> i & 1) {
            sherdi_text_print(text, is_first ? ": " : ", ");
            put_plain(text, m->parts[i].name);
            is_first = 0;
        }
    }
}

static void put_optimizers(sherdi_text *text, const sherdi_manifest *m)
{
    for (int o = 0; o < m->num_optimizers; o++) {
        sherdi_text_print(text, o == 0 ? "" : "\n               ");
        put_optimizer(text, m, m->optimizers[o].name,
                      m->num_optimizers == 1 ? UINT_MAX : m->optimizers[o].parts);
    }
}

static void put_head(sherdi_text *text, const sherd_checkpoint *c, const sherdi_manifest *m)
{
    sherdi_text_print(text, "checkpoint     ");
    put_plain(text, c->dir);
    sherdi_text_print(text, "/%s%s\n", c->info.tag, c->info.is_latest ? " (the latest)" : "");
    if (!c->info.is_complete) {
        sherdi_text_print(text, "NOT COMPLETE   %s\n", c->info.problem);
    }
    sherdi_text_print(text,
                      "step           %" PRId64 " (%" PRId64 " micro-batches, %" PRId64
                      " updates skipped)\nsaved          ",
                      m->step, m->micro_step, m->skipped_steps);
    put_time(text, m->saved_s);
    sherdi_text_print(text, " by sherd ");
    put_plain(text, m->version);
    sherdi_text_print(text, "\nworld          %d rank%s, stage %d, %s\noptimizer      ",
                      m->world_size, m->world_size == 1 ? "" : "s", m->stage,
                      sherd_dtype_name(m->compute_dtype));
    put_optimizers(text, m);
    sherdi_text_print(text,
                      "\nloss scale     %g\nfingerprint    %016" PRIx64 ", state %016" PRIx64 "\n",
                      m->scaler.scale, m->fingerprint, m->state_fingerprint);
    sherdi_text_print(text, "data           %" PRIu64 " bytes (%.1f MiB)\n", m->data_bytes,
                      (double)m->data_bytes / 0x1p20);
    sherdi_text_print(text, "model          %zu parameters, %" PRIu64 " elements\n", m->num_params,
                      c->info.num_elems);
}

static void put_params(sherdi_text *text, const sherdi_manifest *m)
{
    int  is_mixed = m->num_optimizers > 1;
    char shape[SHAPE_BYTES];

    sherdi_text_print(text, "\n%14s  %-10s %-24s %s\n", "elements", "kind", "shape", "parameter");
    for (size_t p = 0; p < m->num_params; p++) {
        const sherdi_manifest_param *param = &m->params[p];

        sherdi_fit_shape_text(param->ndim, param->shape, shape, sizeof(shape));
        sherdi_text_print(text, "%14zu  %-10s %-24s ", param->elems,
                          param->is_frozen ? "frozen"
                          : is_mixed       ? sherdi_manifest_optimizer_of(m, p)->name
                                           : "trainable",
                          shape);
        put_plain(text, param->name);
        sherdi_text_put(text, "\n", 1);
    }
}

static void put_files(sherdi_text *text, const sherdi_manifest *m)
{
    char name[SHERDI_CHECKPOINT_NAME_BYTES];

    sherdi_text_print(text, "\n%14s  %s\n", "bytes", "file");
    for (int at = -1; sherdi_manifest_next_file(m, &at, name);) {
        const char *host = sherdi_manifest_host(m, at / SHERDI_DATA_FILES);

        sherdi_text_print(text, "%14" PRIu64 "  %s%s", (&m->files[0][0])[at].bytes, name,
                          host[0] == '\0' ? "" : "  on host ");
        put_plain(text, host);
        sherdi_text_put(text, "\n", 1);
    }
}

/* --------------------------------------------------------------------- JSON -- */

static void put_string(sherdi_text *text, const char *key, const char *value)
{
    sherdi_text_print(text, " \"%s\": ", key);
    sherdi_text_quote(text, value);
    sherdi_text_put(text, ",\n", 2);
}

static void put_number(sherdi_text *text, const char *key, int64_t value)
{
    sherdi_text_print(text, " \"%s\": %" PRId64 ",\n", key, value);
}

static void put_head_json(sherdi_text *text, const sherd_checkpoint *c, const sherdi_manifest *m)
{
    put_string(text, "tag", c->info.tag);
    put_string(text, "version", m->version);
    put_string(text, "optimizer", c->info.optimizer);
    put_string(text, "compute_type", sherd_dtype_name(m->compute_dtype));
    put_string(text, "run", m->run_text);
    put_string(text, "problem", c->info.problem);
    put_number(text, "is_latest", c->info.is_latest);
    put_number(text, "is_complete", c->info.is_complete);
    put_number(text, "step", m->step);
    put_number(text, "micro_step", m->micro_step);
    put_number(text, "skipped_steps", m->skipped_steps);
    put_number(text, "samples", m->samples);
    put_number(text, "saved", m->saved_s);
    put_number(text, "world_size", m->world_size);
    put_number(text, "stage", m->stage);
    put_number(text, "data_bytes", (int64_t)m->data_bytes);
    put_number(text, "held_bytes", (int64_t)c->info.held_bytes);
    put_number(text, "shared_bytes", (int64_t)c->info.shared_bytes);
    put_number(text, "num_elems", (int64_t)c->info.num_elems);
    sherdi_text_print(text,
                      " \"loss_scale\": %.17g,\n \"fingerprint\": \"%016" PRIx64
                      "\",\n \"state_fingerprint\": \"%016" PRIx64 "\",\n",
                      m->scaler.scale, m->fingerprint, m->state_fingerprint);
}

static void put_params_json(sherdi_text *text, const sherdi_manifest *m)
{
    char shape[SHAPE_BYTES];

    sherdi_text_print(text, " \"parts\": [");
    for (int i = 0; i < m->num_parts; i++) {
        sherdi_text_print(text, i == 0 ? "" : ", ");
        sherdi_text_quote(text, m->parts[i].name);
    }
    sherdi_text_print(text, "],\n \"params\": [");
    for (size_t p = 0; p < m->num_params; p++) {
        const sherdi_manifest_param *param = &m->params[p];

        sherdi_fit_shape_text(param->ndim, param->shape, shape, sizeof(shape));
        sherdi_text_print(text, p == 0 ? "\n  {\"name\": " : ",\n  {\"name\": ");
        sherdi_text_quote(text, param->name);
        sherdi_text_print(text, ", \"shape\": %s, \"elems\": %zu, \"frozen\": %s", shape,
                          param->elems, param->is_frozen ? "true" : "false");
        if (m->num_optimizers > 1 && !param->is_frozen) {
            sherdi_text_print(text, ", \"optimizer\": ");
            sherdi_text_quote(text, sherdi_manifest_optimizer_of(m, p)->name);
        }
        sherdi_text_print(text, "}");
    }
    sherdi_text_print(text, "],\n");
}

static void put_files_json(sherdi_text *text, const sherdi_manifest *m)
{
    char name[SHERDI_CHECKPOINT_NAME_BYTES];
    int  is_first = 1;

    sherdi_text_print(text, " \"files\": [");
    for (int at = -1; sherdi_manifest_next_file(m, &at, name); is_first = 0) {
        const char *host = sherdi_manifest_host(m, at / SHERDI_DATA_FILES);

        sherdi_text_print(text, "%s{\"name\": \"%s\", \"rank\": %d, \"bytes\": %" PRIu64,
                          is_first ? "\n  " : ",\n  ", name, at / SHERDI_DATA_FILES,
                          (&m->files[0][0])[at].bytes);
        if (host[0] != '\0') {
            sherdi_text_print(text, ", \"host\": ");
            sherdi_text_quote(text, host);
        }
        sherdi_text_put(text, "}", 1);
    }
    sherdi_text_print(text, "]\n");
}

sherd_status sherd_checkpoint_write(const sherd_checkpoint *checkpoint, sherd_plan_format format,
                                    sherd_write_fn write, void *ctx)
{
    const sherdi_manifest *m;
    sherdi_mem             mem;
    sherdi_text            text;
    sherd_status           status;

    SHERDI_TRY(sherdi_api_need(checkpoint != NULL, "sherd_checkpoint_write", "the checkpoint"));
    SHERDI_TRY(sherdi_api_need(write != NULL, "sherd_checkpoint_write", "write"));
    SHERDI_TRY(sherdi_api_check_format(format, "sherd_checkpoint_write"));
    m = sherdi_reader_manifest(checkpoint->reader);
    sherdi_mem_init(&mem);
    sherdi_text_init(&text, &mem);
    if (format == SHERD_PLAN_JSON) {
        sherdi_text_print(&text, "{\n");
        put_head_json(&text, checkpoint, m);
        put_params_json(&text, m);
        put_files_json(&text, m);
        sherdi_text_print(&text, "}\n");
    } else {
        put_head(&text, checkpoint, m);
        put_params(&text, m);
        put_files(&text, m);
    }
    status = text.status == SHERD_OK ? write(ctx, text.bytes, text.len_bytes) : text.status;
    sherdi_text_fini(&text);
    return status;
}
