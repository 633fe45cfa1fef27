/* Structs of the API carry their size, so that programs that were built with an older header keep
 * working. */
#ifndef SHERDI_BASE_API_H
#define SHERDI_BASE_API_H

#include "base/status.h"

#include <stddef.h>

/* A struct of the API in this version. */
typedef struct sherdi_api_shape {
    const char *name;
    size_t      bytes;
    size_t      array_at; /* the one array, if any: no struct has two */
    size_t      array_bytes;
} sherdi_api_shape;

/* Its shape: of a struct without an array, and of one with it. */
#define SHERDI_API(type) (&(const sherdi_api_shape){.name = #type, .bytes = sizeof(type)})
#define SHERDI_API_WITH(type, array)                                                               \
    (&(const sherdi_api_shape){.name        = #type,                                               \
                               .bytes       = sizeof(type),                                        \
                               .array_at    = offsetof(type, array),                               \
                               .array_bytes = sizeof(((type *)0)->array)})

/** Checks a struct that begins with its struct_size. Returns E_INVAL when `given` is NULL, or when
 *  its size is neither that of the struct now nor that of an earlier version, which ended after one
 *  of the present fields. So no field is ever present in part. */
sherd_status sherdi_api_check(const void *given, const sherdi_api_shape *shape);

/** Checks in the same way, then copies what `given` has over `whole`, which the struct's _init has
 *  filled. With `given` NULL the defaults stay in `whole`. */
sherd_status sherdi_api_read(const void *given, const sherdi_api_shape *shape, void *whole);
/** Copies as much of `whole` as fits into `out`, which was checked and keeps its size. */
void sherdi_api_write(const void *whole, void *out);

/** Copies a whole struct with its defaults, in which struct_size is set, to the program's; NULL: to
 *  nowhere. For an _init. */
void sherdi_api_init(void *out, const void *defaults);

/** Returns E_INVAL "CALL: WHAT is NULL" unless `is_given`: for an argument that a call needs. */
sherd_status sherdi_api_need(int is_given, const char *call, const char *what);
/** The same for a pointer to a result. */
sherd_status sherdi_api_check_out(const void *out, const char *call);
/** Returns E_INVAL "WHAT is VALUE" for a flag that is neither 0 nor 1. */
sherd_status sherdi_api_check_flag(int value, const char *what);

#endif
