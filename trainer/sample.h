/* Makes text with a trained model, one token at a time; each token takes a whole forward pass.
 * trainer.c calls it at the end. */
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
    size_t         most;   /* only tokens 0 .. most - 1 are made */
    size_t         length; /* of the sequences of `passes`, whose batch is 1 */
    double         temperature;
    uint64_t       seed;
} sample_params;

/** Fills out[tokens]. Collective: every rank calls it, and all get the same tokens. Returns
 *  E_NOMEM, or as passes_eval. */
SHERD_MUST_USE sherd_status sample_make(passes *passes, const sample_params *params, int32_t *out);
/** Prints tokens: as text if they are bytes, as numbers if the corpus is a token file. */
void sample_print(const corpus *c, const int32_t *tokens, size_t count);

#endif
