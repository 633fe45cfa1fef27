/* Products of bf16 by oneDNN, where it is and the CPU has them; the state after them
 * everywhere. */
#include "tests/lib/check.h"

#include "models/onednn.h"
#include "kernels/formulas.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void onednn_needed(void)
{
    if (onednn_open()->level == ONEDNN_NONE) {
        test_skip("no products of bf16: %s", onednn_open()->why);
    }
}

static void *fresh(size_t count, size_t each)
{
    void *memory = calloc(count, each);

    CHECK(memory != NULL);
    return memory;
}

static float small_integer(size_t i, size_t step, size_t range)
{
    return (float)(i * step % range) - (float)(range / 2);
}

/* [rows, columns], as memory has it when it is transposed or not, in rows of two more elements. */
static onednn_matrix matrix_of(size_t rows, size_t columns, int is_transposed, size_t step)
{
    size_t    stride = (is_transposed ? rows : columns) + 2;
    uint16_t *data   = fresh((is_transposed ? columns : rows) * stride, sizeof(*data));

    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < columns; c++) {
            data[is_transposed ? c * stride + r : r * stride + c] =
                sherdi_cast_f32_bf16(small_integer(r * columns + c, step, 7));
        }
    }
    return (onednn_matrix){data, stride, is_transposed};
}

static float value_at(onednn_matrix x, size_t row, size_t column)
{
    return sherdi_cast_bf16_f32(x.is_transposed ? x.data[column * x.stride + row]
                                                : x.data[row * x.stride + column]);
}

static void c_set(const onednn_product *p, float value)
{
    for (size_t i = 0; i < p->m * p->c_stride; i++) {
        if (p->is_half) {
            ((uint16_t *)p->c)[i] = sherdi_cast_f32_bf16(value);
        } else {
            ((float *)p->c)[i] = value;
        }
    }
}

static float c_at(const onednn_product *p, size_t i)
{
    return p->is_half ? sherdi_cast_bf16_f32(((uint16_t *)p->c)[i]) : ((float *)p->c)[i];
}

/* Integers: exact in any order of summation; what goes to bf16 is rounded once. */
static void product_check(const onednn_product *p, float before)
{
    c_set(p, before);
    CHECK_INT(0, onednn_multiply(p));
    for (size_t i = 0; i < p->m; i++) {
        for (size_t j = 0; j < p->c_stride; j++) {
            float want = p->is_added || j >= p->n ? before : 0.0f;

            for (size_t k = 0; k < p->k && j < p->n; k++) {
                want += value_at(p->a, i, k) * value_at(p->b, k, j);
            }
            want = p->is_half ? sherdi_cast_bf16_f32(sherdi_cast_f32_bf16(want)) : want;
            CHECK(c_at(p, i * p->c_stride + j) == want);
        }
    }
}

static void products_of_every_kind_are_exact(void)
{
    static const size_t shapes[][3] = {
        {33, 70, 51}, {16, 64, 32}, {1, 5, 3}, {70, 1, 40}, {64, 33, 1}};

    onednn_needed();
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        size_t m = shapes[s][0], n = shapes[s][1], k = shapes[s][2];

        for (unsigned kind = 0; kind < 16; kind++) {
            onednn_product p = {.m        = m,
                                .n        = n,
                                .k        = k,
                                .a        = matrix_of(m, k, kind & 1u, 5),
                                .b        = matrix_of(k, n, (kind >> 1) & 1u, 3),
                                .is_added = (kind >> 2) & 1u,
                                .is_half  = (kind >> 3) & 1u,
                                .c        = fresh(m * (n + 3), sizeof(float)),
                                .c_stride = n + 3};

            product_check(&p, 2.0f);
            free((void *)p.a.data);
            free((void *)p.b.data);
            free(p.c);
        }
    }
}

enum { M = 96, N = 200, K = 300 };

typedef struct turn {
    onednn_matrix a, b;
    float         c[M * N];
    int           result;
} turn;

static void *turn_run(void *ctx)
{
    turn *t = ctx;

    for (int round = 0; round < 20 && t->result == 0; round++) {
        t->result = onednn_multiply(&(onednn_product){
            .m = M, .n = N, .k = K, .a = t->a, .b = t->b, .c = t->c, .c_stride = N});
    }
    return NULL;
}

/* Each on a thread that had no part in making the primitive, several at once. */
static void threads_get_the_same_bits(void)
{
    enum { THREADS = 4 };
    onednn_matrix a, b;
    pthread_t     threads[THREADS];
    turn         *turns;

    onednn_needed();
    turns = fresh(THREADS, sizeof(*turns));
    a     = matrix_of(M, K, 0, 5);
    b     = matrix_of(K, N, 1, 3);
    for (int i = 0; i < THREADS; i++) {
        turns[i].a = a;
        turns[i].b = b;
        CHECK_INT(0, pthread_create(&threads[i], NULL, turn_run, &turns[i]));
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK_INT(0, pthread_join(threads[i], NULL));
        CHECK_INT(0, turns[i].result);
        CHECK_BYTES_EQUAL(turns[0].c, turns[i].c, sizeof(turns[0].c));
    }
    free((void *)a.data);
    free((void *)b.data);
    free(turns);
}

static void ranks_settle_on_what_all_have(void)
{
    onednn_level own                    = onednn_open()->own_level;
    double       same[ONEDNN_LEVELS]    = {0};
    double       without[ONEDNN_LEVELS] = {0};
    char         text[320];

    same[own] = 2.0;
    onednn_settle(same);
    CHECK_INT(own, onednn_open()->level);
    without[own] += 1.0;
    without[ONEDNN_NONE] += 1.0;
    onednn_settle(without);
    CHECK_INT(ONEDNN_NONE, onednn_open()->level);
    test_check_contains(__FILE__, __LINE__, onednn_describe(text), "widened to fp32 (");
    onednn_settle(same);
    CHECK_INT(own, onednn_open()->level);
    test_check_contains(__FILE__, __LINE__, onednn_describe(text),
                        own == ONEDNN_NONE ? "widened" : "oneDNN");
}

static const test_case cases[] = {
    CASE(products_of_every_kind_are_exact),
    CASE(threads_get_the_same_bits),
    CASE(ranks_settle_on_what_all_have),
};

RUN_MAIN(cases)
