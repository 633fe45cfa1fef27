/* Architectures as data: GPT-2, MiniMind-3, and models of transformers in the style of Llama. The functions give the units of
 * a model of a given size, and their parameters with names and shapes. The trainer computes with the first two architectures;
 * `sherd plan` only declares models. This file depends on no other part of sherd. */
#ifndef SHERD_MODELS_ARCH_H
#define SHERD_MODELS_ARCH_H

#include <stddef.h>

typedef enum arch_kind {
    ARCH_GPT2     = 0,
    ARCH_MINIMIND = 1,
    ARCH_LLAMA    = 2, /* Llama, Mistral, Qwen: no presets; the trainer cannot run it */
} arch_kind;

/* Parts that only some models in the style of Llama have. */
#define ARCH_HAS_QKV_BIAS ((unsigned)1 << 0)
#define ARCH_HAS_O_BIAS   ((unsigned)1 << 1)
#define ARCH_HAS_MLP_BIAS ((unsigned)1 << 2)
#define ARCH_HAS_QK_NORM  ((unsigned)1 << 3)

/* Sizes of one model, in elements. */
typedef struct arch {
    arch_kind kind;
    size_t    hidden;
    size_t    layers;
    size_t    heads;    /* query heads; divides hidden */
    size_t    kv_heads; /* key and value heads; GPT-2: = heads */
    size_t    inner;    /* width of the feed-forward part; GPT-2: 4 * hidden */
    size_t    vocab;
    size_t    max_length; /* longest sequence; GPT-2: rows of the position table */

    /* The trainer's models have none of these; all are 0 there. */
    size_t   head_elems;    /* width of a head; 0: hidden / heads */
    unsigned features;      /* ARCH_HAS_...; ARCH_LLAMA only */
    int      is_transposed; /* GPT-2: matrices of layers are [in, out] */
    int      is_untied;     /* the head is a parameter of its own */
} arch;

/* Initialises an arch of one of the trainer's models. */
#define ARCH_SIZES(kind_, hidden_, layers_, heads_, kv_heads_, inner_, vocab_, max_length_)        \
    {                                                                                              \
        .kind = (kind_), .hidden = (hidden_), .layers = (layers_), .heads = (heads_),              \
        .kv_heads = (kv_heads_), .inner = (inner_), .vocab = (vocab_), .max_length = (max_length_) \
    }

/* The role of a parameter in its unit; the values index arrays of model.c. */
typedef enum arch_role {
    ARCH_NONE = 0,
    ARCH_TOKENS, /* [vocab, hidden]; also the head, unless is_untied */
    ARCH_POSITIONS,
    ARCH_NORM1,
    ARCH_NORM1_BIAS,
    ARCH_QKV,
    ARCH_QKV_BIAS,
    ARCH_Q,
    ARCH_Q_BIAS,
    ARCH_K,
    ARCH_K_BIAS,
    ARCH_V,
    ARCH_V_BIAS,
    ARCH_O,
    ARCH_O_BIAS,
    ARCH_Q_NORM,
    ARCH_K_NORM,
    ARCH_NORM2,
    ARCH_NORM2_BIAS,
    ARCH_UP,
    ARCH_UP_BIAS,
    ARCH_GATE,
    ARCH_GATE_BIAS,
    ARCH_DOWN,
    ARCH_DOWN_BIAS,
    ARCH_NORM_LAST,
    ARCH_NORM_LAST_BIAS,
    ARCH_HEAD, /* [vocab, hidden]; only with is_untied */
    ARCH_ROLES
} arch_role;

#define ARCH_NAME_BYTES 96

typedef struct arch_param {
    char      name[ARCH_NAME_BYTES];
    arch_role role;
    size_t    unit;
    int       ndim; /* 1 or 2 */
    size_t    shape[2];
    int       is_norm;     /* weight of a norm: starts at 1; other weights start around 0 */
    int       is_bias;     /* starts at 0 */
    int       is_residual; /* writes into the residual stream: starts smaller */
} arch_param;

/** Sets *out to the sizes of a preset, for example "124m" of GPT-2. Returns 0, or -1 for an unknown name. */
int arch_preset(arch_kind kind, const char *name, arch *out);
/** Returns the name of the i-th preset of a kind; NULL past the last. */
const char *arch_preset_name(arch_kind kind, size_t i);
/** Finds "gpt2" or "minimind"; returns -1 for another name. The name of ARCH_LLAMA is NULL. */
int         arch_kind_find(const char *name, arch_kind *out);
const char *arch_kind_name(arch_kind kind);

/** Computes fields that are 0 from the others (kv_heads, inner, max_length). */
void arch_complete(arch *model);
/** Returns NULL when the sizes fit together, else a sentence that says what does not. */
const char *arch_check(const arch *model, char *text, size_t text_bytes);

/** Units: 0 is the embedding, 1 .. layers are the layers, layers + 1 is the last norm and the head. */
size_t arch_unit_count(const arch *model);
void   arch_unit_name(const arch *model, size_t unit, char out[ARCH_NAME_BYTES]);
size_t arch_param_count(const arch *model);
void   arch_param_get(const arch *model, size_t k, arch_param *out);
/** Returns the first parameter of a unit; for unit arch_unit_count() it is arch_param_count(). */
size_t arch_unit_first_param(const arch *model, size_t unit);
/** Return the elements of one parameter, and of the whole model. */
size_t arch_param_elems(const arch_param *param);
size_t arch_elems(const arch *model);

/** Returns the floating-point operations of forward and backward for one token, counted as by Chowdhery et al. 2022 (PaLM,
 *  appendix B): 6 for each weight of a matrix that takes part in a product (the head does, tables that are looked up do not),
 *  and 12 * layers * hidden * length for attention. What is recomputed does not count. */
double arch_flops_per_token(const arch *model, size_t length);
/** Returns attention's part of these operations. */
double arch_attention_flops_per_token(const arch *model, size_t length);

#endif
