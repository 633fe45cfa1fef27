/* range_product over vectors; avx2.c and avx512.c define PRODUCT_TILE_ROWS for it.
 *
 * A tile of the result is PRODUCT_TILE_ROWS rows of PRODUCT_VECS registers. It stays in registers
 * while the sums run over PRODUCT_INNER factors; between such steps its sums are in dst. Both
 * factors are packed into panels first, so that a tile reads them sequentially. The left panels
 * have all rows of the strip and stay in the second-level cache; the right panel has the columns of
 * one tile and stays in the first-level cache. The part of a tile beyond the result is zero in the
 * panels, and is written to a separate tile. The panels are on the stack (less than 256 KiB), so
 * the caller need not provide memory. */
#include "kernels/product.h"

#define PRODUCT_VECS        2
#define PRODUCT_COLS        (PRODUCT_VECS * LANES)
#define PRODUCT_STRIP_TILES (PRODUCT_ROWS / PRODUCT_TILE_ROWS)
#define PRODUCT_ROWS        (224 / PRODUCT_TILE_ROWS * PRODUCT_TILE_ROWS)
#define PRODUCT_INNER       192
/* The elements of a packed column of the left factor: a multiple of four, since four rows are
 * transposed at once. */
#define PRODUCT_LEFT_WIDTH ((PRODUCT_TILE_ROWS + 3) / 4 * 4)

typedef struct product_panels {
    float left[PRODUCT_STRIP_TILES][PRODUCT_INNER * PRODUCT_LEFT_WIDTH];
    float right[PRODUCT_INNER * PRODUCT_COLS];
    float tile[PRODUCT_TILE_ROWS * PRODUCT_COLS]; /* a tile that only partly is in the result */
} __attribute__((aligned(64))) product_panels;

/* -------------------------------------------------------------- panels -- */

/* Transposes 4 x 4 elements: to[k * width + i] = from[i * stride + k]. */
INLINE void four_transpose(float *to, size_t width, const float *from, size_t stride)
{
    __m128 a = _mm_loadu_ps(from);
    __m128 b = _mm_loadu_ps(from + stride);
    __m128 c = _mm_loadu_ps(from + 2 * stride);
    __m128 d = _mm_loadu_ps(from + 3 * stride);

    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(to, a);
    _mm_storeu_ps(to + width, b);
    _mm_storeu_ps(to + 2 * width, c);
    _mm_storeu_ps(to + 3 * width, d);
}

/* panel[k * width + i] = from[i * stride + k * inner_stride] for i < count, zero up to `full`. */
INLINE void panel_pack_plain(float *panel, size_t width, size_t full, const float *from,
                             size_t stride, size_t inner_stride, size_t count, size_t inner)
{
    for (size_t k = 0; k < inner; k++) {
        for (size_t i = 0; i < full; i++) {
            panel[k * width + i] = i < count ? from[i * stride + k * inner_stride] : 0.0f;
        }
    }
}

/* Does the same where inner_stride is 1 and all rows exist. */
INLINE void panel_pack_transposed(float *panel, size_t width, size_t full, const float *from,
                                  size_t stride, size_t inner)
{
    size_t fours_inner = inner / 4 * 4;
    size_t fours       = full / 4 * 4;

    for (size_t k = 0; k < fours_inner; k += 4) {
        for (size_t i = 0; i < fours; i += 4) {
            four_transpose(panel + k * width + i, width, from + i * stride + k, stride);
        }
    }
    panel_pack_plain(panel + fours_inner * width, width, fours, from + fours_inner, stride, 1,
                     fours, inner - fours_inner);
    panel_pack_plain(panel + fours, width, full - fours, from + fours * stride, stride, 1,
                     full - fours, inner);
}

INLINE void panel_pack(float *panel, size_t width, size_t full, const float *from, size_t stride,
                       size_t inner_stride, size_t count, size_t inner)
{
    if (count == full && stride == 1) {
        for (size_t k = 0; k < inner; k++) {
            memcpy(panel + k * width, from + k * inner_stride, full * sizeof(*from));
        }
    } else if (count == full && inner_stride == 1) {
        panel_pack_transposed(panel, width, full, from, stride, inner);
    } else {
        panel_pack_plain(panel, width, full, from, stride, inner_stride, count, inner);
    }
}

/* Prefetches part `part` of `parts` of what panel_pack will read. */
INLINE void panel_ask(const float *from, size_t stride, size_t inner_stride, size_t count,
                      size_t inner, size_t part, size_t parts)
{
    size_t lines  = stride == 1 ? inner : count; /* rows that are contiguous in memory */
    size_t length = stride == 1 ? count : inner;
    size_t step   = stride == 1 ? inner_stride : stride;

    for (size_t line = lines * part / parts; line < lines * (part + 1) / parts; line++) {
        for (size_t i = 0; i < length; i += CACHE_LINE_BYTES / sizeof(*from)) {
            _mm_prefetch((const char *)(from + line * step + i), _MM_HINT_T1);
        }
    }
}

/* --------------------------------------------------------------- tiles -- */

/* One step of the sums: the products for which both factors are packed at a time. */
typedef struct product_step {
    size_t       inner;
    int          is_first, is_last;
    const float *next; /* the matrix that is packed next as the right panel; NULL: none */
} product_step;

/* Makes elements of sums, as sherdi_product_element. */
INLINE vec_f32 vec_product_element(vec_f32 sum, const sherdi_product_args *args,
                                   const float *addend)
{
    vec_f32 element = vec_set(args->scale) * sum;

    if (addend != NULL) {
        element =
            vec_fma(vec_set(args->scale), sum, vec_set(args->addend_scale) * vec_load(addend));
    }
    return vec_canonical(element);
}

/* Adds the step's products to the sums at `at`; the first step adds them to zero. `is_whole`: the
 * tile lies in the result, from element `first` on, and the last step makes elements of the
 * sums. */
INLINE void tile_multiply(const sherdi_product_args *args, const float *left, const float *right,
                          const product_step *step, float *at, size_t stride, int is_whole,
                          size_t first)
{
    vec_f32 sums[PRODUCT_TILE_ROWS][PRODUCT_VECS];

#pragma GCC unroll 14
    for (size_t i = 0; i < PRODUCT_TILE_ROWS; i++) {
        sums[i][0] = step->is_first ? vec_set(0.0f) : vec_load(at + i * stride);
        sums[i][1] = step->is_first ? vec_set(0.0f) : vec_load(at + i * stride + LANES);
    }
    for (size_t k = 0; k < step->inner; k++) {
        vec_f32 low  = vec_load(right + k * PRODUCT_COLS);
        vec_f32 high = vec_load(right + k * PRODUCT_COLS + LANES);

#pragma GCC unroll 14
        for (size_t i = 0; i < PRODUCT_TILE_ROWS; i++) {
            vec_f32 factor = vec_set(left[k * PRODUCT_LEFT_WIDTH + i]);

            sums[i][0] = vec_fma(factor, low, sums[i][0]);
            sums[i][1] = vec_fma(factor, high, sums[i][1]);
        }
    }
    if (is_whole && step->is_last) {
        const float *addend = args->addend == NULL ? NULL : args->addend + first;

#pragma GCC unroll 14
        for (size_t i = 0; i < PRODUCT_TILE_ROWS; i++) {
            const float *row = addend == NULL ? NULL : addend + i * stride;

            sums[i][0] = vec_product_element(sums[i][0], args, row);
            sums[i][1] = vec_product_element(sums[i][1], args, row == NULL ? NULL : row + LANES);
        }
    }
#pragma GCC unroll 14
    for (size_t i = 0; i < PRODUCT_TILE_ROWS; i++) {
        vec_store(at + i * stride, sums[i][0]);
        vec_store(at + i * stride + LANES, sums[i][1]);
    }
}

/* Copies the part of a tile that is in the result. */
static void tile_copy(float *to, size_t to_stride, const float *from, size_t from_stride,
                      size_t rows, size_t cols)
{
    for (size_t i = 0; i < rows; i++) {
        memcpy(to + i * to_stride, from + i * from_stride, cols * sizeof(*from));
    }
}

/* Computes a tile that lies only partly in the result. */
static void tile_run_cut(const sherdi_product_args *args, product_panels *panels, const float *left,
                         size_t first, size_t rows, size_t cols, const product_step *step)
{
    float *at = args->dst + first;

    if (!step->is_first) {
        tile_copy(panels->tile, PRODUCT_COLS, at, args->cols, rows, cols);
    }
    tile_multiply(args, left, panels->right, step, panels->tile, PRODUCT_COLS, 0, 0);
    tile_copy(at, args->cols, panels->tile, PRODUCT_COLS, rows, cols);
    for (size_t i = 0; step->is_last && i < rows; i++) {
        for (size_t j = 0; j < cols; j++) {
            size_t       to     = first + i * args->cols + j;
            const float *addend = args->addend == NULL ? NULL : args->addend + to;

            args->dst[to] =
                sherdi_product_element(args->dst[to], args->scale, addend, args->addend_scale);
        }
    }
}

/* Computes the tiles of the `cols` columns whose right panel has been packed. */
static void column_run(const sherdi_product_args *args, product_panels *panels, size_t first_row,
                       size_t rows, size_t col, size_t cols, const product_step *step)
{
    for (size_t i = 0; i < rows; i += PRODUCT_TILE_ROWS) {
        size_t       row   = first_row + i;
        size_t       first = row * args->cols + col;
        const float *left  = panels->left[i / PRODUCT_TILE_ROWS];

        if (args->is_symmetric && row >= col + cols) {
            break; /* this tile and those that follow are below the diagonal */
        }
        if (step->next != NULL) {
            panel_ask(step->next, args->right_col_stride, args->right_inner_stride, PRODUCT_COLS,
                      step->inner, i / PRODUCT_TILE_ROWS, sherdi_div_up(rows, PRODUCT_TILE_ROWS));
        }
        if (rows - i >= PRODUCT_TILE_ROWS && cols == PRODUCT_COLS) {
            tile_multiply(args, left, panels->right, step, args->dst + first, args->cols, 1, first);
        } else {
            tile_run_cut(args, panels, left, first, sherdi_min_size(PRODUCT_TILE_ROWS, rows - i),
                         cols, step);
        }
    }
}

static void range_product(const sherdi_product_args *args, size_t first_row, size_t rows,
                          size_t first_col, size_t cols)
{
    product_panels panels;
    size_t         done = 0;

    do {
        product_step step  = {sherdi_min_size(PRODUCT_INNER, args->inner - done), done == 0,
                              done + PRODUCT_INNER >= args->inner, NULL};
        const float *left  = args->left + done * args->left_inner_stride;
        const float *right = args->right + done * args->right_inner_stride;

        for (size_t i = 0; i < rows; i += PRODUCT_TILE_ROWS) {
            panel_pack(panels.left[i / PRODUCT_TILE_ROWS], PRODUCT_LEFT_WIDTH, PRODUCT_TILE_ROWS,
                       left + (first_row + i) * args->left_row_stride, args->left_row_stride,
                       args->left_inner_stride, sherdi_min_size(PRODUCT_TILE_ROWS, rows - i),
                       step.inner);
        }
        for (size_t j = 0; j < cols; j += PRODUCT_COLS) {
            size_t col   = first_col + j;
            size_t count = sherdi_min_size(PRODUCT_COLS, cols - j);

            step.next = j + PRODUCT_COLS < cols
                            ? right + (col + PRODUCT_COLS) * args->right_col_stride
                            : NULL;

            panel_pack(panels.right, PRODUCT_COLS, PRODUCT_COLS,
                       right + col * args->right_col_stride, args->right_col_stride,
                       args->right_inner_stride, count, step.inner);
            column_run(args, &panels, first_row, rows, col, count, &step);
        }
        done += PRODUCT_INNER;
    } while (done < args->inner);
}
