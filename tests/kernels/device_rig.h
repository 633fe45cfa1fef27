/* Tests of a backend whose memory the host cannot read: arrays go there and come back as a whole.
 * The same tests run on the emulated device (tests/emulator) and on a real one, where there is
 * one. */
#ifndef TESTS_KERNELS_DEVICE_RIG_H
#define TESTS_KERNELS_DEVICE_RIG_H

#include "tests/kernels/bits.h"

/** The first lane of device `index`; ends the case as skipped, with the reason, where there is
 *  none. */
sherdi_backend *device_open(int index);
/** Checks that everything was given back: lane, memory, account. */
void device_close(sherdi_backend *lane);
/** How many devices there are; skips without any. */
int device_count(void);

/** Memory of the device with these bytes in it, or zeros when `from` is NULL. */
void *device_put(sherdi_backend *lane, const void *from, size_t len_bytes);
/** Waits for the lane, then copies. */
void device_get(sherdi_backend *lane, const void *memory, void *to, size_t len_bytes);
/** Frees all that device_put and device_array made on this thread. */
void device_drop(sherdi_backend *lane);

/** A copy of an array, guards included, of the same alignment: returns its element 0. */
void *device_array(sherdi_backend *lane, const guarded *array);
/** Reads a copy's bytes, guards included, back into the array that it was made of. */
void device_array_get(sherdi_backend *lane, const void *first, guarded *array);

#endif
