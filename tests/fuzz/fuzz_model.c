/* A libFuzzer target for the files that describe models: any bytes must give a model that an engine
 * accepts, or an error that names the file. The readers take a path, so each input is first written
 * to a file in memory. The target is built by -Dfuzz=true with clang; run it with a folder of
 * config.json files and headers of safetensors as its corpus. */
#include "planning/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

#define FOLDER "/proc/self/fd/"
/* Larger models are not declared: the engine compares all names with one another, so they would
 * only take longer. */
#define MOST_DECLARED 2000

static void declare(const planning_model *model)
{
    static const char CONFIG[] = "{\"train_micro_batch_size_per_gpu\": 1,"
                                 " \"optimizer\": {\"type\": \"AdamW\"}}";
    sherd_config     *config;
    sherd_world      *world;
    sherd_engine     *engine;
    sherd_engine_info info;

    if (sherd_config_parse(CONFIG, strlen(CONFIG), &config) != SHERD_OK ||
        sherd_world_simulate(0, 2, &world) != SHERD_OK ||
        sherd_engine_create(world, config, &engine) != SHERD_OK) {
        abort();
    }
    sherd_engine_info_init(&info);
    if (planning_model_declare(model, engine) != SHERD_OK ||
        sherd_engine_query(engine, &info) != SHERD_OK || info.param_elems != model->elems) {
        abort();
    }
    sherd_engine_destroy(engine);
    sherd_world_destroy(world);
    sherd_config_destroy(config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
    char            path[64], text[64] = {0}, why[256] = {0};
    int             fd = memfd_create("model", MFD_CLOEXEC);
    planning_model *model;

    if (fd < 0 || write(fd, data, len_bytes) != (ssize_t)len_bytes) {
        abort();
    }
    (void)snprintf(path, sizeof(path), FOLDER "%d", fd);
    model = planning_model_from_file(path, why, sizeof(why));
    if (model == NULL &&
        /* why names this file, or a file that it names */
        strncmp(why, FOLDER, strlen(FOLDER)) != 0) {
        abort();
    }
    if (model != NULL && model->num_params <= MOST_DECLARED && model->num_units <= MOST_DECLARED) {
        declare(model);
    }
    planning_model_destroy(model);
    (void)close(fd);

    memcpy(text, data, len_bytes < sizeof(text) - 1 ? len_bytes : sizeof(text) - 1);
    (void)planning_count_parse(text);
    return 0;
}
