/* Linked state: state on a drive that a checkpoint contains as links instead of copies. The links
 * are to the files of the set of the live generation, in their form on the drive. The metadata of
 * the rank's data file describes where every tensor lies in the set. An extent has one checksum, so
 * it is read as a whole. save.c keeps the state, save_data.c describes it, and reader.c reads
 * it. */
#ifndef SHERDI_ENGINE_CHECKPOINT_KEPT_H
#define SHERDI_ENGINE_CHECKPOINT_KEPT_H

#include "engine/checkpoint/manifest.h"
#include "engine/model.h"
#include "offload/state.h"

/* The metadata key of the description. */
#define SHERDI_LINKED_KEY "slots"

/** Writes "slots-00003-of-00008"; the names of stripes after the first add ".1", ".2", ... */
void sherdi_linked_name(int rank, int world_size, char out[SHERDI_CHECKPOINT_NAME_BYTES]);
/** Writes the name of a stripe. */
void sherdi_linked_stripe_name(int rank, int world_size, int stripe,
                               char out[SHERDI_CHECKPOINT_NAME_BYTES]);

/** Describes the linked state (sherdi_state_keep) as JSON, in memory of the account, which the
 *  caller frees. E_NOMEM. */
sherd_status sherdi_linked_describe(const sherdi_plan *plan, const sherdi_model *model,
                                    const sherdi_state *state, sherdi_mem *mem, char **out);

/* Elements of a part of a parameter in an extent, as they are stored (kernels/encoding.h). */
typedef struct sherdi_linked_tensor {
    const char     *name; /* like a tensor of a data file: "NAME:PART:FIRST" */
    size_t          count;
    size_t          extent, at; /* bytes from the start of the extent */
    sherdi_encoding encoding;
    int             has_ties; /* its signs are the ties of a master, not its own */
    /* Of a BESIDE or BESIDE_PLANE master: where its bf16 values begin. Of a BESIDE master: where in
     * its own extent the part begins whose signs are its ties, and the encoding of that part, F32
     * or BF16. */
    size_t          values_extent, values_at;
    size_t          ties_at;
    sherdi_encoding ties_encoding;
    /* element of the description after the encoding: anything, a place of values, a place of
     * ties */
    int has_more, has_values, has_ties_at;
} sherdi_linked_tensor;

static inline int sherdi_linked_tensor_lies_in(const sherdi_linked_tensor *tensor, size_t extent)
{
    return tensor->extent == extent ||
           (sherdi_encoding_is_beside(tensor->encoding) && tensor->values_extent == extent);
}

typedef struct sherdi_linked sherdi_linked;

/** Reads a description. It may come from anywhere, so everything in it is checked; `label` is for
 *  messages. E_INVAL, E_NOMEM. */
sherd_status sherdi_linked_parse(sherdi_mem *mem, const char *label, const char *text,
                                 sherdi_linked **out);
size_t       sherdi_linked_count(const sherdi_linked *linked);
const sherdi_linked_tensor *sherdi_linked_tensor_at(const sherdi_linked *linked, size_t index);
int                         sherdi_linked_stripes(const sherdi_linked *linked);
size_t                      sherdi_linked_extents(const sherdi_linked *linked);
size_t                      sherdi_linked_extent_bytes(const sherdi_linked *linked, size_t extent);

/** Opens a rank's set in `folder`. E_IO. */
sherd_status sherdi_linked_open(sherdi_linked *linked, sherdi_ioq *queue, const char *folder,
                                int rank, int world_size);
/** Gives elements of a tensor as fp32, from `first` on. *count says how many are asked for, and
 *  then how many *out has, which may be fewer. They are valid until the next call of this function
 *  or of sherdi_linked_read. Errors are those of sherdi_linked_read. Blocks. */
sherd_status sherdi_linked_values(sherdi_linked *linked, size_t tensor, size_t first, size_t *count,
                                  const float **out);
/** Gives the bytes of an extent, checked against their checksum; valid until the next call of this
 *  function or of sherdi_linked_values. Blocks. E_INVAL (they do not match the checksum), E_IO,
 *  E_NOMEM. */
sherd_status sherdi_linked_read(sherdi_linked *linked, size_t extent, const unsigned char **out);
/** Closes the set and frees the memory for reading it. It may be opened again. */
void sherdi_linked_close(sherdi_linked *linked);
/** Accepts NULL. */
void sherdi_linked_destroy(sherdi_linked *linked);

#endif
