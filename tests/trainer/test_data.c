/* Reading of text and token files, and the order in which sequences come. */
#include "tests/lib/check.h"

#include "trainer/data.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char text[1024];

static const char *path_of(const char *name)
{
    static char path[600];

    (void)snprintf(path, sizeof(path), "%s/%s", test_scratch(), name);
    return path;
}

static const char *file_make(const char *name, const void *bytes, size_t len_bytes)
{
    const char *path = path_of(name);
    FILE       *file = fopen(path, "wb");

    CHECK(file != NULL);
    CHECK_INT(len_bytes, fwrite(bytes, 1, len_bytes, file));
    CHECK_INT(0, fclose(file));
    return path;
}

/* Numbers as text, so that every sequence is unlike the others. */
static corpus corpus_numbers(size_t count)
{
    char  *bytes = malloc(count + 16);
    corpus c;
    size_t at = 0;

    CHECK(bytes != NULL);
    while (at < count) {
        at += (size_t)snprintf(bytes + at, 16, "%zu ", at);
    }
    CHECK_INT(0, corpus_open(file_make("numbers.txt", bytes, count), &c, text, sizeof(text)));
    free(bytes);
    return c;
}

static int32_t token_at(const corpus *c, size_t i)
{
    int32_t token;

    CHECK_INT(0, corpus_read(c, i, 1, &token));
    return token;
}

static void says(const char *part)
{
    test_check_contains(__FILE__, __LINE__, text, part);
}

static void text_is_read_as_bytes(void)
{
    const char bytes[] = "h\xc3\xa9llo \xe2\x82\xac \xf0\x9f\x98\x80 and twenty more characters";
    corpus     c;

    CHECK_INT(0, corpus_open(file_make("a.txt", bytes, sizeof(bytes) - 1), &c, text, sizeof(text)));
    CHECK_INT(sizeof(bytes) - 1, c.count);
    CHECK_INT(256, c.vocab);
    CHECK_INT(c.count - c.count / 20, c.train);
    for (size_t i = 0; i < c.count; i++) {
        CHECK_INT((unsigned char)bytes[i], token_at(&c, i));
    }
    corpus_close(&c);
}

static void what_is_not_text_is_refused(void)
{
    const struct {
        const char *bytes;
        size_t      len_bytes;
    } bad[] = {
        {"ok \xff", 4},         {"ok \xc0\xaf", 5},         {"ok \xed\xa0\x80", 6},
        {"ok \xe2\x82", 5},     {"ok \xf5\x80\x80\x80", 7}, {"ok \0", 4},
        {"ok \xe0\x80\x80", 6}, {"ok \xf0\x80\x80\x80", 7},
    };
    corpus c;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const char *path = file_make("bad", bad[i].bytes, bad[i].len_bytes);

        CHECK_INT(-1, corpus_open(path, &c, text, sizeof(text)));
        says("byte 3");
    }
    CHECK_INT(-1, corpus_open(path_of("missing"), &c, text, sizeof(text)));
    says("No such file");
    CHECK_INT(-1, corpus_open(file_make("empty", "", 0), &c, text, sizeof(text)));
    says("is empty");
    CHECK_INT(0, mkfifo(path_of("pipe"), 0600));
    CHECK_INT(-1, corpus_open(path_of("pipe"), &c, text, sizeof(text)));
    says("no regular file");
}

/* Characters of three bytes lie across the borders of whatever portions a file is read in. */
static void long_text_is_checked_to_its_end(void)
{
    enum { LEN = 40000 };
    char  *bytes = malloc(LEN);
    corpus c;

    CHECK(bytes != NULL);
    for (size_t i = 0; i < LEN; i++) {
        bytes[i] = i == 0 ? 'x' : "\xe2\x82\xac"[(i - 1) % 3];
    }
    CHECK_INT(0, corpus_open(file_make("long", bytes, LEN), &c, text, sizeof(text)));
    CHECK_INT(0xac, token_at(&c, LEN - 1));
    corpus_close(&c);
    bytes[LEN - 10] = 'x';
    CHECK_INT(-1, corpus_open(file_make("long", bytes, LEN), &c, text, sizeof(text)));
    says("byte 39988");
    CHECK_INT(-1, corpus_open(file_make("long", bytes, LEN - 10), &c, text, sizeof(text)));
    free(bytes);
}

static void folder_gives_its_text_files_in_order(void)
{
    corpus  c;
    int32_t got[14];

    CHECK_INT(0, mkdir(path_of("folder"), 0700));
    CHECK_INT(0, mkdir(path_of("folder/b"), 0700));
    (void)file_make("folder/c.txt", "three.", 6);
    (void)file_make("folder/a.txt", "one.", 4);
    (void)file_make("folder/b/x.txt", "two.", 4);
    (void)file_make("folder/picture", "\x89PNG", 4);
    (void)file_make("folder/.hidden", "hidden", 6);
    CHECK_INT(0, mkfifo(path_of("folder/pipe"), 0600)); /* nobody writes: not waited for */
    CHECK_INT(0, corpus_open(path_of("folder"), &c, text, sizeof(text)));
    CHECK_INT(14, c.count);
    CHECK_INT(3, c.files);
    CHECK_INT(0, corpus_read(&c, 0, 14, got));
    for (size_t i = 0; i < 14; i++) {
        CHECK_INT("one.two.three."[i], got[i]);
    }
    corpus_close(&c);
    CHECK_INT(0, mkdir(path_of("nothing"), 0700));
    CHECK_INT(-1, corpus_open(path_of("nothing"), &c, text, sizeof(text)));
    says("no UTF-8 text files");
}

static size_t tokens_make(unsigned char *out, int32_t magic, int32_t version, int32_t count)
{
    int32_t  header[3] = {magic, version, count};
    uint16_t ids[30];

    memset(out, 0, 1024);
    memcpy(out, header, sizeof(header));
    for (size_t i = 0; i < 30; i++) {
        ids[i] = (uint16_t)(i * 1700);
    }
    memcpy(out + 1024, ids, sizeof(ids));
    return 1024 + sizeof(ids);
}

/* The file becomes shorter, then another one, while training reads it. */
static void data_that_changes_is_an_error(void)
{
    unsigned char bytes[2048];
    size_t        len_bytes = tokens_make(bytes, 20240520, 1, 30);
    const char   *path      = file_make("t.bin", bytes, len_bytes);
    int32_t       got[30];
    corpus        c;

    CHECK_INT(0, corpus_open(path, &c, text, sizeof(text)));
    CHECK_INT(0, corpus_read(&c, 0, 30, got));
    CHECK_INT(0, truncate(path, (off_t)len_bytes - 20));
    CHECK_INT(0, corpus_read(&c, 0, 20, got));
    CHECK_INT(-1, corpus_read(&c, 0, 21, got));
    CHECK_INT(0, errno);
    memset(bytes + len_bytes - 2, 0xff, 2);
    (void)file_make("t.bin", bytes, len_bytes);
    CHECK_INT(0, corpus_read(&c, 0, 29, got));
    CHECK_INT(-1, corpus_read(&c, 0, 30, got)); /* a token that the model may not have */
    corpus_close(&c);

    c = corpus_numbers(6000);
    CHECK_INT(0, truncate(path_of("numbers.txt"), 100));
    {
        order   o           = {.c = &c, .seed = 1, .length = 16, .batch = 2};
        int32_t targets[64] = {0}, inputs[64];

        CHECK_INT(-1, order_train(&o, 3, inputs, targets));
        CHECK_INT(-1, order_validate(&o, 0, 4, inputs, targets));
    }
    corpus_close(&c);
}

static void token_file_is_read_and_checked(void)
{
    unsigned char bytes[2048];
    size_t        len_bytes = tokens_make(bytes, 20240520, 1, 30);
    corpus        c;

    CHECK_INT(0, corpus_open(file_make("t.bin", bytes, len_bytes), &c, text, sizeof(text)));
    CHECK_INT(30, c.count);
    CHECK_INT(29 * 1700 + 1, c.vocab);
    CHECK_INT(17 * 1700, token_at(&c, 17));
    corpus_close(&c);
    CHECK_INT(-1, corpus_open(file_make("t.bin", bytes, len_bytes - 2), &c, text, sizeof(text)));
    says("says 30 tokens and holds 29");
    CHECK_INT(-1, corpus_open(file_make("t.bin", bytes, 500), &c, text, sizeof(text)));
    says("cut off");
    len_bytes = tokens_make(bytes, 20240520, 2, 30);
    CHECK_INT(-1, corpus_open(file_make("t.bin", bytes, len_bytes), &c, text, sizeof(text)));
    says("version 2");
}

/* Vocabularies of Llama 3 and Qwen do not fit 16 bits. */
static void wide_token_file_is_read_and_checked(void)
{
    int32_t words[256 + 30] = {20240801, 7, 30};
    corpus  c;

    for (int32_t i = 0; i < 30; i++) {
        words[256 + i] = i * 4423;
    }
    CHECK_INT(0, corpus_open(file_make("t.bin", words, sizeof(words)), &c, text, sizeof(text)));
    CHECK_INT(30, c.count);
    CHECK_INT(29 * 4423 + 1, c.vocab);
    CHECK_INT(29 * 4423, token_at(&c, 29));
    corpus_close(&c);
    CHECK_INT(-1,
              corpus_open(file_make("t.bin", words, sizeof(words) - 2), &c, text, sizeof(text)));
    says("says 30 tokens and holds 29");
    words[1] = 1;
    CHECK_INT(-1, corpus_open(file_make("t.bin", words, sizeof(words)), &c, text, sizeof(text)));
    says("version 7 (uint32 tokens) is read here");
}

static void targets_are_one_token_ahead(void)
{
    corpus  c = corpus_numbers(5000);
    order   o = {.c = &c, .seed = 3, .length = 16, .batch = 4};
    int32_t inputs[64], targets[64];

    for (uint64_t n = 0; n < 50; n++) {
        CHECK_INT(0, order_train(&o, n * 4, inputs, targets));
        for (size_t j = 0; j < 4; j++) {
            CHECK_BYTES_EQUAL(inputs + j * 16 + 1, targets + j * 16, 15 * sizeof(int32_t));
        }
    }
    corpus_close(&c);
}

/* Every sequence of an epoch once: 5000 tokens, 4750 to train on, 296 sequences of 16 less one. */
static void epoch_visits_every_sequence_once(void)
{
    corpus         c    = corpus_numbers(5000);
    order          o    = {.c = &c, .seed = 3, .length = 16, .batch = 1};
    unsigned char *seen = calloc(c.count, 1);
    int32_t        inputs[16], targets[16];
    size_t         per_epoch = (c.train - 1) / 16 - 1, covered = 0;

    CHECK(seen != NULL);
    for (uint64_t n = 0; n < per_epoch; n++) {
        size_t start = 0;

        CHECK_INT(0, order_train(&o, n, inputs, targets));
        while (start + 16 < c.train) { /* where is it? numbers make sequences unique */
            size_t t = 0;

            while (t < 16 && token_at(&c, start + t) == inputs[t]) {
                t++;
            }
            if (t == 16) {
                break;
            }
            start++;
        }
        CHECK(start + 16 < c.train);
        CHECK_INT(0, seen[start]);
        memset(seen + start, 1, 16);
    }
    for (size_t i = 0; i < c.count; i++) {
        covered += seen[i];
    }
    CHECK_INT(per_epoch * 16, covered);
    free(seen);
    corpus_close(&c);
}

/* The same sequences in the same places, whatever the size of a micro-batch; another seed or a
 * later epoch gives another order. */
static void order_depends_on_seed_and_number_alone(void)
{
    corpus  c   = corpus_numbers(5000);
    order   one = {.c = &c, .seed = 3, .length = 16, .batch = 1};
    order   six = {.c = &c, .seed = 3, .length = 16, .batch = 6}, other = six;
    int32_t a[96], b[96], targets[96];
    int     differs = 0;

    other.seed = 4;
    for (uint64_t n = 0; n < 200; n++) {
        CHECK_INT(0, order_train(&six, n * 6, a, targets));
        for (size_t j = 0; j < 6; j++) {
            CHECK_INT(0, order_train(&one, n * 6 + j, b + j * 16, targets));
        }
        CHECK_BYTES_EQUAL(a, b, sizeof(a));
        CHECK_INT(0, order_train(&other, n * 6, b, targets));
        differs += memcmp(a, b, sizeof(a)) != 0;
    }
    CHECK(differs > 195);
    corpus_close(&c);
}

static void validation_stays_in_its_part(void)
{
    corpus  c = corpus_numbers(5000);
    order   o = {.c = &c, .seed = 3, .length = 16, .batch = 3};
    int32_t inputs[48], targets[48];

    CHECK_INT(0, order_validate(&o, 0, 7, inputs, targets));
    for (size_t t = 0; t < 16; t++) {
        CHECK_INT(token_at(&c, c.train + t), inputs[t]);
    }
    CHECK_INT(0, order_validate(&o, 6, 7, inputs, targets));
    CHECK_INT(token_at(&c, c.count - 1), targets[47]);
    corpus_close(&c);
}

static void short_data_is_refused(void)
{
    corpus c = corpus_numbers(330);
    order  o = {.c = &c, .seed = 3, .length = 16, .batch = 1};

    CHECK(order_check(&o, text, sizeof(text)) != NULL);
    says("too short: 330 tokens");
    o.length = 15;
    CHECK(order_check(&o, text, sizeof(text)) == NULL);
    corpus_close(&c);
}

static const test_case cases[] = {
    CASE(text_is_read_as_bytes),
    CASE(what_is_not_text_is_refused),
    CASE(folder_gives_its_text_files_in_order),
    CASE(long_text_is_checked_to_its_end),
    CASE(data_that_changes_is_an_error),
    CASE(token_file_is_read_and_checked),
    CASE(wide_token_file_is_read_and_checked),
    CASE(targets_are_one_token_ahead),
    CASE(epoch_visits_every_sequence_once),
    CASE(order_depends_on_seed_and_number_alone),
    CASE(validation_stays_in_its_part),
    CASE(short_data_is_refused),
};

RUN_MAIN(cases)
