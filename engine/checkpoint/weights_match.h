/* Matches maps with the tensors of a file: which tensors give the values of which parameter.
 * Imports with an engine (import.c) and without (tools_import.c) use it. */
#ifndef SHERDI_CHECKPOINT_WEIGHTS_MATCH_H
#define SHERDI_CHECKPOINT_WEIGHTS_MATCH_H

#include "engine/checkpoint/weights.h"

/* A map and the tensor that the file has for it. */
typedef struct sherdi_weights_given {
    const sherd_tensor_map *map;
    sherdi_weights_tensor   tensor;
    size_t                  param; /* number in the model */
    int                     is_there;
} sherdi_weights_given;

typedef struct sherdi_weights_match {
    const sherdi_weights_file *file;
    sherdi_weights_given
          *given; /* sorted by parameter, value and first element; without padding of raw files */
    size_t num_given;
    sherdi_weights_given *data; /* maps whose elements are in the caller's memory */
    size_t                num_data;
    uint64_t              all_bytes; /* of the tensors that are read */
} sherdi_weights_match;

/* The entries of one parameter: [begin, end) of `given`. */
typedef struct sherdi_weights_range {
    const sherdi_weights_match *match;
    size_t                      begin, end;
} sherdi_weights_range;

/** Matches the checked maps with the file; both are borrowed until close. `params` says what may be
 *  missing or extra. E_INVAL with the tensor (missing, extra, of another shape or type, two for the
 *  same elements), E_NOMEM. */
sherd_status sherdi_weights_match_open(sherdi_mem *mem, const sherdi_weights_model *model,
                                       const sherdi_weights_maps *maps,
                                       const sherdi_weights_file *file,
                                       const sherd_import_params *params,
                                       sherdi_weights_match      *out);
/** Accepts a match that was not opened. */
void sherdi_weights_match_close(sherdi_weights_match *match);

/** Fills the caller's memory of all maps that have memory. E_IO. */
sherd_status sherdi_weights_match_data(const sherdi_weights_match *match);

/** Returns the tensors of one parameter, which begin at `begin`. */
sherdi_weights_range sherdi_weights_range_at(const sherdi_weights_match *match, size_t begin);
/** Checks the tensors of a parameter. E_INVAL: the file has some of them and lacks others. E_STATE:
 *  one is for another part than the master weights. */
sherd_status sherdi_weights_range_check(const sherdi_weights_range *range);
/** Reads elements [first, first + count) of the parameter; elements that no tensor has are 0.
 *  E_IO. */
sherd_status sherdi_weights_range_read(const sherdi_weights_range *range, size_t first_elem,
                                       size_t count_elems, float *out);
/** Reads elements from `first` on, counted from where the tensor begins in its parameter. E_IO. */
sherd_status sherdi_weights_given_read(const sherdi_weights_match *match,
                                       const sherdi_weights_given *given, size_t first_elem,
                                       size_t count_elems, float *out);

#endif
