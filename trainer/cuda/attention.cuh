/* The arguments of the kernels of attention.cu and attention_plain.cu. */
#ifndef LLM_CUDA_ATTENTION_CUH
#define LLM_CUDA_ATTENTION_CUH

#include "kernels.h"

#include <math.h>

/* The same as attention_launch, with elements of type T. */
template <typename T> struct attention_typed {
    int      length, heads, kv_heads, width; /* positions in a sequence are ints: at most 2^26 */
    size_t   q_stride, kv_stride;
    float    scale;
    const T *q, *k, *v, *out, *dout;
    T       *y; /* forward */
    float   *log_sums, *deltas;
    T       *dq, *dk, *dv;

    explicit attention_typed(const attention_launch *a)
        : length((int)a->shape.length), heads((int)a->shape.heads), kv_heads((int)a->shape.kv_heads),
          width((int)a->shape.width), q_stride(a->shape.q_stride), kv_stride(a->shape.kv_stride),
          scale(1.0f / sqrtf((float)a->shape.width)), q((const T *)a->shape.q),
          k((const T *)a->shape.k), v((const T *)a->shape.v), out((const T *)a->out),
          dout((const T *)a->dout), y((T *)a->out), log_sums(a->log_sums), deltas(a->deltas),
          dq((T *)a->dq), dk((T *)a->dk), dv((T *)a->dv)
    {
    }
};

#endif
