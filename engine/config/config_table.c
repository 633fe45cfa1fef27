/* The keys as data, and functions that find keys in them. See config_keys.h and config_unused.h. */
#include "engine/config/config_impl.h"
#include "engine/optimizers/optimizer.h"
#include "offload/tiers.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

/* clang-format off */
/* Attributes of a row. */
#define NUMBER(x)      .fallback = #x, .standard = {.integer = (int64_t)(x), .real = (double)(x)}
#define ON             .fallback = "true", .standard = {.integer = 1}
#define BOTH(a, b)     .fallback = "[" #a ", " #b "]", .standard = {.real = (a), .second = (b)}
#define WORD(word)     DEFAULT(word), .standard = {.text = (char *)(word)}
#define DEFAULT(word)  .fallback = "\"" word "\""
#define FIRST_OF(word, others) DEFAULT(word), CHOICES(word "|" others)
#define RULE(sentence) .fallback = (sentence), .is_rule = 1
#define RANGE(lo, hi)  .range = {.least = (lo), .most = (hi)}
#define AT_LEAST(lo)   .range = {.least = (lo)}
#define BELOW(lo, hi)  .range = {.least = (lo), .most = (hi), .is_below = 1}
#define CHOICES(list)  .range = {.choices = (list)}
#define AUTO(sentence) .auto_rule = (sentence)
#define FIX(sentence)  .fix = (sentence)
#define NEEDED(sentence) AUTO("an error: the program must give it"), FIX(sentence)
#define NULLABLE       .is_nullable = 1
#define LOCAL          .is_local = 1
#define ANY_CASE       .has_any_case = 1
#define TRUTHY         .is_truthy = 1
#define SOFT           .is_soft = 1
#define TRUNCATE       .is_truncated = 1
#define ONE_IS_OFF     .one_is_off = 1
#define ZERO_WORD(word) .zero_word = (word)
#define ZERO_IS_DEFAULT .zero_is_default = 1
#define EFFECT(name)   .effect = sherdi_effect_##name
#define CLOSED         .is_closed = 1
#define AUTO_ABSENT    .auto_is_absent = 1
#define LEGACY_BOOL    .has_bool_form = 1
#define ACTIVE_PRESENT .is_active_present = 1
#define ACTIVE_NESTED  .is_active_nested = 1

#define KIND_OF(field) _Generic(((sherdi_settings *)0)->field, \
    sherdi_rates: SHERDI_SETTING_RATES, double: SHERDI_SETTING_REAL, double *: SHERDI_SETTING_PAIR, \
    int64_t: SHERDI_SETTING_INT64, size_t: SHERDI_SETTING_SIZE, \
    const sherdi_optimizer *: SHERDI_SETTING_OPTIMIZER, \
    const sherdi_tier_kind *: SHERDI_SETTING_TIER, sherdi_group_settings *: SHERDI_SETTING_GROUPS, default: SHERDI_SETTING_INT)
#define FIELD(field, how, derived) .setting = { \
    .offset = offsetof(sherdi_settings, field), .bytes = sizeof(((sherdi_settings *)0)->field), \
    .kind = (how), .is_derived = (derived)}
#define SETS(field)       FIELD(field, KIND_OF(field), 0)
#define DTYPE(field)      FIELD(field, SHERDI_SETTING_DTYPE, 0), CHOICES("fp32|fp16|bf16"), NULLABLE, ANY_CASE
#define TIER(block)       SETS(block.tier), DEFAULT("none"), CHOICES(sherdi_tier_choices + 1)
#define DERIVES(field)    FIELD(field, KIND_OF(field), 1)

#define SCHEDULE(field)         SETS(schedule.field), .is_schedules = 1
#define SCHEDULE_DERIVES(field) DERIVES(schedule.field), .is_schedules = 1

#define ROW(why, key_path, key_type, ...) \
    {.use = SHERDI_USE_##why, .path = (key_path), .type = SHERDI_TYPE_##key_type, .meaning = __VA_ARGS__},
#define KEY(id, ...) ROW(HONOURED, __VA_ARGS__)
#define PLAIN(...)   ROW(HONOURED, __VA_ARGS__)
#define SAME(...)    ROW(SAME, __VA_ARGS__)
#define HINT(...)    ROW(HINT, __VA_ARGS__)
#define REFUSED(...) ROW(REFUSED, __VA_ARGS__)
/* clang-format on */

const sherdi_config_key sherdi_config_table[SHERDI_CONFIG_IDS] = {
#include "engine/config/config_keys.h"
#include "engine/config/config_unused.h"
};

/* Other spellings, and the keys that they mean. A block's members follow their block. */
const sherdi_config_alias sherdi_config_aliases[] = {
    {"bfloat16", "bf16", SHERDI_ALIAS_SAME},
    {"aio.thread_count", "aio.intra_op_parallelism", SHERDI_ALIAS_OLD},
    {"optimizer.params.__max_grad_norm__", "optimizer.params.max_grad_norm", SHERDI_ALIAS_OLD},
    {"scheduler.params.num_warmup_steps", "scheduler.params.warmup_num_steps", SHERDI_ALIAS_SAME},
    {"scheduler.params.num_training_steps", "scheduler.params.total_num_steps", SHERDI_ALIAS_SAME},
    {"zero_optimization.prefetch_bucket_size", "zero_optimization.stage3_prefetch_bucket_size",
     SHERDI_ALIAS_SAME},
    {"zero_optimization.param_persistence_threshold",
     "zero_optimization.stage3_param_persistence_threshold", SHERDI_ALIAS_SAME},
    {"zero_optimization.stage3_param_persitence_threshold",
     "zero_optimization.stage3_param_persistence_threshold", SHERDI_ALIAS_OLD},
    {"zero_optimization.stage3_param_persitance_threshold",
     "zero_optimization.stage3_param_persistence_threshold", SHERDI_ALIAS_OLD},
    {"zero_optimization.model_persistence_threshold",
     "zero_optimization.stage3_model_persistence_threshold", SHERDI_ALIAS_SAME},
    {"zero_optimization.max_live_parameters", "zero_optimization.stage3_max_live_parameters",
     SHERDI_ALIAS_SAME},
    {"zero_optimization.max_reuse_distance", "zero_optimization.stage3_max_reuse_distance",
     SHERDI_ALIAS_SAME},
    {"zero_optimization.module_granularity_threshold",
     "zero_optimization.stage3_module_granularity_threshold", SHERDI_ALIAS_SAME},
    {"zero_optimization.use_all_reduce_for_fetch_params",
     "zero_optimization.stage3_use_all_reduce_for_fetch_params", SHERDI_ALIAS_SAME},
    {"zero_optimization.allgather_sequential", "zero_optimization.stage3_allgather_sequential",
     SHERDI_ALIAS_SAME},
    {"zero_optimization.gather_16bit_weights_on_model_save",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save", SHERDI_ALIAS_SAME},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save", SHERDI_ALIAS_OLD},
    {"use_data_before_expert_parallelism_", "use_data_before_expert_parallelism",
     SHERDI_ALIAS_SAME},
    {"zero_optimization.find_unused_parameters", "zero_optimization.ignore_unused_parameters",
     SHERDI_ALIAS_INVERTED},
    {"zero_optimization.cpu_offload", "zero_optimization.offload_optimizer.device",
     SHERDI_ALIAS_CPU_SWITCH},
    {"zero_optimization.cpu-offload", "zero_optimization.offload_optimizer.device",
     SHERDI_ALIAS_CPU_SWITCH},
    {"zero_optimization.cpu_offload_param", "zero_optimization.offload_param.device",
     SHERDI_ALIAS_CPU_SWITCH},
    {"zero_optimization.cpu_offload_params", "zero_optimization.offload_param.device",
     SHERDI_ALIAS_CPU_SWITCH},
    {"zero_optimization.cpu_offload_pin_memory", "zero_optimization.offload_optimizer.pin_memory",
     SHERDI_ALIAS_OLD},
    {"zero_optimization.cpu_offload_use_pin_memory",
     "zero_optimization.offload_optimizer.pin_memory", SHERDI_ALIAS_OLD},
    {"strict", "sherd.strict", SHERDI_ALIAS_PROGRAM_ONLY},
    {"lenient", "sherd.lenient", SHERDI_ALIAS_PROGRAM_ONLY},
    {"hidden_size", "sherd.hidden_size", SHERDI_ALIAS_PROGRAM_ONLY},
};

const size_t sherdi_config_alias_count =
    sizeof(sherdi_config_aliases) / sizeof(sherdi_config_aliases[0]);

/* Names by which people look for a key, except the same name in another block. */
static const struct {
    const char *path, *meant;
} ELSEWHERE[] = {
    {"bp16", "bf16"},
    {"max_grad_norm", "gradient_clipping"},
    {"offload", "zero_optimization.offload_optimizer"},
    {"learning_rate", "optimizer.params.lr"},
    {"zero_stage", "zero_optimization.stage"}, /* this and the next two: Accelerate's own file */
    {"offload_optimizer_device", "zero_optimization.offload_optimizer.device"},
    {"offload_param_device", "zero_optimization.offload_param.device"},
    {"optimizer.params.learning_rate", "optimizer.params.lr"},
};

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

sherdi_config_id sherdi_config_find(const char *path)
{
    int id = 0;

    while (id < SHERDI_CONFIG_IDS && strcmp(sherdi_config_table[id].path, path) != 0) {
        id++;
    }
    return (sherdi_config_id)id;
}

const sherdi_config_alias *sherdi_config_alias_find(const char *path)
{
    for (size_t i = 0; i < sherdi_config_alias_count; i++) {
        if (strcmp(sherdi_config_aliases[i].path, path) == 0) {
            return &sherdi_config_aliases[i];
        }
    }
    return NULL;
}

sherdi_config_id sherdi_config_meant(const char *path)
{
    const sherdi_config_alias *alias = sherdi_config_alias_find(path);

    return sherdi_config_find(alias == NULL ? path : alias->meant);
}

const char *sherdi_config_leaf(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot == NULL ? path : dot + 1;
}

/* ---- choices ---- */

const char *sherdi_config_choice_at(const char *choices, size_t index, size_t *bytes_out)
{
    for (; index > 0; index--) {
        choices = strchr(choices, '|') + 1;
    }
    *bytes_out = strcspn(choices, "|");
    return choices;
}

/* ---- suggestions ---- */

/* Longer names are not compared; all names in the table are shorter. */
#define LEAF_BYTES 64

/* Returns the Levenshtein distance, with - and _ equal and case ignored; LEAF_BYTES for long
 * names. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t row[LEAF_BYTES + 1];
    size_t a_bytes = strlen(a);
    size_t b_bytes = strlen(b);

    if (a_bytes > LEAF_BYTES || b_bytes > LEAF_BYTES) {
        return LEAF_BYTES;
    }
    for (size_t j = 0; j <= b_bytes; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= a_bytes; i++) {
        size_t diagonal = row[0];
        int    a_char   = a[i - 1] == '-' ? '_' : tolower((unsigned char)a[i - 1]);

        row[0] = i;
        for (size_t j = 1; j <= b_bytes; j++) {
            int    b_char   = b[j - 1] == '-' ? '_' : tolower((unsigned char)b[j - 1]);
            size_t replaced = diagonal + (a_char != b_char);
            size_t moved    = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);

            diagonal = row[j];
            row[j]   = replaced < moved ? replaced : moved;
        }
    }
    return row[b_bytes];
}

static int has_same_block(const char *a, const char *b)
{
    size_t a_block = (size_t)(sherdi_config_leaf(a) - a);
    size_t b_block = (size_t)(sherdi_config_leaf(b) - b);

    return a_block == b_block && memcmp(a, b, a_block) == 0;
}

/* Returns the nearest name in the same block, at most two edits away (one for short names). */
static const char *suggest_neighbour(const char *path)
{
    const char *leaf    = sherdi_config_leaf(path);
    const char *nearest = NULL;
    size_t      least   = strlen(leaf) <= 4 ? 2 : 3;
    size_t      distance;

    for (int id = 0; id < SHERDI_CONFIG_IDS; id++) {
        const char *known = sherdi_config_table[id].path;

        distance = edit_distance(leaf, sherdi_config_leaf(known));
        if (distance < least && has_same_block(path, known)) {
            least   = distance;
            nearest = known;
        }
    }
    return nearest;
}

/* Returns whether a byte ends a word of a name. */
static int is_word_end(char c)
{
    return c == '\0' || c == '_' || c == '-';
}

/* Returns whether every word of `part` is a word of `whole`, in any case: warmup_steps in
 * warmup_num_steps. */
static int has_words_of(const char *whole, const char *part)
{
    for (size_t bytes; *part != '\0'; part += bytes + (part[bytes] != '\0')) {
        const char *word = whole;

        for (bytes = 0; !is_word_end(part[bytes]); bytes++) {
        }
        while (strncasecmp(word, part, bytes) != 0 || !is_word_end(word[bytes])) {
            for (; !is_word_end(*word); word++) {
            }
            if (*word++ == '\0') {
                return 0;
            }
        }
    }
    return 1;
}

/* Returns whether a key has all words of the unknown name, in the same block. */
static int is_longer(const char *known, const char *path)
{
    return has_same_block(path, known) &&
           has_words_of(sherdi_config_leaf(known), sherdi_config_leaf(path));
}

static int has_same_leaf(const char *known, const char *path)
{
    return strcmp(sherdi_config_leaf(known), sherdi_config_leaf(path)) == 0;
}

/* Returns the name that is similar to the unknown one, if only one name is. */
static const char *suggest_only(const char *path, int (*is_similar)(const char *, const char *))
{
    const char *found = NULL;

    for (int id = 0; id < SHERDI_CONFIG_IDS; id++) {
        const char *known = sherdi_config_table[id].path;

        if (is_similar(known, path)) {
            if (found != NULL) {
                return NULL;
            }
            found = known;
        }
    }
    return found;
}

const char *sherdi_config_suggest(const char *path)
{
    const char *found;

    for (size_t i = 0; i < COUNT_OF(ELSEWHERE); i++) {
        if (strcmp(ELSEWHERE[i].path, path) == 0) {
            return ELSEWHERE[i].meant;
        }
    }
    found = suggest_neighbour(path);
    found = found != NULL ? found : suggest_only(path, has_same_leaf);
    return found != NULL ? found : suggest_only(path, is_longer);
}
