/* An MPI of another kind, for SHERD_MPI_LIBRARY: it says SHERD_FAKE_MPI of itself, and has no other
 * function. */
#include <stdio.h>
#include <stdlib.h>

int MPI_Get_library_version(char *text, int *len);

int MPI_Get_library_version(char *text, int *len)
{
    const char *version = getenv("SHERD_FAKE_MPI");

    *len = sprintf(text, "%s", version == NULL ? "" : version);
    return 0;
}
