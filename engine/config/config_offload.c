/* Offload: the blocks offload_optimizer, offload_param, activations and aio. Finds contradictions,
 * warns, and makes the settings. See config_impl.h. */
#include "engine/config/config_impl.h"
#include "offload/tiers.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* The keys of a kind of offload, the lowest stage at which it has an effect, and its settings. */
typedef struct offload_keys {
    sherdi_config_id block, device, path;
    int64_t          stage;
    size_t           offset;
} offload_keys;

enum { PARAMS, STATE, ACTIVATIONS };

static const offload_keys OFFLOADS[] = {
    [PARAMS] = {SHERDI_CONFIG_OFFLOAD_PARAM, SHERDI_CONFIG_PARAM_DEVICE, SHERDI_CONFIG_PARAM_PATH,
                3, offsetof(sherdi_settings, offload.params)},
    [STATE]  = {SHERDI_CONFIG_OFFLOAD_OPTIMIZER, SHERDI_CONFIG_STATE_DEVICE,
                SHERDI_CONFIG_STATE_PATH, 1, offsetof(sherdi_settings, offload.state)},
    [ACTIVATIONS] = {SHERDI_CONFIG_ACTIVATIONS, SHERDI_CONFIG_ACTIVATIONS_DEVICE,
                     SHERDI_CONFIG_ACTIVATIONS_PATH, 0,
                     offsetof(sherdi_settings, offload.activations)},
};

/* Returns the tier that a block names. */
static const sherdi_tier_kind *tier_named(const sherd_config *config, const offload_keys *keys)
{
    return sherdi_tier_at((size_t)sherdi_config_integer(config, keys->device));
}

static int is_offloaded(const sherd_config *config, const offload_keys *keys)
{
    return tier_named(config, keys)->space != SHERDI_SPACE_DEVICE;
}

/* ---- checks ---- */

static sherd_status block_check(const sherd_config *config, const offload_keys *keys,
                                int is_complete)
{
    const sherdi_config_alias *alias = config->entries[keys->device].alias;
    const sherdi_tier_kind    *tier  = tier_named(config, keys);
    char                       location[SHERDI_LOCATION_BYTES];

    if (alias != NULL && config->entries[keys->block].origin != SHERDI_ORIGIN_DEFAULT) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "%s: %s and the block %s that replaced it are both there; keep the block",
            sherdi_config_location(config, keys->device, location), alias->path,
            sherdi_config_table[keys->block].path);
    }
    if (tier->has_files && !sherdi_config_is_given(config, keys->path) &&
        (is_complete || !config->entries[keys->path].is_auto)) {
        return sherdi_config_key_fail(config, keys->device,
                                      "is %s, which needs nvme_path: the folder to use",
                                      sherdi_tier_name(tier));
    }
    return SHERD_OK;
}

static sherd_status state_check(const sherd_config *config, int is_complete)
{
    int has_files = tier_named(config, &OFFLOADS[STATE])->has_files;
    int is_open   = !is_complete && config->entries[SHERDI_CONFIG_STATE_DEVICE].is_auto;

    if (sherdi_config_is_on(config, SHERDI_CONFIG_STATE_GRADIENTS) && !has_files && !is_open) {
        return sherdi_config_key_fail(config, SHERDI_CONFIG_STATE_GRADIENTS,
                                      "is nvme, but offload_optimizer.device is not; set both to "
                                      "nvme, or this one to \"cpu\"");
    }
    if (has_files && sherdi_config_is_on(config, SHERDI_CONFIG_STATE_RESUME) &&
        sherdi_config_real(config, SHERDI_CONFIG_STATE_RATIO) < 1) {
        return sherdi_config_key_fail(config, SHERDI_CONFIG_STATE_RESUME,
                                      "is true with a ratio below 1; only state that is on the "
                                      "drive as a whole can be resumed");
    }
    return SHERD_OK;
}

sherd_status sherdi_config_offload_check(const sherd_config *config, int is_complete)
{
    for (size_t i = 0; i < COUNT_OF(OFFLOADS); i++) {
        SHERDI_TRY(block_check(config, &OFFLOADS[i], is_complete));
    }
    return state_check(config, is_complete);
}

/* ---- remarks ---- */

static sherd_status stage_remark(sherd_config *config, const offload_keys *keys)
{
    if (is_offloaded(config, keys) && !config->entries[SHERDI_CONFIG_STAGE].is_auto &&
        sherdi_config_integer(config, SHERDI_CONFIG_STAGE) < keys->stage) {
        return sherdi_config_key_warn(config, keys->device,
                                      "is ignored: there is nothing to offload at this stage");
    }
    return SHERD_OK;
}

/* Warns of keys about state files if the run will have no state files. */
static sherd_status files_remark(sherd_config *config)
{
    static const sherdi_config_id FILES[] = {SHERDI_CONFIG_STATE_VERIFY, SHERDI_CONFIG_STATE_RESUME,
                                             SHERDI_CONFIG_STATE_KEEP, SHERDI_CONFIG_STATE_DURABLE};

    if (config->entries[SHERDI_CONFIG_STATE_DEVICE].is_auto ||
        tier_named(config, &OFFLOADS[STATE])->has_files) {
        return SHERD_OK;
    }
    for (size_t i = 0; i < COUNT_OF(FILES); i++) {
        if (sherdi_config_integer(config, FILES[i]) !=
            sherdi_config_table[FILES[i]].standard.integer) {
            SHERDI_TRY(sherdi_config_key_warn(config, FILES[i],
                                              "has no effect: only device nvme has files"));
        }
    }
    return SHERD_OK;
}

/* With bf16_beside, an update needs the bf16 values of the parameters. If these rest on a drive
 * too, state on a drive has a copy of them; this warns of that. */
static sherd_status beside_remark(sherd_config *config)
{
    if (sherdi_config_integer(config, SHERDI_CONFIG_MASTER_ENCODING) != SHERDI_MASTER_BESIDE ||
        sherdi_config_integer(config, SHERDI_CONFIG_STAGE) < OFFLOADS[PARAMS].stage ||
        tier_named(config, &OFFLOADS[PARAMS])->space != SHERDI_SPACE_STORAGE ||
        tier_named(config, &OFFLOADS[STATE])->space != SHERDI_SPACE_STORAGE) {
        return SHERD_OK;
    }
    return sherdi_config_key_warn(
        config, SHERDI_CONFIG_MASTER_ENCODING,
        "is bf16_beside, which saves nothing where the parameters are on nvme too: a step then "
        "reads 12 bytes per element and writes 12, as with fp32; choose fp32, or keep the "
        "parameters in memory (offload_param.max_in_cpu), where a step reads 10");
}

sherd_status sherdi_config_offload_remark(sherd_config *config)
{
    for (size_t i = 0; i < COUNT_OF(OFFLOADS); i++) {
        SHERDI_TRY(stage_remark(config, &OFFLOADS[i]));
    }
    SHERDI_TRY(beside_remark(config));
    return files_remark(config);
}

/* ---- settings ---- */

static void folders_resolve(const sherd_config *config, sherdi_config_id id,
                            sherdi_offload_settings *out)
{
    sherdi_config_effect effect;
    const char          *folder;

    sherdi_config_effective(config, 0, id, &effect);
    for (folder = effect.value.text; *folder != '\0'; folder += strlen(folder) + 1) {
        memcpy(out->folders[out->num_folders++], folder, strlen(folder) + 1);
    }
}

/* Makes the settings of a block. Below its lowest stage, the block has no effect. */
static void block_resolve(const sherd_config *config, const offload_keys *keys, int stage,
                          sherdi_offload_settings *out)
{
    if (stage < keys->stage) {
        out->tier = &sherdi_tier_device;
        /* If only the file contradicts itself, reading it has warned already. */
        out->is_ignored = is_offloaded(config, keys) &&
                          (config->entries[SHERDI_CONFIG_STAGE].origin == SHERDI_ORIGIN_PROGRAM ||
                           config->entries[keys->device].origin == SHERDI_ORIGIN_PROGRAM);
    }
    out->space = out->tier->space;
    /* The program may name a tier with files for the activations of a unit, whatever the block
     * says. */
    if (out->tier->has_files ||
        (keys == &OFFLOADS[ACTIVATIONS] && sherdi_config_is_given(config, keys->path))) {
        folders_resolve(config, keys->path, out);
    }
}

void sherdi_config_offload_resolve(const sherd_config *config, sherdi_settings *out)
{
    for (size_t i = 0; i < COUNT_OF(OFFLOADS); i++) {
        void *block = (unsigned char *)out + OFFLOADS[i].offset;

        block_resolve(config, &OFFLOADS[i], out->sharding.stage, block);
    }
    if (!out->offload.state.tier->has_files) {
        out->offload.gradients_on_nvme = out->offload.verify_reads = out->offload.resume_state =
            out->offload.keep_state                                = 0;
    }
}
