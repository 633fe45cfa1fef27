/* The device table of the CPU: its memory is the host's, and its one lane is the calling thread. */
#ifndef SHERDI_KERNELS_CPU_DEVICE_H
#define SHERDI_KERNELS_CPU_DEVICE_H

#include "kernels/backend.h"

extern const sherdi_device_ops sherdi_device_cpu;

#endif
