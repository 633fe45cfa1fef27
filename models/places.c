/* See places.h. */
#include "models/places.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

layer_places layer_places_all(layer_place place)
{
    layer_places all = {.count = 1};

    all.runs[0].place = place;
    return all;
}

layer_place layer_place_of(const layer_places *places, size_t layer)
{
    for (size_t i = 0; i < places->count; i++) {
        if (layer < places->runs[i].end || i + 1 == places->count) {
            return places->runs[i].place;
        }
    }
    return LAYER_KEPT;
}

static const struct {
    const char *name, *device;
    int         is_recomputed;
} PLACES[LAYER_PLACES] = {
    [LAYER_KEPT]            = {"device", NULL, 0},
    [LAYER_CHEAP]           = {"cheap", NULL, 0},
    [LAYER_CPU]             = {"cpu", "cpu", 0},
    [LAYER_NVME]            = {"nvme", "nvme", 0},
    [LAYER_RECOMPUTED]      = {"recompute", NULL, 1},
    [LAYER_RECOMPUTED_CPU]  = {"recompute-cpu", "cpu", 1},
    [LAYER_RECOMPUTED_NVME] = {"recompute-nvme", "nvme", 1},
};

const char *layer_place_name(layer_place place)
{
    return PLACES[place].name;
}

const char *layer_place_device(layer_place place)
{
    return PLACES[place].device;
}

int layer_place_is_recomputed(layer_place place)
{
    return PLACES[place].is_recomputed;
}

int layer_place_is_moved(layer_place place)
{
    return layer_place_device(place) != NULL;
}

size_t layer_places_count(const layer_places *places, size_t layers, int (*is_so)(layer_place))
{
    size_t count = 0;

    for (size_t l = 0; l < layers; l++) {
        count += is_so(layer_place_of(places, l)) != 0;
    }
    return count;
}

static int place_find(const char *name, size_t len, layer_place *out)
{
    for (int i = 0; i < LAYER_PLACES; i++) {
        if (strlen(PLACES[i].name) == len && strncmp(PLACES[i].name, name, len) == 0) {
            *out = (layer_place)i;
            return 0;
        }
    }
    return -1;
}

static int refuse(const char *at, char *why, size_t why_bytes)
{
    (void)snprintf(
        why, why_bytes,
        "\"%.40s\" is no place of layers: give device, cheap, cpu, nvme, recompute, "
        "recompute-cpu or recompute-nvme, each with :N for N layers and separated by commas, the "
        "last one without a number; at most %d places",
        at, LAYER_PLACES_MOST);
    return -1;
}

int layer_places_parse(const char *text, layer_places *out, char *why, size_t why_bytes)
{
    const char *at  = text;
    size_t      end = 0;

    *out = (layer_places){0};
    for (;;) {
        size_t             len = strcspn(at, ":,");
        char              *behind;
        unsigned long long count;

        if (out->count == LAYER_PLACES_MOST ||
            place_find(at, len, &out->runs[out->count].place) != 0) {
            return refuse(at, why, why_bytes);
        }
        if (at[len] != ':') {
            out->count++;
            return at[len] == '\0' ? 0 : refuse(at, why, why_bytes);
        }
        count = strtoull(at + len + 1, &behind, 10);
        if (at[len + 1] < '0' || at[len + 1] > '9' || count == 0 || count > 1u << 20 ||
            (*behind != ',' && *behind != '\0')) {
            return refuse(at, why, why_bytes);
        }
        end += (size_t)count;
        out->runs[out->count++].end = end;
        if (*behind == '\0') { /* the remaining layers stay on the device */
            if (out->count == LAYER_PLACES_MOST) {
                return refuse(at, why, why_bytes);
            }
            out->runs[out->count++].place = LAYER_KEPT;
            return 0;
        }
        at = behind + 1;
    }
}
