/* See fibers.h. A fiber runs threads of the block one after another, without a switch, until one of them has to
 * wait; then the next fiber starts, or goes on if all threads have started. So a kernel that never waits
 * runs as a plain loop. Fibers of one real thread never run at once and never leave it. */
#include "fibers.h"

#include <pthread.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define EMULATOR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATOR_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define EMULATOR_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define EMULATOR_TSAN 1
#endif
#endif
#ifdef EMULATOR_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef EMULATOR_TSAN
#include <sanitizer/tsan_interface.h>
#endif

__thread uint3 threadIdx;
__thread uint3 blockIdx;
__thread uint3 blockDim;
__thread uint3 gridDim;

#define MAX_THREADS 1024
#define MAX_WARPS   (MAX_THREADS / 32)
#define STACK_BYTES ((size_t)256 << 10)
/* Meetings of one warp that are open at once: masks that do not overlap, and the one being left. */
#define WARP_MEETINGS 64
#define SHARED_BYTES  ((size_t)228 << 10)

struct emulator_meeting {
    unsigned mask; /* 0: free */
    unsigned arrived;
    unsigned left;
    bool     is_over; /* all have arrived: who comes now means the next one */
    alignas(16) unsigned char values[32][EMULATOR_LANE_BYTES];
};

/* ----------------------------------------------------------- contexts -- */

struct context {
#if defined(__x86_64__)
    void *stack_pointer;
#else
    ucontext_t saved;
#endif
#ifdef EMULATOR_ASAN
    void       *fake_stack;
    const void *stack;
    size_t      stack_bytes;
#endif
#ifdef EMULATOR_TSAN
    void *tsan;
#endif
};

#if defined(__x86_64__)
/* Keeps what a call must keep on the old stack and takes it from the new one. */
extern "C" void emulator_switch(void **from, void *to);
asm(".text\n"
    ".globl emulator_switch\n"
    ".hidden emulator_switch\n"
    ".type emulator_switch, @function\n"
    "emulator_switch:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size emulator_switch, . - emulator_switch\n");
#endif

static void context_switch(context *from, context *to)
{
#ifdef EMULATOR_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
#ifdef EMULATOR_TSAN
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
#if defined(__x86_64__)
    emulator_switch(&from->stack_pointer, to->stack_pointer);
#else
    (void)swapcontext(&from->saved, &to->saved);
#endif
#ifdef EMULATOR_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
}

/* ----------------------------------------------------------- machine -- */

struct fiber {
    context        where;
    unsigned char *stack;
    uint3          thread;
    unsigned       linear; /* its thread's number in the block */
    fiber         *next, *previous;
};

/* What runs blocks on one real thread. */
struct machine {
    machine *next; /* spare */
    context  home;
    fiber   *current; /* nullptr: at home */
    fiber   *idle;    /* by next */
    unsigned ring;    /* fibers that have an unfinished thread */

    emulator_work *work;
    unsigned       order;
    unsigned       threads, started, live; /* of the block */
    unsigned       ended[MAX_WARPS];       /* lanes, a mask */
    unsigned       stalls;                 /* switches since something happened */

    unsigned barrier_arrived;
    unsigned barrier_generation;
    int      barrier_sums[2];

    emulator_meeting *meetings; /* [MAX_WARPS][WARP_MEETINGS] */
    unsigned char    *shared;
};

static __thread machine *here;

[[noreturn]] static void die(const char *why)
{
    machine *m = here;

    (void)fprintf(stderr,
                  "emulator: %s; grid %u x %u x %u, block %u x %u x %u, at block %u,%u,%u thread "
                  "%u,%u,%u; %u of %u threads started, %u not ended, %u wait at __syncthreads\n",
                  why, gridDim.x, gridDim.y, gridDim.z, blockDim.x, blockDim.y, blockDim.z,
                  blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z,
                  m->started, m->threads, m->live, m->barrier_arrived);
    abort();
}

static void *map_bytes(size_t len, size_t guard)
{
    unsigned char *memory =
        (unsigned char *)mmap(nullptr, len + guard, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (memory == MAP_FAILED || (guard > 0 && mprotect(memory, guard, PROT_NONE) != 0)) {
        (void)fprintf(stderr, "emulator: no memory for %zu bytes\n", len);
        abort();
    }
    return memory + guard;
}

/* Threads that have started on `fiber` until it has to give way for good. */
static void fiber_work(machine *m, fiber *f)
{
    while (m->started < m->threads) {
        unsigned linear = (m->order & 1) != 0 ? m->threads - 1 - m->started : m->started;

        m->started++;
        m->stalls = 0;
        f->linear = linear;
        f->thread = {linear % blockDim.x, linear / blockDim.x % blockDim.y,
                     linear / blockDim.x / blockDim.y};
        threadIdx = f->thread;
        m->work->thread();
        m->live--;
        m->stalls = 0;
        m->ended[f->linear / 32] |= 1u << f->linear % 32;
        if (m->live > 0 && m->barrier_arrived == m->live) {
            m->barrier_arrived = 0;
            m->barrier_generation++;
            m->barrier_sums[m->barrier_generation & 1] = 0;
        }
    }
}

static fiber *fiber_take(machine *m);

static void fiber_main(void)
{
#ifdef EMULATOR_ASAN
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    for (;;) {
        machine *m = here;
        fiber   *f = m->current;
        fiber   *next;

        fiber_work(m, f);
        next              = f->next == f ? nullptr : f->next;
        f->previous->next = f->next;
        f->next->previous = f->previous;
        m->ring--;
        f->next    = m->idle; /* not used before the switch is over: one real thread */
        m->idle    = f;
        m->current = next;
        if (next != nullptr) {
            threadIdx = next->thread;
            context_switch(&f->where, &next->where);
        } else {
            context_switch(&f->where, &m->home);
        }
    }
}

static fiber *fiber_take(machine *m)
{
    fiber *f = m->idle;

    if (f != nullptr) {
        m->idle = f->next;
        return f;
    }
    f        = new fiber();
    f->stack = (unsigned char *)map_bytes(STACK_BYTES, 4096);
#if defined(__x86_64__)
    void **top = (void **)(void *)(f->stack + STACK_BYTES);

    *--top = nullptr; /* fiber_main's return address; the stack is as after a call */
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++) {
        *--top = nullptr;
    }
    f->where.stack_pointer = top;
#else
    (void)getcontext(&f->where.saved);
    f->where.saved.uc_stack.ss_sp   = f->stack;
    f->where.saved.uc_stack.ss_size = STACK_BYTES;
    f->where.saved.uc_link          = nullptr;
    makecontext(&f->where.saved, fiber_main, 0);
#endif
#ifdef EMULATOR_ASAN
    f->where.stack       = f->stack;
    f->where.stack_bytes = STACK_BYTES;
#endif
#ifdef EMULATOR_TSAN
    f->where.tsan = __tsan_create_fiber(0);
#endif
    return f;
}

static void fiber_enter(machine *m, context *from)
{
    fiber *f = fiber_take(m);

    if (m->ring == 0) {
        f->next     = f;
        f->previous = f;
    } else {
        f->previous                = m->current;
        f->next                    = m->current->next;
        m->current->next->previous = f;
        m->current->next           = f;
    }
    m->ring++;
    m->current = f;
    context_switch(from, &f->where);
}

/* Lets the others go on; returns when it is this fiber's turn again. */
static void fiber_yield(machine *m)
{
    fiber *f = m->current;

    if (m->started < m->threads) {
        fiber_enter(m, &f->where);
    } else {
        if (++m->stalls > 2 * m->ring + 8) {
            die("threads wait for others that do not come (a barrier, shuffle or vote that not all "
                "of its lanes reach)");
        }
        m->current = f->next;
        threadIdx  = f->next->thread;
        if (f->next != f) {
            context_switch(&f->where, &f->next->where);
        }
    }
    threadIdx = f->thread;
}

/* ----------------------------------------------------------- meetings -- */

int emulator_barrier(int value)
{
    machine *m          = here;
    unsigned generation = m->barrier_generation;

    m->barrier_sums[generation & 1] += value;
    if (++m->barrier_arrived == m->live) {
        m->barrier_arrived = 0;
        m->barrier_generation++;
        m->barrier_sums[m->barrier_generation & 1] = 0;
        m->stalls                                  = 0;
    } else {
        while (m->barrier_generation == generation) {
            fiber_yield(m);
        }
    }
    return m->barrier_sums[generation & 1];
}

unsigned emulator_lane(void)
{
    return here->current->linear % 32;
}

unsigned emulator_active(void)
{
    machine *m     = here;
    unsigned warp  = m->current->linear / 32;
    unsigned lanes = m->threads - warp * 32 >= 32 ? 0xffffffffu : (1u << m->threads % 32) - 1;

    return lanes & ~m->ended[warp];
}

/* All lanes of the mask have come or ended. */
static bool is_complete(const emulator_meeting *meeting)
{
    return meeting->is_over || (meeting->mask & emulator_active() & ~meeting->arrived) == 0;
}

emulator_meeting *emulator_meet(unsigned mask, const void *value, size_t len)
{
    machine          *m     = here;
    unsigned          warp  = m->current->linear / 32;
    unsigned          lane  = m->current->linear % 32;
    emulator_meeting *all   = m->meetings + warp * WARP_MEETINGS;
    emulator_meeting *found = nullptr;
    emulator_meeting *empty = nullptr;

    if ((mask >> lane & 1) == 0) {
        die("a thread calls a warp function whose mask does not have it");
    }
    for (int i = 0; i < WARP_MEETINGS; i++) {
        if (all[i].mask == mask && (all[i].arrived >> lane & 1) == 0 && !is_complete(&all[i])) {
            found = &all[i];
            break;
        }
        if (all[i].mask == 0 && empty == nullptr) {
            empty = &all[i];
        }
        if (all[i].mask == 0 && i > 2) {
            break; /* the first are used first */
        }
    }
    if (found == nullptr) {
        if (empty == nullptr) {
            die("too many warp functions at once");
        }
        found          = empty;
        found->mask    = mask;
        found->arrived = 0;
        found->left    = 0;
        found->is_over = false;
    }
    if (len > 0) {
        memcpy(found->values[lane], value, len);
    }
    found->arrived |= 1u << lane;
    m->stalls = 0; /* at most one arrival of each lane without another event */
    while (!is_complete(found)) {
        fiber_yield(m);
    }
    found->is_over = true;
    return found;
}

unsigned emulator_meeting_lanes(const emulator_meeting *meeting)
{
    return meeting->arrived;
}

const void *emulator_meeting_value(const emulator_meeting *meeting, unsigned lane)
{
    if ((meeting->arrived >> lane & 1) == 0) {
        die("a shuffle reads a lane that is not in its mask, or has ended");
    }
    return meeting->values[lane];
}

void emulator_meeting_leave(emulator_meeting *meeting)
{
    meeting->left |= 1u << emulator_lane();
    if (meeting->left == meeting->arrived) {
        meeting->mask = 0;
    }
}

void *emulator_shared(void)
{
    return here->shared;
}

/* ----------------------------------------------------------- blocks -- */

static machine *machine_make(void)
{
    machine *m = new machine();

    m->meetings =
        (emulator_meeting *)map_bytes(sizeof(emulator_meeting) * MAX_WARPS * WARP_MEETINGS, 0);
    m->shared = (unsigned char *)map_bytes(SHARED_BYTES, 4096);
    return m;
}

static void machine_settle(machine *m)
{
#ifdef EMULATOR_TSAN
    m->home.tsan = __tsan_get_current_fiber();
#endif
#ifdef EMULATOR_ASAN
    pthread_attr_t attributes;
    void          *stack;

    (void)pthread_getattr_np(pthread_self(), &attributes);
    (void)pthread_attr_getstack(&attributes, &stack, &m->home.stack_bytes);
    (void)pthread_attr_destroy(&attributes);
    m->home.stack = stack;
    for (fiber *f = m->idle; f != nullptr; f = f->next) {
        __asan_unpoison_memory_region(f->stack, STACK_BYTES); /* its frames never returned */
    }
#else
    (void)m;
#endif
}

/* Machines of real threads that have ended: their stacks are mapped once, not for each stream of each test. */
static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;
static machine        *spare;

static machine *machine_take(void)
{
    machine *m;

    (void)pthread_mutex_lock(&spare_lock);
    m = spare;
    if (m != nullptr) {
        spare = m->next;
    }
    (void)pthread_mutex_unlock(&spare_lock);
    if (m == nullptr) {
        m = machine_make();
    }
    machine_settle(m);
    return m;
}

/* At the end of the real thread. */
static thread_local struct machine_holder {
    machine *taken = nullptr;

    ~machine_holder()
    {
        if (taken != nullptr) {
            (void)pthread_mutex_lock(&spare_lock);
            taken->next = spare;
            spare       = taken;
            (void)pthread_mutex_unlock(&spare_lock);
        }
    }
} holder;

static void block_run(machine *m, unsigned shared_bytes)
{
    m->started            = 0;
    m->live               = m->threads;
    m->stalls             = 0;
    m->barrier_arrived    = 0;
    m->barrier_sums[0]    = 0;
    m->barrier_sums[1]    = 0;
    m->barrier_generation = 0;
    memset(m->ended, 0, sizeof(m->ended));
    memset(m->shared, 0xd5, shared_bytes); /* a block finds garbage */
    fiber_enter(m, &m->home);
    if (m->live != 0) {
        die("threads of a block were left");
    }
}

void emulator_grid_run(emulator_work *work, dim3 grid, dim3 block, size_t shared_bytes,
                       unsigned order)
{
    machine *m;
    size_t   blocks = (size_t)grid.x * grid.y * grid.z;

    if (holder.taken == nullptr) {
        holder.taken = machine_take();
    }
    m          = holder.taken;
    here       = m;
    m->work    = work;
    m->order   = order;
    m->threads = block.x * block.y * block.z;
    blockDim   = {block.x, block.y, block.z};
    gridDim    = {grid.x, grid.y, grid.z};
    for (size_t i = 0; i < blocks; i++) {
        size_t number = (order & 1) != 0 ? blocks - 1 - i : i;

        blockIdx = {(unsigned)(number % grid.x), (unsigned)(number / grid.x % grid.y),
                    (unsigned)(number / grid.x / grid.y)};
        block_run(m, (unsigned)shared_bytes);
    }
}
