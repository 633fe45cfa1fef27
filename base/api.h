/* Structs of the API carry their size, so that programs that were built with an older header keep
 * working. */
#ifndef SHERDI_BASE_API_H
#define SHERDI_BASE_API_H

#include "base/status.h"

typedef enum sherdi_api_struct {
    SHERDI_API_WORLD_PARAMS,
    SHERDI_API_SIMULATE_PARAMS,
    SHERDI_API_SETTINGS,
    SHERDI_API_GROUP_PARAMS,
    SHERDI_API_UNIT_PARAMS,
    SHERDI_API_PARAM_PARAMS,
    SHERDI_API_STEP_PARAMS,
    SHERDI_API_STEP_REPORT,
    SHERDI_API_MEMORY_REPORT,
    SHERDI_API_TRAFFIC_REPORT,
    SHERDI_API_ENGINE_INFO,
    SHERDI_API_RATES,
    SHERDI_API_PREDICTION,
    SHERDI_API_SAVE_PARAMS,
    SHERDI_API_LOAD_PARAMS,
    SHERDI_API_CHECKPOINT_REPORT,
    SHERDI_API_TENSOR_MAP,
    SHERDI_API_CHECKPOINT_PARAM,
    SHERDI_API_VERIFY_PARAMS,
    SHERDI_API_EXPORT_PARAMS,
    SHERDI_API_IMPORT_PARAMS,
    SHERDI_API_BLOB_PARAMS,
    SHERDI_API_EVAL_PARAMS,
    SHERDI_API_ACTIVATION_PARAMS,
    SHERDI_API_STRUCTS
} sherdi_api_struct;

/** Checks a struct that begins with its struct_size. Returns E_INVAL when `given` is NULL, or when
 *  its size is neither that of the struct now nor that of an earlier version, which ended after one
 *  of the present fields. So no field is ever present in part. */
sherd_status sherdi_api_check(const void *given, sherdi_api_struct which);

/** Checks in the same way, then copies what `given` has over `whole`, which the struct's _init has
 *  filled. With `given` NULL the defaults stay in `whole`. */
sherd_status sherdi_api_read(const void *given, sherdi_api_struct which, void *whole);
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
/** Returns E_INVAL for a format that does not exist. */
sherd_status sherdi_api_check_format(sherd_plan_format format, const char *call);

#endif
