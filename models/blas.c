/* Opening OpenBLAS and choosing its kernels. See blas.h. */
#include "models/blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>

#define CORE_VARIABLE "OPENBLAS_CORETYPE"

static blas_state     state;
static pthread_once_t once = PTHREAD_ONCE_INIT;

typedef struct core_row {
    const char *name;
    blas_level  level;
} core_row;

/* OpenBLAS's names of kernels, except those below AVX. Every CPU of a level can run the first
 * kernels of that level. */
static const core_row cores[BLAS_CORES] = {
    {"", BLAS_SSE}, /* all others */
    {"Sandybridge", BLAS_AVX},
    {"Bulldozer", BLAS_AVX},
    {"Piledriver", BLAS_AVX},
    {"Steamroller", BLAS_AVX},
    {"Haswell", BLAS_AVX2},
    {"Excavator", BLAS_AVX2},
    {"Zen", BLAS_AVX2},
    {"SkylakeX", BLAS_AVX512},
    {"Cooperlake", BLAS_AVX512},
    {"SapphireRapids", BLAS_AVX512},
};

static size_t core_find(const char *name)
{
    for (size_t i = 1; i < BLAS_CORES; i++) {
        if (strcasecmp(cores[i].name, name) == 0) {
            return i;
        }
    }
    return 0;
}

static const char *core_of_level(blas_level level)
{
    size_t i = 0;

    while (cores[i].level != level) {
        i++;
    }
    return cores[i].name;
}

static const char *level_name(blas_level level)
{
    static const char *const names[] = {"SSE", "AVX", "AVX2", "AVX-512"};

    return names[level];
}

blas_level blas_cpu_level(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")) {
        return BLAS_AVX512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return BLAS_AVX2;
    }
    if (__builtin_cpu_supports("avx")) {
        return BLAS_AVX;
    }
#endif
    return BLAS_SSE;
}

const char *blas_better_core(const char *core, blas_level cpu_level)
{
    return cores[core_find(core)].level < cpu_level ? core_of_level(cpu_level) : NULL;
}

size_t blas_core_number(void)
{
    return core_find(blas_open()->core);
}

/* ------------------------------------------------------------- library -- */

/* A buffer of OpenBLAS with its surroundings; the size is the same on every CPU that runs its
 * newest kernels. */
#define BUFFER_BYTES (((size_t)128 << 20) + ((size_t)1 << 20))

/* The part of cblas.h that is used, so that a build needs neither headers nor the library. */
enum { ROW_MAJOR = 101, NOT_FLIPPED = 111, FLIPPED = 112 };

static struct {
    void *handle;
    void (*sgemm)(int order, int flips_a, int flips_b, int m, int n, int k, float alpha,
                  const float *a, int a_stride, const float *b, int b_stride, float beta, float *c,
                  int c_stride);
    void (*threads_set)(int);
    const char *(*config_get)(void);
    const char *(*core_get)(void);
    /* No header declares these two; without them blas_reserve does nothing. */
    void *(*buffer_take)(int);
    void (*buffer_give)(void *);
} library;

static pthread_mutex_t reserve_lock = PTHREAD_MUTEX_INITIALIZER;
static int reserved, buffers; /* threads that need a buffer, buffers made; under reserve_lock */

static void symbol_find(const char *name, void *function)
{
    *(void **)function = dlsym(library.handle, name);
}

/* Opens the library with `core` in OPENBLAS_CORETYPE; NULL: leaves the environment as it is. */
static int library_open(const char *core)
{
    static const char *const names[] = {"libopenblas.so.0", LLM_BLAS_LIBDIR "/libopenblas.so.0"};

    if (LLM_BLAS_IS_DISABLED) {
        (void)snprintf(state.why, sizeof(state.why), "built with -Dblas=disabled");
        return -1;
    }
    if (core != NULL) {
        (void)setenv(CORE_VARIABLE, core, 1);
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && library.handle == NULL; i++) {
        library.handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    if (library.handle == NULL) {
        (void)snprintf(state.why, sizeof(state.why), "%s", dlerror());
        return -1;
    }
    symbol_find("cblas_sgemm", &library.sgemm);
    symbol_find("openblas_set_num_threads", &library.threads_set);
    symbol_find("openblas_get_config", &library.config_get);
    symbol_find("openblas_get_corename", &library.core_get);
    symbol_find("blas_memory_alloc", &library.buffer_take);
    symbol_find("blas_memory_free", &library.buffer_give);
    if (library.sgemm == NULL || library.threads_set == NULL || library.config_get == NULL ||
        library.core_get == NULL) {
        (void)snprintf(state.why, sizeof(state.why), "%s is no OpenBLAS", names[0]);
        (void)dlclose(library.handle);
        library.handle = NULL;
        return -1;
    }
    library.threads_set(1);
    (void)snprintf(state.core, sizeof(state.core), "%s", library.core_get());
    return 0;
}

static void library_close(void)
{
    if (library.handle != NULL) {
        (void)dlclose(library.handle);
    }
    library.handle = NULL;
    reserved = buffers = 0;
}

/* Takes "OpenBLAS 0.3.21" from a line that also says how the library was built. */
static void name_take(const char *config)
{
    size_t words = 0, len = 0;

    while (config[len] != '\0' && (config[len] != ' ' || ++words < 2)) {
        len++;
    }
    (void)snprintf(state.library, sizeof(state.library), "%.*s", (int)len, config);
}

static void library_start(const char *own_core)
{
    const char *users = getenv(CORE_VARIABLE);
    const char *better;

    /* The library would start threads now, which are never used and take address space. */
    (void)setenv("OPENBLAS_NUM_THREADS", "1", 1);
    state = (blas_state){.cpu_level     = blas_cpu_level(),
                         .is_users_core = users != NULL && own_core == NULL};
    if (library_open(own_core) != 0) {
        return;
    }
    (void)snprintf(state.own_core, sizeof(state.own_core), "%s", state.core);
    better = state.is_users_core ? NULL : blas_better_core(state.core, state.cpu_level);
    if (better != NULL) {
        library_close();
        if (library_open(better) != 0) {
            return;
        }
    }
    if (!state.is_users_core) {
        (void)unsetenv(CORE_VARIABLE); /* child processes choose for themselves */
    }
    name_take(library.config_get());
    state.is_open = 1;
    state.level   = cores[core_find(state.core)].level;
}

static void open_once(void)
{
    library_start(NULL);
}

const blas_state *blas_open(void)
{
    (void)pthread_once(&once, open_once);
    return &state;
}

const blas_state *blas_reopen(const char *own_core)
{
    (void)blas_open();
    library_close();
    library_start(own_core);
    return &state;
}

void blas_settle(const double counts[BLAS_CORES])
{
    size_t lowest = 0, kinds = 0;

    for (size_t i = BLAS_CORES; i-- > 0;) {
        if (counts[i] > 0.0) {
            lowest = i;
            kinds++;
        }
    }
    if (!blas_open()->is_open || state.is_users_core || kinds < 2 || lowest == 0) {
        return;
    }
    library_close();
    if (library_open(core_of_level(cores[lowest].level)) == 0) {
        (void)unsetenv(CORE_VARIABLE);
        state.level = cores[core_find(state.core)].level;
    } else {
        state.is_open = 0;
    }
}

static int room_is_there(size_t len_bytes)
{
    void *room = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (room != MAP_FAILED) {
        (void)munmap(room, len_bytes);
    }
    return room != MAP_FAILED;
}

/* Takes `count` buffers at once and gives all back, after which the library keeps them. */
static int buffers_make(int count)
{
    void **taken = calloc((size_t)count, sizeof(*taken));
    int    num   = 0;

    while (taken != NULL && num < count && (num < buffers || room_is_there(BUFFER_BYTES))) {
        taken[num] = library.buffer_take(0);
        if (taken[num] == NULL) {
            break;
        }
        num++;
    }
    for (int i = 0; i < num; i++) {
        library.buffer_give(taken[i]);
    }
    free(taken);
    buffers = num > buffers ? num : buffers;
    return num == count ? 0 : -1;
}

/* Returns how many buffers the library has a place for, two for each of its own threads; it goes
 * beyond its table when it is asked for more. 0: it does not say. */
static int most_buffers(void)
{
    const char *text    = strstr(library.config_get(), "MAX_THREADS=");
    int         threads = 0;

    return text != NULL && sscanf(text, "MAX_THREADS=%d", &threads) == 1 ? 2 * threads : 0;
}

int blas_reserve(int threads, char *why, size_t why_bytes)
{
    int result = 0;
    int most;

    if (!blas_open()->is_open || library.buffer_take == NULL || library.buffer_give == NULL) {
        return 0;
    }
    most = most_buffers();
    (void)pthread_mutex_lock(&reserve_lock);
    if (most > 0 && reserved + threads > most) {
        result = -1;
        (void)snprintf(why, why_bytes,
                       "OpenBLAS serves at most %d threads of a process, and there would be %d: "
                       "start the ranks as processes (sherd launch, mpirun), or give fewer "
                       "--threads",
                       most, reserved + threads);
    } else if (buffers_make(reserved + threads) == 0) {
        reserved += threads;
    } else {
        result = -1;
        (void)snprintf(why, why_bytes,
                       "OpenBLAS needs %zu MiB of address space for each of %d threads, which this "
                       "process cannot get; raise its limit (ulimit -v) or give fewer --threads",
                       BUFFER_BYTES >> 20, reserved + threads);
    }
    (void)pthread_mutex_unlock(&reserve_lock);
    return result;
}

void blas_sgemm(int flips_a, int flips_b, size_t m, size_t n, size_t k, float alpha, const float *a,
                size_t a_stride, const float *b, size_t b_stride, float beta, float *c,
                size_t c_stride)
{
    library.sgemm(ROW_MAJOR, flips_a ? FLIPPED : NOT_FLIPPED, flips_b ? FLIPPED : NOT_FLIPPED,
                  (int)m, (int)n, (int)k, alpha, a, (int)a_stride, b, (int)b_stride, beta, c,
                  (int)c_stride);
}

void blas_threads_set(int threads)
{
    if (blas_open()->is_open) {
        library.threads_set(threads);
    }
}

/* --------------------------------------------------------------- words -- */

const char *blas_describe(char out[256])
{
    const blas_state *s = blas_open();

    if (!s->is_open) {
        (void)snprintf(out, 256, "plain C (%.200s)", s->why);
    } else if (s->is_users_core) {
        (void)snprintf(out, 256, "%s, %s kernels (" CORE_VARIABLE ")", s->library, s->core);
    } else if (strcmp(s->core, s->own_core) != 0) {
        (void)snprintf(out, 256, "%s, %s kernels (its own choice was %s)", s->library, s->core,
                       s->own_core);
    } else {
        (void)snprintf(out, 256, "%s, %s kernels", s->library, s->core);
    }
    return out;
}

const char *blas_warning(char out[512])
{
    const blas_state *s = blas_open();

    if (!s->is_open) {
        (void)snprintf(out, 512,
                       "products are computed in plain C, many times slower than a BLAS: %s",
                       s->why);
        return out;
    }
    if (s->level < s->cpu_level) {
        (void)snprintf(out, 512,
                       "%s computes with its %s kernels (%s) and this CPU has %s: products take "
                       "several times as long; %s" CORE_VARIABLE "%s%s",
                       s->library, s->core, level_name(s->level), level_name(s->cpu_level),
                       s->is_users_core ? "unset " : "set ", s->is_users_core ? "" : "=",
                       s->is_users_core ? "" : core_of_level(s->cpu_level));
        return out;
    }
    return NULL;
}
