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

static sherd_status member_read(const sherdi_config_site *site, const char *known,
                                int is_block_closed);

static void path_join(const char *block, const char *leaf, char out[PATH_BYTES])
{
    (void)snprintf(out, PATH_BYTES, "%.95s%s%.95s", block, block[0] == '\0' ? "" : ".", leaf);
}

/* ---- storing ---- */

/* A value, and the key that it is for. */
typedef struct given_value {
    sherdi_config_site         site;
    sherdi_config_id           id;
    const sherdi_config_alias *alias; /* the name in the file; NULL: its own */
    sherdi_config_value        value;
    int                        is_auto;
} given_value;

/* Returns the key at a site, without a value. */
static given_value given_of(const sherdi_config_site *site, sherdi_config_id id)
{
    given_value given = {.site = *site, .id = id};

    given.site.key = &sherdi_config_table[id];
    return given;
}

/* Fails if an explicit value of the file contradicts the program's, unless the program overrides
 * it. *keep_out: the entry stays as it is. */
static sherd_status entry_contest(const given_value *given, int *keep_out)
{
    const sherdi_config_reader *reader  = given->site.reader;
    const sherdi_config_entry  *entry   = &reader->config->entries[given->id];
    const sherdi_json_node     *node    = given->site.node;
    sherdi_config_site          earlier = given->site;
    char                        location[SHERDI_LOCATION_BYTES];

    *keep_out    = 0;
    earlier.path = sherdi_config_name(reader->config, given->id);
    (void)sherdi_config_location(reader->config, given->id, location);
    if (entry->origin == SHERDI_ORIGIN_FILE && reader->origin == SHERDI_ORIGIN_FILE) {
        return sherdi_site_say(&given->site, SHERD_E_INVAL,
                               "sets again what %s (%s) sets; keep one of them", earlier.path,
                               location);
    }
    if (entry->origin != SHERDI_ORIGIN_FILE || entry->is_auto || reader->is_override) {
        return SHERD_OK;
    }
    *keep_out = given->is_auto || sherdi_config_same(given->site.key, &entry->value, &given->value);
    return *keep_out
               ? SHERD_OK
               : sherdi_site_say(&earlier, SHERD_E_INVAL,
                                 "is %s at %s, and the program gives %.*s; remove one, or set "
                                 "\"!%s\" to override the file",
                                 entry->written, location, (int)node->lexeme_bytes, node->lexeme,
                                 given->site.path);
}

/* Stores a value in its entry, which then owns the value's memory. */
static sherd_status entry_store(given_value *given)
{
    sherd_config           *config = given->site.reader->config;
    sherdi_config_entry    *entry  = &config->entries[given->id];
    const sherdi_json_node *node   = given->site.node;
    char *written = sherdi_alloc(&config->mem, SHERDI_MEM_CONTROL, node->lexeme_bytes + 1);

    if (written == NULL) {
        sherdi_config_value_free(&given->value);
        return SHERD_E_NOMEM;
    }
    memcpy(written, node->lexeme, node->lexeme_bytes);
    sherdi_free(entry->written);
    sherdi_config_value_free(&entry->value);
    *entry = (sherdi_config_entry){
        .value   = given->value,
        .origin  = given->site.reader->origin,
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
    const sherdi_config_key *key = given->site.key;

    return !given->is_auto &&
           !(sherdi_config_fallback(key) != NULL &&
             sherdi_config_same(key, &given->value, &key->standard)) &&
           !(key->one_is_off && given->value.integer == 1);
}

/* Says what there is to say about a value that was stored. */
static sherd_status scalar_remark(const given_value *given)
{
    const sherdi_config_key *key = given->site.key;

    if (given->is_auto && key->auto_rule == NULL && strchr(key->path, '.') == NULL) {
        return sherdi_site_say(&given->site, SHERDI_SAY_WARNING,
                               "is \"auto\", which means its default here");
    }
    if (key->use == SHERDI_USE_HINT && is_asking(given)) {
        return sherdi_site_say(&given->site, SHERDI_SAY_WARNING, "is ignored: %s", key->meaning);
    }
    if (key->use == SHERDI_USE_SAME && sherdi_config_fallback(key) != NULL && is_asking(given)) {
        return sherdi_site_say(&given->site, SHERDI_SAY_INFO, "makes no difference: %s",
                               key->meaning);
    }
    return SHERD_OK;
}

/* Checks a value and stores it; takes over the value's memory. */
static sherd_status scalar_put(given_value *given)
{
    const sherdi_json_node *node    = given->site.node;
    int                     is_kept = 0;
    sherd_status            status;

    if (given->site.key->use == SHERDI_USE_REFUSED && is_asking(given)) {
        status = sherdi_site_say(&given->site, SHERD_E_NOTSUP, "is %.*s, which sherd cannot do: %s",
                                 (int)node->lexeme_bytes, node->lexeme, given->site.key->meaning);
    } else {
        status = entry_contest(given, &is_kept);
    }
    if (status != SHERD_OK || is_kept) {
        sherdi_config_value_free(&given->value);
        return status;
    }
    SHERDI_TRY(entry_store(given));
    return scalar_remark(given);
}

static sherd_status scalar_read(given_value *given)
{
    sherd_status status;

    if (given->site.node->kind == SHERDI_JSON_NULL && given->site.key->is_nullable) {
        return SHERD_OK;
    }
    status = sherdi_config_value_read(&given->site, &given->value, &given->is_auto);
    if (status != SHERD_OK) {
        sherdi_config_value_free(&given->value);
        return status;
    }
    return scalar_put(given);
}

/* ---- other names ---- */

/* Reads the bool forms of keys: find_unused_parameters, cpu_offload and others like it. */
static sherd_status switch_read(given_value *given)
{
    static const sherdi_config_key SWITCH = {.type = SHERDI_TYPE_BOOL};
    sherdi_config_site             site   = given->site;
    size_t                         cpu;

    site.key = &SWITCH;
    SHERDI_TRY(sherdi_config_value_read(&site, &given->value, &given->is_auto));
    if (given->alias->kind == SHERDI_ALIAS_INVERTED) {
        given->value.integer = !given->value.integer;
    } else if (given->value.integer) {
        (void)sherdi_text_choice(given->site.key->range.choices, "cpu", 0, &cpu);
        given->value.integer = (int64_t)cpu;
    }
    return scalar_put(given);
}

static sherd_status alias_read(const sherdi_config_site *site, const sherdi_config_alias *alias)
{
    static const char *const WORDS[] = {
        [SHERDI_ALIAS_OLD]          = "is read as",
        [SHERDI_ALIAS_INVERTED]     = "is read as the opposite of",
        [SHERDI_ALIAS_CPU_SWITCH]   = "is an old name; use",
        [SHERDI_ALIAS_PROGRAM_ONLY] = NULL,
    };
    const char *meant = alias->meant;
    given_value given = given_of(site, sherdi_config_find(meant));

    given.alias = alias;
    if (given.site.key->type == SHERDI_TYPE_BLOCK) {
        return sherdi_json_find(site->node->parent, meant) != NULL
                   ? sherdi_site_say(site, SHERDI_SAY_WARNING,
                                     "is ignored: %s is there too, and wins", meant)
                   : member_read(site, meant, 0);
    }
    if (WORDS[alias->kind] != NULL) {
        SHERDI_TRY(sherdi_site_say(site, SHERDI_SAY_WARNING, "%s %s", WORDS[alias->kind], meant));
    }
    return alias->kind == SHERDI_ALIAS_INVERTED || alias->kind == SHERDI_ALIAS_CPU_SWITCH
               ? switch_read(&given)
               : scalar_read(&given);
}

/* ---- unknown ---- */

static sherd_status unknown_read(const sherdi_config_site *site, const char *known,
                                 int is_block_closed)
{
    const char *meant                 = sherdi_config_suggest(known);
    const char *leaf                  = sherdi_config_leaf(known);
    char        hint[PATH_BYTES + 32] = "";

    if (leaf[0] == '_' || strcmp(leaf, "comment") == 0) {
        return SHERD_OK;
    }
    if (meant != NULL) {
        (void)snprintf(hint, sizeof(hint), "; did you mean %s?", meant);
    }
    if (is_block_closed && !site->reader->is_lenient) {
        return sherdi_site_say(site, SHERD_E_INVAL, "is not a known key%s",
                               hint[0] != '\0' ? hint : "; remove it");
    }
    return sherdi_site_say(site, SHERDI_SAY_WARNING, "is not a known key and is ignored%s", hint);
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

static sherd_status opaque_read(const sherdi_config_site *site)
{
    const char *meaning = site->key->meaning;

    if (!block_is_active(site->key, site->node)) {
        return sherdi_site_say(site, SHERDI_SAY_INFO, "is off: %s", meaning);
    }
    if (site->key->use == SHERDI_USE_REFUSED) {
        return sherdi_site_say(site, SHERD_E_NOTSUP,
                               "is on, which sherd cannot do: %s; remove the block", meaning);
    }
    return sherdi_site_say(site, SHERDI_SAY_WARNING, "is ignored: %s", meaning);
}

static sherd_status legacy_bool_read(const sherdi_config_site *site)
{
    given_value given = given_of(site, SHERDI_CONFIG_STAGE);

    given.value.integer = site->node->is_true;
    SHERDI_TRY(sherdi_site_say(site, SHERDI_SAY_WARNING,
                               "is %s, the old form; read as {\"stage\": %d}",
                               site->node->is_true ? "true" : "false", site->node->is_true));
    return scalar_put(&given);
}

/* Reads the members of a block, whose path in the table is `known`. */
static sherd_status members_read(const sherdi_config_site *block, const char *known, int is_closed)
{
    const sherdi_json_node *child;
    char                    member[PATH_BYTES];
    char                    written[PATH_BYTES];

    for (child = sherdi_json_first(block->node); child != NULL; child = sherdi_json_next(child)) {
        sherdi_config_site site = {.reader = block->reader, .path = written, .node = child};

        path_join(known, child->key, member);
        path_join(block->path, child->key, written);
        SHERDI_TRY(member_read(&site, member, is_closed));
    }
    return SHERD_OK;
}

static sherd_status block_read(given_value *given)
{
    const sherdi_config_site *site = &given->site;
    const sherdi_config_key  *key  = site->key;
    const sherdi_json_node   *node = site->node;

    if (node->kind == SHERDI_JSON_NULL && key->is_nullable) {
        return SHERD_OK;
    }
    if (node->kind == SHERDI_JSON_STRING && strcmp(node->string, "auto") == 0 &&
        key->auto_is_absent) {
        return SHERD_OK;
    }
    if (node->kind == SHERDI_JSON_BOOL && key->has_bool_form) {
        return legacy_bool_read(site);
    }
    if (node->kind != SHERDI_JSON_OBJECT) {
        return sherdi_site_say(site, SHERD_E_INVAL,
                               "is %.*s; it must be a block in braces, or not be there",
                               (int)node->lexeme_bytes, node->lexeme);
    }
    SHERDI_TRY(entry_store(given));
    return members_read(site, key->path, key->is_closed);
}

/* Reads a member whose path in the table would be `known`. */
static sherd_status member_read(const sherdi_config_site *site, const char *known,
                                int is_block_closed)
{
    const sherdi_config_alias *alias = sherdi_config_alias_find(known);
    const sherdi_config_id     id    = sherdi_config_find(known);
    given_value                given;

    /* A key of the file that contains a dot is not a path. */
    if (site->node->key != NULL && strchr(site->node->key, '.') != NULL) {
        return unknown_read(site, known, is_block_closed);
    }
    if (alias != NULL && (alias->kind != SHERDI_ALIAS_PROGRAM_ONLY ||
                          site->reader->origin == SHERDI_ORIGIN_PROGRAM)) {
        return alias_read(site, alias);
    }
    if (id == SHERDI_CONFIG_IDS) {
        return unknown_read(site, known, is_block_closed);
    }
    given = given_of(site, id);
    switch (given.site.key->type) {
    case SHERDI_TYPE_BLOCK:
        return block_read(&given);
    case SHERDI_TYPE_OPAQUE:
        return opaque_read(&given.site);
    default:
        return scalar_read(&given);
    }
}

/* ---- documents ---- */

/* Returns a member of a block of the document; NULL: it is not there. */
static const sherdi_json_node *member_of(const sherdi_json_node *root, const char *block,
                                         const char *name)
{
    const sherdi_json_node *node = sherdi_json_find(root, block);

    return node == NULL ? NULL : sherdi_json_find(node, name);
}

/* Checks the type of an optimizer or a schedule before its parameters are read. An unknown type has
 * other parameters, and a message that names the type helps more than one about a parameter. */
static sherd_status type_check(const sherdi_config_site *root, const char *block,
                               sherdi_config_id id)
{
    const sherdi_config_key *key = &sherdi_config_table[id];
    sherdi_config_site site = {root->reader, key, key->path, member_of(root->node, block, "type")};
    size_t             choice;

    if (site.node == NULL || site.node->kind != SHERDI_JSON_STRING ||
        strcmp(site.node->string, "auto") == 0 ||
        sherdi_text_choice(key->range.choices, site.node->string, key->has_any_case, &choice)) {
        return SHERD_OK;
    }
    return sherdi_site_say(&site, SHERD_E_NOTSUP,
                           "is \"%s\", which sherd does not have; known: %s%s", site.node->string,
                           key->range.choices, SHERDI_MORE_NAMES);
}

sherd_status sherdi_config_read(sherdi_config_reader *reader, const sherdi_json_node *root)
{
    sherdi_config_site      site    = {.reader = reader, .path = "a configuration", .node = root};
    const sherdi_json_node *lenient = member_of(root, "sherd", "lenient");

    if (root->kind != SHERDI_JSON_OBJECT) {
        return sherdi_site_say(&site, SHERD_E_INVAL, "is a block in braces");
    }
    /* It holds for the whole document, wherever it is in the document. */
    reader->is_lenient = lenient != NULL && lenient->is_true;
    SHERDI_TRY(type_check(&site, "optimizer", SHERDI_CONFIG_OPTIMIZER_TYPE));
    SHERDI_TRY(type_check(&site, "scheduler", SHERDI_CONFIG_SCHEDULER_TYPE));
    site.path = "";
    return members_read(&site, "", 0);
}

/* Makes the path in the table of a key that the program gives. Its block may be an alias:
 * "bfloat16.enabled" means bf16.enabled. */
static void path_of_program(const char *text, char known[PATH_BYTES])
{
    const char      *dot = strchr(text, '.');
    char             block[PATH_BYTES];
    sherdi_config_id id;

    path_join("", text, known);
    if (dot == NULL || (size_t)(dot - text) >= PATH_BYTES) {
        return;
    }
    memcpy(block, text, (size_t)(dot - text));
    block[dot - text] = '\0';
    id                = sherdi_config_meant(block);
    if (id != SHERDI_CONFIG_IDS) {
        path_join(sherdi_config_table[id].path, dot + 1, known);
    }
}

sherd_status sherdi_config_read_key(sherdi_config_reader *reader, const char *path,
                                    const sherdi_json_node *node)
{
    char               known[PATH_BYTES];
    char               written[PATH_BYTES];
    sherdi_config_site site = {.reader = reader, .path = written, .node = node};
    sherdi_config_id   id;

    path_of_program(path, known);
    path_join("", path, written);
    id = sherdi_config_meant(known);
    if (id != SHERDI_CONFIG_IDS && sherdi_config_table[id].type <= SHERDI_TYPE_OPAQUE) {
        return sherdi_site_say(&site, SHERD_E_INVAL, "is a block; set its keys one by one");
    }
    return member_read(&site, known, 1);
}
