/* A tier that the library has not: memory that nobody may address, read and written by copies. */
#ifndef TESTS_ENGINE_CUPBOARD_H
#define TESTS_ENGINE_CUPBOARD_H

#include <stdint.h>

typedef struct cupboard_traffic {
    uint64_t read_bytes, written_bytes;
} cupboard_traffic;

/** What has been copied on all ranks since it was last asked. */
cupboard_traffic cupboard_traffic_take(void);

#endif
