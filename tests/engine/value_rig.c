/* See value_rig.h. */
#include "tests/engine/value_rig.h"

#include "offload/checksum.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>

#define FAST ", \"durable\": false"

const value_rig_tier VALUE_RIG_TIERS[VALUE_RIG_TIERS_ALL] = {
    {NULL, NULL, 4, NULL},   {"cpu", NULL, 4, NULL},    {"cpu", "cpu", 4, NULL},
    {"nvme", NULL, 4, FAST}, {"nvme", "nvme", 4, FAST}, {"nvme", "nvme", 1, FAST}};

int value_rig_is_slow(void)
{
    return getenv("SHERD_BACKEND") != NULL;
}

size_t value_rig_tiers(void)
{
    return sherdi_checksum_check_built() == SHERD_OK ? VALUE_RIG_TIERS_ALL : 3;
}

void value_rig_declare(rig *r, sherd_world *world, const rig_options *options)
{
    static const size_t ELEMS[] = {VALUE_RIG_ELEMS, 1, 130, 5000, 700};

    rig_open(r, world, options);
    for (int u = 0; u < 2; u++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "unit%d", u);
        (void)rig_unit(r, name);
        for (int p = 0; p < 5; p++) {
            sherd_param_params params;

            sherd_param_params_init(&params);
            params.frozen = p == VALUE_RIG_FROZEN;
            (void)snprintf(name, sizeof(name), "unit%d.%d", u, p);
            (void)rig_param_as(r, u, name, ELEMS[p], &params);
        }
    }
}

void value_rig_open(rig *r, sherd_world *world, const rig_options *options)
{
    value_rig_declare(r, world, options);
    CHECK_OK(sherd_engine_seal(r->engine));
}

const char *value_rig_keys(const value_rig_tier *t, char keys[1024])
{
    size_t len = (size_t)snprintf(keys, 1024,
                                  ", \"stage3_param_persistence_threshold\": 150, "
                                  "\"sub_group_size\": 1024");

    if (t->optimizer != NULL) {
        len += (size_t)snprintf(keys + len, 1024 - len,
                                ", \"offload_optimizer\": {\"device\": \"%s\", \"nvme_path\": "
                                "\"%s\", \"buffer_count\": %d%s}",
                                t->optimizer, test_scratch(), t->buffers,
                                t->more == NULL ? "" : t->more);
    }
    if (t->params != NULL) {
        (void)snprintf(keys + len, 1024 - len,
                       ", \"offload_param\": {\"device\": \"%s\", \"nvme_path\": \"%s\", "
                       "\"buffer_count\": %d}",
                       t->params, test_scratch(), t->buffers);
    }
    return keys;
}
