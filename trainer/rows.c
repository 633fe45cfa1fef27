/* The functions of rows.h, in C that compilers turn into vector code. The file is compiled several
 * times; ROWS_TABLE is the name of the table that is being made. Sums and maxima run in LANES
 * lanes, which are folded in a fixed order, so wider vectors do not change a result. */
#include "rows.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef ROWS_TABLE
#define ROWS_TABLE      rows_ops_plain
#define ROWS_TABLE_NAME "plain"
#endif

#define LANES 16

/* ------------------------------------------------------------- bits --- */

static inline uint32_t bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Rounds to nearest even; a NaN stays a NaN. */
static inline uint16_t bf16_of(float x)
{
    uint32_t bits    = bits_of(x);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t nan     = ((bits >> 16) & 0x8000u) | 0x7fc0u;

    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/* Conversions from and to IEEE binary16 without branches, so that they become vector code. The bits
 * of a normal number are shifted; a denormal number comes from a floating-point addition, which
 * rounds. */
static inline float float_of_f16(uint16_t half)
{
    uint32_t magnitude = (uint32_t)(half & 0x7fffu) << 13;
    uint32_t normal    = magnitude + (112u << 23);
    uint32_t special   = normal + (112u << 23); /* Inf and NaN */
    float    denormal  = float_of(magnitude + (113u << 23)) - float_of(113u << 23);
    uint32_t exponent  = magnitude & (0x7c00u << 13);
    uint32_t bits      = exponent == (0x7c00u << 13) ? special : normal;

    bits = exponent == 0 ? bits_of(denormal) : bits;
    return float_of(bits | (uint32_t)(half & 0x8000u) << 16);
}

static inline uint16_t f16_of(float x)
{
    uint32_t bits      = bits_of(x);
    uint32_t sign      = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t normal    = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    /* The last bit of 0.5 is 2^-24, which is the step of the denormals. */
    uint32_t denormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    uint32_t half     = magnitude < (113u << 23) ? denormal : normal;

    half = magnitude >= (143u << 23) ? 0x7c00u : half;
    half = magnitude > 0x7f800000u ? 0x7e00u : half;
    return (uint16_t)(half | sign);
}

/* exp as 2^n * e^r with |r| <= ln(2) / 2, by the polynomial of Cephes' expf (Moshier). The error is
 * within 2 units in the last place. Below -87.3 the result stays at 1e-38, above 88.3 at 2e38. */
static inline float exp_of(float x)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float       shifted, n, r, p;

    x       = x < -87.3f ? -87.3f : x;
    x       = x > 88.3f ? 88.3f : x;
    shifted = x * 1.44269504f + shift;
    n       = shifted - shift;
    r       = x - n * 0.693359375f;
    r       = r - n * -2.12194440e-4f;
    p       = 1.9875691500e-4f;
    p       = p * r + 1.3981999507e-3f;
    p       = p * r + 8.3334519073e-3f;
    p       = p * r + 4.1665795894e-2f;
    p       = p * r + 1.6666665459e-1f;
    p       = p * r + 5.0000001201e-1f;
    p       = p * r * r + r + 1.0f;
    return p * float_of((bits_of(shifted) - bits_of(shift) + 127u) << 23);
}

/* ------------------------------------------------------------- lanes -- */

static inline float lanes_fold(const float *lanes)
{
    float fold[LANES / 2];

    for (int i = 0; i < LANES / 2; i++) {
        fold[i] = lanes[i] + lanes[i + LANES / 2];
    }
    return ((fold[0] + fold[4]) + (fold[2] + fold[6])) +
           ((fold[1] + fold[5]) + (fold[3] + fold[7]));
}

/* The sum of `term`, an expression in i, over i < n. It is a macro because a function per term
 * would hide the loop from the vectoriser. */
#define LANES_SUM(result, n, term)                                                                 \
    do {                                                                                           \
        float  lanes_[LANES] = {0};                                                                \
        size_t whole_        = (n) / LANES * LANES;                                                \
        for (size_t base_ = 0; base_ < whole_; base_ += LANES) {                                   \
            for (size_t lane_ = 0; lane_ < LANES; lane_++) {                                       \
                size_t i = base_ + lane_;                                                          \
                lanes_[lane_] += (term);                                                           \
            }                                                                                      \
        }                                                                                          \
        for (size_t i = whole_; i < (n); i++) {                                                    \
            lanes_[i - whole_] += (term);                                                          \
        }                                                                                          \
        (result) = lanes_fold(lanes_);                                                             \
    } while (0)

/* The maximum may miss a NaN in x; the sums that follow carry it on. */
static float row_max(const float *x, size_t n)
{
    float  lanes[LANES], most;
    size_t whole = n / LANES * LANES;

    for (size_t lane = 0; lane < LANES; lane++) {
        lanes[lane] = x[0];
    }
    for (size_t base = 0; base < whole; base += LANES) {
        for (size_t lane = 0; lane < LANES; lane++) {
            float value = x[base + lane];
            lanes[lane] = value > lanes[lane] ? value : lanes[lane];
        }
    }
    most = x[0];
    for (size_t lane = 0; lane < LANES; lane++) {
        most = lanes[lane] > most ? lanes[lane] : most;
    }
    for (size_t i = whole; i < n; i++) {
        most = x[i] > most ? x[i] : most;
    }
    return most;
}

/* ------------------------------------------------------------- types -- */

static void rows_widen(sherd_dtype dtype, const void *src, float *dst, size_t n)
{
    const uint16_t *half = src;

    switch (dtype) {
    case SHERD_F32:
        memcpy(dst, src, n * sizeof(*dst));
        return;
    case SHERD_BF16:
        for (size_t i = 0; i < n; i++) {
            dst[i] = float_of((uint32_t)half[i] << 16);
        }
        return;
    case SHERD_F16:
        for (size_t i = 0; i < n; i++) {
            dst[i] = float_of_f16(half[i]);
        }
        return;
    }
}

/* Works portion by portion, because dst may begin where src does: each portion is read before its
 * results overwrite anything, and within the inner loops no arrays overlap. */
static void rows_narrow(const float *src, uint16_t *dst, size_t n)
{
    enum { PORTION = 64 };

    for (size_t first = 0; first < n; first += PORTION) {
        size_t   count = n - first < PORTION ? n - first : PORTION;
        uint16_t portion[PORTION];

        for (size_t i = 0; i < count; i++) {
            portion[i] = bf16_of(src[first + i]);
        }
        memcpy(dst + first, portion, count * sizeof(*portion));
    }
}

static void rows_accumulate(sherd_dtype dtype, const float *src, void *dst, size_t n)
{
    float    *full = dst;
    uint16_t *half = dst;

    switch (dtype) {
    case SHERD_F32:
        for (size_t i = 0; i < n; i++) {
            full[i] += src[i];
        }
        return;
    case SHERD_BF16:
        for (size_t i = 0; i < n; i++) {
            half[i] = bf16_of(float_of((uint32_t)half[i] << 16) + src[i]);
        }
        return;
    case SHERD_F16:
        for (size_t i = 0; i < n; i++) {
            half[i] = f16_of(float_of_f16(half[i]) + src[i]);
        }
        return;
    }
}

static void rows_add(const float *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] += x[i];
    }
}

/* ------------------------------------------------------- activations -- */

static inline float sigmoid_of(float x)
{
    return 1.0f / (1.0f + exp_of(-x));
}

/* 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3). */
static inline float gelu_gate(float x)
{
    return sigmoid_of(1.5957691216f * (x + 0.044715f * x * x * x));
}

static void rows_gelu(const float *restrict x, float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = x[i] * gelu_gate(x[i]);
    }
}

static void rows_gelu_back(const float *restrict x, float *restrict d, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float gate  = gelu_gate(x[i]);
        float slope = 1.5957691216f * (1.0f + 0.134145f * x[i] * x[i]);
        d[i]        = d[i] * (gate + x[i] * slope * gate * (1.0f - gate));
    }
}

static void rows_swiglu(const float *restrict gate, const float *restrict up, float *restrict y,
                        size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = gate[i] * sigmoid_of(gate[i]) * up[i];
    }
}

static void rows_swiglu_back(const float *restrict gate, const float *restrict up,
                             float *restrict d, float *restrict dgate, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float s  = sigmoid_of(gate[i]);
        dgate[i] = d[i] * up[i] * (s + gate[i] * s * (1.0f - s));
        d[i]     = d[i] * gate[i] * s;
    }
}

/* -------------------------------------------------------------- norms -- */

static void layer_norm_stats(const float *x, size_t n, float eps, float *mean_out, float *scale_out)
{
    float sum, mean;

    LANES_SUM(sum, n, x[i]);
    mean = sum / (float)n;
    LANES_SUM(sum, n, (x[i] - mean) * (x[i] - mean));
    *mean_out  = mean;
    *scale_out = 1.0f / sqrtf(sum / (float)n + eps);
}

static void rows_layer_norm(const float *restrict x, const float *restrict weight,
                            const float *restrict bias, float *restrict y, size_t n, float eps)
{
    float mean, scale;

    layer_norm_stats(x, n, eps, &mean, &scale);
    for (size_t i = 0; i < n; i++) {
        y[i] = (x[i] - mean) * scale * weight[i] + bias[i];
    }
}

static void rows_layer_norm_back(const float *restrict x, const float *restrict weight,
                                 const float *restrict dy, float *restrict dx,
                                 float *restrict dweight, float *restrict dbias, size_t n,
                                 float eps)
{
    float mean, scale, sum_d, sum_dx;

    layer_norm_stats(x, n, eps, &mean, &scale);
    LANES_SUM(sum_d, n, dy[i] * weight[i]);
    LANES_SUM(sum_dx, n, dy[i] * weight[i] * ((x[i] - mean) * scale));
    sum_d /= (float)n;
    sum_dx /= (float)n;
    for (size_t i = 0; i < n; i++) {
        float hat = (x[i] - mean) * scale;
        dx[i] += (dy[i] * weight[i] - sum_d - hat * sum_dx) * scale;
        dweight[i] += dy[i] * hat;
        dbias[i] += dy[i];
    }
}

static float rms_norm_scale(const float *x, size_t n, float eps)
{
    float sum;

    LANES_SUM(sum, n, x[i] * x[i]);
    return 1.0f / sqrtf(sum / (float)n + eps);
}

static void rows_rms_norm(const float *x, const float *weight, float *y, size_t n, float eps)
{
    float scale = rms_norm_scale(x, n, eps);

    for (size_t i = 0; i < n; i++) {
        y[i] = x[i] * scale * weight[i];
    }
}

static void rows_rms_norm_back(const float *restrict x, const float *restrict weight,
                               const float *restrict dy, float *restrict dx,
                               float *restrict dweight, size_t n, float eps)
{
    float scale = rms_norm_scale(x, n, eps);
    float sum;

    LANES_SUM(sum, n, dy[i] * weight[i] * (x[i] * scale));
    sum /= (float)n;
    for (size_t i = 0; i < n; i++) {
        float hat = x[i] * scale;
        dx[i] += (dy[i] * weight[i] - hat * sum) * scale;
        dweight[i] += dy[i] * hat;
    }
}

static void rows_rotate(float *x, const float *restrict cosines, const float *restrict sines,
                        float direction, size_t n)
{
    float *restrict low  = x;
    float *restrict high = x + n / 2;

    for (size_t i = 0; i < n / 2; i++) {
        float a = low[i], b = high[i], s = direction * sines[i];
        low[i]  = a * cosines[i] - b * s;
        high[i] = b * cosines[i] + a * s;
    }
}

/* ------------------------------------------------------------ softmax -- */

static float rows_softmax(float *s, size_t seen, size_t n, float scale)
{
    float most = row_max(s, seen) * scale;
    float sum, inverse;

    for (size_t i = 0; i < seen; i++) {
        s[i] = exp_of(s[i] * scale - most);
    }
    LANES_SUM(sum, seen, s[i]);
    inverse = 1.0f / sum;
    for (size_t i = 0; i < seen; i++) {
        s[i] *= inverse;
    }
    memset(s + seen, 0, (n - seen) * sizeof(*s));
    return most + (float)log((double)sum);
}

static void rows_softmax_again(float *s, size_t seen, size_t n, float scale, float log_sum)
{
    for (size_t i = 0; i < seen; i++) {
        s[i] = exp_of(s[i] * scale - log_sum);
    }
    memset(s + seen, 0, (n - seen) * sizeof(*s));
}

static void rows_softmax_back(const float *restrict p, float *restrict dp, size_t seen, size_t n,
                              float scale)
{
    float sum;

    LANES_SUM(sum, seen, p[i] * dp[i]);
    for (size_t i = 0; i < seen; i++) {
        dp[i] = p[i] * (dp[i] - sum) * scale;
    }
    memset(dp + seen, 0, (n - seen) * sizeof(*dp));
}

static double rows_cross_entropy_value(const float *x, size_t n, size_t target)
{
    float most = row_max(x, n);
    float sum;

    LANES_SUM(sum, n, exp_of(x[i] - most));
    return log((double)sum) + (double)most - (double)x[target];
}

static double rows_cross_entropy(float *x, size_t n, size_t target, float scale)
{
    float  most  = row_max(x, n);
    float  wrong = x[target];
    float  sum, factor;
    double loss;

    for (size_t i = 0; i < n; i++) {
        x[i] = exp_of(x[i] - most);
    }
    LANES_SUM(sum, n, x[i]);
    loss   = log((double)sum) + (double)most - (double)wrong;
    factor = scale / sum;
    for (size_t i = 0; i < n; i++) {
        x[i] *= factor;
    }
    x[target] -= scale;
    return loss;
}

const rows_ops ROWS_TABLE = {
    .name                = ROWS_TABLE_NAME,
    .widen               = rows_widen,
    .narrow              = rows_narrow,
    .accumulate          = rows_accumulate,
    .add                 = rows_add,
    .gelu                = rows_gelu,
    .gelu_back           = rows_gelu_back,
    .swiglu              = rows_swiglu,
    .swiglu_back         = rows_swiglu_back,
    .layer_norm          = rows_layer_norm,
    .layer_norm_back     = rows_layer_norm_back,
    .rms_norm            = rows_rms_norm,
    .rms_norm_back       = rows_rms_norm_back,
    .rotate              = rows_rotate,
    .softmax             = rows_softmax,
    .softmax_again       = rows_softmax_again,
    .softmax_back        = rows_softmax_back,
    .cross_entropy       = rows_cross_entropy,
    .cross_entropy_value = rows_cross_entropy_value,
};
