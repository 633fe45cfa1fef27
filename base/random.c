#include "base/random.h"

#include "base/clock.h"
#include "base/hash.h"

#include <sys/random.h>
#include <unistd.h>

uint64_t sherdi_random_u64(void)
{
    uint64_t number;

    if (getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number)) {
        number = sherdi_mix64((uint64_t)sherdi_now_ns() ^ (uint64_t)getpid() << 40);
    }
    return number;
}
