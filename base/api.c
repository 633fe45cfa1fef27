/* See api.h. An earlier version of a struct ended after one of the present fields. Its size was the
 * end of that field, rounded up to the alignment of struct_size. Every multiple of that alignment
 * is an end of a field, except those inside an array. */
#include "base/api.h"

#include <string.h>

static int size_is_known(const sherdi_api_shape *shape, size_t size)
{
    return size >= sizeof(size) && size <= shape->bytes && size % _Alignof(size_t) == 0 &&
           (size <= shape->array_at || size >= shape->array_at + shape->array_bytes);
}

sherd_status sherdi_api_check(const void *given, const sherdi_api_shape *shape)
{
    const size_t *size = given;

    if (given == NULL) {
        return sherdi_fail(SHERD_E_INVAL, "%s is NULL", shape->name);
    }
    if (!size_is_known(shape, *size)) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "%s.struct_size is %zu, but this library knows the struct with %zu bytes (or shorter, "
            "of an older version, ending with a field); initialise it with %s_init()",
            shape->name, *size, shape->bytes, shape->name);
    }
    return SHERD_OK;
}

sherd_status sherdi_api_read(const void *given, const sherdi_api_shape *shape, void *whole)
{
    if (given == NULL) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_api_check(given, shape));
    memcpy(whole, given, *(const size_t *)given);
    return SHERD_OK;
}

void sherdi_api_write(const void *whole, void *out)
{
    size_t size = *(const size_t *)out;

    memcpy(out, whole, size);
    memcpy(out, &size, sizeof(size));
}

void sherdi_api_init(void *out, const void *defaults)
{
    if (out != NULL) {
        memcpy(out, defaults, *(const size_t *)defaults);
    }
}

sherd_status sherdi_api_need(int is_given, const char *call, const char *what)
{
    return is_given ? SHERD_OK : sherdi_fail(SHERD_E_INVAL, "%s: %s is NULL", call, what);
}

sherd_status sherdi_api_check_out(const void *out, const char *call)
{
    return sherdi_api_need(out != NULL, call, "out");
}

sherd_status sherdi_api_check_flag(int value, const char *what)
{
    return value == 0 || value == 1
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL, "%s is %d; it can be 0 or 1", what, value);
}
