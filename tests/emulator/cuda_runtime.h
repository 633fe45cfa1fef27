/* The CUDA language for a C++ compiler, as far as the project's kernels use it; see emulator.h. In
 * C: the API alone. Threads of a block are fibers of one real thread, so thread_local stands for a
 * block's shared memory, and what looks like a built-in variable is one that the change of fibers
 * sets. */
#ifndef TESTS_EMULATOR_CUDA_RUNTIME_H
#define TESTS_EMULATOR_CUDA_RUNTIME_H

#include "cuda_runtime_api.h"

#ifdef __cplusplus

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <math.h>
#include <tuple>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __shared__   static thread_local
#define __constant__ static
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n)    __attribute__((aligned(n)))
#define __launch_bounds__(...)

/* ----------------------------------------------------------- vector types -- */

#define EMULATOR_VECTORS(type, name, align2, align4)                                               \
    struct name##1                                                                                 \
    {                                                                                              \
        type x;                                                                                    \
    };                                                                                             \
    struct alignas(align2) name##2                                                                 \
    {                                                                                              \
        type x, y;                                                                                 \
    };                                                                                             \
    struct name##3                                                                                 \
    {                                                                                              \
        type x, y, z;                                                                              \
    };                                                                                             \
    struct alignas(align4) name##4                                                                 \
    {                                                                                              \
        type x, y, z, w;                                                                           \
    };                                                                                             \
    static inline name##1 make_##name##1(type x)                                                   \
    {                                                                                              \
        return {x};                                                                                \
    }                                                                                              \
    static inline name##2 make_##name##2(type x, type y)                                           \
    {                                                                                              \
        return {x, y};                                                                             \
    }                                                                                              \
    static inline name##3 make_##name##3(type x, type y, type z)                                   \
    {                                                                                              \
        return {x, y, z};                                                                          \
    }                                                                                              \
    static inline name##4 make_##name##4(type x, type y, type z, type w)                           \
    {                                                                                              \
        return {x, y, z, w};                                                                       \
    }

typedef unsigned char      uchar;
typedef unsigned short     ushort;
typedef unsigned int       uint;
typedef long long          longlong;
typedef unsigned long long ulonglong;

EMULATOR_VECTORS(signed char, char, 2, 4)
EMULATOR_VECTORS(unsigned char, uchar, 2, 4)
EMULATOR_VECTORS(short, short, 4, 8)
EMULATOR_VECTORS(unsigned short, ushort, 4, 8)
EMULATOR_VECTORS(int, int, 8, 16)
EMULATOR_VECTORS(unsigned, uint, 8, 16)
EMULATOR_VECTORS(long long, longlong, 16, 16)
EMULATOR_VECTORS(unsigned long long, ulonglong, 16, 16)
EMULATOR_VECTORS(float, float, 8, 16)
EMULATOR_VECTORS(double, double, 16, 16)
#undef EMULATOR_VECTORS

struct dim3 {
    unsigned x, y, z;

    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

/* ----------------------------------------------------------- where a thread is -- */

extern __thread uint3 threadIdx;
extern __thread uint3 blockIdx;
extern __thread uint3 blockDim;
extern __thread uint3 gridDim;
static const int      warpSize = 32;

/* ----------------------------------------------------------- what fibers do -- */

/** Waits for all threads of the block that have not ended; returns the sum of `value` over them. */
int emulator_barrier(int value);

/* Lanes of a warp that meet: the values of all in `mask`, by lane. Valid until leave. */
#define EMULATOR_LANE_BYTES 16
struct emulator_fiber;
struct emulator_meeting {
    unsigned        mask; /* 0: free */
    unsigned        arrived;
    unsigned        left;
    bool            is_over; /* all have arrived or ended: who comes now means the next one */
    emulator_fiber *waiting;
    uint64_t        values[32][EMULATOR_LANE_BYTES / 8];
};

extern __thread unsigned emulator_lane_number;

emulator_meeting *emulator_meet(unsigned mask, uint64_t low, uint64_t high);
[[noreturn]] void emulator_no_such_lane(void);
unsigned          emulator_active(void); /* lanes of this warp that have not ended */

/** The launch's shared bytes, 128-byte aligned. */
void *emulator_shared(void);
/** Ends the process unless `at` is a multiple of `len` and all of it is in the launch's shared
 *  memory. */
void emulator_shared_at(const void *at, size_t len);
/** Copies of four or sixteen bytes into shared memory, as cp.async's: what is there is NaN until
 *  the calling thread waits until no more than `pending` groups are under way. */
void emulator_copy_start(void *to, const void *from, size_t len, bool is_there);
void emulator_copies_commit(void);
void emulator_copies_wait(unsigned pending);
/** Barriers in the launch's shared memory, as mbarrier's; phases count from 0. To wait for a phase
 *  that is neither the current one nor the one before ends the process: a device would take it for
 *  one of these. */
void emulator_mbarrier_init(uint64_t *barrier, unsigned arrivals);
void emulator_mbarrier_arrive(uint64_t *barrier);
void emulator_mbarrier_wait(uint64_t *barrier, int phase);
/** Whether the phase is over. */
bool emulator_mbarrier_is_over(const uint64_t *barrier, int phase);

static inline unsigned emulator_lane(void)
{
    return emulator_lane_number;
}

template <typename T> static inline emulator_meeting *emulator_bring(unsigned mask, T value)
{
    static_assert(sizeof(T) <= EMULATOR_LANE_BYTES, "too large for a lane's value");
    uint64_t words[2] = {0, 0};

    memcpy(words, &value, sizeof(T));
    return emulator_meet(mask, words[0], words[1]);
}

template <typename T> static inline T emulator_value(const emulator_meeting *meeting, unsigned lane)
{
    T value;

    if ((meeting->arrived >> lane & 1) == 0) {
        emulator_no_such_lane();
    }
    memcpy(&value, meeting->values[lane], sizeof(T));
    return value;
}

static inline void emulator_meeting_leave(emulator_meeting *meeting)
{
    meeting->left |= 1u << emulator_lane();
    if (meeting->left == meeting->arrived) {
        meeting->mask = 0;
    }
}

static inline void __syncthreads(void)
{
    (void)emulator_barrier(0);
}

static inline int __syncthreads_count(int predicate)
{
    return emulator_barrier(predicate != 0);
}

static inline int __syncthreads_or(int predicate)
{
    return emulator_barrier(predicate != 0) != 0;
}

static inline int __syncthreads_and(int predicate)
{
    return emulator_barrier(predicate == 0) == 0;
}

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    emulator_meeting_leave(emulator_meet(mask, 0, 0));
}

template <typename T> static inline T emulator_shuffle(unsigned mask, T value, unsigned source)
{
    emulator_meeting *meeting = emulator_bring(mask, value);
    T                 result  = emulator_value<T>(meeting, source);

    emulator_meeting_leave(meeting);
    return result;
}

template <typename T>
static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32)
{
    unsigned lane = emulator_lane();

    return emulator_shuffle(
        mask, value, (lane & ~(unsigned)(width - 1)) | ((unsigned)source & (unsigned)(width - 1)));
}

template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32)
{
    unsigned lane   = emulator_lane();
    unsigned source = lane ^ (unsigned)with;

    return emulator_shuffle(mask, value,
                            source / (unsigned)width > lane / (unsigned)width ? lane : source);
}

template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    unsigned lane   = emulator_lane();
    unsigned source = lane + by;

    return emulator_shuffle(mask, value,
                            source / (unsigned)width != lane / (unsigned)width ? lane : source);
}

template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    unsigned lane = emulator_lane();

    return emulator_shuffle(mask, value, lane % (unsigned)width < by ? lane : lane - by);
}

/* Combines what the lanes of `mask` have, in the order of lanes. */
template <typename T, typename F>
static inline T emulator_combine(unsigned mask, T value, F combine)
{
    emulator_meeting *meeting  = emulator_bring(mask, value);
    unsigned          lanes    = meeting->arrived;
    T                 result   = T();
    bool              is_first = true;

    for (unsigned lane = 0; lane < 32; lane++) {
        if ((lanes >> lane & 1) != 0) {
            T other = emulator_value<T>(meeting, lane);

            result   = is_first ? other : combine(result, other);
            is_first = false;
        }
    }
    emulator_meeting_leave(meeting);
    return result;
}

static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    return emulator_combine(mask, predicate != 0 ? 1u << emulator_lane() : 0u,
                            [](unsigned a, unsigned b) { return a | b; });
}

static inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}

static inline int __all_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) == mask;
}

#define EMULATOR_REDUCE(name, type, expression)                                                    \
    static inline type __reduce_##name##_sync(unsigned mask, type value)                           \
    {                                                                                              \
        return emulator_combine(mask, value, [](type a, type b) { return expression; });           \
    }
EMULATOR_REDUCE(add, unsigned, a + b)
EMULATOR_REDUCE(min, unsigned, a < b ? a : b)
EMULATOR_REDUCE(max, unsigned, a > b ? a : b)
EMULATOR_REDUCE(and, unsigned, a &b)
EMULATOR_REDUCE(or, unsigned, a | b)
EMULATOR_REDUCE(xor, unsigned, a ^ b)
EMULATOR_REDUCE(add, int, a + b)
EMULATOR_REDUCE(min, int, a < b ? a : b)
EMULATOR_REDUCE(max, int, a > b ? a : b)
#undef EMULATOR_REDUCE

static inline unsigned __activemask(void)
{
    return emulator_active();
}

static inline void __threadfence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
#define __threadfence_block  __threadfence
#define __threadfence_system __threadfence

[[noreturn]] static inline void __trap(void)
{
    abort();
}

/* ----------------------------------------------------------- atomics -- */

/* Streams are real threads, so these are too. */
template <typename T> static inline T emulator_add(T *at, T value)
{
    T old;
    T sum;

    __atomic_load(at, &old, __ATOMIC_RELAXED);
    do {
        sum = old + value;
    } while (!__atomic_compare_exchange(at, &old, &sum, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    return old;
}

#define EMULATOR_ATOMICS(type)                                                                     \
    static inline type atomicAdd(type *at, type value)                                             \
    {                                                                                              \
        return emulator_add(at, value);                                                            \
    }                                                                                              \
    static inline type atomicExch(type *at, type value)                                            \
    {                                                                                              \
        type old;                                                                                  \
                                                                                                   \
        __atomic_exchange(at, &value, &old, __ATOMIC_SEQ_CST);                                     \
        return old;                                                                                \
    }
EMULATOR_ATOMICS(int)
EMULATOR_ATOMICS(unsigned)
EMULATOR_ATOMICS(unsigned long long)
EMULATOR_ATOMICS(float)
EMULATOR_ATOMICS(double)
#undef EMULATOR_ATOMICS

#define EMULATOR_ATOMICS(type)                                                                     \
    static inline type atomicCAS(type *at, type expected, type value)                              \
    {                                                                                              \
        (void)__atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_SEQ_CST,           \
                                          __ATOMIC_SEQ_CST);                                       \
        return expected;                                                                           \
    }                                                                                              \
    static inline type atomicOr(type *at, type value)                                              \
    {                                                                                              \
        return __atomic_fetch_or(at, value, __ATOMIC_SEQ_CST);                                     \
    }                                                                                              \
    static inline type atomicAnd(type *at, type value)                                             \
    {                                                                                              \
        return __atomic_fetch_and(at, value, __ATOMIC_SEQ_CST);                                    \
    }                                                                                              \
    static inline type atomicMax(type *at, type value)                                             \
    {                                                                                              \
        type old = __atomic_load_n(at, __ATOMIC_RELAXED);                                          \
                                                                                                   \
        while (old < value && !__atomic_compare_exchange_n(at, &old, value, false,                 \
                                                           __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {  \
        }                                                                                          \
        return old;                                                                                \
    }                                                                                              \
    static inline type atomicMin(type *at, type value)                                             \
    {                                                                                              \
        type old = __atomic_load_n(at, __ATOMIC_RELAXED);                                          \
                                                                                                   \
        while (old > value && !__atomic_compare_exchange_n(at, &old, value, false,                 \
                                                           __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {  \
        }                                                                                          \
        return old;                                                                                \
    }
EMULATOR_ATOMICS(int)
EMULATOR_ATOMICS(unsigned)
EMULATOR_ATOMICS(unsigned long long)
#undef EMULATOR_ATOMICS

/* ----------------------------------------------------------- intrinsics -- */

template <typename T> static inline T __ldg(const T *at)
{
    return *at;
}
template <typename T> static inline T __ldcs(const T *at)
{
    return *at;
}
template <typename T> static inline T __ldcg(const T *at)
{
    return *at;
}
template <typename T> static inline void __stcs(T *at, T value)
{
    *at = value;
}
template <typename T> static inline void __stcg(T *at, T value)
{
    *at = value;
}

template <typename To, typename From> static inline To emulator_bits(From from)
{
    To to;

    static_assert(sizeof(To) == sizeof(From), "bits of another size");
    memcpy(&to, &from, sizeof(to));
    return to;
}

#define EMULATOR_BITS(name, to, from)                                                              \
    static inline to name(from x)                                                                  \
    {                                                                                              \
        return emulator_bits<to>(x);                                                               \
    }
EMULATOR_BITS(__float_as_uint, unsigned, float)
EMULATOR_BITS(__float_as_int, int, float)
EMULATOR_BITS(__uint_as_float, float, unsigned)
EMULATOR_BITS(__int_as_float, float, int)
EMULATOR_BITS(__double_as_longlong, long long, double)
EMULATOR_BITS(__longlong_as_double, double, long long)
#undef EMULATOR_BITS

#define EMULATOR_BINARY(name, type, operator)                                                      \
    static inline type name(type a, type b)                                                        \
    {                                                                                              \
        return a operator b;                                                                       \
    }
EMULATOR_BINARY(__fadd_rn, float, +)
EMULATOR_BINARY(__fsub_rn, float, -)
EMULATOR_BINARY(__fmul_rn, float, *)
EMULATOR_BINARY(__fdiv_rn, float, /)
EMULATOR_BINARY(__fdividef, float, /)
EMULATOR_BINARY(__dadd_rn, double, +)
EMULATOR_BINARY(__dmul_rn, double, *)
EMULATOR_BINARY(__ddiv_rn, double, /)
#undef EMULATOR_BINARY

static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline double __fma_rn(double a, double b, double c)
{
    return fma(a, b, c);
}
static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
static inline float __frsqrt_rn(float x)
{
    return rsqrtf(x);
}
static inline float __saturatef(float x)
{
    return x > 0 ? (x < 1 ? x : 1) : 0;
}
/* glibc has functions of these names; as macros they hide them. */
#define __expf(x)    expf(x)
#define __exp10f(x)  exp10f(x)
#define __logf(x)    logf(x)
#define __log2f(x)   log2f(x)
#define __sinf(x)    sinf(x)
#define __cosf(x)    cosf(x)
#define __tanf(x)    tanf(x)
#define __powf(x, y) powf(x, y)
#define exp10f(x)    powf(10.0f, x)

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
static inline int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz((unsigned)x);
}
static inline int __clzll(long long x)
{
    return x == 0 ? 64 : __builtin_clzll((unsigned long long)x);
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((unsigned long long)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

template <typename A, typename B> static inline typename std::common_type<A, B>::type min(A a, B b)
{
    typedef typename std::common_type<A, B>::type T;

    return (T)b < (T)a ? (T)b : (T)a;
}
template <typename A, typename B> static inline typename std::common_type<A, B>::type max(A a, B b)
{
    typedef typename std::common_type<A, B>::type T;

    return (T)a < (T)b ? (T)b : (T)a;
}

/* ----------------------------------------------------------- launches -- */

struct emulator_work {
    virtual ~emulator_work()
    {
    }
    virtual void thread(void) = 0; /* one thread of the grid; threadIdx and the like say which */
};

/** Takes the work, whatever it returns. */
cudaError_t emulator_enqueue(emulator_work *work, const void *kernel, dim3 grid, dim3 block,
                             size_t shared_bytes, cudaStream_t stream);

template <typename... P> struct emulator_kernel_work : emulator_work {
    void (*kernel)(P...);
    std::tuple<P...> args;

    emulator_kernel_work(void (*kernel_)(P...), P... args_) : kernel(kernel_), args(args_...)
    {
    }
    void thread(void) override
    {
        std::apply(kernel, args);
    }
};

template <typename T> struct emulator_same {
    typedef T type;
};

/** kernel<<<grid, block, shared_bytes, stream>>>(args...). Arguments are converted and kept now. */
template <typename... P>
static inline cudaError_t emulator_launch(void (*kernel)(P...), dim3 grid, dim3 block,
                                          size_t shared_bytes, cudaStream_t stream,
                                          typename emulator_same<P>::type... args)
{
    return emulator_enqueue(new emulator_kernel_work<P...>(kernel, args...), (const void *)kernel,
                            grid, block, shared_bytes, stream);
}

/* The forms of the runtime's templates. */
template <typename T> static inline cudaError_t cudaMalloc(T **memory, size_t len)
{
    return cudaMalloc((void **)memory, len);
}
template <typename T> static inline cudaError_t cudaMallocHost(T **memory, size_t len)
{
    return cudaMallocHost((void **)memory, len);
}
template <typename... P>
static inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attr,
                                               int value)
{
    return cudaFuncSetAttribute((const void *)kernel, attr, value);
}
template <typename... P>
static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes,
                                                void (*kernel)(P...))
{
    return cudaFuncGetAttributes(attributes, (const void *)kernel);
}
template <typename... P>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks,
                                                                        void (*kernel)(P...),
                                                                        int    block_threads,
                                                                        size_t shared_bytes)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, (const void *)kernel,
                                                         block_threads, shared_bytes);
}

#endif

#endif
