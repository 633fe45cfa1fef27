/* A transport that the library has not: processes of one host, whose slices go round one after the
 * other. */
#ifndef TESTS_COLLECTIVES_RELAY_H
#define TESTS_COLLECTIVES_RELAY_H

/** Gathers that this process has made over it. */
int relay_gathers(void);

#endif
