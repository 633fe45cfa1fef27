/* sherd config: reads a DeepSpeed-style file as the engine does, and prints its meaning. */
#include "cli/cli.h"

#include <getopt.h>
#include <limits.h>
#include <stdio.h>

static const char HELP[] =
    "usage: sherd config FILE [OPTIONS]\n"
    "       sherd config --reference\n\n"
    "Reads a configuration. Prints its warnings to standard error, and each resolved key with\n"
    "its origin to standard output. An error names file, line and column.\n\n"
    "  --world N        also resolve the configuration for N ranks, as an engine would\n"
    "                   (default: only read the file)\n"
    "  --set KEY=JSON   set a key as a program would; may be given up to 64 times\n"
    "  --reference      print the page of all keys instead\n";

typedef struct config_arguments {
    int         world_size; /* 0: the file is read only, without an engine */
    const char *settings[64];
    int         num_settings;
    int         is_reference;
} config_arguments;

static int set_one(sherd_config *config, const char *setting)
{
    char key[128];
    int  len = 0;

    while (setting[len] != '\0' && setting[len] != '=') {
        len++;
    }
    if (setting[len] != '=' || len == 0 || len >= (int)sizeof(key)) {
        (void)fprintf(stderr, "sherd: --set wants KEY=JSON, not '%s'\n", setting);
        return 2;
    }
    (void)snprintf(key, sizeof(key), "%.*s", len, setting);
    return sherd_config_set(config, key, setting + len + 1) == SHERD_OK ? 0 : cli_fail();
}

/* An engine in a simulated world resolves all values and allocates little memory. */
static int resolve(const sherd_config *config, int world_size)
{
    sherd_world  *world;
    sherd_engine *engine;
    sherd_status  status;

    if (sherd_world_simulate(0, world_size, &world) != SHERD_OK) {
        return cli_fail();
    }
    status = sherd_engine_create(world, config, &engine);
    sherd_world_destroy(world);
    if (status != SHERD_OK) {
        return cli_fail();
    }
    sherd_engine_destroy(engine);
    return 0;
}

static int config_show(const char *path, const config_arguments *arguments)
{
    sherd_config *config;
    int           failed = 0;

    if (sherd_config_load(path, &config) != SHERD_OK) {
        return cli_fail();
    }
    for (int i = 0; i < arguments->num_settings && failed == 0; i++) {
        failed = set_one(config, arguments->settings[i]);
    }
    for (size_t i = 0; i < sherd_config_warning_count(config); i++) {
        (void)fprintf(stderr, "warning: %s\n", sherd_config_warning(config, i));
    }
    if (failed == 0 && arguments->world_size > 0) {
        failed = resolve(config, arguments->world_size);
    }
    if (failed == 0 && sherd_config_dump(config, cli_print, stdout) != SHERD_OK) {
        failed = cli_fail();
    }
    sherd_config_destroy(config);
    return failed;
}

static int setting_take(const cli_option *option, const char *text, void *field)
{
    config_arguments *arguments = field;

    (void)option;
    if (arguments->num_settings == 64) {
        (void)fprintf(stderr, "sherd: --set at most 64 times\n");
        return 2;
    }
    arguments->settings[arguments->num_settings++] = text;
    return 1;
}

int cli_config(int argc, char **argv)
{
    static const cli_option  LIST[]    = {CLI_NUMBER("world", 'w', config_arguments, world_size, 1,
                                                     INT_MAX, "wants a number of ranks"),
                                          {"set", 's', 0, setting_take, NULL, 0, 0},
                                          CLI_FLAG("reference", 'r', config_arguments, is_reference),
                                          {0}};
    static const cli_options OPTIONS   = {"config", HELP, LIST, 0};
    config_arguments         arguments = {0};
    int                      status    = cli_options_read(&OPTIONS, argc, argv, &arguments);

    if (status >= 0) {
        return status;
    }
    if (arguments.is_reference) {
        return sherd_config_reference(cli_print, stdout) == SHERD_OK ? 0 : cli_fail();
    }
    if (optind + 1 != argc) {
        (void)fputs(HELP, stderr);
        return 2;
    }
    return config_show(argv[optind], &arguments);
}
