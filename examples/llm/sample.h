/* Text from a trained model: one token at a time, each from a whole forward pass. */
#ifndef LLM_SAMPLE_H
#define LLM_SAMPLE_H

#include "data.h"
#include "passes.h"

#include <stdint.h>

typedef struct sample_params {
    const int32_t *prompt; /* [prompt_tokens], at least one */
    size_t         prompt_tokens;
    size_t         tokens; /* to make */
    size_t         vocab;  /* columns of the logits */
    size_t         most;   /* tokens that may come: 0 .. most - 1 */
    size_t         length; /* of the passes's sequences; its batch is 1 */
    double         temperature;
    uint64_t       seed;
} sample_params;

/** Fills out[tokens]. Collective: every rank calls it, and gets the same. E_NOMEM, or as passes_eval. */
SHERD_MUST_USE sherd_status sample_make(passes *passes, const sample_params *params, int32_t *out);
/** Prints tokens: text for bytes, numbers for the tokens of a token file. */
void sample_print(const corpus *c, const int32_t *tokens, size_t count);

#endif
