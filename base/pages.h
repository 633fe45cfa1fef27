/* Pages of memory that is mapped. */
#ifndef SHERDI_BASE_PAGES_H
#define SHERDI_BASE_PAGES_H

#include <stddef.h>

/** Gives the whole pages inside memory back to the system, of memory that processes share too. What
 *  was in them is lost; the next access finds zeros. */
void sherdi_pages_give_back(void *memory, size_t len_bytes);
/** Says whether memory that this thread allocates takes its pages from the system at their first
 *  access, from now on; returns what was so before. And whether it is so. */
int sherdi_pages_defer_set(int defers);
int sherdi_pages_defers(void);

#endif
