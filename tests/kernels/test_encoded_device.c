/* What a device does with a state in encodings has the bits of scalar: every update over every
 * mixture of encodings, LAMB's norms, the fingerprint, values written and read; arrays that no
 * vector is aligned to; guard bytes are compared too. */
#include "kernels/updates/updates.h"
#include "tests/kernels/device_rig.h"
#include "tests/kernels/encoded_blocks.h"
#include "tests/kernels/rules.h"

#include <math.h>
#include <string.h>

/* What every comparison has: scalar on the host and the device's lane. */
typedef struct pair {
    sherdi_backend  scalar;
    sherdi_backend *lane;
} pair;

static pair pair_open(void)
{
    return (pair){.lane = device_open(0), .scalar = backend_make("scalar", 1)};
}

static void pair_close(pair *p)
{
    backend_destroy(&p->scalar);
    device_close(p->lane);
}

static const sherdi_lamb_coeffs LAMB[2] = {{.grad_scale      = 0.37f,
                                            .beta1           = 0.9f,
                                            .one_minus_beta1 = 0.1f,
                                            .beta2           = 0.99f,
                                            .one_minus_beta2 = 0.01f,
                                            .inv_bias1       = 1,
                                            .inv_bias2       = 1,
                                            .eps             = 1e-6f,
                                            .neg_step_size   = -0.01f},
                                           {.grad_scale      = 2,
                                            .beta1           = 0.8f,
                                            .one_minus_beta1 = 0.2f,
                                            .beta2           = 0.9f,
                                            .one_minus_beta2 = 0.1f,
                                            .inv_bias1       = 1.7f,
                                            .inv_bias2       = 3.1f,
                                            .eps_inside      = 1e-6f,
                                            .decay           = 0.01f,
                                            .neg_step_size   = -0.3f}};

/* --------------------------------------------------------------- updates -- */

/* A scheme for any update, whose parts may all have a sign: v is stored as m is, and a split master
 * has a plane. */
static scheme scheme_with_signs(const scheme *s)
{
    scheme own = *s;

    own.v      = s->m;
    own.master = s->master == SHERDI_ENCODING_BESIDE ? SHERDI_ENCODING_BESIDE_PLANE : s->master;
    return own;
}

enum { MASTER, M, V, GRAD = SHERDI_UPDATE_MOST_PARTS, PARAM, NUM_ARRAYS };

/* A block's copy on the device. */
typedef struct device_block {
    void *arrays[NUM_ARRAYS];
} device_block;

static guarded *block_array(block *b, int which)
{
    guarded *all[NUM_ARRAYS] = {[MASTER] = &b->master.bytes,
                                [M]      = &b->m.bytes,
                                [V]      = &b->v.bytes,
                                [GRAD]   = &b->grad,
                                [PARAM]  = &b->param};

    return all[which] != NULL ? all[which] : &b->more[which - V - 1].bytes;
}

static device_block block_put(sherdi_backend *lane, block *b)
{
    device_block there;

    for (int i = 0; i < NUM_ARRAYS; i++) {
        there.arrays[i] = device_array(lane, block_array(b, i));
    }
    return there;
}

static void block_get(sherdi_backend *lane, const device_block *there, block *b)
{
    for (int i = 0; i < NUM_ARRAYS; i++) {
        device_array_get(lane, there->arrays[i], block_array(b, i));
    }
}

static sherdi_update_args device_args(const sherdi_update_args *args, const device_block *there)
{
    sherdi_update_args own = *args;

    for (int part = 0; part < SHERDI_UPDATE_MOST_PARTS; part++) {
        own.parts[part] = there->arrays[MASTER + part];
    }
    own.grad  = there->arrays[GRAD];
    own.param = args->param == NULL ? NULL : there->arrays[PARAM];
    return own;
}

static sherdi_encoded device_master(const block *b, const device_block *there)
{
    sherdi_encoded master = b->master.part;

    master.data  = there->arrays[MASTER];
    master.param = there->arrays[PARAM];
    master.ties  = there->arrays[V];
    return master;
}

typedef struct update_sums {
    uint64_t          fingerprint, again;
    sherdi_lamb_norms norms[1];
} update_sums;

static void run_on(const sherdi_backend *backend, sherdi_update_id update,
                   const sherdi_update_args *args, const sherdi_encoded *master)
{
    if (update == SHERDI_UPDATE_lamb) {
        backend->kernels->lamb_norms(backend, args);
    }
    backend->kernels->update(backend, update, args);
    backend->kernels->fingerprint_encoded(backend, args->spans, args->num_spans, master,
                                          args->fingerprint + 1);
}

static void sums_check_equal(update_sums *want, update_sums *got)
{
    CHECK_INT(want->fingerprint, got->fingerprint);
    CHECK_INT(want->again, got->again);
    CHECK_INT(got->fingerprint, got->again);
    sherdi_norm_normalise(&want->norms->param);
    sherdi_norm_normalise(&want->norms->update);
    sherdi_norm_normalise(&got->norms->param);
    sherdi_norm_normalise(&got->norms->update);
    CHECK_BYTES_EQUAL(want->norms, got->norms, sizeof(want->norms));
}

/* Two steps: the second starts from what rounding and ties of the first have left. */
static void update_compare(pair *p, const scheme *s, sherdi_update_id update, const void *coeffs,
                           size_t coeff_bytes, input_kind kind)
{
    block        want = block_make(s);
    block        got;
    device_block there;

    block_fill(&want, kind);
    got   = block_clone(s, &want);
    there = block_put(p->lane, &got);
    for (uint64_t step = 7; step < 9; step++) {
        update_sums        sums       = {.fingerprint = 17, .again = 17}; /* shares are added */
        update_sums       *here       = device_put(p->lane, &sums, sizeof(sums));
        sherdi_update_args args       = block_args(s, &want, step, &sums.fingerprint);
        sherdi_update_args its        = device_args(&args, &there);
        sherdi_encoded     its_master = device_master(&got, &there);
        update_sums        back;

        args.spans      = SPANS;
        args.coeffs     = coeffs;
        args.norms      = sums.norms;
        its.spans       = device_put(p->lane, SPANS, sizeof(SPANS));
        its.coeffs      = device_put(p->lane, coeffs, 2 * coeff_bytes);
        its.fingerprint = &here->fingerprint;
        its.norms       = here->norms;
        run_on(&p->scalar, update, &args, &want.master.part);
        run_on(p->lane, update, &its, &its_master);
        device_get(p->lane, here, &back, sizeof(back));
        sums_check_equal(&sums, &back);
    }
    block_get(p->lane, &there, &got);
    block_check_equal(&want, &got);
    device_drop(p->lane);
    block_free(&want);
    block_free(&got);
}

static void adam_equals_scalar(void)
{
    const update_rule *rule = &update_rules()[UPDATE_RULE_adamw];
    pair               p    = pair_open();

    for (size_t i = 0; i < NUM_SCHEMES * INPUT_KINDS; i++) {
        update_compare(&p, &SCHEMES[i / INPUT_KINDS], rule->update, rule->coeffs, rule->coeff_bytes,
                       (input_kind)(i % INPUT_KINDS));
    }
    pair_close(&p);
}

static void lamb_and_its_norms_equal_scalar(void)
{
    pair p = pair_open();

    for (size_t i = 0; i < NUM_SCHEMES; i++) {
        update_compare(&p, &SCHEMES[i], SHERDI_UPDATE_lamb, LAMB, sizeof(LAMB[0]),
                       (input_kind)(i % INPUT_KINDS));
    }
    pair_close(&p);
}

static void every_update_equals_scalar(void)
{
    pair p = pair_open();

    for (size_t r = 0; r < UPDATE_RULES; r++) {
        const update_rule *rule = &update_rules()[r];

        for (size_t i = r % 2; i < NUM_SCHEMES; i += 2) {
            scheme s = scheme_with_signs(&SCHEMES[i]);

            update_compare(&p, &s, rule->update, rule->coeffs, rule->coeff_bytes,
                           (input_kind)(i / 2 % INPUT_KINDS));
        }
    }
    pair_close(&p);
}

/* ---------------------------------------------------------------- values -- */

#define LONG_ELEMS ((size_t)3 * 1024 + 77)

/* A part, the parameter of a split master, and the ties that it may have elsewhere. */
typedef struct values_block {
    part_array part, ties;
    guarded    param;
} values_block;

static values_block values_make(sherdi_encoding encoding, sherdi_encoding ties, size_t elems)
{
    values_block b = {.part  = part_make(encoding, elems),
                      .ties  = part_make(ties, elems),
                      .param = guarded_make(SHERD_BF16, elems, 0)};

    memset(b.param.first, 0, elems * sizeof(uint16_t));
    b.part.part.param         = (uint16_t *)(void *)b.param.first;
    b.part.part.ties          = b.ties.bytes.first;
    b.part.part.ties_encoding = ties;
    return b;
}

static void values_free(values_block *b)
{
    guarded_free(&b->part.bytes);
    guarded_free(&b->ties.bytes);
    guarded_free(&b->param);
}

/* Numbers of all kinds, ties among them. */
static void numbers_fill(float *x, size_t count, uint64_t seed, int is_unsigned)
{
    guarded  array = guarded_make(SHERD_F32, count, 0);
    uint64_t state = seed;

    guarded_fill_scaled(&array, &state);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = sherdi_bits_f32(guarded_get(&array, i));

        x[i] = sherdi_f32_from_bits((i + seed) % 5 == 1 ? (bits & 0xffff0000u) | 0x8000u : bits);
        x[i] = is_unsigned ? fabsf(x[i]) : x[i];
    }
    guarded_free(&array);
}

/* Twice: what the first left, ties among it, is written over. */
static void values_compare(pair *p, sherdi_encoding encoding, sherdi_encoding ties, size_t first,
                           size_t count, int has_ties)
{
    static float x[LONG_ELEMS], want_back[LONG_ELEMS], got_back[LONG_ELEMS];
    size_t elems = (first + count + SHERD_CHUNK_ELEMS) / SHERD_CHUNK_ELEMS * SHERD_CHUNK_ELEMS;
    values_block   want = values_make(encoding, ties, elems);
    values_block   got  = values_make(encoding, ties, elems);
    sherdi_encoded its  = got.part.part;
    float         *there;

    want.part.part.has_ties = has_ties;
    its.has_ties            = has_ties;
    its.data                = device_array(p->lane, &got.part.bytes);
    its.param               = device_array(p->lane, &got.param);
    its.ties                = device_array(p->lane, &got.ties.bytes);
    there                   = device_put(p->lane, NULL, sizeof(x));
    for (uint64_t turn = 0; turn < 2; turn++) {
        numbers_fill(x, count, count + turn, encoding == SHERDI_ENCODING_UFP8 || has_ties);
        p->scalar.kernels->encode(&p->scalar, &want.part.part, first, x, count);
        p->lane->kernels->copy(p->lane, there + turn, x, count * sizeof(float)); /* unaligned too */
        p->lane->kernels->encode(p->lane, &its, first, there + turn, count);
    }
    p->scalar.kernels->decode(&p->scalar, want_back, &want.part.part, first, count);
    p->lane->kernels->decode(p->lane, there + 1, &its, first, count);
    device_get(p->lane, there + 1, got_back, count * sizeof(float));
    CHECK_BYTES_EQUAL(want_back, got_back, count * sizeof(float));
    device_array_get(p->lane, its.data, &got.part.bytes);
    device_array_get(p->lane, its.param, &got.param);
    device_array_get(p->lane, its.ties, &got.ties.bytes);
    CHECK_GUARDED(&want.part.bytes, &got.part.bytes);
    CHECK_GUARDED(&want.param, &got.param);
    CHECK_GUARDED(&want.ties.bytes, &got.ties.bytes);
    device_drop(p->lane);
    values_free(&want);
    values_free(&got);
}

static void values_equal_scalar(void)
{
    static const size_t COUNTS[] = {0, 1, 3, 63, 64, 65, 130, LONG_ELEMS - 1};
    pair                p        = pair_open();

    for (int encoding = 0; encoding < SHERDI_ENCODINGS; encoding++) {
        for (size_t i = 0; i < sizeof(COUNTS) / sizeof(COUNTS[0]); i++) {
            values_compare(&p, (sherdi_encoding)encoding,
                           i % 2 == 0 ? SHERDI_ENCODING_F32 : SHERDI_ENCODING_BF16,
                           i % 3 * SHERD_CHUNK_ELEMS, COUNTS[i], 0);
        }
    }
    pair_close(&p);
}

/* Signs that are another's ties are masked and stay. */
static void values_start_anywhere(void)
{
    pair p = pair_open();

    for (int e = 0; e < SHERDI_ENCODINGS; e++) {
        for (size_t first = 1; first < 140; first += 23) {
            size_t count = first % 2 == 0 ? 300 + first : first % 47;

            values_compare(&p, (sherdi_encoding)e, SHERDI_ENCODING_F32, first, count,
                           e <= SHERDI_ENCODING_BF16);
        }
    }
    pair_close(&p);
}

static const test_case CASES[] = {
    CASE(adam_equals_scalar),         CASE(lamb_and_its_norms_equal_scalar),
    CASE(every_update_equals_scalar), CASE(values_equal_scalar),
    CASE(values_start_anywhere),
};

RUN_MAIN(CASES)
