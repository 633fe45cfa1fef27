/* A tier that the library does not have: memory that no kernel may address and that is read and
 * written by copies. */
#ifndef TESTS_ENGINE_CUPBOARD_H
#define TESTS_ENGINE_CUPBOARD_H

#include <stdint.h>

typedef struct cupboard_traffic {
    uint64_t read_bytes, written_bytes;
} cupboard_traffic;

/** Returns the bytes copied on all ranks since the last call. */
cupboard_traffic cupboard_traffic_take(void);

#endif
