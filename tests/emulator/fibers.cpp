/* See fibers.h. A fiber runs threads of the block one after another, without a switch, until one of
 * them has to wait; then one that waits no longer goes on, or the next thread starts. So a kernel
 * that never waits runs as a plain loop, and a warp goes as far as it can before the next one
 * starts: few stacks are in use at once. Fibers of one real thread never run at once and never
 * leave it. */
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

__thread uint3    threadIdx;
__thread uint3    blockIdx;
__thread uint3    blockDim;
__thread uint3    gridDim;
__thread unsigned emulator_lane_number;

#define MAX_THREADS 1024
#define MAX_WARPS   (MAX_THREADS / 32)
#define STACK_BYTES ((size_t)256 << 10)
/* Meetings of one warp that are open at once: masks that do not overlap, and the one being left. */
#define WARP_MEETINGS 64
#define SHARED_BYTES  ((size_t)228 << 10)
/* Of shared memory: what a launch asks for ends at a page that faults, or less than this before
 * it. */
#define SHARED_ALIGN ((size_t)128)
#define PAGE_BYTES   4096
/* Copies into shared memory that one thread may have under way, and groups of them. */
#define MAX_COPIES 512
#define MAX_GROUPS 8
/* Stacks begin at different lines of a page, or a cache would hold few of them. */
#define STACK_COLOURS     31
#define STACK_COLOUR_STEP 128

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

/* Inlined where a fiber waits and entered by jumps: the processor foresees returns by the calls
 * before them, and a return on another stack is never what it foresaw. So a switch between lanes at
 * the same place costs little. */
#define ALWAYS_INLINE inline __attribute__((always_inline))

#if defined(__x86_64__)
/* Stores the registers that the compiler cannot save, and the address of the continuation, on the
 * old stack; below what a leaf may use of it. */
static ALWAYS_INLINE void stack_switch(void **from, void *to)
{
    asm volatile("leaq -128(%%rsp), %%rsp\n\t"
                 "pushq %%rbp\n\t"
                 "leaq 1f(%%rip), %%rax\n\t"
                 "pushq %%rax\n\t"
                 "movq %%rsp, (%%rdi)\n\t"
                 "movq %%rsi, %%rsp\n\t"
                 "popq %%rax\n\t"
                 "jmp *%%rax\n\t"
                 "1:\n\t"
                 "popq %%rbp\n\t"
                 "leaq 128(%%rsp), %%rsp"
                 : "+D"(from), "+S"(to)
                 :
                 : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
                   "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                   "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
#ifdef __AVX512F__
    asm volatile("" ::
                     : "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23",
                       "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31", "k1",
                       "k2", "k3", "k4", "k5", "k6", "k7");
#endif
}
#endif

static ALWAYS_INLINE void context_switch(context *from, context *to)
{
#ifdef EMULATOR_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
#ifdef EMULATOR_TSAN
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
#if defined(__x86_64__)
    stack_switch(&from->stack_pointer, to->stack_pointer);
#else
    (void)swapcontext(&from->saved, &to->saved);
#endif
#ifdef EMULATOR_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
}

/* ----------------------------------------------------------- machine -- */

struct emulator_fiber {
    context         where;
    unsigned char  *stack;
    uint3           thread;
    unsigned        linear; /* its thread's number in the block */
    emulator_fiber *next;   /* idle, ready or waiting for the same */
};

typedef emulator_fiber fiber;

/* Copies of one thread that have not arrived, in the order of their start. */
struct pending_copies {
    struct {
        void       *to;
        const void *from; /* null: zeros */
        size_t      len;
    } copies[MAX_COPIES];
    unsigned started;
    unsigned groups;
    unsigned ends[MAX_GROUPS]; /* of the groups, as numbers of copies */
};

/* What runs blocks on one real thread. */
struct machine {
    machine *next; /* spare */
    context  home;
    fiber   *current;
    fiber   *idle;  /* by next */
    fiber   *ready; /* by next: what they waited for has come */
    unsigned made;  /* fibers */

    emulator_work *work;
    unsigned       order;
    unsigned       threads, started, live; /* of the block */
    unsigned       ended[MAX_WARPS];   /* lanes, a mask; those that no warp of the block has too */
    unsigned       meeting[MAX_WARPS]; /* lanes that wait in a meeting */

    fiber   *barrier_waiting; /* by next */
    unsigned barrier_arrived;
    unsigned barrier_generation;
    int      barrier_sums[2];
    fiber   *mbarrier_waiting; /* by next: for any of those in shared memory */

    emulator_meeting *meetings; /* [MAX_WARPS][WARP_MEETINGS] */
    unsigned char    *shared_end;
    size_t            shared_bytes;   /* of this launch, whole SHARED_ALIGN */
    pending_copies   *copies;         /* [MAX_THREADS] */
    unsigned          copies_started; /* of all threads */
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

/* Whole pages, with one before and one after that fault. */
static void *map_bytes(size_t wanted)
{
    size_t         len = (wanted + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    unsigned char *memory =
        (unsigned char *)mmap(nullptr, len + (size_t)2 * PAGE_BYTES, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (memory == MAP_FAILED || mprotect(memory, PAGE_BYTES, PROT_NONE) != 0 ||
        mprotect(memory + PAGE_BYTES + len, PAGE_BYTES, PROT_NONE) != 0) {
        (void)fprintf(stderr, "emulator: no memory for %zu bytes\n", len);
        abort();
    }
    return memory + PAGE_BYTES;
}

static void fibers_wake(machine *m, fiber **waiting)
{
    while (*waiting != nullptr) {
        fiber *f = *waiting;

        *waiting = f->next;
        f->next  = m->ready;
        m->ready = f;
    }
}

static void barrier_open(machine *m)
{
    m->barrier_arrived = 0;
    m->barrier_generation++;
    m->barrier_sums[m->barrier_generation & 1] = 0;
    fibers_wake(m, &m->barrier_waiting);
}

static void meetings_without(machine *m, unsigned warp);

static void thread_end(machine *m, unsigned linear)
{
    if (m->copies_started > 0 && m->copies[linear].started > 0) {
        die("a thread ends before its copies into shared memory have arrived");
    }
    m->live--;
    m->ended[linear / 32] |= 1u << linear % 32;
    if (m->meeting[linear / 32] > 0) {
        meetings_without(m, linear / 32);
    }
    if (m->live > 0 && m->barrier_arrived == m->live) {
        barrier_open(m);
    }
}

static uint3 thread_index(unsigned linear)
{
    if (linear < blockDim.x) { /* without a division: most blocks are lines */
        return {linear, 0, 0};
    }
    return {linear % blockDim.x, linear / blockDim.x % blockDim.y,
            linear / blockDim.x / blockDim.y};
}

/* Threads that nobody has started, one after another. */
static void fiber_work(machine *m, fiber *f)
{
    while (m->started < m->threads) {
        unsigned linear = (m->order & 1) != 0 ? m->threads - 1 - m->started : m->started;

        m->started++;
        f->linear            = linear;
        f->thread            = thread_index(linear);
        threadIdx            = f->thread;
        emulator_lane_number = linear % 32;
        m->work->thread();
        thread_end(m, f->linear);
    }
}

static fiber *fiber_take(machine *m);

/* Leaves `from` for a fiber that is ready, or else for one that starts the next thread. */
static ALWAYS_INLINE void machine_go_on(machine *m, context *from)
{
    fiber *f = m->ready;

    if (f != nullptr) {
        m->ready = f->next;
    } else if (m->started < m->threads) {
        f = fiber_take(m);
    } else {
        die("threads wait for others that do not come (a barrier, shuffle or vote that not all "
            "of its lanes reach)");
    }
    m->current = f;
    context_switch(from, &f->where);
}

static void fiber_main(void)
{
#ifdef EMULATOR_ASAN
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    for (;;) {
        machine *m = here;
        fiber   *f = m->current;

        fiber_work(m, f);
        f->next = m->idle; /* not used before the switch is over: one real thread */
        m->idle = f;
        if (m->live > 0) {
            machine_go_on(m, &f->where);
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
    f->stack = (unsigned char *)map_bytes(STACK_BYTES);

    size_t bytes = STACK_BYTES - m->made++ % STACK_COLOURS * STACK_COLOUR_STEP;
#if defined(__x86_64__)
    void **top = (void **)(void *)(f->stack + bytes);

    *--top = nullptr; /* fiber_main's return address; the stack is as after a call */
    *--top = (void *)fiber_main;
    f->where.stack_pointer = top;
#else
    (void)getcontext(&f->where.saved);
    f->where.saved.uc_stack.ss_sp   = f->stack;
    f->where.saved.uc_stack.ss_size = bytes;
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

/* Lets others go on until one of them wakes those in the list. */
static ALWAYS_INLINE void fiber_wait(machine *m, fiber **waiting)
{
    fiber *f = m->current;

    f->next  = *waiting;
    *waiting = f;
    machine_go_on(m, &f->where);
    threadIdx            = f->thread;
    emulator_lane_number = f->linear % 32;
}

/* ----------------------------------------------------------- meetings -- */

int emulator_barrier(int value)
{
    machine *m          = here;
    unsigned generation = m->barrier_generation;

    m->barrier_sums[generation & 1] += value;
    if (++m->barrier_arrived == m->live) {
        barrier_open(m);
    } else {
        fiber_wait(m, &m->barrier_waiting);
    }
    return m->barrier_sums[generation & 1];
}

unsigned emulator_active(void)
{
    machine *m = here;

    return ~m->ended[m->current->linear / 32];
}

/* Whether all lanes of the mask have come or ended; then those that wait go on. */
static bool meeting_is_over(machine *m, emulator_meeting *meeting, unsigned warp)
{
    if (!meeting->is_over && (meeting->mask & ~m->ended[warp] & ~meeting->arrived) == 0) {
        meeting->is_over = true;
        fibers_wake(m, &meeting->waiting);
    }
    return meeting->is_over;
}

/* A lane of the warp has ended: others may have waited for it alone. */
static void meetings_without(machine *m, unsigned warp)
{
    emulator_meeting *all = m->meetings + warp * WARP_MEETINGS;

    for (int i = 0; i < WARP_MEETINGS; i++) {
        if (all[i].mask != 0) {
            (void)meeting_is_over(m, &all[i], warp);
        }
    }
}

/* The open meeting of these lanes that this one has not come to, or a new one. */
static emulator_meeting *meeting_find(emulator_meeting *all, unsigned mask, unsigned lane)
{
    emulator_meeting *empty = nullptr;

    for (int i = 0; i < WARP_MEETINGS; i++) {
        if (all[i].mask == mask && (all[i].arrived >> lane & 1) == 0 && !all[i].is_over) {
            return &all[i];
        }
        if (all[i].mask == 0 && empty == nullptr) {
            empty = &all[i];
        }
        if (all[i].mask == 0 && i > 2) {
            break; /* the first are used first */
        }
    }
    if (empty == nullptr) {
        die("too many warp functions at once");
    }
    empty->mask    = mask;
    empty->arrived = 0;
    empty->left    = 0;
    empty->is_over = false;
    empty->waiting = nullptr;
    return empty;
}

emulator_meeting *emulator_meet(unsigned mask, uint64_t low, uint64_t high)
{
    machine          *m    = here;
    unsigned          warp = m->current->linear / 32;
    unsigned          lane = emulator_lane_number;
    emulator_meeting *found;

    if ((mask >> lane & 1) == 0) {
        die("a thread calls a warp function whose mask does not have it");
    }
    found                  = meeting_find(m->meetings + warp * WARP_MEETINGS, mask, lane);
    found->values[lane][0] = low;
    found->values[lane][1] = high;
    found->arrived |= 1u << lane;
    if (!meeting_is_over(m, found, warp)) {
        m->meeting[warp]++;
        fiber_wait(m, &found->waiting);
        m->meeting[warp]--;
    }
    return found;
}

void emulator_no_such_lane(void)
{
    die("a shuffle reads a lane that is not in its mask, or has ended");
}

/* ----------------------------------------------------------- shared memory -- */

void *emulator_shared(void)
{
    return here->shared_end - here->shared_bytes;
}

void emulator_shared_at(const void *at, size_t len)
{
    const unsigned char *first = (const unsigned char *)at;

    if ((uintptr_t)at % len != 0) {
        die("an address in shared memory is not a multiple of what is read or written there");
    }
    if (first < (unsigned char *)emulator_shared() || first + len > here->shared_end) {
        die("an address is not in the launch's shared memory");
    }
}

void emulator_copy_start(void *to, const void *from, size_t len, bool is_there)
{
    pending_copies *mine = &here->copies[here->current->linear];

    emulator_shared_at(to, len);
    if ((uintptr_t)from % len != 0) {
        die("a copy into shared memory reads at no multiple of its bytes");
    }
    if (mine->started == MAX_COPIES) {
        die("more copies into shared memory are under way than the emulator keeps");
    }
    memset(to, 0xff, len); /* NaN */
    mine->copies[mine->started] = {to, is_there ? from : nullptr, len};
    mine->started++;
    here->copies_started++;
}

void emulator_copies_commit(void)
{
    pending_copies *mine = &here->copies[here->current->linear];

    if (mine->groups == MAX_GROUPS) {
        die("more groups of copies are under way than the emulator keeps");
    }
    mine->ends[mine->groups++] = mine->started;
}

void emulator_copies_wait(unsigned pending)
{
    pending_copies *mine    = &here->copies[here->current->linear];
    unsigned        over    = mine->groups > pending ? mine->groups - pending : 0; /* groups */
    unsigned        arrived = over > 0 ? mine->ends[over - 1] : 0;

    for (unsigned i = 0; i < arrived; i++) {
        if (mine->copies[i].from != nullptr) {
            memcpy(mine->copies[i].to, mine->copies[i].from, mine->copies[i].len);
        } else {
            memset(mine->copies[i].to, 0, mine->copies[i].len);
        }
    }
    mine->started -= arrived;
    here->copies_started -= arrived;
    mine->groups -= over;
    memmove(mine->copies, mine->copies + arrived, mine->started * sizeof(mine->copies[0]));
    for (unsigned i = 0; i < mine->groups; i++) {
        mine->ends[i] = mine->ends[i + over] - arrived;
    }
}

/* What a barrier's eight bytes hold. */
struct mbarrier {
    uint16_t phase, arrivals, left;
    uint16_t made; /* a number that garbage does not have */
};

#define MBARRIER_MADE 0x6d62

static_assert(sizeof(mbarrier) == sizeof(uint64_t), "a barrier is eight bytes");

static mbarrier mbarrier_get(const uint64_t *at)
{
    mbarrier b;

    emulator_shared_at(at, sizeof(b));
    memcpy(&b, at, sizeof(b));
    if (b.made != MBARRIER_MADE) {
        die("a barrier in shared memory was not made");
    }
    return b;
}

void emulator_mbarrier_init(uint64_t *barrier, unsigned arrivals)
{
    mbarrier b = {0, (uint16_t)arrivals, (uint16_t)arrivals, MBARRIER_MADE};

    emulator_shared_at(barrier, sizeof(b));
    memcpy(barrier, &b, sizeof(b));
}

void emulator_mbarrier_arrive(uint64_t *barrier)
{
    mbarrier b = mbarrier_get(barrier);

    if (--b.left == 0) {
        b.phase++;
        b.left = b.arrivals;
        fibers_wake(here, &here->mbarrier_waiting);
    }
    memcpy(barrier, &b, sizeof(b));
}

bool emulator_mbarrier_is_over(const uint64_t *barrier, int phase)
{
    uint16_t behind =
        (uint16_t)(mbarrier_get(barrier).phase - (uint16_t)phase); /* phases that began since */

    if (behind > 1) {
        die("a thread waits for a phase of a barrier that is long over, or far ahead");
    }
    return behind == 1;
}

void emulator_mbarrier_wait(uint64_t *barrier, int phase)
{
    while (!emulator_mbarrier_is_over(barrier, phase)) {
        fiber_wait(here, &here->mbarrier_waiting);
    }
}

/* ----------------------------------------------------------- blocks -- */

static machine *machine_make(void)
{
    machine *m = new machine();

    m->meetings =
        (emulator_meeting *)map_bytes(sizeof(emulator_meeting) * MAX_WARPS * WARP_MEETINGS);
    m->shared_end = (unsigned char *)map_bytes(SHARED_BYTES) + SHARED_BYTES;
    m->copies     = (pending_copies *)map_bytes(sizeof(pending_copies) * MAX_THREADS);
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

/* Machines of real threads that have ended: their stacks are mapped once, not for each stream of
 * each test. */
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

static void block_run(machine *m)
{
    m->started            = 0;
    m->live               = m->threads;
    m->barrier_arrived    = 0;
    m->barrier_sums[0]    = 0;
    m->barrier_sums[1]    = 0;
    m->barrier_generation = 0;
    m->mbarrier_waiting   = nullptr;
    memset(m->ended, 0, sizeof(m->ended));
    if (m->threads % 32 != 0) {
        m->ended[m->threads / 32] = ~0u << m->threads % 32;
    }
    memset(emulator_shared(), 0xd5, m->shared_bytes); /* a block finds garbage */
    machine_go_on(m, &m->home);
}

void emulator_grid_run(emulator_work *work, dim3 grid, dim3 block, size_t shared_bytes,
                       unsigned order)
{
    machine *m;
    size_t   blocks = (size_t)grid.x * grid.y * grid.z;

    if (holder.taken == nullptr) {
        holder.taken = machine_take();
    }
    m               = holder.taken;
    here            = m;
    m->work         = work;
    m->order        = order;
    m->threads      = block.x * block.y * block.z;
    m->shared_bytes = (shared_bytes + SHARED_ALIGN - 1) / SHARED_ALIGN * SHARED_ALIGN;
    blockDim        = {block.x, block.y, block.z};
    gridDim         = {grid.x, grid.y, grid.z};
    for (size_t i = 0; i < blocks; i++) {
        size_t number = (order & 1) != 0 ? blocks - 1 - i : i;

        blockIdx = {(unsigned)(number % grid.x), (unsigned)(number / grid.x % grid.y),
                    (unsigned)(number / grid.x / grid.y)};
        block_run(m);
    }
}
