/* Checksums: the same of any register width, whole or portion by portion, and those that the
 * algorithm's authors give. */
#include "offload/checksum.h"
#include "tests/lib/check.h"

#include <stdlib.h>

#define MOST_BYTES ((size_t)64 << 10)

/* Of the whole, by the widest registers that this machine has; of portions, by those that every
 * machine has. */
static void lengths_check(size_t len_bytes, const unsigned char *bytes)
{
    sherdi_checksum_stream stream;

    sherdi_checksum_begin(&stream);
    for (size_t at = 0; at < len_bytes; at += 97) {
        sherdi_checksum_add(&stream, bytes + at, len_bytes - at < 97 ? len_bytes - at : 97);
    }
    CHECK_INT(sherdi_checksum_end(&stream), sherdi_checksum(bytes, len_bytes));
}

static void checksum_is_the_same_whole_and_in_portions(void)
{
    unsigned char *bytes = malloc(MOST_BYTES + 1);

    CHECK(bytes != NULL && sherdi_checksum_check_built() == SHERD_OK);
    for (size_t i = 0; i <= MOST_BYTES; i++) {
        bytes[i] = (unsigned char)(i * 2654435761u >> 13);
    }
    for (size_t len = 0; len < 2100; len++) {
        lengths_check(len, bytes + len % 2);
    }
    lengths_check(MOST_BYTES, bytes);
    lengths_check(MOST_BYTES - 1, bytes + 1);
    free(bytes);
}

static void checksum_of_nothing_is_the_known_one(void)
{
    CHECK_INT(0x2d06800538d394c2, sherdi_checksum("", 0));
}

static const test_case CASE_LIST[] = {
    CASE(checksum_is_the_same_whole_and_in_portions),
    CASE(checksum_of_nothing_is_the_known_one),
};
RUN_MAIN(CASE_LIST)
