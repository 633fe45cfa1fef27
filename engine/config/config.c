/* Creates and destroys configurations, reads their files, and takes the program's values and the
 * warnings. config_read.c reads documents; config_resolve.c makes settings of them. */
#include "engine/config/config_impl.h"

#include "base/api.h"
#include "base/log.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A larger file is not a configuration. */
#define FILE_MAX_BYTES     ((size_t)16 << 20)
#define FILE_PORTION_BYTES ((size_t)4096)

/* ---- messages ---- */

const char *sherdi_config_name(const sherd_config *config, sherdi_config_id id)
{
    const sherdi_config_entry *entry = &config->entries[id];

    return entry->alias == NULL ? sherdi_config_table[id].path : entry->alias->path;
}

const char *sherdi_config_location(const sherd_config *config, sherdi_config_id id,
                                   char location[SHERDI_LOCATION_BYTES])
{
    const sherdi_config_entry *entry = &config->entries[id];

    if (entry->origin == SHERDI_ORIGIN_FILE) {
        (void)snprintf(location, SHERDI_LOCATION_BYTES, "%s:%u:%u", config->name, entry->line,
                       entry->column);
    } else {
        (void)snprintf(location, SHERDI_LOCATION_BYTES, "%s",
                       entry->origin == SHERDI_ORIGIN_PROGRAM ? "the program" : "default");
    }
    return location;
}

/* Makes a message one line: keys of a file may have control characters. */
static void line_clean(char *line)
{
    for (; *line != '\0'; line++) {
        if ((unsigned char)*line < ' ') {
            *line = ' ';
        }
    }
}

sherd_status sherdi_site_say(const sherdi_config_site *site, int how, const char *fmt, ...)
{
    sherd_config *config = site->reader->config;
    char          line[SHERDI_ERROR_BYTES];
    int           start;
    va_list       args;

    if (site->reader->origin == SHERDI_ORIGIN_FILE) {
        start = snprintf(line, SHERDI_LOCATION_BYTES, "%s:%u:%u: ", config->name, site->node->line,
                         site->node->column);
    } else {
        start = snprintf(line, SHERDI_LOCATION_BYTES, "set by the program: ");
    }
    start = start < SHERDI_LOCATION_BYTES ? start : SHERDI_LOCATION_BYTES - 1;
    start += snprintf(line + start, SHERDI_LOCATION_BYTES, "%.*s ", SHERDI_LOCATION_BYTES - 2,
                      site->path);
    va_start(args, fmt);
    (void)vsnprintf(line + start, SHERDI_ERROR_BYTES - (size_t)start, fmt, args);
    va_end(args);
    line_clean(line);
    if (how == SHERDI_SAY_WARNING) {
        return sherdi_config_warn(config, line);
    }
    if (how == SHERDI_SAY_INFO) {
        sherdi_log(SHERD_LOG_INFO, -1, "%s", line);
        return SHERD_OK;
    }
    return sherdi_fail((sherd_status)how, "%s", line);
}

sherd_status sherdi_config_warn(sherd_config *config, const char *text)
{
    void *warnings = config->warnings;
    char *copy;

    SHERDI_TRY(sherdi_grow(&config->mem, SHERDI_MEM_CONTROL, &warnings, &config->warning_capacity,
                           config->warning_count + 1, sizeof(*config->warnings)));
    config->warnings = warnings;
    copy             = sherdi_strdup(&config->mem, text);
    if (copy == NULL) {
        return SHERD_E_NOMEM;
    }
    config->warnings[config->warning_count++] = copy;
    sherdi_log(SHERD_LOG_WARN, -1, "%s", text);
    return SHERD_OK;
}

/* In strict mode, the warnings from `first` on are errors. Fails with the first of them. */
static sherd_status strict_check(const sherd_config *config, size_t first)
{
    if (sherdi_config_integer(config, SHERDI_CONFIG_STRICT) && config->warning_count > first) {
        return sherdi_fail(SHERD_E_INVAL, "strict: %s", config->warnings[first]);
    }
    return SHERD_OK;
}

size_t sherd_config_warning_count(const sherd_config *config)
{
    return config == NULL || !sherdi_config_is_json(config) ? 0 : config->warning_count;
}

const char *sherd_config_warning(const sherd_config *config, size_t index)
{
    return index < sherd_config_warning_count(config) ? config->warnings[index] : "";
}

sherd_status sherdi_config_json_need(const sherd_config *config, const char *call)
{
    return sherdi_config_is_json(config)
               ? SHERD_OK
               : sherdi_fail(SHERD_E_STATE,
                             "%s: the configuration was made of sherd_settings and has no keys; "
                             "change the settings, and make it anew",
                             call);
}

/* ---- life ---- */

static sherd_status config_read_text(sherd_config *config, const char *text, size_t len_bytes)
{
    sherdi_config_reader reader = {.config = config, .origin = SHERDI_ORIGIN_FILE};
    sherdi_json         *document;
    sherd_status         status;

    SHERDI_TRY(sherdi_json_parse(&config->mem, config->name, text, len_bytes, &document));
    status = sherdi_config_read(&reader, sherdi_json_root(document));
    sherdi_json_destroy(document);
    SHERDI_TRY(status);
    SHERDI_TRY(sherdi_config_check(config, 0));
    SHERDI_TRY(sherdi_config_remark(config));
    return strict_check(config, 0);
}

static void json_destroy(sherd_config *config)
{
    for (int id = 0; id < SHERDI_CONFIG_IDS; id++) {
        sherdi_free(config->entries[id].written);
        sherdi_config_value_free(&config->entries[id].value);
    }
    for (size_t i = 0; i < config->warning_count; i++) {
        sherdi_free(config->warnings[i]);
    }
    sherdi_free(config->warnings);
    sherdi_free(config->name);
    assert(sherdi_mem_held_all(&config->mem) == 0);
    free(config);
}

const sherdi_config_kind sherdi_config_json = {sherdi_config_json_resolve, json_destroy};

static sherd_status config_create(const char *name, const char *text, size_t len_bytes,
                                  sherd_config **out)
{
    sherd_config *config = calloc(1, sizeof(*config)); /* not counted: it contains the account */
    sherd_status  status = SHERD_E_NOMEM;

    if (config == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for a configuration");
    }
    config->kind = &sherdi_config_json;
    sherdi_mem_init(&config->mem);
    config->name = sherdi_strdup(&config->mem, name);
    if (config->name != NULL) {
        status = config_read_text(config, text, len_bytes);
    }
    if (status != SHERD_OK) {
        sherd_config_destroy(config);
        return status;
    }
    *out = config;
    return SHERD_OK;
}

sherd_status sherd_config_parse(const char *json, size_t len_bytes, sherd_config **out)
{
    SHERDI_TRY(sherdi_api_need(json != NULL || len_bytes == 0, "sherd_config_parse", "json"));
    SHERDI_TRY(sherdi_api_check_out(out, "sherd_config_parse"));
    return config_create("configuration", json == NULL ? "" : json, len_bytes, out);
}

/* ---- files ---- */

static sherd_status file_read(sherdi_mem *mem, FILE *file, const char *path, void **text,
                              size_t *bytes_out)
{
    size_t capacity = 0;
    size_t bytes    = 0;

    do {
        if (capacity >= FILE_MAX_BYTES) {
            return sherdi_fail(SHERD_E_INVAL, "%s is no configuration: more than %zu bytes", path,
                               FILE_MAX_BYTES);
        }
        SHERDI_TRY(sherdi_grow(mem, SHERDI_MEM_CONTROL, text, &capacity,
                               capacity + FILE_PORTION_BYTES, 1));
        bytes += fread((char *)*text + bytes, 1, capacity - bytes, file);
    } while (bytes == capacity);
    if (ferror(file)) {
        return sherdi_fail(SHERD_E_IO, "cannot read %s: %s", path, strerror(errno));
    }
    *bytes_out = bytes;
    return SHERD_OK;
}

sherd_status sherd_config_load(const char *path, sherd_config **out)
{
    void        *text  = NULL;
    size_t       bytes = 0;
    sherdi_mem   mem;
    FILE        *file;
    sherd_status status;

    SHERDI_TRY(sherdi_api_need(path != NULL, "sherd_config_load", "path"));
    SHERDI_TRY(sherdi_api_check_out(out, "sherd_config_load"));
    file = fopen(path, "rbe");
    if (file == NULL) {
        return sherdi_fail(SHERD_E_IO, "cannot open %s: %s", path, strerror(errno));
    }
    sherdi_mem_init(&mem);
    status = file_read(&mem, file, path, &text, &bytes);
    (void)fclose(file);
    if (status == SHERD_OK) {
        status = config_create(path, text, bytes, out);
    }
    sherdi_free(text);
    return status;
}

/* ---- the program's values ---- */

/* Parses a value of the program. Missing quotes around text are the most frequent mistake, above
 * all in a shell, so they have a message of their own. */
static sherd_status value_parse(sherd_config *config, const char *key, const char *value,
                                sherdi_json **out)
{
    sherd_status status = sherdi_json_parse(&config->mem, key, value, strlen(value), out);

    if (status == SHERD_E_INVAL && isalpha((unsigned char)value[0])) {
        return sherdi_fail(SHERD_E_INVAL, "%s: %.60s is not JSON; text stands in quotes: \"%.60s\"",
                           key, value, value);
    }
    return status;
}

sherd_status sherd_config_set(sherd_config *config, const char *dotted_key, const char *json_value)
{
    sherdi_config_reader reader = {.config = config, .origin = SHERDI_ORIGIN_PROGRAM};
    size_t               warned = sherd_config_warning_count(config);
    int                  was_strict;
    sherdi_json         *document;
    sherd_status         status;

    SHERDI_TRY(sherdi_api_need(config != NULL, "sherd_config_set", "config"));
    SHERDI_TRY(sherdi_config_json_need(config, "sherd_config_set"));
    SHERDI_TRY(sherdi_api_need(dotted_key != NULL, "sherd_config_set", "dotted_key"));
    SHERDI_TRY(sherdi_api_need(json_value != NULL, "sherd_config_set", "json_value"));
    if (dotted_key[0] == '!') {
        reader.is_override = 1;
        dotted_key++;
    }
    was_strict        = (int)sherdi_config_integer(config, SHERDI_CONFIG_STRICT);
    reader.is_lenient = (int)sherdi_config_integer(config, SHERDI_CONFIG_LENIENT);
    SHERDI_TRY(value_parse(config, dotted_key, json_value, &document));
    status = sherdi_config_read_key(&reader, dotted_key, sherdi_json_root(document));
    sherdi_json_destroy(document);
    SHERDI_TRY(status);
    /* When strict mode is switched on, all earlier warnings become errors too. */
    return strict_check(config, was_strict ? warned : 0);
}

int sherd_config_has(const sherd_config *config, const char *dotted_key)
{
    sherdi_config_effect effect;
    sherdi_config_id     id;

    if (config == NULL || dotted_key == NULL || !sherdi_config_is_json(config)) {
        return 0;
    }
    id = sherdi_config_meant(dotted_key);
    if (id == SHERDI_CONFIG_IDS) {
        return 0;
    }
    sherdi_config_effective(config, 0, id, &effect);
    return !config->entries[id].is_auto && !effect.is_null && !effect.is_missing;
}
