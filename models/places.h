/* The places of the activations of layers between forward and backward: plain data, by sequences of
 * layers with the same place. */
#ifndef SHERD_MODELS_PLACES_H
#define SHERD_MODELS_PLACES_H

#include <stddef.h>

typedef enum layer_place {
    LAYER_KEPT = 0, /* in memory of the model, on the device */
    /* the same, without the arrays that one cheap kernel recomputes in backward */
    LAYER_CHEAP,
    LAYER_CPU,        /* as little, in memory of the engine, which moves it to host memory */
    LAYER_NVME,       /* ... to a drive */
    LAYER_RECOMPUTED, /* only the layer's input, on the device; backward makes the forward again */
    LAYER_RECOMPUTED_CPU,  /* the same, in memory of the engine, which moves it to host memory */
    LAYER_RECOMPUTED_NVME, /* ... to a drive */
    LAYER_PLACES,
} layer_place;

#define LAYER_PLACES_MOST 8

/* Sequences of layers, from the first layer on. All zero: every layer stays on the device. */
typedef struct layer_places {
    size_t count;
    struct {
        layer_place place;
        size_t      end; /* the layer after the sequence; the last sequence extends to the end */
    } runs[LAYER_PLACES_MOST];
} layer_places;

layer_places layer_places_all(layer_place place);
layer_place  layer_place_of(const layer_places *places, size_t layer);

/** Returns sherd_activation_params.device of a layer whose memory is the engine's; NULL: it is the
 *  model's. */
const char *layer_place_device(layer_place place);
/** Returns whether the layer's memory is the engine's. */
int layer_place_is_moved(layer_place place);
/** Returns whether backward makes the forward again. */
int layer_place_is_recomputed(layer_place place);
/** Returns of how many of the first `layers` layers this is so. */
size_t layer_places_count(const layer_places *places, size_t layers, int (*is_so)(layer_place));

/** Returns the word of layer_places_parse. */
const char *layer_place_name(layer_place place);
/** Reads a list such as "cpu:20,device": how many layers, from the first one on, have which place;
 *  the last one needs no number. Returns 0, or -1 with a sentence in `why`. */
int layer_places_parse(const char *text, layer_places *out, char *why, size_t why_bytes);

#endif
