/* Architectures as data: GPT-2, MiniMind-3, and the families of transformers in the style of Llama.
 * The functions give the units of a model of a given size, and their parameters with names and
 * shapes. The trainer computes with all of them; `sherd plan` only declares models. This file
 * depends on no other part of sherd. */
#ifndef SHERD_MODELS_ARCH_H
#define SHERD_MODELS_ARCH_H

#include <stddef.h>

typedef enum arch_kind {
    ARCH_GPT2     = 0,
    ARCH_MINIMIND = 1,
    ARCH_LLAMA    = 2, /* from here on as transformers names them in "model_type" */
    ARCH_MISTRAL  = 3,
    ARCH_QWEN2    = 4, /* also Qwen2.5 */
    ARCH_QWEN3    = 5,
    ARCH_KINDS,
} arch_kind;

/* Parts that only some models in the style of Llama have. */
#define ARCH_HAS_QKV_BIAS ((unsigned)1 << 0)
#define ARCH_HAS_O_BIAS   ((unsigned)1 << 1)
#define ARCH_HAS_MLP_BIAS ((unsigned)1 << 2)
#define ARCH_HAS_QK_NORM  ((unsigned)1 << 3)

/* How the angles of a rotation follow from its base. */
typedef enum arch_rope_kind {
    ARCH_ROPE_PLAIN = 0,
    ARCH_ROPE_LINEAR, /* all angles divided by `factor` (Chen et al. 2023) */
    /* slow angles divided by `factor`, fast ones not, those between in part (Llama 3.1) */
    ARCH_ROPE_LLAMA3,
} arch_rope_kind;

/* Rotation of q and k by their positions (Su et al. 2021); GPT-2 has none. */
typedef struct arch_rope {
    double         theta; /* base of the angles */
    arch_rope_kind kind;
    double         factor;
    /* ARCH_ROPE_LLAMA3: an angle is slow if fewer than low_factor of its turns fit into
     * original_length tokens, fast if more than high_factor do. */
    double low_factor, high_factor;
    size_t original_length;
} arch_rope;

/* Sizes of one model, in elements, and the constants with which it computes. */
typedef struct arch {
    arch_kind kind;
    size_t    hidden;
    size_t    layers;
    size_t    heads;    /* query heads */
    size_t    kv_heads; /* key and value heads; GPT-2: = heads */
    size_t    inner;    /* width of the feed-forward part; GPT-2: 4 * hidden */
    size_t    vocab;
    size_t    max_length; /* longest sequence; GPT-2: rows of the position table */

    size_t head_elems; /* width of a head; 0: hidden / heads */
    /* ARCH_HAS_...: in addition to those that all models of the kind have */
    unsigned features;
    int      is_transposed; /* GPT-2: matrices of layers are [in, out]; never in the trainer */
    int      is_untied;     /* the head is a parameter of its own */

    /* Properties that shapes do not show. */
    double    norm_eps;
    arch_rope rope;
    /* Number of tokens that a token sees in the layers from full_layers on, itself included; 0: all
     * before it, as in the other layers. */
    size_t window, full_layers;
} arch;

/* Initialises an arch of the first two kinds, with the constants that arch_complete would give
 * it. */
#define ARCH_SIZES(kind_, hidden_, layers_, heads_, kv_heads_, inner_, vocab_, max_length_)        \
    {                                                                                              \
        .kind = (kind_), .hidden = (hidden_), .layers = (layers_), .heads = (heads_),              \
        .kv_heads = (kv_heads_), .inner = (inner_), .vocab = (vocab_),                             \
        .max_length = (max_length_), .norm_eps = (kind_) == ARCH_GPT2 ? 1e-5 : 1e-6, .rope = {     \
            .theta = (kind_) == ARCH_GPT2 ? 0.0 : 1e6                                              \
        }                                                                                          \
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

/** Sets *out to the sizes of a preset, for example "124m" of GPT-2. Returns 0, or -1 for an unknown
 *  name. */
int arch_preset(arch_kind kind, const char *name, arch *out);
/** Returns the name of the i-th preset of a kind; NULL past the last. */
const char *arch_preset_name(arch_kind kind, size_t i);
/** Finds one of ARCH_KIND_NAMES; returns -1 for another name. */
int         arch_kind_find(const char *name, arch_kind *out);
const char *arch_kind_name(arch_kind kind);
#define ARCH_KIND_NAMES "gpt2, minimind, llama, mistral, qwen2 or qwen3"

/** Sets *out to what transformers assumes for a model of this kind: the constants, and whether the
 *  head is tied. Sizes are 0. */
void arch_begin(arch_kind kind, arch *out);
/** Computes fields that are 0 from the others (kv_heads, inner, max_length), or by the kind
 *  (norm_eps, the rotation's base). */
void arch_complete(arch *model);
/** Returns NULL when the sizes fit together, else a sentence that says what does not. */
const char *arch_check(const arch *model, char *text, size_t text_bytes);

/** Whether the model has all parts ARCH_HAS_... of `features`, by itself or by its kind. */
int arch_has(const arch *model, unsigned features);
/** Return the width of a head, of all query heads, and of all key heads. */
size_t arch_head(const arch *model);
size_t arch_q(const arch *model);
size_t arch_kv(const arch *model);

/** Units: 0 is the embedding, 1 .. layers are the layers, layers + 1 is the last norm and the
 *  head. */
size_t arch_unit_count(const arch *model);
void   arch_unit_name(const arch *model, size_t unit, char out[ARCH_NAME_BYTES]);
size_t arch_param_count(const arch *model);
void   arch_param_get(const arch *model, size_t k, arch_param *out);
/** Returns the first parameter of a unit; for unit arch_unit_count() it is arch_param_count(). */
size_t arch_unit_first_param(const arch *model, size_t unit);
/** Return the elements of one parameter, and of the whole model. */
size_t arch_param_elems(const arch_param *param);
size_t arch_elems(const arch *model);

/** Whether a product goes through the parameter: matrices, the head among them, but not tables that
 *  are only looked up. */
int arch_is_product(const arch *model, const arch_param *param);
/** Returns the floating-point operations of forward and backward for one token, counted as by
 *  Chowdhery et al. 2022 (PaLM, appendix B): 6 for each weight of a matrix that takes part in a
 *  product (the head does, tables that are looked up do not), and 12 * layers * width of all query
 *  heads * length for attention. Recomputation does not count. */
double arch_flops_per_token(const arch *model, size_t length);
/** Returns attention's part of these operations. */
double arch_attention_flops_per_token(const arch *model, size_t length);

#endif
