/* Numbers that nobody can guess, and that no other process draws. */
#ifndef SHERDI_BASE_RANDOM_H
#define SHERDI_BASE_RANDOM_H

#include <stdint.h>

/** Draws 64 bits from the system, or makes them of clock and process where the system has none
 *  yet. */
uint64_t sherdi_random_u64(void);

#endif
