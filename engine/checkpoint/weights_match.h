/* Maps held against the tensors of a file: which of them give the values of which parameter. What imports have in common,
 * with an engine (import.c) and without (tools_import.c). */
#ifndef SHERDI_CHECKPOINT_WEIGHTS_MATCH_H
#define SHERDI_CHECKPOINT_WEIGHTS_MATCH_H

#include "engine/checkpoint/weights.h"

/* A map and what the file has of it. */
typedef struct sherdi_weights_given {
    const sherd_tensor_map *map;
    sherdi_weights_tensor   tensor;
    size_t                  param; /* number in the model */
    int                     is_there;
} sherdi_weights_given;

typedef struct sherdi_weights_match {
    const sherdi_weights_file *file;
    sherdi_weights_given
          *given; /* by parameter, value and place; padding of a raw file is not in it */
    size_t num_given;
    sherdi_weights_given *data; /* those whose elements are in the caller's memory */
    size_t                num_data;
    uint64_t              all_bytes; /* of the file's tensors that are read */
} sherdi_weights_match;

/* Those of one parameter: [begin, end) of `given`. */
typedef struct sherdi_weights_range {
    const sherdi_weights_match *match;
    size_t                      begin, end;
} sherdi_weights_range;

/** Holds the checked maps against the file; both are borrowed until close. `params` says what may be missing or extra.
 *  E_INVAL with the tensor (missing, extra, another shape or type, two for the same elements), E_NOMEM. */
sherd_status sherdi_weights_match_open(sherdi_mem *mem, const sherdi_weights_model *model,
                                       const sherdi_weights_maps *maps,
                                       const sherdi_weights_file *file,
                                       const sherd_import_params *params,
                                       sherdi_weights_match      *out);
/** Accepts one that was not opened. */
void sherdi_weights_match_close(sherdi_weights_match *match);

/** Fills the caller's memory of all maps that have some. E_IO. */
sherd_status sherdi_weights_match_data(const sherdi_weights_match *match);

/** The tensors of one parameter, from `begin` on. */
sherdi_weights_range sherdi_weights_range_at(const sherdi_weights_match *match, size_t begin);
/** E_INVAL where the file has some of the parameter's tensors and lacks others; E_STATE where one is for another part than
 *  the master weights. */
sherd_status sherdi_weights_range_check(const sherdi_weights_range *range);
/** Elements [first, first + count) of the parameter; those of no tensor are 0. E_IO. */
sherd_status sherdi_weights_range_read(const sherdi_weights_range *range, size_t first_elem,
                                       size_t count_elems, float *out);
/** Elements from `first` on, counted from where the tensor begins in its parameter. E_IO. */
sherd_status sherdi_weights_given_read(const sherdi_weights_match *match,
                                       const sherdi_weights_given *given, size_t first_elem,
                                       size_t count_elems, float *out);

#endif
