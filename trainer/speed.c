/* The peaks of GPUs, from NVIDIA's data sheets without sparsity, and the median of step times. See
 * speed.h. */
#include "speed.h"

#include <stdlib.h>
#include <string.h>

typedef struct peak_row {
    const char *name;         /* a part of the device's name; the first row that matches counts */
    double      half, single; /* teraflops of the 16-bit types, of fp32 */
} peak_row;

static const peak_row peaks[] = {
    {"B200", 2250.0, 75.0}, {"GH200", 989.4, 66.9},     {"H200 NVL", 835.5, 60.3},
    {"H200", 989.4, 66.9},  {"H100 PCIe", 756.0, 51.2}, {"H100 NVL", 835.5, 60.0},
    {"H100", 989.4, 66.9},  {"A100", 312.0, 19.5},
};

double speed_peak_flops(const char *device, sherd_dtype dtype)
{
    for (size_t i = 0; i < sizeof(peaks) / sizeof(peaks[0]); i++) {
        if (strstr(device, peaks[i].name) != NULL) {
            return 1e12 * (dtype == SHERD_F32 ? peaks[i].single : peaks[i].half);
        }
    }
    return 0.0;
}

double speed_flops_per_token(const arch *model, size_t length)
{
    return arch_flops_per_token(model, length);
}

void speed_add(speed_times *times, double seconds)
{
    times->seconds[times->count % SPEED_KEPT_STEPS] = seconds;
    times->count++;
}

static int seconds_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double speed_median(const speed_times *times)
{
    size_t warm  = times->count / 2 < SPEED_WARM_STEPS ? times->count / 2 : SPEED_WARM_STEPS;
    size_t first = times->count > SPEED_KEPT_STEPS ? times->count - SPEED_KEPT_STEPS : 0;
    double sorted[SPEED_KEPT_STEPS];
    size_t count = 0;

    for (size_t i = first > warm ? first : warm; i < times->count; i++) {
        sorted[count++] = times->seconds[i % SPEED_KEPT_STEPS];
    }
    if (count == 0) {
        return 0.0;
    }
    qsort(sorted, count, sizeof(*sorted), seconds_order);
    return 0.5 * (sorted[(count - 1) / 2] + sorted[count / 2]);
}
