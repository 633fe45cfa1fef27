/* The trainer's own bytes, by key: set, replaced, removed, found; as one sequence of bytes and
 * back; damaged bytes. */
#include "engine/run/blobs.h"
#include "engine/run/engine_impl.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <stdlib.h>
#include <string.h>

static void engine_open(rig *r, sherd_world *world)
{
    static const rig_options OPTIONS = {.stage = 2};

    rig_open(r, world, &OPTIONS);
    (void)rig_param(r, rig_unit(r, "unit"), "w", 100);
}

static void expect_blob(rig *r, const char *key, const char *want, const sherd_blob_params *params)
{
    char   got[64] = {0};
    size_t len     = 0;

    CHECK_OK(sherd_blob_get(r->engine, key, NULL, &len, params));
    CHECK_INT(strlen(want), len);
    len = sizeof(got);
    CHECK_OK(sherd_blob_get(r->engine, key, got, &len, params));
    CHECK_INT(strlen(want), len);
    CHECK_BYTES_EQUAL(want, got, len + 1);
}

static void each_rank(sherd_world *world, void *ctx)
{
    sherd_blob_params own    = {.struct_size = sizeof(own), .is_per_rank = 1, .rank = -1};
    const char       *mine[] = {"zero", "one!!"};
    int               rank   = sherd_world_rank(world);
    char              small[3];
    size_t            len = sizeof(small);
    rig               r;

    (void)ctx;
    engine_open(&r, world);
    CHECK_OK(sherd_blob_set(r.engine, "place", "first", 5, NULL)); /* before seal */
    CHECK_OK(sherd_blob_set(r.engine, "place", mine[rank], strlen(mine[rank]), &own));
    rig_seal(&r);
    expect_blob(&r, "place", "first", NULL);
    expect_blob(&r, "place", mine[rank], &own);
    CHECK_OK(sherd_blob_set(r.engine, "place", "", 0, NULL));
    expect_blob(&r, "place", "", NULL);
    CHECK_OK(sherd_blob_set(r.engine, "place", "later", 5, NULL));
    expect_blob(&r, "place", "later", NULL);
    CHECK_STATUS(SHERD_E_INVAL, sherd_blob_get(r.engine, "place", small, &len, NULL));
    CHECK_ERROR_SAYS("blob place has 5 bytes, and the buffer has 3");
    CHECK_INT(5, len);
    CHECK_OK(sherd_blob_set(r.engine, "place", NULL, 0, NULL));
    CHECK_OK(sherd_blob_set(r.engine, "place", NULL, 0, NULL)); /* gone already */
    CHECK_STATUS(SHERD_E_INVAL, sherd_blob_get(r.engine, "place", NULL, &len, NULL));
    CHECK_ERROR_SAYS("there is no blob place");
    expect_blob(&r, "place", mine[rank], &own);
    own.rank = 1 - rank;
    CHECK_STATUS(SHERD_E_INVAL, sherd_blob_get(r.engine, "place", NULL, &len, &own));
    CHECK_STATUS(SHERD_E_INVAL, sherd_blob_set(r.engine, "place", "x", 1, &own));
    CHECK_ERROR_SAYS("can set its own blobs only");
    rig_close(&r); /* which asserts that nothing is left */
}

static void blobs_are_kept_by_key_and_rank(void)
{
    test_world(2, each_rank, NULL);
}

/* ------------------------------------------------------------------ limits -- */

static void limits(sherd_world *world, void *ctx)
{
    size_t room = SHERD_BLOB_MAX_BYTES - 2 * 8 - 24 - 1; /* two heads, that of the blob, its key */
    char  *data = calloc(1, SHERD_BLOB_MAX_BYTES);
    char   key[SHERD_BLOB_KEY_BYTES + 2];
    size_t len;
    rig    r;

    sherd_blob_params large;

    (void)ctx;
    sherd_blob_params_init(&large);
    large.is_large = 1;
    CHECK(data != NULL);
    engine_open(&r, world);
    memset(key, 'k', sizeof(key));
    key[sizeof(key) - 1] = '\0';
    CHECK_STATUS(SHERD_E_INVAL, sherd_blob_set(r.engine, key, data, 1, NULL));
    CHECK_ERROR_SAYS("1 to 127 bytes");
    key[SHERD_BLOB_KEY_BYTES] = '\0';
    CHECK_OK(sherd_blob_set(r.engine, key, data, 1, NULL));
    CHECK_OK(sherd_blob_set(r.engine, key, NULL, 0, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_blob_set(r.engine, "", data, 1, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_blob_set(r.engine, "a\nb", data, 1, NULL));
    CHECK_ERROR_SAYS("byte 1 of a blob's key is 0x0a");
    CHECK_STATUS(SHERD_E_INVAL, sherd_blob_set(r.engine, "\xff", data, 1, NULL));
    CHECK_OK(sherd_blob_set(r.engine, "k", data, room, NULL));
    CHECK_OK(sherd_blob_set(r.engine, "k", data, room, NULL)); /* in its own place */
    CHECK_STATUS(SHERD_E_INVAL, sherd_blob_set(r.engine, "k", data, room + 1, NULL));
    CHECK_ERROR_SAYS("together they may take 1048576");
    CHECK_STATUS(SHERD_E_INVAL, sherd_blob_set(r.engine, "l", data, 0, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_blob_set(r.engine, "l", data, SIZE_MAX, NULL));
    CHECK_OK(
        sherd_blob_set(r.engine, "l", data, SHERD_BLOB_MAX_BYTES, &large)); /* with the others */
    CHECK_OK(sherd_blob_get(r.engine, "l", NULL, &len, NULL));
    CHECK_INT(SHERD_BLOB_MAX_BYTES, len);
    CHECK_STATUS(SHERD_E_INVAL,
                 sherd_blob_set(r.engine, "l", data, 0, NULL)); /* and as a small one not */
    CHECK_OK(sherd_blob_set(r.engine, "k", data, SHERD_BLOB_MAX_BYTES, &large));
    CHECK_OK(sherd_blob_set(r.engine, "l", data, room, NULL));
    CHECK_STATUS(SHERD_E_NOMEM, sherd_blob_set(r.engine, "l", data, SIZE_MAX, &large));
    rig_close(&r);
    free(data);
}

static void keys_and_bytes_have_limits(void)
{
    test_world(1, limits, NULL);
}

/* ------------------------------------------------------------------- bytes -- */

/* Three of this rank's, one of another rank's, two of the run. */
static void blobs_fill(sherdi_blobs *blobs)
{
    CHECK_OK(sherdi_blobs_put(blobs, "a", SHERDI_BLOB_GLOBAL, 0, 0, "data of a", 9));
    CHECK_OK(sherdi_blobs_put(blobs, "a", SHERDI_BLOB_OF_RANK, 3, 0, "own", 3));
    CHECK_OK(sherdi_blobs_put(blobs, "empty", SHERDI_BLOB_OF_RANK, 3, 0, "", 0));
    CHECK_OK(sherdi_blobs_put(blobs, "a", SHERDI_BLOB_OF_RANK, 4, 0, "other", 5));
    CHECK_OK(sherdi_blobs_put(blobs, "zeros", SHERDI_BLOB_OF_RANK, 3, 0, "\0\0\0", 3));
    CHECK_OK(sherdi_blobs_put(blobs, "b", SHERDI_BLOB_GLOBAL, 0, 0, "b", 1));
}

static unsigned char *blobs_written(const sherdi_blobs *blobs, sherdi_blob_kind kind, size_t *len)
{
    unsigned char *bytes;

    *len  = sherdi_blobs_bytes(blobs, kind, 3);
    bytes = malloc(*len); /* just as long: a sanitizer sees a byte more */
    CHECK(bytes != NULL);
    sherdi_blobs_write(blobs, kind, 3, bytes);
    return bytes;
}

static void bytes_give_the_same_blobs(void)
{
    sherdi_mem   mem;
    sherdi_blobs blobs;
    sherdi_blobs copy;

    sherdi_mem_init(&mem);
    sherdi_blobs_init(&blobs, &mem);
    sherdi_blobs_init(&copy, &mem);
    blobs_fill(&blobs);
    CHECK_OK(sherdi_blobs_put(&copy, "a", SHERDI_BLOB_OF_RANK, 3, 0, "old", 3));
    for (int kind = 0; kind < SHERDI_BLOB_KINDS; kind++) {
        size_t         len;
        unsigned char *bytes = blobs_written(&blobs, (sherdi_blob_kind)kind, &len);

        CHECK_OK(sherdi_blobs_read(&copy, bytes, len));
        free(bytes);
    }
    CHECK_INT(blobs.count - 1, copy.count); /* but for the other rank's */
    for (size_t i = 0; i < blobs.count; i++) {
        const sherdi_blob *want = &blobs.list[i];
        const sherdi_blob *got  = sherdi_blobs_find(&copy, want->key, want->kind, want->rank);

        CHECK((got == NULL) == (want->rank == 4));
        if (got != NULL) {
            CHECK_INT(want->len_bytes, got->len_bytes);
            CHECK_BYTES_EQUAL(want->data, got->data, want->len_bytes);
        }
    }
    CHECK_OK(sherdi_blobs_put(&copy, "b", SHERDI_BLOB_GLOBAL, 0, 1, "large",
                              5)); /* is none of them now */
    CHECK_INT(blobs.count - 2, sherdi_blobs_small(&copy));
    CHECK_INT(sherdi_blobs_bytes(&blobs, SHERDI_BLOB_GLOBAL, 3) - 24 - 1 - 1,
              sherdi_blobs_bytes(&copy, SHERDI_BLOB_GLOBAL, 3));
    sherdi_blobs_clear(&copy, 0);
    CHECK_INT(1, copy.count);
    CHECK_INT(5, sherdi_blobs_find(&copy, "b", SHERDI_BLOB_GLOBAL, 0)->len_bytes);
    sherdi_blobs_clear(&copy, 1);
    CHECK_INT(0, copy.count);
    sherdi_blobs_fini(&copy);
    sherdi_blobs_fini(&blobs);
    CHECK_INT(0, sherdi_mem_held_all(&mem));
}

/* Cut anywhere it is refused; changed anywhere it is read or refused, and never more memory than it
 * has bytes. */
static void damaged_bytes_are_refused_or_read(void)
{
    sherdi_mem     mem;
    sherdi_blobs   blobs;
    unsigned char *bytes;
    size_t         len;

    sherdi_mem_init(&mem);
    sherdi_blobs_init(&blobs, &mem);
    blobs_fill(&blobs);
    bytes = blobs_written(&blobs, SHERDI_BLOB_OF_RANK, &len);
    for (size_t cut = 0; cut < len; cut++) {
        unsigned char *part = malloc(cut + (cut == 0));

        CHECK(part != NULL);
        memcpy(part, bytes, cut);
        CHECK_STATUS(SHERD_E_INVAL, sherdi_blobs_read(&blobs, part, cut));
        free(part);
    }
    for (size_t bit = 0; bit < 8 * len; bit++) {
        sherdi_blobs other;
        sherd_status status;

        sherdi_blobs_init(&other, &mem);
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        status = sherdi_blobs_read(&other, bytes, len);
        CHECK(status == SHERD_OK || status == SHERD_E_INVAL);
        CHECK(bit >= 64 || status == SHERD_E_INVAL); /* their number */
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        sherdi_blobs_fini(&other);
    }
    free(bytes);
    sherdi_blobs_fini(&blobs);
    CHECK_INT(0, sherdi_mem_held_all(&mem));
}

/* The n-th allocation fails: what was there before stays. */
static void no_memory_leaves_the_blob_before(void)
{
    sherdi_mem   mem;
    sherdi_blobs blobs;
    sherd_status status = SHERD_E_NOMEM;

    sherdi_mem_init(&mem);
    sherdi_blobs_init(&blobs, &mem);
    CHECK_OK(sherdi_blobs_put(&blobs, "a", SHERDI_BLOB_GLOBAL, 0, 0, "old", 3));
    for (size_t n = 1; status != SHERD_OK; n++) {
        (void)sherdi_mem_fail_nth(n);
        status = sherdi_blobs_put(&blobs, "a", SHERDI_BLOB_GLOBAL, 0, 0, "new", 3);
        (void)sherdi_mem_fail_nth(0);
        CHECK(status == SHERD_OK || status == SHERD_E_NOMEM);
        CHECK(memcmp(sherdi_blobs_find(&blobs, "a", SHERDI_BLOB_GLOBAL, 0)->data,
                     status == SHERD_OK ? "new" : "old", 3) == 0);
        CHECK(n < 10);
    }
    sherdi_blobs_fini(&blobs);
    CHECK_INT(0, sherdi_mem_held_all(&mem));
}

static const test_case CASES[] = {
    CASE(blobs_are_kept_by_key_and_rank),   CASE(keys_and_bytes_have_limits),
    CASE(bytes_give_the_same_blobs),        CASE(damaged_bytes_are_refused_or_read),
    CASE(no_memory_leaves_the_blob_before),
};

RUN_MAIN(CASES)
