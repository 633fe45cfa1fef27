/* The keys as data, and functions that find keys in them. See config_keys.h and config_unused.h. */
#include "engine/config/config_impl.h"
#include "engine/optimizers/optimizer.h"

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
#define OFF            .fallback = "false"
#define BOTH(a, b)     .fallback = "[" #a ", " #b "]", .standard = {.real = (a), .second = (b)}
#define FIRST(word)    .fallback = "\"" word "\"", .standard = {.text = (char *)(word)}
#define RULE(sentence) .fallback = (sentence), .is_rule = 1
#define RANGE(lo, hi)  .range = {.least = (lo), .most = (hi)}
#define BELOW(lo, hi)  .range = {.least = (lo), .most = (hi), .is_below = 1}
#define CHOICES(list)  .range = {.choices = (list)}
#define AUTO(sentence) .auto_rule = (sentence)
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
#define SCHEDULE(name) .effect = sherdi_effect_schedule_##name, .is_schedules = 1
#define CLOSED         .is_closed = 1
#define OPAQUE         .is_opaque = 1
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
#define SETS_DTYPE(field) FIELD(field, SHERDI_SETTING_DTYPE, 0)
#define DERIVES(field)    FIELD(field, KIND_OF(field), 1)

#define ATTRIBUTES(...) __VA_ARGS__
#define KEY_ROW(id, key_path, key_type, ...) UNUSED_ROW(id, key_path, key_type, HONOURED, __VA_ARGS__)
#define UNUSED_ROW(id, key_path, key_type, why, attributes, key_meaning) \
    [SHERDI_CONFIG_##id] = {.path = (key_path), .type = SHERDI_TYPE_##key_type, .use = SHERDI_USE_##why, \
                            .meaning = (key_meaning), ATTRIBUTES attributes},
/* clang-format on */

const sherdi_config_key sherdi_config_table[SHERDI_CONFIG_IDS] = {
    SHERDI_CONFIG_KEYS(KEY_ROW) SHERDI_CONFIG_UNUSED(UNUSED_ROW)};

#define ALIAS_ROW(alias_path, alias_id, alias_kind)                                                \
    {.path = alias_path, .id = SHERDI_CONFIG_##alias_id, .kind = SHERDI_ALIAS_##alias_kind},

const sherdi_config_alias sherdi_config_aliases[] = {SHERDI_CONFIG_ALIASES(ALIAS_ROW)};

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
        if (has_same_block(path, sherdi_config_table[id].path)) {
            distance = edit_distance(leaf, sherdi_config_leaf(sherdi_config_table[id].path));
            if (distance < least) {
                least   = distance;
                nearest = sherdi_config_table[id].path;
            }
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

/* Returns the name in the same block that has all words of the unknown one, if only one name
 * has. */
static const char *suggest_longer(const char *path)
{
    const char *leaf  = sherdi_config_leaf(path);
    const char *found = NULL;

    for (int id = 0; id < SHERDI_CONFIG_IDS; id++) {
        if (has_same_block(path, sherdi_config_table[id].path) &&
            has_words_of(sherdi_config_leaf(sherdi_config_table[id].path), leaf)) {
            if (found != NULL) {
                return NULL;
            }
            found = sherdi_config_table[id].path;
        }
    }
    return found;
}

/* Returns the same name in another block, if only one block has it. */
static const char *suggest_other_block(const char *path)
{
    const char *leaf  = sherdi_config_leaf(path);
    const char *found = NULL;

    for (int id = 0; id < SHERDI_CONFIG_IDS; id++) {
        if (strcmp(leaf, sherdi_config_leaf(sherdi_config_table[id].path)) == 0) {
            if (found != NULL) {
                return NULL;
            }
            found = sherdi_config_table[id].path;
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
    found = found != NULL ? found : suggest_other_block(path);
    return found != NULL ? found : suggest_longer(path);
}
