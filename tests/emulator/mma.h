/* nvcuda::wmma for 16 x 16 x 16, __nv_bfloat16 or __half into float; see emulator.h. A lane holds elements
 * 8 lane .. 8 lane + 7 of the row-major tile (the hardware's places are others; neither may be relied on). Products
 * are added one after another in fp32, onto the accumulator. */
#ifndef TESTS_EMULATOR_MMA_H
#define TESTS_EMULATOR_MMA_H

#include "cuda_bf16.h"
#include "cuda_fp16.h"

namespace nvcuda
{
namespace wmma
{

struct matrix_a {
};
struct matrix_b {
};
struct accumulator {
};
struct row_major {
    static constexpr bool is_row_major = true;
};
struct col_major {
    static constexpr bool is_row_major = false;
};
enum layout_t { mem_row_major, mem_col_major };

template <typename Use, int M, int N, int K, typename T, typename Layout = void> struct fragment {
    static_assert(M == 16 && N == 16 && K == 16, "the emulator has 16 x 16 x 16 alone");
    typedef T            element_type;
    static constexpr int num_elements         = 8;
    static constexpr int num_storage_elements = 8;
    T                    x[8];
};

template <typename F, typename T> static inline void fill_fragment(F &to, const T &value)
{
    for (int i = 0; i < to.num_elements; i++) {
        to.x[i] = value;
    }
}

template <typename F, typename T>
static inline void emulator_load(F &to, const T *from, unsigned stride, bool is_row_major)
{
    __syncwarp();
    for (unsigned i = 0; i < 8; i++) {
        unsigned at = emulator_lane() * 8 + i;

        to.x[i] =
            is_row_major ? from[at / 16 * stride + at % 16] : from[at % 16 * stride + at / 16];
    }
    __syncwarp();
}

template <typename Use, typename T, typename Layout>
static inline void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout> &to, const T *from,
                                    unsigned stride)
{
    emulator_load(to, from, stride, Layout::is_row_major);
}

template <typename T>
static inline void load_matrix_sync(fragment<accumulator, 16, 16, 16, T> &to, const T *from,
                                    unsigned stride, layout_t layout)
{
    emulator_load(to, from, stride, layout == mem_row_major);
}

template <typename T>
static inline void store_matrix_sync(T *to, const fragment<accumulator, 16, 16, 16, T> &from,
                                     unsigned stride, layout_t layout)
{
    __syncwarp();
    for (unsigned i = 0; i < 8; i++) {
        unsigned at = emulator_lane() * 8 + i;

        to[layout == mem_row_major ? at / 16 * stride + at % 16 : at % 16 * stride + at / 16] =
            from.x[i];
    }
    __syncwarp();
}

template <typename T, typename LayoutA, typename LayoutB>
static inline void mma_sync(fragment<accumulator, 16, 16, 16, float>         &d,
                            const fragment<matrix_a, 16, 16, 16, T, LayoutA> &a,
                            const fragment<matrix_b, 16, 16, 16, T, LayoutB> &b,
                            const fragment<accumulator, 16, 16, 16, float>   &c)
{
    struct tiles { /* of one lane, 8 elements each, widened once for all */
        const float *a, *b;
    };
    float    own_a[8], own_b[8];
    float    sums[8];
    tiles    lanes[32];
    unsigned row = emulator_lane() / 2;
    unsigned col = emulator_lane() % 2 * 8;

    for (unsigned i = 0; i < 8; i++) {
        own_a[i] = (float)a.x[i];
        own_b[i] = (float)b.x[i];
        sums[i]  = c.x[i];
    }
    emulator_meeting *meeting = emulator_bring(0xffffffffu, tiles{own_a, own_b});
    for (unsigned lane = 0; lane < 32; lane++) {
        lanes[lane] = emulator_value<tiles>(meeting, lane);
    }
    emulator_meeting_leave(meeting);
    for (unsigned k = 0; k < 16; k++) {
        float        left  = lanes[row * 2 + k / 8].a[k % 8];
        const float *right = lanes[k * 2 + col / 8].b;

        for (unsigned i = 0; i < 8; i++) {
            sums[i] += left * right[i];
        }
    }
    __syncwarp(); /* others read this lane's fragments until here */
    for (unsigned i = 0; i < 8; i++) {
        d.x[i] = sums[i];
    }
}

} // namespace wmma
} // namespace nvcuda

#endif
