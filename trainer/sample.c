/* Samples tokens with a temperature. See sample.h. */
#include "sample.h"

#include "mix.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int32_t token_choose(const float *logits, const sample_params *p, uint64_t number)
{
    double most = -INFINITY, sum = 0.0, left;

    for (size_t i = 0; i < p->most; i++) {
        most = (double)logits[i] > most ? (double)logits[i] : most;
    }
    for (size_t i = 0; i < p->most; i++) {
        sum += exp(((double)logits[i] - most) / p->temperature);
    }
    left = sum * ((double)(mix64(p->seed ^ mix64(number)) >> 11) * 0x1p-53);
    for (size_t i = 0; i < p->most; i++) {
        left -= exp(((double)logits[i] - most) / p->temperature);
        if (left < 0.0) {
            return (int32_t)i;
        }
    }
    return (int32_t)(p->most - 1);
}

/* The last tokens lie at the start of the context. The tokens after them do not matter, because
 * attention is causal. */
sherd_status sample_make(passes *passes, const sample_params *params, int32_t *out)
{
    size_t       length  = params->length;
    size_t       kept    = params->prompt_tokens < length ? params->prompt_tokens : length;
    int32_t     *context = calloc(2 * length, sizeof(*context)); /* and targets: any values do */
    float       *logits  = calloc(params->vocab, sizeof(*logits));
    sherd_status status  = context == NULL || logits == NULL ? SHERD_E_NOMEM : SHERD_OK;

    if (status == SHERD_OK) {
        memcpy(context, params->prompt + params->prompt_tokens - kept, kept * sizeof(*context));
    }
    for (size_t i = 0; status == SHERD_OK && i < params->tokens; i++) {
        double loss;

        status = passes_eval(passes, context, context + length);
        if (status == SHERD_OK) {
            status = passes_losses_take(passes, &loss);
        }
        if (status != SHERD_OK) {
            break;
        }
        passes_logits_get(passes, kept - 1, logits);
        out[i] = token_choose(logits, params, i);
        if (kept == length) { /* drop the older half; the cost per token stays the same */
            kept = length / 2;
            memmove(context, context + length - kept, kept * sizeof(*context));
        }
        context[kept++] = out[i];
    }
    free(context);
    free(logits);
    return status;
}

/* Replaces control characters, because a terminal would obey them. */
static void byte_print(int32_t token)
{
    int is_plain = (token >= 32 && token != 127) || token == '\n' || token == '\t';

    (void)putchar(is_plain ? token : '?');
}

void sample_print(const corpus *c, const int32_t *tokens, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (c->is_text) {
            byte_print(tokens[i]);
        } else {
            printf("%s%d", i == 0 ? "" : " ", (int)tokens[i]);
        }
    }
}
