/* What comes after the last step: the summary, exported weights, and a sample. */
#include "trainer_impl.h"

#include "memory.h"
#include "sample.h"
#include "try.h"
#include "weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define SAMPLE_TEMPERATURE 0.8
#define PROMPT_TOKENS      32

static void memory_parts_say(const trainer *t)
{
    sherd_memory_report m = memory_of(t->engine);
    char total[32], stage0[32], params[32], grads[32], state[32], units[32], activations[32];
    char nvme[32], read_bytes[32], written[32], outside[32];

    report_say(t->r,
               "memory per rank: %s at stage %d, %s at stage 0 (%.2f times as much)\n"
               "  parameters %s, gradients %s, optimizer state %s, units and staging %s",
               report_bytes(m.total_held, total), t->info.stage,
               report_bytes(t->stage0_bytes, stage0),
               m.total_held > 0 ? (double)t->stage0_bytes / (double)m.total_held : 0.0,
               report_bytes(m.params_held + m.host_params_held, params),
               report_bytes(m.grads_held + m.host_grads_held, grads),
               report_bytes(m.state_held + m.host_state_held, state),
               report_bytes(m.gather_held + m.transient_held + m.staging_held + m.host_staging_held,
                            units));
    if (m.nvme_planned > 0) {
        report_say(t->r, "  on NVMe %s; the last step read %s and wrote %s there",
                   report_bytes(m.nvme_planned, nvme),
                   report_bytes(t->figures.engine.nvme_read_bytes, read_bytes),
                   report_bytes(t->figures.engine.nvme_written_bytes, written));
    }
    report_say(t->r, "  in addition %s of activations, the same at every stage",
               report_bytes(passes_bytes(t->passes), activations));
    if (m.device_outside_held > 0) {
        report_say(t->r,
                   "  on the GPU others than the engine hold %s: activations, contexts, libraries, "
                   "other ranks",
                   report_bytes(m.device_outside_held, outside));
    }
}

/* Prints the rate that a longer run would have. It leaves out the first steps, in which a GPU's
 * libraries choose kernels and load. */
static void median_say(const trainer *t, double step_tokens)
{
    double median    = speed_median(&t->times);
    double peak      = trainer_peak_rate(t);
    char   share[32] = "";

    if (peak > 0.0) {
        (void)snprintf(share, sizeof(share), ", MFU %.1f %%", 100.0 * step_tokens / median / peak);
    }
    report_say(t->r, "median step %.4g s, %.0f tokens/s%s", median, step_tokens / median, share);
}

void trainer_summary_say(const trainer *t)
{
    char     duration[32];
    uint64_t tokens = (t->sequences - t->first_sequences) * t->o.length;
    long     steps  = t->step - t->first_step;

    if (steps > 0) {
        report_say(t->r, "\n%ld steps, %llu tokens in %s: %.2f steps/s, %.0f tokens/s", steps,
                   (unsigned long long)tokens, report_duration(t->seconds, duration),
                   (double)steps / t->seconds, (double)tokens / t->seconds);
        median_say(t, (double)tokens / (double)steps);
        report_say(t->r, "started in %.1f s", t->until_first_s);
        report_say(t->r, "loss %.4f -> %.4f", t->first_loss, t->last_loss);
    }
    if (isnan(t->first_validation)) {
        report_say(t->r, "validation loss %.4f", t->last_validation);
    } else {
        report_say(t->r, "validation loss %.4f -> %.4f", t->first_validation, t->last_validation);
    }
    memory_parts_say(t);
    trainer_memory_say(t, "end");
    saves_say(&t->saved);
    if (passes_note(t->passes)[0] != '\0') {
        report_say(t->r, "%s", passes_note(t->passes));
    }
    report_say(t->r, "fingerprint of the weights 0x%016llx", (unsigned long long)t->fingerprint);
}

/* Makes the tokens of the prompt: the user's bytes, or the start of the validation part. */
static sherd_status prompt_make(const trainer *t, int32_t *out, size_t most, size_t *count_out)
{
    const char *text = t->o.prompt;

    *count_out = most;
    if (text == NULL || text[0] == '\0' || !t->job->c->is_text) {
        return corpus_read(t->job->c, t->job->c->train, most, out) == 0 ? SHERD_OK
                                                                        : trainer_data_fail(t);
    }
    for (*count_out = 0; text[*count_out] != '\0' && *count_out < most; ++*count_out) {
        out[*count_out] = (unsigned char)text[*count_out];
    }
    return SHERD_OK;
}

static sherd_status sample_run(trainer *t, passes *passes, int32_t *room)
{
    const options *o      = &t->o;
    const corpus  *c      = t->job->c;
    sample_params  params = {.prompt      = room,
                             .tokens      = (size_t)o->sample,
                             .vocab       = o->sizes.vocab,
                             .most        = c->vocab,
                             .length      = o->length,
                             .temperature = SAMPLE_TEMPERATURE,
                             .seed        = o->seed};

    TRY(prompt_make(t, room, PROMPT_TOKENS, &params.prompt_tokens));
    TRY(sample_make(passes, &params, room + PROMPT_TOKENS));
    if (t->r != NULL && !o->is_quiet) {
        report_say(t->r, "\nsample, after \"|\":");
        sample_print(c, room, params.prompt_tokens);
        printf("%s", c->is_text ? "|" : " | ");
        sample_print(c, room + PROMPT_TOKENS, params.tokens);
        printf("\n");
    }
    return SHERD_OK;
}

/* Samples with a second model on the same engine, with a batch of 1: one token at a time needs only
 * one sequence. */
sherd_status trainer_sample_say(trainer *t)
{
    model_params params   = {.sizes  = t->o.sizes,
                             .batch  = 1,
                             .length = t->o.length,
                             .dtype  = t->info.compute_dtype,
                             /* memory for one layer */
                             .places       = layer_places_all(LAYER_RECOMPUTED),
                             .keeps_logits = 1,
                             .backend      = t->info.backend,
                             .threads      = t->threads,
                             .choices      = t->o.choices,
                             .stream       = sherd_engine_stream(t->engine)};
    char         why[256] = "out of memory";
    int32_t     *room     = calloc(PROMPT_TOKENS + (size_t)t->o.sample, sizeof(*room));
    passes      *passes = room == NULL ? NULL : passes_create(t->engine, &params, why, sizeof(why));
    sherd_status status =
        passes != NULL ? sample_run(t, passes, room) : trainer_fail(SHERD_E_NOMEM, "%s", why);

    passes_destroy(passes);
    free(room);
    return status;
}

sherd_status trainer_weights_leave(trainer *t)
{
    static const sherd_dtype DTYPES[] = {
        [PRECISION_FP32] = SHERD_F32, [PRECISION_BF16] = SHERD_BF16, [PRECISION_FP16] = SHERD_F16};
    options_precision    as     = t->o.export_precision;
    const weights_target target = {.path       = t->o.export_path,
                                   .dtype      = as == 0 ? SHERD_F32 : DTYPES[as],
                                   .file_bytes = t->o.export_file_bytes};
    char                 why[512];
    sherd_status         status =
        weights_export(&t->o.sizes, t->engine, t->rank, &target, why, sizeof(why));

    if (status != SHERD_OK) {
        return why[0] == '\0' ? status : trainer_fail(status, "--export: %s", why);
    }
    if (t->r != NULL) {
        report_say(t->r, "weights written to %s", t->o.export_path);
    }
    return SHERD_OK;
}
