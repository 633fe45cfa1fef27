/* Hugging Face's config.json as a model: models/hf.h reads it, and this file adds the units. */
#include "planning/model_impl.h"

#include "models/hf.h"

#define HINT "give the model's .safetensors file or --params"

int planning_read_config(planning_maker *maker, const json_t *root, const char *name)
{
    hf_config config;
    char      why[256], text[256];
    int       result = hf_config_read(root, &config, why, sizeof(why));

    if (result != 0) {
        return planning_maker_fail(maker, "%s%s", why,
                                   result == HF_CONFIG_UNKNOWN ? "; " HINT : "");
    }
    maker->model->sizes    = config.sizes;
    maker->model->has_arch = arch_check(&config.sizes, text, sizeof(text)) == NULL;
    /* the file's own shapes */
    config.sizes.is_transposed = config.sizes.kind == ARCH_GPT2;
    if (planning_maker_add_units(maker, &config.sizes) != 0) {
        return -1;
    }
    return planning_maker_set_label(maker, "%s (%s)", name,
                                    json_string_value(json_object_get(root, "model_type")));
}
