/* State on a drive that a checkpoint keeps by links instead of copying it: the set of slots of the live generation, raw, and
 * beside it, in the metadata of the rank's data file, where everything lies in it. An extent has one checksum, so it is
 * read as a whole. */
#ifndef SHERDI_ENGINE_CHECKPOINT_KEPT_H
#define SHERDI_ENGINE_CHECKPOINT_KEPT_H

#include "engine/checkpoint/manifest.h"
#include "engine/model.h"
#include "offload/tier.h"

/* The key of the metadata that has the description. */
#define SHERDI_KEPT_KEY "slots"

/** "slots-00003-of-00008"; stripes behind the first add ".1", ".2", .... */
void sherdi_kept_name(int rank, int world_size, char out[SHERDI_CHECKPOINT_NAME_BYTES]);

/** The description of what was kept (sherdi_tier_state_keep) as JSON, in memory of the account. E_NOMEM. */
sherd_status sherdi_kept_describe(const sherdi_plan *plan, const sherdi_model *model,
                                  const sherdi_tier *tier, sherdi_mem *mem, char **out);

/* A part of a parameter, somewhere in an extent; as it is stored (kernels/encoding.h). */
typedef struct sherdi_kept_tensor {
    const char     *name; /* as a tensor of a data file: "NAME:PART:FIRST" */
    size_t          count;
    size_t          extent, at; /* bytes from the start of the extent */
    sherdi_encoding encoding;
    int             has_ties; /* its signs are those of a master's ties: they are not its own */
    /* Of a master that is BESIDE or BESIDE_PLANE: where the bf16 values begin; of BESIDE in its own extent the part whose signs
     * are its ties, which is F32 or BF16. */
    size_t          values_extent, values_at;
    size_t          ties_at;
    sherdi_encoding ties_encoding;
} sherdi_kept_tensor;

static inline int sherdi_kept_tensor_lies_in(const sherdi_kept_tensor *tensor, size_t extent)
{
    int is_beside = tensor->encoding == SHERDI_ENCODING_BESIDE ||
                    tensor->encoding == SHERDI_ENCODING_BESIDE_PLANE;

    return tensor->extent == extent || (is_beside && tensor->values_extent == extent);
}

typedef struct sherdi_kept sherdi_kept;

/** From such a description, which may come from anywhere; `label` is for messages. E_INVAL, E_NOMEM. */
sherd_status              sherdi_kept_parse(sherdi_mem *mem, const char *label, const char *text,
                                            sherdi_kept **out);
size_t                    sherdi_kept_count(const sherdi_kept *kept);
const sherdi_kept_tensor *sherdi_kept_tensor_at(const sherdi_kept *kept, size_t index);
size_t                    sherdi_kept_extents(const sherdi_kept *kept);
size_t                    sherdi_kept_extent_bytes(const sherdi_kept *kept, size_t extent);

/** Opens the set in `folder`. E_IO. */
sherd_status sherdi_kept_open(sherdi_kept *kept, sherdi_ioq *queue, const char *folder, int rank,
                              int world_size);
/** Elements of a tensor as fp32 from `first` on, as many as there is room for, *count_out of at most that many; valid until the
 *  next call of this or the next one. E_INVAL, E_IO, E_NOMEM as the next one. */
sherd_status sherdi_kept_values(sherdi_kept *kept, size_t tensor, size_t first, size_t *count,
                                const float **out);
/** The bytes of an extent, held against their checksum; valid until the next one. *is_damaged_out: they are not what it
 *  says (E_INVAL). E_IO, E_NOMEM. */
sherd_status sherdi_kept_read(sherdi_kept *kept, size_t extent, const unsigned char **out);
/** The set is closed, and what it needed of memory given back; it may be opened again. */
void sherdi_kept_close(sherdi_kept *kept);
/** Accepts NULL. */
void sherdi_kept_destroy(sherdi_kept *kept);

#endif
