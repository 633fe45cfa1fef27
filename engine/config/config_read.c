/* Reads a document into entries. It walks the blocks along the table: every member is a known key,
 * a known key under another name, or unknown. Values that ask for something other than plain
 * synchronous training are refused here, with the location and what to do. Hints that are ignored
 * warn. */
#include "engine/config/config_impl.h"

#include "sherd_build.h"

#include <stdio.h>
#include <string.h>

/* Longer paths are cut, so they match no key. */
#define PATH_BYTES 192

/* A member's path in the names of the table, and as the file has it. */
typedef struct member_path {
    char known[PATH_BYTES];
    char written[PATH_BYTES];
} member_path;

static sherd_status member_read(sherdi_config_reader *reader, const member_path *path,
                                const sherdi_json_node *node, int is_block_closed);

static void path_join(const char *block, const char *leaf, char out[PATH_BYTES])
{
    (void)snprintf(out, PATH_BYTES, "%.95s%s%.95s", block, block[0] == '\0' ? "" : ".", leaf);
}

/* ---- storing ---- */

/* A key, and its value. */
typedef struct given_value {
    sherdi_config_id           id;
    const sherdi_config_alias *alias; /* the name in the file; NULL: its own */
    const char                *path;  /* as written */
    const sherdi_json_node    *node;
    sherdi_config_value        value;
    int                        is_auto;
} given_value;

/* Fails if an explicit value of the file contradicts the program's, unless the program overrides
 * it. *keep_out: the entry stays as it is. */
static sherd_status entry_contest(const sherdi_config_reader *reader, const given_value *given,
                                  int *keep_out)
{
    const sherdi_config_entry *entry = &reader->config->entries[given->id];
    const char                *name  = sherdi_config_name(reader->config, given->id);
    char                       location[SHERDI_LOCATION_BYTES];

    *keep_out = 0;
    (void)sherdi_config_location(reader->config, given->id, location);
    if (entry->origin == SHERDI_ORIGIN_FILE && reader->origin == SHERDI_ORIGIN_FILE) {
        return sherdi_reader_say(reader, given->node, SHERD_E_INVAL,
                                 "%s sets again what %s (%s) sets; keep one of them", given->path,
                                 name, location);
    }
    if (entry->origin != SHERDI_ORIGIN_FILE || entry->is_auto || reader->is_override) {
        return SHERD_OK;
    }
    *keep_out = given->is_auto ||
                sherdi_config_same(&sherdi_config_table[given->id], &entry->value, &given->value);
    return *keep_out
               ? SHERD_OK
               : sherdi_reader_say(reader, given->node, SHERD_E_INVAL,
                                   "%s is %s at %s, and the program gives %.*s; remove one, or set "
                                   "\"!%s\" to override the file",
                                   name, entry->written, location, (int)given->node->lexeme_bytes,
                                   given->node->lexeme, given->path);
}

/* Stores a value in its entry, which then owns the value's memory. */
static sherd_status entry_store(sherdi_config_reader *reader, given_value *given)
{
    sherdi_config_entry    *entry = &reader->config->entries[given->id];
    const sherdi_json_node *node  = given->node;
    char *written = sherdi_alloc(&reader->config->mem, SHERDI_MEM_CONTROL, node->lexeme_bytes + 1);

    if (written == NULL) {
        sherdi_config_value_free(&given->value);
        return SHERD_E_NOMEM;
    }
    memcpy(written, node->lexeme, node->lexeme_bytes);
    sherdi_free(entry->written);
    sherdi_config_value_free(&entry->value);
    *entry = (sherdi_config_entry){
        .value   = given->value,
        .origin  = reader->origin,
        .is_auto = given->is_auto,
        .line    = node->line,
        .column  = node->column,
        .written = written,
        .alias   = given->alias,
    };
    return SHERD_OK;
}

/* ---- single values ---- */

/* Returns whether a value asks for something other than the default; "auto" does not. */
static int is_asking(const given_value *given)
{
    const sherdi_config_key *key = &sherdi_config_table[given->id];

    return !given->is_auto &&
           !(key->fallback != NULL && sherdi_config_same(key, &given->value, &key->standard)) &&
           !(key->one_is_off && given->value.integer == 1);
}

/* Says what there is to say about a value that was stored. */
static sherd_status scalar_remark(const sherdi_config_reader *reader, const given_value *given)
{
    const sherdi_config_key *key = &sherdi_config_table[given->id];

    if (given->is_auto && key->auto_rule == NULL && strchr(key->path, '.') == NULL) {
        return sherdi_reader_say(reader, given->node, SHERDI_SAY_WARNING,
                                 "%s is \"auto\", which means its default here", given->path);
    }
    if (key->use == SHERDI_USE_HINT && is_asking(given)) {
        return sherdi_reader_say(reader, given->node, SHERDI_SAY_WARNING, "%s is ignored: %s",
                                 given->path, key->meaning);
    }
    if (key->use == SHERDI_USE_SAME && key->fallback != NULL && is_asking(given)) {
        (void)sherdi_reader_say(reader, given->node, SHERDI_SAY_INFO, "%s makes no difference: %s",
                                given->path, key->meaning);
    }
    return SHERD_OK;
}

/* Checks a value and stores it; takes over the value's memory. */
static sherd_status scalar_put(sherdi_config_reader *reader, given_value *given)
{
    const sherdi_config_key *key     = &sherdi_config_table[given->id];
    int                      is_kept = 0;
    sherd_status             status;

    if (key->use == SHERDI_USE_REFUSED && is_asking(given)) {
        status = sherdi_reader_say(
            reader, given->node, SHERD_E_NOTSUP, "%s is %.*s, which sherd cannot do: %s",
            given->path, (int)given->node->lexeme_bytes, given->node->lexeme, key->meaning);
    } else {
        status = entry_contest(reader, given, &is_kept);
    }
    if (status != SHERD_OK || is_kept) {
        sherdi_config_value_free(&given->value);
        return status;
    }
    SHERDI_TRY(entry_store(reader, given));
    return scalar_remark(reader, given);
}

static sherd_status scalar_read(sherdi_config_reader *reader, given_value *given)
{
    const sherdi_config_key *key = &sherdi_config_table[given->id];

    if (given->node->kind == SHERDI_JSON_NULL && key->is_nullable) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_config_value_read(reader, key, given->path, given->node, &given->value,
                                        &given->is_auto));
    return scalar_put(reader, given);
}

/* ---- other names ---- */

/* Reads the bool forms of keys: find_unused_parameters, cpu_offload and others like it. */
static sherd_status switch_read(sherdi_config_reader *reader, given_value *given)
{
    static const sherdi_config_key SWITCH  = {.type = SHERDI_TYPE_BOOL};
    const char                    *choices = sherdi_config_table[given->id].range.choices;
    size_t                         cpu;

    SHERDI_TRY(sherdi_config_value_read(reader, &SWITCH, given->path, given->node, &given->value,
                                        &given->is_auto));
    if (given->alias->kind == SHERDI_ALIAS_INVERTED) {
        given->value.integer = !given->value.integer;
    } else if (given->value.integer) {
        (void)sherdi_text_choice(choices, "cpu", 0, &cpu);
        given->value.integer = (int64_t)cpu;
    }
    return scalar_put(reader, given);
}

static sherd_status alias_read(sherdi_config_reader *reader, const sherdi_config_alias *alias,
                               const member_path *path, const sherdi_json_node *node)
{
    static const char *const WORDS[] = {
        [SHERDI_ALIAS_OLD]          = "is read as",
        [SHERDI_ALIAS_INVERTED]     = "is read as the opposite of",
        [SHERDI_ALIAS_CPU_SWITCH]   = "is an old name; use",
        [SHERDI_ALIAS_PROGRAM_ONLY] = NULL,
    };
    const char *meant = sherdi_config_table[alias->id].path;
    given_value given = {.id = alias->id, .alias = alias, .path = path->written, .node = node};
    member_path same;

    if (sherdi_config_table[alias->id].type == SHERDI_TYPE_BLOCK) {
        if (sherdi_json_find(node->parent, meant) != NULL) {
            return sherdi_reader_say(reader, node, SHERDI_SAY_WARNING,
                                     "%s is ignored: %s is there too, and wins", path->written,
                                     meant);
        }
        path_join("", meant, same.known);
        path_join("", path->written, same.written);
        return member_read(reader, &same, node, 0);
    }
    if (WORDS[alias->kind] != NULL) {
        SHERDI_TRY(sherdi_reader_say(reader, node, SHERDI_SAY_WARNING, "%s %s %s", path->written,
                                     WORDS[alias->kind], meant));
    }
    return alias->kind == SHERDI_ALIAS_INVERTED || alias->kind == SHERDI_ALIAS_CPU_SWITCH
               ? switch_read(reader, &given)
               : scalar_read(reader, &given);
}

/* ---- unknown ---- */

static int key_is_comment(const char *leaf)
{
    return leaf[0] == '_' || strcmp(leaf, "comment") == 0;
}

static sherd_status unknown_read(sherdi_config_reader *reader, const member_path *path,
                                 const sherdi_json_node *node, int is_block_closed)
{
    const char *meant = sherdi_config_suggest(path->known);
    char        hint[PATH_BYTES + 32];

    if (key_is_comment(sherdi_config_leaf(path->known))) {
        return SHERD_OK;
    }
    hint[0] = '\0';
    if (meant != NULL) {
        (void)snprintf(hint, sizeof(hint), "; did you mean %s?", meant);
    }
    if (is_block_closed && !reader->is_lenient) {
        return sherdi_reader_say(reader, node, SHERD_E_INVAL, "%s is not a known key%s",
                                 path->written, hint[0] != '\0' ? hint : "; remove it");
    }
    return sherdi_reader_say(reader, node, SHERDI_SAY_WARNING,
                             "%s is not a known key and is ignored%s", path->written, hint);
}

/* ---- blocks ---- */

/* Returns whether the "enabled" of a feature's block switches it on. Text that is no boolean does,
 * as it is true in Python; "auto" means that the program does not set it. */
static int switch_is_on(const sherdi_json_node *enabled)
{
    int is_true;

    if (enabled->kind != SHERDI_JSON_STRING) {
        return enabled->is_true || enabled->number != 0;
    }
    if (sherdi_config_boolean(enabled->string, &is_true)) {
        return is_true;
    }
    return strcmp(enabled->string, "auto") != 0;
}

/* Returns whether an "enabled" inside `node` is true. The depth of JSON bounds the recursion. */
static int has_enabled_inside(const sherdi_json_node *node)
{
    const sherdi_json_node *child;

    for (child = sherdi_json_first(node); child != NULL; child = sherdi_json_next(child)) {
        if ((child->key != NULL && strcmp(child->key, "enabled") == 0 && switch_is_on(child)) ||
            has_enabled_inside(child)) {
            return 1;
        }
    }
    return 0;
}

/* Returns whether a feature's block switches it on. Most blocks of hints have no switch of their
 * own; refused blocks have one. */
static int block_is_active(const sherdi_config_key *key, const sherdi_json_node *node)
{
    const sherdi_json_node *enabled = sherdi_json_find(node, "enabled");

    if (node->kind == SHERDI_JSON_BOOL) {
        return node->is_true;
    }
    if (node->kind != SHERDI_JSON_OBJECT) {
        return node->kind != SHERDI_JSON_NULL;
    }
    if (enabled != NULL) {
        return switch_is_on(enabled);
    }
    if (key->is_active_nested) {
        return has_enabled_inside(node);
    }
    return key->is_active_present || key->use == SHERDI_USE_HINT;
}

static sherd_status opaque_read(const sherdi_config_reader *reader, const sherdi_config_key *key,
                                const char *path, const sherdi_json_node *node)
{
    if (!block_is_active(key, node)) {
        (void)sherdi_reader_say(reader, node, SHERDI_SAY_INFO, "%s is off: %s", path, key->meaning);
        return SHERD_OK;
    }
    if (key->use == SHERDI_USE_REFUSED) {
        return sherdi_reader_say(reader, node, SHERD_E_NOTSUP,
                                 "%s is on, which sherd cannot do: %s; remove the block", path,
                                 key->meaning);
    }
    return sherdi_reader_say(reader, node, SHERDI_SAY_WARNING, "%s is ignored: %s", path,
                             key->meaning);
}

static sherd_status legacy_bool_read(sherdi_config_reader *reader, const char *path,
                                     const sherdi_json_node *node)
{
    given_value given = {
        .id = SHERDI_CONFIG_STAGE, .path = path, .node = node, .value.integer = node->is_true};

    SHERDI_TRY(sherdi_reader_say(reader, node, SHERDI_SAY_WARNING,
                                 "%s is %s, the old form; read as {\"stage\": %d}", path,
                                 node->is_true ? "true" : "false", node->is_true));
    return scalar_put(reader, &given);
}

static sherd_status members_read(sherdi_config_reader *reader, const member_path *block,
                                 const sherdi_json_node *node, int is_closed)
{
    const sherdi_json_node *child;
    member_path             path;

    for (child = sherdi_json_first(node); child != NULL; child = sherdi_json_next(child)) {
        path_join(block->known, child->key, path.known);
        path_join(block->written, child->key, path.written);
        SHERDI_TRY(member_read(reader, &path, child, is_closed));
    }
    return SHERD_OK;
}

static sherd_status block_read(sherdi_config_reader *reader, sherdi_config_id id,
                               const member_path *path, const sherdi_json_node *node)
{
    const sherdi_config_key *key   = &sherdi_config_table[id];
    given_value              given = {.id = id, .path = path->written, .node = node};

    if (key->is_opaque) {
        return opaque_read(reader, key, path->written, node);
    }
    if (node->kind == SHERDI_JSON_NULL && key->is_nullable) {
        return SHERD_OK;
    }
    if (node->kind == SHERDI_JSON_STRING && strcmp(node->string, "auto") == 0 &&
        key->auto_is_absent) {
        return SHERD_OK;
    }
    if (node->kind == SHERDI_JSON_BOOL && key->has_bool_form) {
        return legacy_bool_read(reader, path->written, node);
    }
    if (node->kind != SHERDI_JSON_OBJECT) {
        return sherdi_reader_say(reader, node, SHERD_E_INVAL,
                                 "%s is %.*s; it must be a block in braces, or not be there",
                                 path->written, (int)node->lexeme_bytes, node->lexeme);
    }
    SHERDI_TRY(entry_store(reader, &given));
    return members_read(reader, path, node, key->is_closed);
}

/* ---- types that are not there ---- */

/* Checks the type of an optimizer or a schedule before its parameters are read. An unknown type has
 * other parameters, and a message that names the type helps more than one about a parameter. */
static sherd_status type_check(const sherdi_config_reader *reader, const sherdi_json_node *root,
                               const char *block, sherdi_config_id id)
{
    const sherdi_config_key *key  = &sherdi_config_table[id];
    const sherdi_json_node  *node = sherdi_json_find(root, block);
    size_t                   choice;

    node = node == NULL ? NULL : sherdi_json_find(node, "type");
    if (node == NULL || node->kind != SHERDI_JSON_STRING || strcmp(node->string, "auto") == 0 ||
        sherdi_text_choice(key->range.choices, node->string, key->has_any_case, &choice)) {
        return SHERD_OK;
    }
    return sherdi_reader_say(reader, node, SHERD_E_NOTSUP,
                             "%s is \"%s\", which sherd does not have; known: %s%s", key->path,
                             node->string, key->range.choices, SHERDI_MORE_NAMES);
}

static sherd_status member_read(sherdi_config_reader *reader, const member_path *path,
                                const sherdi_json_node *node, int is_block_closed)
{
    const sherdi_config_alias *alias = sherdi_config_alias_find(path->known);
    sherdi_config_id           id    = sherdi_config_find(path->known);
    given_value                given = {.id = id, .path = path->written, .node = node};
    int                        is_spelt_out;

    /* A key of the file that contains a dot is not a path. */
    is_spelt_out = node->key == NULL || strchr(node->key, '.') == NULL;
    if (alias != NULL && is_spelt_out &&
        (alias->kind != SHERDI_ALIAS_PROGRAM_ONLY || reader->origin == SHERDI_ORIGIN_PROGRAM)) {
        return alias_read(reader, alias, path, node);
    }
    if (id == SHERDI_CONFIG_IDS || !is_spelt_out) {
        return unknown_read(reader, path, node, is_block_closed);
    }
    if (sherdi_config_table[id].type == SHERDI_TYPE_BLOCK) {
        return block_read(reader, id, path, node);
    }
    return scalar_read(reader, &given);
}

/* "lenient" holds for the whole document, wherever it is in the document. */
static int document_is_lenient(const sherdi_json_node *root)
{
    const sherdi_json_node *own     = sherdi_json_find(root, "sherd");
    const sherdi_json_node *lenient = own == NULL ? NULL : sherdi_json_find(own, "lenient");

    return lenient != NULL && lenient->is_true;
}

sherd_status sherdi_config_read(sherdi_config_reader *reader, const sherdi_json_node *root)
{
    static const member_path TOP = {"", ""};

    if (root->kind != SHERDI_JSON_OBJECT) {
        return sherdi_reader_say(reader, root, SHERD_E_INVAL,
                                 "a configuration is a block in braces");
    }
    reader->is_lenient = document_is_lenient(root);
    SHERDI_TRY(type_check(reader, root, "optimizer", SHERDI_CONFIG_OPTIMIZER_TYPE));
    SHERDI_TRY(type_check(reader, root, "scheduler", SHERDI_CONFIG_SCHEDULER_TYPE));
    return members_read(reader, &TOP, root, 0);
}

/* Makes the path of a key that the program gives. Its block may be an alias: "bfloat16.enabled"
 * means bf16.enabled. */
static void path_of_program(const char *text, member_path *path)
{
    const char                *dot = strchr(text, '.');
    char                       block[PATH_BYTES];
    const sherdi_config_alias *alias;

    path_join("", text, path->known);
    path_join("", text, path->written);
    if (dot == NULL || (size_t)(dot - text) >= PATH_BYTES) {
        return;
    }
    memcpy(block, text, (size_t)(dot - text));
    block[dot - text] = '\0';
    alias             = sherdi_config_alias_find(block);
    if (alias != NULL) {
        path_join(sherdi_config_table[alias->id].path, dot + 1, path->known);
    }
}

static int path_is_block(const char *path)
{
    const sherdi_config_alias *alias = sherdi_config_alias_find(path);
    sherdi_config_id           id    = alias == NULL ? sherdi_config_find(path) : alias->id;

    return id != SHERDI_CONFIG_IDS && sherdi_config_table[id].type == SHERDI_TYPE_BLOCK;
}

sherd_status sherdi_config_read_key(sherdi_config_reader *reader, const char *path,
                                    const sherdi_json_node *node)
{
    member_path names;

    path_of_program(path, &names);
    if (path_is_block(names.known)) {
        return sherdi_reader_say(reader, node, SHERD_E_INVAL,
                                 "%s is a block; set its keys one by one", path);
    }
    return member_read(reader, &names, node, 1);
}
