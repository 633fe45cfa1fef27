/* Chooses the CPU's or the GPU's operations, and what both share. See compute.h. */
#include "compute.h"

#include <math.h>
#include <string.h>

compute *compute_create(const compute_params *params, char *why, size_t why_bytes)
{
    if (params->backend != NULL && strcmp(params->backend, "cuda") == 0) {
        return compute_cuda_create(params, why, why_bytes);
    }
    return compute_cpu_create(params, why, why_bytes);
}

void compute_destroy(compute *c)
{
    if (c != NULL) {
        c->ops->destroy(c);
    }
}

typedef struct choice {
    const char *name;
    const char *words[3]; /* for the values 0, 1, ... */
    const char *wanted;
    size_t      offset; /* of the int in compute_choices */
} choice;

static const choice CHOICES[] = {
    {"kernels", {"plain", "fused"}, "plain or fused", offsetof(compute_choices, is_fused)},
    {"attention",
     {"auto", "own", "cudnn"},
     "auto, own or cudnn",
     offsetof(compute_choices, attention)},
};

int compute_choice_set(compute_choices *choices, const char *name, const char *word,
                       const char **wanted)
{
    for (size_t i = 0; i < sizeof(CHOICES) / sizeof(CHOICES[0]); i++) {
        const choice *c = &CHOICES[i];

        if (strcmp(c->name, name) != 0) {
            continue;
        }
        *wanted = c->wanted;
        for (int value = 0; value < 3 && c->words[value] != NULL; value++) {
            if (strcmp(c->words[value], word) == 0) {
                memcpy((char *)choices + c->offset, &value, sizeof(value));
                return 0;
            }
        }
        return -1;
    }
    *wanted = "nothing: there is no such choice";
    return -1;
}

void compute_rotate_tables(size_t length, size_t width, double theta, float *cosines, float *sines)
{
    for (size_t t = 0; t < length; t++) {
        for (size_t i = 0; i < width / 2; i++) {
            double angle = (double)t * pow(theta, -2.0 * (double)i / (double)width);

            cosines[t * (width / 2) + i] = (float)cos(angle);
            sines[t * (width / 2) + i]   = (float)sin(angle);
        }
    }
}
