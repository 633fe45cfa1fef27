/* Memory and lanes of the CPU: one memory, and one lane, which is the calling thread. */
#ifndef SHERDI_KERNELS_CPU_DEVICE_H
#define SHERDI_KERNELS_CPU_DEVICE_H

#include "kernels/backend.h"

extern const sherdi_device_ops sherdi_device_cpu;

#endif
