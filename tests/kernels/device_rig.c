#include "tests/kernels/device_rig.h"

#include "kernels/devices.h"

#include <string.h>

#define MAX_HELD 512

static sherdi_mem           account;
static _Thread_local void  *held[MAX_HELD];
static _Thread_local size_t num_held;

int device_count(void)
{
    char why[256];
    int  count = sherdi_backend_device_count("cuda", why, sizeof(why));

    if (count == 0) {
        test_skip("%s", why);
    }
    return count;
}

sherdi_backend *device_open(int index)
{
    sherdi_backend *lane = NULL;

    if (index >= device_count()) {
        test_skip("there is no device %d", index);
    }
    /* a case that failed may have left something; lanes that are open stay counted */
    sherdi_mem_note(&account, SHERDI_MEM_TRANSIENT,
                    -(int64_t)sherdi_mem_held(&account, SHERDI_MEM_TRANSIENT));
    num_held = 0;
    CHECK_OK(sherdi_backend_device_create("cuda", index, &account, &lane));
    return lane;
}

void device_close(sherdi_backend *lane)
{
    device_drop(lane);
    CHECK_OK(sherdi_lane_wait(lane));
    sherdi_backend_destroy(lane);
}

void *device_put(sherdi_backend *lane, const void *from, size_t len_bytes)
{
    void *memory = NULL;

    CHECK(num_held < MAX_HELD);
    CHECK_OK(lane->device->alloc(lane, &account, SHERDI_MEM_TRANSIENT, len_bytes, &memory));
    CHECK_INT(0, (uintptr_t)memory % SHERD_ALIGN_BYTES);
    held[num_held++] = memory;
    if (from != NULL) {
        lane->kernels->copy(lane, memory, from, len_bytes);
    }
    return memory;
}

void device_get(sherdi_backend *lane, const void *memory, void *to, size_t len_bytes)
{
    lane->kernels->copy(lane, to, memory, len_bytes);
    CHECK_OK(sherdi_lane_wait(lane));
}

void device_drop(sherdi_backend *lane)
{
    while (num_held > 0) {
        lane->device->free(lane, held[--num_held]);
    }
    CHECK_INT(0, sherdi_mem_held(&account, SHERDI_MEM_TRANSIENT));
}

void *device_array(sherdi_backend *lane, const guarded *array)
{
    unsigned char *memory = device_put(lane, array->start, array->total_bytes);

    return memory + (array->first - array->start);
}

void device_array_get(sherdi_backend *lane, const void *first, guarded *array)
{
    device_get(lane, (const unsigned char *)first - (array->first - array->start), array->start,
               array->total_bytes);
}
