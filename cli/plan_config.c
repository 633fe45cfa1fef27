/* The configuration of a chosen layout: all values of the file and the settings, under the names of
 * docs/configuration.md, with the stage and offload of the layout. The values come from the dump of
 * a sherd_config, which reads the file and knows its old names. */
#include "cli/plan.h"

#include "cli/cli.h"

#include <jansson.h>

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATE  "zero_optimization.offload_optimizer"
#define PARAMS "zero_optimization.offload_param"

/* The keys of offload_optimizer that only matter with files. */
static const char *const FILE_KEYS[] = {"nvme_path", "gradients", "verify_reads", "resume",
                                        "keep",      "durable",   "fast_init"};

/* ----------------------------------------------------------------- layout -- */

/* Returns the device of a part of a layout. planning/row.c makes rows with the same ones. */
static const char *device_of(planning_offload offload, int is_state)
{
    return is_state ? planning_offload_state_device(offload)
                    : planning_offload_param_device(offload);
}

static sherd_status key_set(sherd_config *config, const char *block, const char *leaf,
                            const char *value)
{
    char key[160];

    (void)snprintf(key, sizeof(key), "!%s.%s", block, leaf);
    return sherd_config_set(config, key, value);
}

/* Sets the folder on the drives: that of --nvme-path, else one that has to be changed. */
static sherd_status folder_set(const plan_options *options, sherd_config *config, const char *block)
{
    char text[PATH_MAX + 3];

    (void)snprintf(text, sizeof(text), "\"%.*s\"", PATH_MAX,
                   options->nvme_path == NULL ? PLAN_NVME_PATH : options->nvme_path);
    return key_set(config, block, "nvme_path", text);
}

static sherd_status block_set(const plan_options *options, sherd_config *config, const char *block,
                              const char *device)
{
    char         text[160];
    sherd_status status;

    if (strcmp(block, STATE) == 0 && strcmp(device, "nvme") != 0) {
        status = key_set(config, block, "gradients",
                         "\"cpu\""); /* "nvme" is only allowed together with that device */
        if (status != SHERD_OK) {
            return status;
        }
    }
    (void)snprintf(text, sizeof(text), "\"%s\"", device);
    status = key_set(config, block, "device", text);
    if (status != SHERD_OK || strcmp(device, "none") == 0) {
        return status;
    }
    if (strcmp(options->request.backend, "cuda") == 0) {
        status = key_set(config, block, "pin_memory", "true");
    }
    (void)snprintf(text, sizeof(text), "%s.nvme_path", block);
    if (status == SHERD_OK && strcmp(device, "nvme") == 0 && !sherd_config_has(config, text)) {
        status = folder_set(options, config, block);
        if (options->nvme_path == NULL) {
            (void)fprintf(stderr, "%s is " PLAN_NVME_PATH ": change it to a folder of your drive\n",
                          text);
        }
    }
    return status;
}

static sherd_status settings_set(const plan_options *options, sherd_config *config)
{
    for (size_t i = 0; i < options->request.num_settings; i++) {
        const char  *equals = strchr(options->settings[i], '=');
        char         key[128];
        sherd_status status;

        (void)snprintf(key, sizeof(key), "!%.*s", (int)(equals - options->settings[i]),
                       options->settings[i]);
        status = sherd_config_set(config, key, equals + 1);
        if (status != SHERD_OK) {
            return status;
        }
    }
    return SHERD_OK;
}

static sherd_status layout_set(const plan_options *options, const planning_layout *layout,
                               sherd_config *config)
{
    char         stage[16];
    sherd_status status;

    (void)snprintf(stage, sizeof(stage), "%d", layout->stage);
    status = sherd_config_set(config, "!zero_optimization.stage", stage);
    if (status == SHERD_OK) {
        status = block_set(options, config, STATE, device_of(layout->offload, 1));
    }
    if (status == SHERD_OK) {
        status = block_set(options, config, PARAMS, device_of(layout->offload, 0));
    }
    if (status == SHERD_OK && layout->offload == PLANNING_OFFLOAD_PARAMS_NVME) {
        status = key_set(config, PARAMS, "max_in_cpu", "0");
    }
    if (status == SHERD_OK && layout->is_beside) {
        status = sherd_config_set(config, PLANNING_MASTER_KEY, PLANNING_MASTER_BESIDE);
    }
    if (status == SHERD_OK && layout->place == LAYER_NVME &&
        !sherd_config_has(config, "sherd.activations.nvme_path")) {
        status = folder_set(options, config, "sherd.activations");
    }
    return status == SHERD_OK ? planning_tuning_set(layout, config) : status;
}

/* ------------------------------------------------------------------- dump -- */

typedef struct text_buffer {
    char  *text;
    size_t len, room;
} text_buffer;

static sherd_status buffer_write(void *ctx, const char *text, size_t len_bytes)
{
    text_buffer *buffer = ctx;

    if (buffer->len + len_bytes + 1 > buffer->room) {
        size_t room = 2 * (buffer->len + len_bytes) + 4096;
        char  *more = realloc(buffer->text, room);

        if (more == NULL) {
            return SHERD_E_NOMEM;
        }
        buffer->text = more;
        buffer->room = room;
    }
    memcpy(buffer->text + buffer->len, text, len_bytes);
    buffer->len += len_bytes;
    buffer->text[buffer->len] = '\0';
    return SHERD_OK;
}

/* Whether a value comes from the file ("name:line:column") or a setting, and not from a default. */
static int is_given(const char *origin)
{
    size_t len   = strlen(origin);
    int    parts = 0;

    if (strcmp(origin, "the program") == 0) {
        return 1;
    }
    while (len > 0 && (isdigit((unsigned char)origin[len - 1]) || origin[len - 1] == ':')) {
        parts += origin[--len] == ':';
    }
    return parts == 2;
}

static int is_auto(const char *origin)
{
    return strncmp(origin, "auto:", 5) == 0 || strstr(origin, " is \"auto\" and ") != NULL;
}

/* Whether a key of an offload block is omitted: every key if the block has no device, and the keys
 * for files if the device is not a drive. */
static int is_dropped(const char *path, const planning_layout *layout)
{
    static const char *const BLOCKS[] = {STATE, PARAMS};

    for (int b = 0; b < 2; b++) {
        const char *device = device_of(layout->offload, b == 0);
        size_t      len    = strlen(BLOCKS[b]);

        if (strncmp(path, BLOCKS[b], len) != 0 || path[len] != '.') {
            continue;
        }
        if (strcmp(device, "none") == 0) {
            return 1;
        }
        for (size_t k = 0; k < sizeof(FILE_KEYS) / sizeof(FILE_KEYS[0]); k++) {
            if (strcmp(device, "cpu") == 0 && strcmp(path + len + 1, FILE_KEYS[k]) == 0) {
                return 1;
            }
        }
    }
    return 0;
}

/* ---------------------------------------------------------------- raw file -- */

/* Overwrites comments, and commas before a closing bracket, with spaces. The rest is JSON. */
static void text_strip(char *text)
{
    char *comma = NULL; /* the last comma, if only space follows it so far */

    for (char *at = text; *at != '\0'; at++) {
        char *end = at;

        if (*at == '"') {
            for (at++; *at != '\0' && *at != '"'; at++) {
                at += *at == '\\' && at[1] != '\0';
            }
            if (*at == '\0') {
                return;
            }
        } else if (*at == '#' || (*at == '/' && at[1] == '/')) {
            end = at + strcspn(at, "\n");
        } else if (*at == '/' && at[1] == '*') {
            end = strstr(at + 2, "*/");
            end = end == NULL ? at + strlen(at) : end + 2;
        } else if ((*at == ']' || *at == '}') && comma != NULL) {
            *comma = ' ';
        }
        if (end > at) {
            memset(at, ' ', (size_t)(end - at));
            at = end - 1;
        } else if (!isspace((unsigned char)*at)) {
            comma = *at == ',' ? at : NULL;
        }
    }
}

/* Returns the file without its comments. NULL: there is no file, or only the full reader of sherd
 * can read it. */
static json_t *raw_read(const char *path)
{
    text_buffer  buffer = {0};
    char         portion[4096];
    size_t       len;
    json_error_t error;
    json_t      *raw    = NULL;
    FILE        *file   = path == NULL ? NULL : fopen(path, "r");
    sherd_status status = SHERD_OK;

    if (file == NULL) {
        return NULL;
    }
    while (status == SHERD_OK && (len = fread(portion, 1, sizeof(portion), file)) > 0) {
        status = buffer_write(&buffer, portion, len);
    }
    if (status == SHERD_OK && ferror(file) == 0 && buffer.text != NULL) {
        size_t mark = strncmp(buffer.text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;

        text_strip(buffer.text + mark);
        raw = json_loads(buffer.text + mark, 0, &error);
    }
    (void)fclose(file);
    free(buffer.text);
    return raw;
}

/* Keeps blocks and keys that sherd does not use, since another program may need them. -1: memory is
 * out. */
static int raw_keep(const char *path, json_t *tree)
{
    json_t     *raw    = raw_read(path);
    int         failed = 0;
    const char *key;
    json_t     *value;

    json_object_foreach(raw, key, value)
    {
        if (strcmp(key, "bfloat16") != 0 && json_object_get(tree, key) == NULL) {
            failed |= json_object_set(tree, key, value) != 0;
        }
    }
    if (raw == NULL && path != NULL) {
        (void)fprintf(stderr, "keys of %s that sherd does not look at are left out\n", path);
    }
    json_decref(raw);
    return failed ? -1 : 0;
}

/* ------------------------------------------------------------------ values -- */

/* Sets "a.b.c" in nested objects. -1: memory is out. */
static int path_set(json_t *root, const char *path, json_t *value)
{
    const char *dot;

    while ((dot = strchr(path, '.')) != NULL) {
        char    name[96];
        json_t *inside;

        (void)snprintf(name, sizeof(name), "%.*s", (int)(dot - path), path);
        inside = json_object_get(root, name);
        if (inside == NULL) {
            inside = json_object();
            if (json_object_set_new(root, name, inside) != 0) {
                return -1;
            }
        }
        root = inside;
        path = dot + 1;
    }
    return json_object_set(root, path, value);
}

/* Makes nested objects of the values in the dump that somebody gave. NULL: memory is out. */
static json_t *tree_make(json_t *dump, const planning_layout *layout)
{
    json_t     *root   = json_object();
    json_t     *auto_s = json_string("auto");
    const char *path;
    json_t     *entry;
    int         failed = root == NULL || auto_s == NULL;

    json_object_foreach(dump, path, entry)
    {
        const char *origin = json_string_value(json_object_get(entry, "origin"));
        json_t     *value  = json_object_get(entry, "value");

        if (failed || is_dropped(path, layout)) {
            continue;
        }
        if (is_auto(origin)) {
            failed |= path_set(root, path, auto_s) != 0;
        } else if (is_given(origin) && json_is_null(value)) {
            if (strchr(path, '.') != NULL) { /* raw_keep has the top-level keys */
                (void)fprintf(stderr, "%s is left out: sherd does not look at it\n", path);
            }
        } else if (is_given(origin)) {
            failed |= path_set(root, path, value) != 0;
        }
    }
    json_decref(auto_s);
    if (failed) {
        json_decref(root);
        root = NULL;
    }
    return root;
}

static char *text_make(const plan_options *options, sherd_config *config,
                       const planning_layout *layout)
{
    text_buffer  buffer = {0};
    json_error_t error;
    json_t      *dump;
    json_t      *tree;
    char        *text = NULL;

    if (sherd_config_dump(config, buffer_write, &buffer) == SHERD_OK) {
        dump = json_loads(buffer.text, 0, &error);
        tree = dump == NULL ? NULL : tree_make(dump, layout);
        if (tree != NULL && raw_keep(options->request.config_path, tree) == 0) {
            text = json_dumps(tree, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
        }
        json_decref(tree);
        json_decref(dump);
    }
    free(buffer.text);
    if (text == NULL) {
        (void)fprintf(stderr, "sherd: no memory for the configuration\n");
    }
    return text;
}

/* ---------------------------------------------------------------- writing -- */

static int text_put(const char *path, const char *text, int is_forced)
{
    if (path == NULL || strcmp(path, "-") == 0) {
        return printf("%s\n", text) < 0; /* the command reports this failure at its end */
    }
    if (cli_file_save(path, text, is_forced) != 0) {
        return 1;
    }
    (void)fprintf(stderr, "written to %s\n", path);
    return 0;
}

int plan_config_write(const plan_options *options, const planning_layout *layout)
{
    const planning_request *request = &options->request;
    sherd_config           *config;
    sherd_config           *again;
    char                   *text   = NULL;
    int                     failed = 1;
    sherd_status            status =
        request->config_path == NULL
                       ? sherd_config_parse(PLANNING_DEFAULT_CONFIG, strlen(PLANNING_DEFAULT_CONFIG), &config)
                       : sherd_config_load(request->config_path, &config);

    if (status != SHERD_OK) {
        return cli_fail();
    }
    status = layout_set(options, layout, config);
    if (status == SHERD_OK) {
        status = settings_set(options, config);
    }
    if (status != SHERD_OK) {
        failed = cli_fail();
    } else {
        text = text_make(options, config, layout);
    }
    sherd_config_destroy(config);
    if (text != NULL) {
        /* checks that the written file can be read */
        status = sherd_config_parse(text, strlen(text), &again);
        if (status == SHERD_OK) {
            sherd_config_destroy(again);
            failed = text_put(options->out_path, text, options->is_forced);
        } else {
            failed = cli_fail();
        }
    }
    free(text);
    return failed;
}
