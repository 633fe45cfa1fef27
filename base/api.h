/* Structs of the API carry their size, so that programs that were built with an older header go on. */
#ifndef SHERDI_BASE_API_H
#define SHERDI_BASE_API_H

#include "base/status.h"

typedef enum sherdi_api_struct {
    SHERDI_API_WORLD_PARAMS,
    SHERDI_API_SIMULATE_PARAMS,
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
    SHERDI_API_STRUCTS
} sherdi_api_struct;

/** E_INVAL when `given` (which begins with its struct_size) is NULL, or when its size is not that of the struct as
 *  it is or as it was when it ended in an earlier one of its fields: so no field is ever there in part. */
sherd_status sherdi_api_check(const void *given, sherdi_api_struct which);

/** The same check, and then what `given` has of the struct over `whole`, which its _init has filled; where `given` is NULL, the
 *  defaults stay in `whole`. */
sherd_status sherdi_api_read(const void *given, sherdi_api_struct which, void *whole);
/** As much of `whole` as a checked `out` has room for, whose size stays. */
void sherdi_api_write(const void *whole, void *out);

/** E_INVAL "CALL: WHAT is NULL" where an argument that a call needs is not given. */
sherd_status sherdi_api_need(int is_given, const char *call, const char *what);
/** The same where the argument is a pointer to a result. */
sherd_status sherdi_api_check_out(const void *out, const char *call);

#endif
