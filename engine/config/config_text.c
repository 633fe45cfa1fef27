/* Writes a configuration as text: the dump of the values in force with their origins, and the reference page. Both come from the
 * table. */
#include "engine/config/config_impl.h"
#include "sherd_tools.h"

#include "base/api.h"
#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct text_writer {
    sherd_write_fn write;
    void          *ctx;
} text_writer;

static sherd_status writer_put(const text_writer *writer, const char *text)
{
    return writer->write(writer->ctx, text, strlen(text));
}

static sherd_status SHERDI_PRINTF(2, 3)
    writer_print(const text_writer *writer, const char *fmt, ...)
{
    char    portion[SHERDI_ERROR_BYTES];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(portion, sizeof(portion), fmt, args);
    va_end(args);
    return writer_put(writer, portion);
}

/* ---- values as JSON ---- */

static sherd_status text_put(const text_writer *writer, const char *text, size_t bytes)
{
    SHERDI_TRY(writer_put(writer, "\""));
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '"' || text[i] == '\\') {
            SHERDI_TRY(writer_print(writer, "\\%c", text[i]));
        } else if ((unsigned char)text[i] < ' ') {
            SHERDI_TRY(writer_print(writer, "\\u%04x", (unsigned)text[i]));
        } else {
            SHERDI_TRY(writer->write(writer->ctx, &text[i], 1));
        }
    }
    return writer_put(writer, "\"");
}

static sherd_status real_put(const text_writer *writer, double value)
{
    char digits[SHERDI_REAL_BYTES];

    sherdi_real_format(value, digits);
    return writer_put(writer, digits);
}

/* Writes a list, even if the file has only one name. */
static sherd_status folders_put(const text_writer *writer, const char *folder)
{
    for (const char *start = "["; *folder != '\0'; folder += strlen(folder) + 1, start = ", ") {
        SHERDI_TRY(writer_put(writer, start));
        SHERDI_TRY(text_put(writer, folder, strlen(folder)));
    }
    return writer_put(writer, "]");
}

static sherd_status reals_put(const text_writer *writer, const sherdi_config_value *value)
{
    const char *start = "[";

    if (value->count == 0) {
        return real_put(writer, value->real);
    }
    for (size_t i = 0; i < value->count; i++, start = ", ") {
        SHERDI_TRY(writer_put(writer, start));
        SHERDI_TRY(real_put(writer, value->list[i]));
    }
    return writer_put(writer, "]");
}

/* Writes a number of a group's params, if the group gives it. */
static sherd_status group_number_put(const text_writer *writer, const char *name, double value,
                                     const char **comma)
{
    if (isnan(value)) {
        return SHERD_OK;
    }
    SHERDI_TRY(writer_print(writer, "%s\"%s\": ", *comma, name));
    *comma = ", ";
    return real_put(writer, value);
}

static sherd_status group_params_put(const text_writer *writer, const sherdi_group_settings *group)
{
    const char *comma = "";

    SHERDI_TRY(writer_put(writer, ", \"params\": {"));
    SHERDI_TRY(group_number_put(writer, "lr", group->lr, &comma));
    if (!isnan(group->beta1)) {
        SHERDI_TRY(writer_print(writer, "%s\"betas\": [", comma));
        SHERDI_TRY(real_put(writer, group->beta1));
        SHERDI_TRY(writer_put(writer, ", "));
        SHERDI_TRY(real_put(writer, group->beta2));
        SHERDI_TRY(writer_put(writer, "]"));
        comma = ", ";
    }
    SHERDI_TRY(group_number_put(writer, "eps", group->eps, &comma));
    SHERDI_TRY(group_number_put(writer, "weight_decay", group->weight_decay, &comma));
    if (group->exclude_1d >= 0) {
        SHERDI_TRY(writer_print(writer, "%s\"exclude_1d\": %s", comma,
                                group->exclude_1d ? "true" : "false"));
    }
    return writer_put(writer, "}");
}

static sherd_status groups_put(const text_writer *writer, const sherdi_config_value *value)
{
    for (int64_t g = 0; g < value->integer; g++) {
        const sherdi_group_settings *group = &value->groups[g];
        size_t                       bytes;
        const char                  *type;

        SHERDI_TRY(writer_put(writer, g == 0 ? "[{\"name\": " : ", {\"name\": "));
        SHERDI_TRY(text_put(writer, group->name, strlen(group->name)));
        if (group->optimizer > 0) {
            type = sherdi_config_choice_at(
                sherdi_config_table[SHERDI_CONFIG_OPTIMIZER_TYPE].range.choices,
                (size_t)group->optimizer - 1, &bytes);
            SHERDI_TRY(writer_put(writer, ", \"type\": "));
            SHERDI_TRY(text_put(writer, type, bytes));
        }
        if (group->matching[0] != '\0') {
            SHERDI_TRY(writer_put(writer, ", \"matching\": "));
            SHERDI_TRY(folders_put(writer, group->matching));
        }
        SHERDI_TRY(group_params_put(writer, group));
        SHERDI_TRY(writer_put(writer, "}"));
    }
    return writer_put(writer, value->integer == 0 ? "[]" : "]");
}

static sherd_status value_put(const text_writer *writer, const sherdi_config_key *key,
                              const sherdi_config_value *value)
{
    size_t      bytes;
    const char *choice;

    switch (key->type) {
    case SHERDI_TYPE_BOOL:
        return writer_put(writer, value->integer ? "true" : "false");
    case SHERDI_TYPE_INT:
    case SHERDI_TYPE_SIZE:
        return writer_print(writer, "%" PRId64, value->integer);
    case SHERDI_TYPE_REAL:
        return real_put(writer, value->real);
    case SHERDI_TYPE_PAIR:
        SHERDI_TRY(writer_put(writer, "["));
        SHERDI_TRY(real_put(writer, value->real));
        SHERDI_TRY(writer_put(writer, ", "));
        SHERDI_TRY(real_put(writer, value->second));
        return writer_put(writer, "]");
    case SHERDI_TYPE_REALS:
        return reals_put(writer, value);
    case SHERDI_TYPE_TEXT:
        if (key->range.choices != NULL) {
            choice = sherdi_config_choice_at(key->range.choices, (size_t)value->integer, &bytes);
            return text_put(writer, choice, bytes);
        }
        if (value->text != NULL) {
            return text_put(writer, value->text, strlen(value->text));
        }
        break;
    case SHERDI_TYPE_FOLDERS:
        if (value->text != NULL) {
            return folders_put(writer, value->text);
        }
        break;
    case SHERDI_TYPE_GROUPS:
        if (value->groups != NULL) {
            return groups_put(writer, value);
        }
        break;
    case SHERDI_TYPE_BLOCK:
    case SHERDI_TYPE_ANY:
        break;
    }
    return writer_put(writer, "null");
}

/* ---- the dump ---- */

/* The dump has all keys that have an effect, and all others that were given. */
static int key_is_dumped(const sherd_config *config, sherdi_config_id id)
{
    const sherdi_config_key *key = &sherdi_config_table[id];

    return key->type != SHERDI_TYPE_BLOCK &&
           (key->use == SHERDI_USE_HONOURED || sherdi_config_is_given(config, id));
}

static sherd_status key_dump(const text_writer *writer, const sherd_config *config,
                             sherdi_config_id id)
{
    const sherdi_config_key *key = &sherdi_config_table[id];
    sherdi_config_effect     effect;

    sherdi_config_effective(config, 0, id, &effect);
    SHERDI_TRY(writer_print(writer, "  \"%s\": {\"value\": ", key->path));
    if (effect.is_null || effect.is_missing) {
        SHERDI_TRY(writer_put(writer, "null"));
    } else {
        SHERDI_TRY(value_put(writer, key, &effect.value));
    }
    SHERDI_TRY(writer_put(writer, ", \"origin\": "));
    SHERDI_TRY(text_put(writer, effect.origin, strlen(effect.origin)));
    if (key->use == SHERDI_USE_HINT) {
        SHERDI_TRY(writer_put(writer, ", \"ignored\": true"));
    }
    return writer_put(writer, "}");
}

sherd_status sherd_config_dump(const sherd_config *config, sherd_write_fn write, void *ctx)
{
    text_writer writer   = {write, ctx};
    int         is_first = 1;

    SHERDI_TRY(sherdi_api_need(config != NULL, "sherd_config_dump", "config"));
    SHERDI_TRY(sherdi_api_need(write != NULL, "sherd_config_dump", "write"));
    SHERDI_TRY(writer_put(&writer, "{\n"));
    for (int id = 0; id < SHERDI_CONFIG_IDS; id++) {
        if (!key_is_dumped(config, (sherdi_config_id)id)) {
            continue;
        }
        SHERDI_TRY(writer_put(&writer, is_first ? "" : ",\n"));
        is_first = 0;
        SHERDI_TRY(key_dump(&writer, config, (sherdi_config_id)id));
    }
    return writer_put(&writer, "\n}\n");
}

/* ---- the reference page ---- */

/* clang-format off */
static const char PAGE_HEAD[] =
"# Configuration\n\n"
"<!-- Written by `sherd config --reference` from engine/config/config_keys.h and config_unused.h. -->\n\n"
"This page lists every key of sherd's configuration. It is for everyone who writes a configuration, or brings one along\n"
"from DeepSpeed. [deepspeed-keys.md](deepspeed-keys.md) has every key of DeepSpeed, with what sherd does with it.\n\n"
"A configuration is a JSON file in the form that DeepSpeed made common. Comments (`//`, `#`, `/* */`) and trailing\n"
"commas are allowed. Numbers may be written as `5e8` or `500000000`. Every message about a configuration names the\n"
"file, line, column and key.\n\n"
"**The tables.** Each top-level block has a table; keys outside of blocks come first. Keys without an effect stand at the\n"
"end, in a table for each reason. *default* is what holds if a key is not given. The *compute type* is fp16 or bf16 if\n"
"one of these blocks is enabled, else fp32. The [glossary](glossary.md) explains words such as unit, block and window.\n\n"
"**Unknown keys** give a warning, which names the nearest known key. In a block that is marked *closed* they are errors.\n"
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
        "Refused: what would train something else\n\n"
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
static sherd_status choices_put(const text_writer *writer, const char *choices)
{
    SHERDI_TRY(writer_put(writer, ": `"));
    for (; *choices != '\0'; choices++) {
        SHERDI_TRY(*choices == '|' ? writer_put(writer, "`, `")
                                   : writer->write(writer->ctx, choices, 1));
    }
    return writer_put(writer, "`");
}

static sherd_status range_put(const text_writer *writer, const sherdi_config_key *key)
{
    const sherdi_config_range *range = &key->range;
    int has_least = key->type == SHERDI_TYPE_INT || key->type == SHERDI_TYPE_SIZE ||
                    key->type == SHERDI_TYPE_REAL || key->type == SHERDI_TYPE_PAIR ||
                    key->type == SHERDI_TYPE_REALS;

    if (range->choices != NULL) {
        return choices_put(writer, range->choices);
    }
    if (!has_least) {
        return SHERD_OK;
    }
    if (range->most >= 2147483647.0) {
        return writer_print(writer, ", at least %g", range->least);
    }
    return writer_print(writer, ", %g to %s%g", range->least, range->is_below ? "below " : "",
                        range->most);
}

static sherd_status key_describe(const text_writer *writer, sherdi_config_id id)
{
    const sherdi_config_key *key      = &sherdi_config_table[id];
    const char              *fallback = key->fallback == NULL ? "none" : key->fallback;
    const char              *mark     = key->is_rule || key->fallback == NULL ? "" : "`";

    SHERDI_TRY(writer_print(writer, "| `%s` | %s%s", key->path, TYPE_NAMES[key->type],
                            key->is_closed ? ", closed" : ""));
    SHERDI_TRY(range_put(writer, key));
    if (key->type == SHERDI_TYPE_BLOCK) {
        SHERDI_TRY(writer_put(writer, " |  |"));
    } else {
        SHERDI_TRY(writer_print(writer, " | %s%s%s |", mark, fallback, mark));
    }
    if (key->use == SHERDI_USE_HONOURED) {
        SHERDI_TRY(writer_print(writer, " %s |", key->auto_rule == NULL ? "" : key->auto_rule));
    }
    return writer_print(writer, " %s |\n", key->meaning);
}

/* Begins a new table for keys outside blocks, for each top-level block, and for each reason to have no effect. */
static sherd_status section_put(const text_writer *writer, int id)
{
    const sherdi_config_key *key       = &sherdi_config_table[id];
    int                      is_unused = key->use != SHERDI_USE_HONOURED;

    if (id == 0) {
        SHERDI_TRY(writer_put(writer, "\n## Top level\n"));
    } else if (is_unused && key->use != key[-1].use) {
        SHERDI_TRY(writer_print(writer, "\n## %s\n", UNUSED_SECTIONS[key->use]));
    } else if (!is_unused && key->type == SHERDI_TYPE_BLOCK && strchr(key->path, '.') == NULL) {
        SHERDI_TRY(writer_print(writer, "\n## `%s`\n", key->path));
    } else {
        return SHERD_OK;
    }
    return writer_print(writer, "\n| key | type | default |%s |\n|---|---|---|%s---|\n",
                        is_unused ? " why" : " \"auto\" | meaning", is_unused ? "" : "---|");
}

sherd_status sherd_config_reference(sherd_write_fn write, void *ctx)
{
    text_writer writer = {write, ctx};

    SHERDI_TRY(sherdi_api_need(write != NULL, "sherd_config_reference", "write"));
    SHERDI_TRY(writer_put(&writer, PAGE_HEAD));
    for (int id = 0; id < SHERDI_CONFIG_IDS; id++) {
        SHERDI_TRY(section_put(&writer, id));
        SHERDI_TRY(key_describe(&writer, (sherdi_config_id)id));
    }
    SHERDI_TRY(writer_put(&writer, PAGE_ALIASES));
    for (size_t i = 0; i < sherdi_config_alias_count; i++) {
        const sherdi_config_alias *alias = &sherdi_config_aliases[i];

        SHERDI_TRY(writer_print(&writer, "| `%s` | `%s` | %s |\n", alias->path,
                                sherdi_config_table[alias->id].path, ALIAS_NAMES[alias->kind]));
    }
    return SHERD_OK;
}
