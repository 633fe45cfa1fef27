/* Reads a JSON value as the type of its key. DeepSpeed's readers are generous, and files rely on
 * that: 5e8 for integers, 5 for reals, numbers and booleans as text. Odd values warn; values that
 * could train something else fail. */
#include "engine/config/config_impl.h"

#include "sherd_build.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The most bytes of a value that a message quotes. */
#define QUOTE_BYTES 60

/* Says the remark after the value as it was written. */
static sherd_status site_remark(const sherdi_config_site *site, int how, const char *remark)
{
    int quoted =
        (int)(site->node->lexeme_bytes < QUOTE_BYTES ? site->node->lexeme_bytes : QUOTE_BYTES);

    return sherdi_site_say(site, how, "is %.*s%c %s", quoted, site->node->lexeme,
                           how == SHERDI_SAY_WARNING ? ':' : ';', remark);
}

static sherd_status site_warn(const sherdi_config_site *site, const char *remark)
{
    return site_remark(site, SHERDI_SAY_WARNING, remark);
}

static sherd_status site_fail(const sherdi_config_site *site, const char *reason)
{
    return site_remark(site, SHERD_E_INVAL, reason);
}

static sherd_status range_check(const sherdi_config_site *site, double number)
{
    const sherdi_config_range *range = &site->key->range;
    double                     most  = sherdi_config_most(site->key);
    char                       reason[96];

    if (number >= range->least && (range->is_below ? number < most : number <= most)) {
        return SHERD_OK;
    }
    if (most >= INT_MAX) {
        (void)snprintf(reason, sizeof(reason), "it must be at least %g%s", range->least,
                       number > most ? " and fit 32 bits" : "");
    } else {
        (void)snprintf(reason, sizeof(reason), "it must be from %g to %s%g", range->least,
                       range->is_below ? "below " : "", range->most);
    }
    return site_fail(site, reason);
}

/* ---- types ---- */

int sherdi_config_boolean(const char *text, int *out)
{
    size_t word;

    if (!sherdi_text_choice("false|true|0|1|no|yes|off|on", text, 1, &word)) {
        return 0;
    }
    *out = word % 2 == 1;
    return 1;
}

static sherd_status bool_read(const sherdi_config_site *site, sherdi_config_value *out)
{
    const sherdi_json_node *node = site->node;
    int                     is_true;

    if (node->kind == SHERDI_JSON_BOOL) {
        out->integer = node->is_true;
        return SHERD_OK;
    }
    if (node->kind == SHERDI_JSON_NUMBER && (node->number == 0 || node->number == 1)) {
        out->integer = node->number == 1;
        return SHERD_OK;
    }
    if (node->kind == SHERDI_JSON_STRING && sherdi_config_boolean(node->string, &is_true)) {
        out->integer = is_true;
        return site_warn(site, "a boolean in quotes is read as the boolean");
    }
    if (node->kind == SHERDI_JSON_STRING && site->key->is_truthy) {
        out->integer = node->string[0] != '\0';
        return site_warn(site, "text is read as true, as in Python");
    }
    return site_fail(site, "it must be true or false");
}

static sherd_status number_read(const sherdi_config_site *site, sherdi_config_value *out);

/* Reads a number in quotes, as a YAML file's 5e8 arrives. If the text is not JSON, or not a number,
 * it fails with `reason`. */
static sherd_status quoted_read(const sherdi_config_site *site, const char *reason,
                                sherdi_config_value *out)
{
    sherdi_mem        *mem    = &site->reader->config->mem;
    sherdi_config_site inside = *site;
    sherdi_json       *document;
    sherdi_json_node   number;
    sherd_status       status = sherdi_json_parse(mem, site->path, site->node->string,
                                                  strlen(site->node->string), &document);

    if (status == SHERD_E_INVAL) {
        return site_fail(site, reason);
    }
    SHERDI_TRY(status);
    number        = *sherdi_json_root(document);
    number.line   = site->node->line;
    number.column = site->node->column;
    inside.node   = &number;
    status =
        number.kind == SHERDI_JSON_NUMBER ? number_read(&inside, out) : site_fail(site, reason);
    sherdi_json_destroy(document);
    SHERDI_TRY(status);
    return site_warn(site, "a number in quotes is read as the number");
}

/* Reads a number: a whole one for INT and SIZE. */
static sherd_status number_read(const sherdi_config_site *site, sherdi_config_value *out)
{
    const sherdi_config_key *key      = site->key;
    const sherdi_json_node  *node     = site->node;
    int                      is_whole = key->type < SHERDI_TYPE_REAL;
    const char *reason = is_whole ? "it must be a whole number" : "it must be a number";

    if (node->kind == SHERDI_JSON_BOOL && is_whole) {
        out->integer = node->is_true;
        SHERDI_TRY(range_check(site, (double)out->integer));
        return site_warn(site, "a boolean is read as 0 or 1");
    }
    if (node->kind == SHERDI_JSON_STRING && key->zero_word != NULL &&
        strcmp(node->string, key->zero_word) == 0) {
        out->real = 0;
        return site_warn(site, "the word is read as 0");
    }
    if (node->kind == SHERDI_JSON_STRING) {
        return quoted_read(site, reason, out);
    }
    if (node->kind != SHERDI_JSON_NUMBER) {
        return site_fail(site, reason);
    }
    out->real = node->number;
    SHERDI_TRY(range_check(site, node->number));
    return is_whole && sherdi_json_integer(node, &out->integer) == SHERDI_JSON_TRUNCATED &&
                   !key->is_truncated
               ? site_fail(site, reason)
               : SHERD_OK;
}

/* Reads a list of at most SHERDI_MOST_RATES numbers. */
static sherd_status list_read(const sherdi_config_site *site, double list[SHERDI_MOST_RATES],
                              size_t *count_out)
{
    sherdi_config_site  inside = *site;
    sherdi_config_value value  = {0};
    char                reason[64];
    size_t              count = 0;

    for (inside.node = sherdi_json_first(site->node); inside.node != NULL;
         inside.node = sherdi_json_next(inside.node)) {
        if (count == SHERDI_MOST_RATES) {
            (void)snprintf(reason, sizeof(reason), "a list has at most %d numbers",
                           SHERDI_MOST_RATES);
            return site_fail(&inside, reason);
        }
        SHERDI_TRY(number_read(&inside, &value));
        list[count++] = value.real;
    }
    *count_out = count;
    return SHERD_OK;
}

static sherd_status pair_read(const sherdi_config_site *site, sherdi_config_value *out)
{
    double list[SHERDI_MOST_RATES];
    size_t count = 0;

    if (site->node->kind == SHERDI_JSON_ARRAY) {
        SHERDI_TRY(list_read(site, list, &count));
    }
    if (count != 2) {
        return site_fail(site, "it must be a list of two numbers");
    }
    out->real   = list[0];
    out->second = list[1];
    return SHERD_OK;
}

/* Reads a number, or a list of numbers. */
static sherd_status reals_read(const sherdi_config_site *site, sherdi_config_value *out)
{
    double list[SHERDI_MOST_RATES];

    if (site->node->kind != SHERDI_JSON_ARRAY) {
        return number_read(site, out);
    }
    SHERDI_TRY(list_read(site, list, &out->count));
    if (out->count == 0) {
        return site_fail(site, "it must be a number, or a list with one for each parameter group");
    }
    out->list = sherdi_alloc_array(&site->reader->config->mem, SHERDI_MEM_CONTROL, out->count,
                                   sizeof(*out->list));
    if (out->list == NULL) {
        return SHERD_E_NOMEM;
    }
    memcpy(out->list, list, out->count * sizeof(*out->list));
    return SHERD_OK;
}

static sherd_status text_read(const sherdi_config_site *site, sherdi_config_value *out)
{
    const char *choices = site->key->range.choices;
    const char *text    = site->node->string;
    char        reason[192];
    size_t      choice;

    if (site->node->kind != SHERDI_JSON_STRING) {
        return site_fail(site, "it must be text");
    }
    if (choices == NULL) {
        out->text = sherdi_strdup(&site->reader->config->mem, text);
        return out->text == NULL ? SHERD_E_NOMEM : SHERD_OK;
    }
    if (sherdi_text_choice(choices, text, site->key->has_any_case, &choice)) {
        out->integer = (int64_t)choice;
        return SHERD_OK;
    }
    (void)snprintf(reason, sizeof(reason), "known: %s%s", choices, SHERDI_MORE_NAMES);
    if (site->key->is_soft) {
        out->integer = site->key->standard.integer;
        return site_warn(site, "not known, the default is taken");
    }
    return site_fail(site, reason);
}

/* ---- folders ---- */

/* Returns the length of a folder's name without slashes at its end. */
static size_t folder_name_bytes(const char *folder)
{
    size_t bytes = strlen(folder);

    while (bytes > 1 && folder[bytes - 1] == '/') {
        bytes--;
    }
    return bytes;
}

static int folder_is_same(const char *a, const char *b)
{
    size_t bytes = folder_name_bytes(a);

    return bytes == folder_name_bytes(b) && memcmp(a, b, bytes) == 0;
}

/* Checks one name of the list that starts at `first`; `site` is that of the name. */
static sherd_status folder_check(const sherdi_config_site *site, const sherdi_json_node *first)
{
    const sherdi_json_node *other;
    char                    reason[64];

    if (site->node->kind != SHERDI_JSON_STRING) {
        return site_fail(site, "it must be the name of a folder, or a list of such names");
    }
    if (site->node->string[0] == '\0') {
        return site_fail(site, "the name of a folder is not empty");
    }
    if (strlen(site->node->string) >= SHERDI_FOLDER_BYTES) {
        (void)snprintf(reason, sizeof(reason), "the name of a folder has at most %d bytes",
                       SHERDI_FOLDER_BYTES - 1);
        return site_fail(site, reason);
    }
    for (other = first; other != site->node; other = sherdi_json_next(other)) {
        if (folder_is_same(other->string, site->node->string)) {
            return site_fail(site, "it is in the list already");
        }
    }
    return SHERD_OK;
}

/* Packs the names. The caller frees the text, also after a failure. */
static sherd_status folders_read(const sherdi_config_site *site, sherdi_config_value *out)
{
    int                     is_list = site->node->kind == SHERDI_JSON_ARRAY;
    const sherdi_json_node *first   = is_list ? sherdi_json_first(site->node) : site->node;
    sherdi_config_site      inside  = *site;
    char                    reason[64];
    char                   *at;
    int                     count = 0;

    if (first == NULL) {
        return site_fail(site, "give a folder at least");
    }
    out->text = sherdi_alloc(&site->reader->config->mem, SHERDI_MEM_CONTROL,
                             SHERDI_MAX_FOLDERS * SHERDI_FOLDER_BYTES + 1);
    if (out->text == NULL) {
        return SHERD_E_NOMEM;
    }
    at = out->text;
    for (inside.node = first; inside.node != NULL;
         inside.node = is_list ? sherdi_json_next(inside.node) : NULL) {
        if (++count > SHERDI_MAX_FOLDERS) {
            (void)snprintf(reason, sizeof(reason), "there are at most %d folders",
                           SHERDI_MAX_FOLDERS);
            return site_fail(&inside, reason);
        }
        SHERDI_TRY(folder_check(&inside, first));
        at = stpcpy(at, inside.node->string) + 1;
    }
    *at = '\0';
    return SHERD_OK;
}

/* Compares two packed lists of folders. */
static int folders_are_equal(const char *a, const char *b)
{
    while (*a != '\0' && strcmp(a, b) == 0) {
        a += strlen(a) + 1;
        b += strlen(b) + 1;
    }
    return *a == '\0' && *b == '\0';
}

sherd_status sherdi_config_value_read(const sherdi_config_site *site, sherdi_config_value *out,
                                      int *is_auto_out)
{
    const sherdi_json_node *node = site->node;

    *is_auto_out = node->kind == SHERDI_JSON_STRING && strcmp(node->string, "auto") == 0;
    if (*is_auto_out || site->key->type == SHERDI_TYPE_ANY) {
        return SHERD_OK;
    }
    if (node->kind == SHERDI_JSON_NULL) {
        return site_fail(site, "remove it or give it a value");
    }
    switch (site->key->type) {
    case SHERDI_TYPE_BOOL:
        return bool_read(site, out);
    case SHERDI_TYPE_INT:
    case SHERDI_TYPE_SIZE:
    case SHERDI_TYPE_REAL:
        return number_read(site, out);
    case SHERDI_TYPE_PAIR:
        return pair_read(site, out);
    case SHERDI_TYPE_REALS:
        return reals_read(site, out);
    case SHERDI_TYPE_TEXT:
        return text_read(site, out);
    case SHERDI_TYPE_FOLDERS:
        return folders_read(site, out);
    case SHERDI_TYPE_GROUPS:
        return sherdi_config_groups_read(site, out);
    default:
        return SHERD_OK;
    }
}

void sherdi_config_value_free(sherdi_config_value *value)
{
    sherdi_free(value->text);
    sherdi_free(value->list);
    sherdi_free(value->groups);
    *value = (sherdi_config_value){0};
}

int sherdi_config_same(const sherdi_config_key *key, const sherdi_config_value *a,
                       const sherdi_config_value *b)
{
    switch (key->type) {
    case SHERDI_TYPE_REAL:
    case SHERDI_TYPE_PAIR:
    case SHERDI_TYPE_REALS:
        return a->real == b->real && a->second == b->second && a->count == b->count &&
               (a->count == 0 || memcmp(a->list, b->list, a->count * sizeof(*a->list)) == 0);
    case SHERDI_TYPE_FOLDERS:
        return a->text != NULL && b->text != NULL && folders_are_equal(a->text, b->text);
    case SHERDI_TYPE_GROUPS:
        return sherdi_config_groups_same(a, b);
    case SHERDI_TYPE_ANY:
        return 0;
    default:
        return key->type != SHERDI_TYPE_TEXT || key->range.choices != NULL
                   ? a->integer == b->integer
                   : a->text != NULL && b->text != NULL && strcmp(a->text, b->text) == 0;
    }
}
