/* Writes a configuration as text: the dump of the values in force with their origins, and the
 * reference page. Both come from the table. */
#include "engine/config/config_impl.h"
#include "sherd_tools.h"

#include "base/api.h"
#include "base/json_text.h"
#include "base/real.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static void put(sherdi_text *out, const char *text)
{
    sherdi_text_put(out, text, strlen(text));
}

/* ---- values as JSON ---- */

static void real_put(sherdi_text *out, double value)
{
    char digits[SHERDI_REAL_BYTES];

    sherdi_real_format(value, digits);
    put(out, digits);
}

/* Writes a choice of a list, which has no NUL after it. */
static void choice_put(sherdi_text *out, const char *choices, size_t index)
{
    size_t      bytes;
    const char *choice = sherdi_config_choice_at(choices, index, &bytes);

    put(out, "\"");
    sherdi_text_put(out, choice, bytes);
    put(out, "\"");
}

/* Writes a list, even if the file has only one name. */
static void folders_put(sherdi_text *out, const char *folder)
{
    for (const char *start = "["; *folder != '\0'; folder += strlen(folder) + 1, start = ", ") {
        put(out, start);
        sherdi_text_quote(out, folder);
    }
    put(out, "]");
}

static void numbers_put(sherdi_text *out, const double *list, size_t count)
{
    const char *start = "[";

    for (size_t i = 0; i < count; i++, start = ", ") {
        put(out, start);
        real_put(out, list[i]);
    }
    put(out, "]");
}

/* Writes a number of a group's params, if the group gives it. */
static void group_number_put(sherdi_text *out, const char *name, double value, const char **comma)
{
    if (isnan(value)) {
        return;
    }
    sherdi_text_print(out, "%s\"%s\": ", *comma, name);
    *comma = ", ";
    real_put(out, value);
}

static void group_params_put(sherdi_text *out, const sherdi_group_settings *group)
{
    const char *comma = "";

    put(out, ", \"params\": {");
    group_number_put(out, "lr", group->lr, &comma);
    if (!isnan(group->betas[0])) {
        sherdi_text_print(out, "%s\"betas\": ", comma);
        numbers_put(out, group->betas, 2);
        comma = ", ";
    }
    group_number_put(out, "eps", group->eps, &comma);
    group_number_put(out, "weight_decay", group->weight_decay, &comma);
    if (group->exclude_1d >= 0) {
        sherdi_text_print(out, "%s\"exclude_1d\": %s", comma, group->exclude_1d ? "true" : "false");
    }
    put(out, "}");
}

static void groups_put(sherdi_text *out, const sherdi_config_value *value)
{
    for (int64_t g = 0; g < value->integer; g++) {
        const sherdi_group_settings *group = &value->groups[g];

        put(out, g == 0 ? "[{\"name\": " : ", {\"name\": ");
        sherdi_text_quote(out, group->name);
        if (group->optimizer > 0) {
            put(out, ", \"type\": ");
            choice_put(out, sherdi_config_table[SHERDI_CONFIG_OPTIMIZER_TYPE].range.choices,
                       (size_t)group->optimizer - 1);
        }
        if (group->matching[0] != '\0') {
            put(out, ", \"matching\": ");
            folders_put(out, group->matching);
        }
        group_params_put(out, group);
        put(out, "}");
    }
    put(out, value->groups == NULL ? "null" : value->integer == 0 ? "[]" : "]");
}

static void text_put(sherdi_text *out, const sherdi_config_key *key,
                     const sherdi_config_value *value)
{
    if (key->range.choices != NULL) {
        choice_put(out, key->range.choices, (size_t)value->integer);
    } else if (value->text == NULL) {
        put(out, "null");
    } else if (key->type == SHERDI_TYPE_FOLDERS) {
        folders_put(out, value->text);
    } else {
        sherdi_text_quote(out, value->text);
    }
}

static void value_put(sherdi_text *out, const sherdi_config_key *key,
                      const sherdi_config_value *value)
{
    switch (key->type) {
    case SHERDI_TYPE_BOOL:
        put(out, value->integer ? "true" : "false");
        break;
    case SHERDI_TYPE_INT:
    case SHERDI_TYPE_SIZE:
        sherdi_text_print(out, "%" PRId64, value->integer);
        break;
    case SHERDI_TYPE_PAIR:
        numbers_put(out, (const double[]){value->real, value->second}, 2);
        break;
    case SHERDI_TYPE_REAL:
    case SHERDI_TYPE_REALS:
        if (value->count == 0) {
            real_put(out, value->real);
        } else {
            numbers_put(out, value->list, value->count);
        }
        break;
    case SHERDI_TYPE_GROUPS:
        groups_put(out, value);
        break;
    default:
        text_put(out, key, value);
    }
}

/* ---- the dump ---- */

/* The dump has all keys that have an effect, and all others that were set. */
static int key_is_dumped(const sherd_config *config, sherdi_config_id id)
{
    const sherdi_config_key *key = &sherdi_config_table[id];

    return key->type > SHERDI_TYPE_OPAQUE &&
           (key->use == SHERDI_USE_HONOURED || sherdi_config_is_given(config, id));
}

static void key_dump(sherdi_text *out, const sherd_config *config, sherdi_config_id id)
{
    const sherdi_config_key *key = &sherdi_config_table[id];
    sherdi_config_effect     effect;

    sherdi_config_effective(config, 0, id, &effect);
    sherdi_text_print(out, "  \"%s\": {\"value\": ", key->path);
    if (effect.is_null || effect.is_missing) {
        put(out, "null");
    } else {
        value_put(out, key, &effect.value);
    }
    put(out, ", \"origin\": ");
    sherdi_text_quote(out, effect.origin);
    if (key->use == SHERDI_USE_HINT) {
        put(out, ", \"ignored\": true");
    }
    put(out, "}");
}

/* Hands a text over as a whole, and frees it. */
static sherd_status text_hand(sherdi_text *out, sherd_write_fn write, void *ctx)
{
    sherd_status status =
        out->status == SHERD_OK ? write(ctx, out->bytes, out->len_bytes) : out->status;

    sherdi_text_fini(out);
    return status;
}

sherd_status sherd_config_dump(const sherd_config *config, sherd_write_fn write, void *ctx)
{
    const char *start = "{\n";
    sherdi_mem  mem;
    sherdi_text out;

    SHERDI_TRY(sherdi_api_need(config != NULL, "sherd_config_dump", "config"));
    SHERDI_TRY(sherdi_config_json_need(config, "sherd_config_dump"));
    SHERDI_TRY(sherdi_api_need(write != NULL, "sherd_config_dump", "write"));
    sherdi_mem_init(&mem);
    sherdi_text_init(&out, &mem);
    for (sherdi_config_id id = 0; id < SHERDI_CONFIG_IDS; id++) {
        if (key_is_dumped(config, id)) {
            put(&out, start);
            key_dump(&out, config, id);
            start = ",\n";
        }
    }
    put(&out, "\n}\n");
    return text_hand(&out, write, ctx);
}

/* ---- the reference page ---- */

/* clang-format off */
static const char PAGE_HEAD[] =
"# Configuration\n\n"
"<!-- Written by `sherd config --reference` from engine/config/config_keys.h and config_unused.h. -->\n\n"
"This page lists every key of sherd's configuration. It is for everyone who writes a configuration, or brings one along\n"
"from DeepSpeed. [deepspeed-keys.md](deepspeed-keys.md) has every key of DeepSpeed, with its effect in sherd.\n\n"
"A configuration is a JSON file in the form that DeepSpeed made common. Comments (`//`, `#`, `/* */`) and trailing\n"
"commas are allowed. Numbers may be written as `5e8` or `500000000`, and in quotes, as converters of YAML write them\n"
"(with a warning). Every message about a configuration names the file, line, column and key.\n\n"
"**The tables.** A *block* is a key whose value is an object with keys of its own, such as `fp16`. Each top-level block has\n"
"a table; keys outside of blocks come first. Keys without an effect stand at the end, in a table for each reason.\n"
"*default* is the value of a key that is not set. The *compute type* is fp16 or bf16 if one of these blocks is enabled,\n"
"else fp32. The [glossary](glossary.md) explains words such as unit and window.\n\n"
"**Unknown keys** give a warning, which names a known key with a similar spelling. In a block that is marked *closed* they\n"
"are errors.\n"
"Keys that start with `_` or are named `comment` are skipped. Duplicate keys are errors.\n\n"
"**\"auto\"** leaves a value to the program, which sets it with `sherd_config_set`. If the program does not set it, the\n"
"rule in the column *\"auto\"* holds, and where that column is empty, the default. A program may also set keys that the\n"
"file lacks. If a program contradicts an explicit value of the file, the call fails; to override the file, the program\n"
"puts `!` before the key.\n\n"
"**Modes.** `\"sherd\": {\"strict\": true}` makes every warning an error. `\"lenient\": true` makes an unknown key in a\n"
"closed block a warning. A program sets them as `strict` and `lenient`; `lenient` then holds for the keys that are set\n"
"after it.\n";

static const char PAGE_ALIASES[] =
"\n"
"## Other names\n\n"
"sherd also reads these names. A file that has a key and another name of it is refused. `bfloat16` is the exception: it\n"
"counts only if `bf16` is absent.\n\n"
"| name | means | |\n"
"|---|---|---|\n";
/* clang-format on */

static const char *const TYPE_NAMES[] = {
    [SHERDI_TYPE_BLOCK]   = "block",
    [SHERDI_TYPE_OPAQUE]  = "block",
    [SHERDI_TYPE_BOOL]    = "bool",
    [SHERDI_TYPE_INT]     = "integer",
    [SHERDI_TYPE_SIZE]    = "integer",
    [SHERDI_TYPE_REAL]    = "number",
    [SHERDI_TYPE_TEXT]    = "text",
    [SHERDI_TYPE_PAIR]    = "[number, number]",
    [SHERDI_TYPE_REALS]   = "number or list of numbers",
    [SHERDI_TYPE_FOLDERS] = "text or list of texts",
    [SHERDI_TYPE_GROUPS]  = "list of blocks",
    [SHERDI_TYPE_ANY]     = "any",
};

/* The sections of keys without effect. */
static const char *const UNUSED_SECTIONS[] = {
    [SHERDI_USE_SAME] =
        "Without effect: choices that never change a result\n\n"
        "Any value is right. The last column says why the value makes no difference.",
    [SHERDI_USE_HINT] = "Without effect: hints that are not taken\n\n"
                        "sherd ignores these keys. A value other than the default gives a warning.",
    [SHERDI_USE_REFUSED] =
        "Refused: keys that would change the training\n\n"
        "A value other than the default, or a block that is switched on, is an error: sherd would "
        "train something else than the file says.",
};

static const char *const ALIAS_NAMES[] = {
    [SHERDI_ALIAS_SAME]         = "the same",
    [SHERDI_ALIAS_OLD]          = "old or misspelt; warns",
    [SHERDI_ALIAS_INVERTED]     = "the opposite; warns",
    [SHERDI_ALIAS_CPU_SWITCH]   = "true: `cpu`, false: `none`; warns",
    [SHERDI_ALIAS_PROGRAM_ONLY] = "short name for the program, not for files",
};

/* Writes choices without their bars, which would divide the row of the Markdown table. */
static void choices_put(sherdi_text *out, const char *choices)
{
    put(out, ": `");
    for (; *choices != '\0'; choices++) {
        if (*choices == '|') {
            put(out, "`, `");
        } else {
            sherdi_text_put(out, choices, 1);
        }
    }
    put(out, "`");
}

static void range_put(sherdi_text *out, const sherdi_config_key *key)
{
    const sherdi_config_range *range = &key->range;

    if (range->choices != NULL) {
        choices_put(out, range->choices);
        return;
    }
    if (key->type < SHERDI_TYPE_INT || key->type > SHERDI_TYPE_REALS) {
        return;
    }
    if (sherdi_config_most(key) >= INT_MAX) {
        sherdi_text_print(out, ", at least %g", range->least);
        return;
    }
    sherdi_text_print(out, ", %g to %s%g", range->least, range->is_below ? "below " : "",
                      range->most);
}

static void key_describe(sherdi_text *out, sherdi_config_id id)
{
    const sherdi_config_key *key      = &sherdi_config_table[id];
    const char              *fallback = sherdi_config_fallback(key);
    const char              *mark     = key->is_rule || fallback == NULL ? "" : "`";

    sherdi_text_print(out, "| `%s` | %s%s", key->path, TYPE_NAMES[key->type],
                      key->is_closed ? ", closed" : "");
    range_put(out, key);
    if (key->type <= SHERDI_TYPE_OPAQUE) {
        put(out, " |  |");
    } else {
        sherdi_text_print(out, " | %s%s%s |", mark, fallback == NULL ? "none" : fallback, mark);
    }
    if (key->use == SHERDI_USE_HONOURED) {
        sherdi_text_print(out, " %s |", key->auto_rule == NULL ? "" : key->auto_rule);
    }
    sherdi_text_print(out, " %s |\n", key->meaning);
}

/* Begins a new table for keys outside blocks, for each top-level block, and for each reason to have
 * no effect. */
static void section_put(sherdi_text *out, int id)
{
    const sherdi_config_key *key       = &sherdi_config_table[id];
    int                      is_unused = key->use != SHERDI_USE_HONOURED;

    if (id == 0) {
        put(out, "\n## Top level\n");
    } else if (is_unused && key->use != key[-1].use) {
        sherdi_text_print(out, "\n## %s\n", UNUSED_SECTIONS[key->use]);
    } else if (!is_unused && key->type == SHERDI_TYPE_BLOCK && strchr(key->path, '.') == NULL) {
        sherdi_text_print(out, "\n## `%s`\n", key->path);
    } else {
        return;
    }
    sherdi_text_print(out, "\n| key | type | default |%s |\n|---|---|---|%s---|\n",
                      is_unused ? " why" : " \"auto\" | meaning", is_unused ? "" : "---|");
}

sherd_status sherd_config_reference(sherd_write_fn write, void *ctx)
{
    sherdi_mem  mem;
    sherdi_text out;

    SHERDI_TRY(sherdi_api_need(write != NULL, "sherd_config_reference", "write"));
    sherdi_mem_init(&mem);
    sherdi_text_init(&out, &mem);
    put(&out, PAGE_HEAD);
    for (sherdi_config_id id = 0; id < SHERDI_CONFIG_IDS; id++) {
        section_put(&out, id);
        key_describe(&out, id);
    }
    put(&out, PAGE_ALIASES);
    for (size_t i = 0; i < sherdi_config_alias_count; i++) {
        const sherdi_config_alias *alias = &sherdi_config_aliases[i];

        sherdi_text_print(&out, "| `%s` | `%s` | %s |\n", alias->path, alias->meant,
                          ALIAS_NAMES[alias->kind]);
    }
    return text_hand(&out, write, ctx);
}
