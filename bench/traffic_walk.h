/* The loops of traffic.h over vectors of one instruction set, included by traffic.c with these
 * defined: TARGET, the attribute of its functions; IN(name), their names; VECTOR, a register; and
 * the primitives load, store, stream, set, or, add and first. A shape is known where its loop is
 * compiled. They end here. */

TARGET static inline __attribute__((always_inline)) void IN(touch)(unsigned char *at, size_t bytes,
                                                                   int is_written, VECTOR none,
                                                                   VECTOR *sum)
{
    size_t done = 0;

    for (; done + sizeof(VECTOR) <= bytes; done += sizeof(VECTOR)) {
        VECTOR x = IN(load)(at + done);

        if (is_written) {
            IN(store)(at + done, IN(or)(x, none));
        } else {
            *sum = IN(add)(*sum, x);
        }
    }
    for (; done < bytes; done += sizeof(uint32_t)) { /* a scale, or ties */
        uint32_t word;

        memcpy(&word, at + done, sizeof(word));
        word |= (uint32_t)IN(first)(none);
        memcpy(at + done, &word, sizeof(word));
    }
}

TARGET static inline __attribute__((always_inline)) void IN(ahead)(const unsigned char *at,
                                                                   size_t               bytes)
{
    for (size_t done = 0; done < bytes; done += LINE_BYTES) {
        __builtin_prefetch(at + done, 0, 3);
    }
}

TARGET static inline __attribute__((always_inline)) void IN(chunk_ahead)(const traffic_shape *shape,
                                                                         const traffic_arrays *a,
                                                                         size_t chunk,
                                                                         size_t ahead_bytes)
{
    IN(ahead)(a->grad + chunk * shape->grad_bytes + ahead_bytes, shape->grad_bytes);
    for (int part = 0; part < TRAFFIC_MOST_PARTS; part++) {
        IN(ahead)
        (a->parts[part] + chunk * shape->part_bytes[part] + ahead_bytes, shape->part_bytes[part]);
    }
    if (shape->kind == TRAFFIC_UPDATES_PARAM) {
        IN(ahead)(a->param + chunk * shape->param_bytes + ahead_bytes, shape->param_bytes);
    }
}

TARGET static inline __attribute__((always_inline)) uint64_t IN(walk)(const traffic_shape   shape,
                                                                      const traffic_arrays *arrays,
                                                                      size_t first, size_t end,
                                                                      size_t ahead_bytes)
{
    const traffic_arrays a       = *arrays; /* which no store changes */
    VECTOR               none    = IN(set)((long long)no_bits());
    VECTOR               sums[4] = {none, none, none, none};

    for (size_t chunk = first; chunk < end; chunk++) {
        unsigned char *grad  = a.grad + chunk * shape.grad_bytes;
        unsigned char *param = a.param + chunk * shape.param_bytes;

        if (ahead_bytes > 0) {
            IN(chunk_ahead)(&shape, &a, chunk, ahead_bytes);
        }
        if (shape.kind == TRAFFIC_WRITES_PARAM) {
            for (size_t done = 0; done < shape.param_bytes; done += sizeof(VECTOR)) {
                IN(stream)(param + done, IN(load)(grad + done));
            }
        } else {
            IN(touch)(grad, shape.grad_bytes, 0, none, &sums[3]);
        }
        for (int part = 0; part < TRAFFIC_MOST_PARTS; part++) {
            IN(touch)
            (a.parts[part] + chunk * shape.part_bytes[part], shape.part_bytes[part],
             shape.kind != TRAFFIC_READS, none, &sums[part]);
        }
        if (shape.kind == TRAFFIC_UPDATES_PARAM) {
            IN(touch)(param, shape.param_bytes, 1, none, &sums[3]);
        }
    }
    _mm_sfence();
    return IN(first)(IN(add)(IN(add)(sums[0], sums[1]), IN(add)(sums[2], sums[3])));
}

#define TRAFFIC_SHAPE(name, grad, part0, part1, part2, param, kind)                                \
    TARGET static uint64_t IN(name)(const traffic_arrays *arrays, size_t first, size_t end,        \
                                    size_t ahead_bytes)                                            \
    {                                                                                              \
        const traffic_shape shape = {grad, {part0, part1, part2}, param, kind};                    \
                                                                                                   \
        return IN(walk)(shape, arrays, first, end, ahead_bytes);                                   \
    }
TRAFFIC_SHAPES
#undef TRAFFIC_SHAPE

#undef TARGET
#undef IN
#undef VECTOR
