/* The text of a manifest, byte for byte: every member has a value of its own, is read into the
 * member that it is for, and is written as it was. So two fields that are swapped, or one that has
 * moved, show. */
#include "engine/checkpoint/manifest.h"
#include "offload/checksum.h"
#include "tests/engine/saved.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>

/* With %s for the host of a file, and %016llx for the checksum. */
static const char TEXT[] =
    "{\n \"sherd_checkpoint\": 1,\n \"version\": \"a version\",\n \"tag\": \"a tag\",\n"
    " \"saved\": 11,\n \"world_size\": 2,\n \"stage\": 3,\n \"compute_type\": \"bf16\",\n"
    " \"optimizer\": \"AdamW\",\n \"parts\": [\n"
    "  {\n   \"name\": \"master\",\n   \"encoding\": \"F32\",\n   \"held\": \"bf16_beside\"\n  },\n"
    "  {\n   \"name\": \"exp_avg\",\n   \"encoding\": \"F32\",\n   \"held\": \"fp32\"\n  }\n ],\n"
    " \"step\": 14,\n \"micro_step\": 15,\n \"skipped_steps\": 16,\n \"samples\": 17,\n"
    " \"gradient_accumulation_steps\": 18,\n \"train_micro_batch_size_per_gpu\": 19,\n"
    " \"run\": \"a \\\"run\\\"\\n\",\n \"loss_scaler\": {\n  \"dynamic\": true,\n  \"scale\": "
    "65536.0,\n"
    "  \"hysteresis_left\": 21,\n  \"iteration\": 22,\n  \"last_overflow\": -1\n },\n"
    " \"fingerprint\": \"00000000000000fa\",\n \"frozen_fingerprint\": \"00000000000000fb\",\n"
    " \"state_fingerprint\": null,\n \"data_bytes\": 24,\n \"extent_bytes\": 65536,\n"
    " \"params\": [\n"
    "  {\n   \"name\": \"a\",\n   \"shape\": [\n    5,\n    7\n   ],\n   \"frozen\": false,\n"
    "   \"segment\": 1,\n   \"offset\": 64\n  },\n"
    "  {\n   \"name\": \"b\",\n   \"shape\": [],\n   \"frozen\": true,\n   \"type\": \"fp32\",\n"
    "   \"segment\": 0,\n   \"offset\": 0\n  }\n ],\n"
    " \"segments\": [\n  {\n   \"slice\": 64,\n   \"frozen\": true\n  },\n"
    "  {\n   \"slice\": 128,\n   \"frozen\": false,\n   \"optimizer\": \"SGD\",\n   \"parts\": [\n"
    "    \"master\"\n   ]\n  },\n"
    "  {\n   \"slice\": 192,\n   \"frozen\": false,\n   \"optimizer\": \"AdamW\",\n   \"parts\": "
    "[\n"
    "    \"master\",\n    \"exp_avg\"\n   ]\n  }\n ],\n"
    " \"files\": [\n  {\n   \"name\": \"frozen-00001-of-00002.safetensors\",\n   \"rank\": 1,\n"
    "%s   \"bytes\": 25,\n   \"header_checksum\": \"00000000000000fc\"\n  }\n ],\n"
    "\"checksum\": \"%016llx\"}\n";

static void check_head(const sherdi_manifest *m)
{
    CHECK(strcmp("a version", m->version) == 0 && strcmp("a tag", m->tag) == 0);
    CHECK(strcmp("a \"run\"\n", m->run_text) == 0);
    CHECK(m->saved_s == 11 && m->world_size == 2 && m->stage == 3);
    CHECK(m->compute_dtype == SHERD_BF16);
    CHECK(m->step == 14 && m->micro_step == 15 && m->skipped_steps == 16 && m->samples == 17);
    CHECK(m->accumulation == 18 && m->micro_batch_size == 19);
    CHECK(m->scaler.params.is_dynamic && m->scaler.hysteresis_left == 21);
    CHECK(m->scaler.iteration == 22 && m->scaler.last_overflow == -1);
    CHECK_CLOSE(65536, m->scaler.scale, 0);
    CHECK(m->fingerprint == 0xfa && m->frozen_fingerprint == 0xfb && !m->has_state_fingerprint);
    CHECK_INT(24, m->data_bytes);
}

static void check_rows(const sherdi_manifest *m)
{
    CHECK(m->num_parts == 2 && strcmp("exp_avg", m->parts[1].name) == 0);
    CHECK(strcmp("bf16_beside", sherdi_manifest_held(m, 0)) == 0);
    CHECK(strcmp("fp32", sherdi_manifest_held(m, 1)) == 0);
    CHECK(m->num_params == 2 && strcmp("a", m->params[0].name) == 0);
    CHECK(m->params[0].ndim == 2 && m->params[0].shape[1] == 7 && m->params[0].elems == 35);
    CHECK(m->params[0].segment == 1 && m->params[0].offset_elems == 64);
    CHECK(m->params[0].dtype == SHERD_BF16 && m->params[1].dtype == SHERD_F32);
    CHECK(!m->params[0].is_frozen && m->params[1].is_frozen && m->params[1].elems == 1);
    CHECK(m->num_segments == 3 && m->segments[0].is_frozen && m->segments[1].slice_elems == 128);
    CHECK(strcmp("SGD", m->segments[1].optimizer.name) == 0 && m->segments[1].optimizer.parts == 1);
    CHECK(m->num_optimizers == 2 && m->optimizers[0].parts == 3);
    CHECK(m->files[1][SHERDI_DATA_FROZEN].bytes == 25 && m->files[0][SHERDI_DATA_STATE].bytes == 0);
    CHECK_INT(0xfc, m->files[1][SHERDI_DATA_FROZEN].header_checksum);
}

static size_t text_make(const char *host, char text[4096])
{
    int len = snprintf(text, 4096, TEXT, host, 0ull);

    (void)snprintf(text, 4096, TEXT, host,
                   (unsigned long long)sherdi_checksum(text, (size_t)len - 19));
    return (size_t)len;
}

static void check_text(const char *host, const char *name)
{
    char            text[4096];
    char           *again;
    sherdi_mem      mem;
    sherdi_manifest m;
    size_t          len = text_make(host, text);
    size_t          again_len;

    sherdi_mem_init(&mem);
    CHECK_OK(sherdi_manifest_parse(&m, &mem, "golden", text, len));
    check_head(&m);
    check_rows(&m);
    CHECK(strcmp(name, sherdi_manifest_host(&m, 1)) == 0);
    CHECK_OK(sherdi_manifest_text(&m, &again, &again_len));
    CHECK_INT(len, again_len);
    CHECK_BYTES_EQUAL(text, again, again_len);
    sherdi_manifest_text_free(again);
    sherdi_manifest_fini(&m);
    CHECK_INT(0, sherdi_mem_held_all(&mem));
}

static void manifest_is_written_as_it_was_read(void)
{
    saved_need_checksums();
    check_text("", "");
    check_text("   \"host\": \"b.cluster\",\n", "b.cluster");
}

static void a_host_has_a_plain_name(void)
{
    static const char *const HOSTS[] = {"", "a b", "\\u001b[31m", "\\u00e4"};

    saved_need_checksums();
    for (size_t i = 0; i < sizeof(HOSTS) / sizeof(HOSTS[0]); i++) {
        char            host[64];
        char            text[4096];
        sherdi_mem      mem;
        sherdi_manifest m;
        size_t          len;

        (void)snprintf(host, sizeof(host), "   \"host\": \"%s\",\n", HOSTS[i]);
        len = text_make(host, text);
        sherdi_mem_init(&mem);
        CHECK_STATUS(SHERD_E_INVAL, sherdi_manifest_parse(&m, &mem, "odd", text, len));
        CHECK_ERROR_SAYS("a host whose name is none");
        CHECK_INT(0, sherdi_mem_held_all(&mem));
    }
}

static const test_case CASES[] = {
    CASE(manifest_is_written_as_it_was_read),
    CASE(a_host_has_a_plain_name),
};

RUN_MAIN(CASES)
