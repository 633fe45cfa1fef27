/* Decides how the parts of a segment's state are stored (kernels/encoding.h): as the settings ask,
 * where that is possible; the rest is refused with the reason. */
#include "engine/modules.h"

/* Returns the part whose sign bit is free to hold the ties of a split master; 0: none. */
static int ties_part_of(const sherdi_segment *segment)
{
    for (int i = 1; i < sherdi_segment_parts(segment); i++) {
        if (segment->optimizer->parts[i].is_never_negative &&
            segment->encodings[i] != SHERDI_ENCODING_UFP8) {
            return i;
        }
    }
    return 0;
}

static sherdi_encoding moment_encoding(const sherdi_settings       *settings,
                                       const sherdi_optimizer_part *part)
{
    switch (settings->moment_encoding) {
    case SHERDI_MOMENTS_BF16:
        return SHERDI_ENCODING_BF16;
    case SHERDI_MOMENTS_FP8:
        return part->is_never_negative ? SHERDI_ENCODING_UFP8 : SHERDI_ENCODING_FP8;
    default:
        return SHERDI_ENCODING_F32;
    }
}

static void master_encode(const sherdi_settings *settings, sherdi_segment *segment)
{
    if (settings->master_encoding == SHERDI_MASTER_BF16) {
        segment->encodings[0] = SHERDI_ENCODING_BF16;
    } else if (settings->master_encoding == SHERDI_MASTER_BESIDE) {
        segment->ties_part = ties_part_of(segment);
        segment->encodings[0] =
            segment->ties_part > 0 ? SHERDI_ENCODING_BESIDE : SHERDI_ENCODING_BESIDE_PLANE;
    }
}

/* Persistent parameters are few and rest on the device. With bf16_beside and state in host memory,
 * their masters stay fp32. */
static int can_be_encoded(const sherdi_plan *plan, const sherdi_segment *segment)
{
    int is_apart = segment->kind == SHERDI_SEGMENT_PERSISTENT && plan->layout.offloads_state &&
                   plan->settings.offload.state.space == SHERDI_SPACE_HOST;

    return segment->types.compute == SHERD_BF16 &&
           (!is_apart || plan->settings.master_encoding != SHERDI_MASTER_BESIDE);
}

/* An fp32 parameter is its own master, or has an fp32 master: its master is never encoded. */
static void segment_encode(const sherdi_plan *plan, sherdi_segment *segment)
{
    for (int i = 1; i < sherdi_segment_parts(segment); i++) {
        segment->encodings[i] = moment_encoding(&plan->settings, &segment->optimizer->parts[i]);
    }
    if (sherdi_segment_parts(segment) > 0 && can_be_encoded(plan, segment)) {
        master_encode(&plan->settings, segment);
    }
}

static sherd_status segments_encode(sherdi_plan *plan, const sherdi_model *model)
{
    (void)model;
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        segment_encode(plan, &plan->layout.segments[s]);
    }
    return SHERD_OK;
}

static const char *space_name(sherdi_space space)
{
    return space == SHERDI_SPACE_DEVICE ? "on the device"
           : space == SHERDI_SPACE_HOST ? "in host memory"
                                        : "on storage";
}

static sherd_status beside_check(const sherdi_model *model, const sherdi_segment *segment,
                                 const sherdi_block *block)
{
    const char *unit = model->units[segment->unit].name;

    if (segment->is_bound) {
        return sherdi_fail(
            SHERD_E_NOTSUP,
            "unit %s: sherd.master_encoding bf16_beside keeps one half of each master in the bf16 "
            "parameter, and these parameters are bound to the trainer's memory, where the trainer "
            "may change them; do not bind them, or take fp32",
            unit);
    }
    /* an extent on storage has the values too, and an update takes them from where the parameter
     * rests */
    if (block->space != segment->param_space && block->space != SHERDI_SPACE_STORAGE) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "unit %s: sherd.master_encoding bf16_beside needs a parameter to rest "
                           "where its state does, but it rests %s and its state %s; take fp32, "
                           "offload both (stage 3), or put the state on nvme (apart, 10 bytes an "
                           "element become 12, as with fp32, or a step sends 4 instead of 2)",
                           unit, space_name(segment->param_space), space_name(block->space));
    }
    return SHERD_OK;
}

/* Checks the encodings, once it is known where the blocks rest. */
static sherd_status encodings_check(sherdi_plan *plan, const sherdi_model *model)
{
    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        const sherdi_segment *segment = &plan->layout.segments[plan->layout.blocks[b].segment];

        if (sherdi_segment_is_beside(segment)) {
            SHERDI_TRY(beside_check(model, segment, &plan->layout.blocks[b]));
        }
    }
    return SHERD_OK;
}

const sherdi_module sherdi_module_encodings = {.segments_made = segments_encode,
                                               .lay_out       = encodings_check};
