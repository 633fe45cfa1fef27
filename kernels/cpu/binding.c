/* See binding.h. This is the only file that knows hwloc. If the build or the machine lacks hwloc,
 * CPUs are ordered by the system's numbers, each CPU counts as a core, and all are of one NUMA
 * node. */
#include "kernels/cpu/binding.h"

#include "sherd_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(SHERDI_HAVE_HWLOC)
#include "base/library.h"

#include <hwloc.h>

#include <dlfcn.h>
#endif

/* -------------------------------------------------------------- the machine -- */

static void list_add(sherdi_cpu_list *list, int cpu, int core, int node)
{
    list->cpus[list->count]  = cpu;
    list->cores[list->count] = core;
    list->nodes[list->count] = node;
    list->count++;
}

static void list_by_number(const cpu_set_t *allowed, sherdi_cpu_list *list)
{
    list->count = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET((size_t)cpu, allowed)) {
            list_add(list, cpu, cpu, 0);
        }
    }
}

#if defined(SHERDI_HAVE_HWLOC)
/* The functions that are looked up when the library is opened at run time. hwloc's inline functions
 * cannot be used, since they would have to be linked; these are the functions that they call. */
#define HWLOC_FUNCTIONS(_)                                                                         \
    _(get_api_version)                                                                             \
    _(topology_init)                                                                               \
    _(topology_load)                                                                               \
    _(topology_destroy)                                                                            \
    _(get_type_depth)                                                                              \
    _(get_nbobjs_by_depth)                                                                         \
    _(get_obj_by_depth)                                                                            \
    _(bitmap_first)

typedef struct hwloc_api {
#define MEMBER(name) __typeof__(hwloc_##name) *name;
    HWLOC_FUNCTIONS(MEMBER)
#undef MEMBER
} hwloc_api;

#define SYMBOL(name) {"hwloc_" #name, offsetof(hwloc_api, name), 0},
static const sherdi_symbol SYMBOLS[] = {HWLOC_FUNCTIONS(SYMBOL)};
#undef SYMBOL

/* Returns 0 if there is no hwloc, or none with this interface. */
static int hwloc_open(hwloc_api *found)
{
    char  why[256];
    void *library =
        sherdi_library_open(NULL, "libhwloc.so.15", RTLD_NOW | RTLD_LOCAL, why, sizeof(why));

    return library != NULL &&
           sherdi_symbols_find(library, "hwloc", SYMBOLS, sizeof(SYMBOLS) / sizeof(SYMBOLS[0]),
                               found, why, sizeof(why)) &&
           found->get_api_version() >> 16 == HWLOC_API_VERSION >> 16;
}

static hwloc_obj_t core_of(hwloc_obj_t object)
{
    while (object != NULL && object->type != HWLOC_OBJ_CORE) {
        object = object->parent;
    }
    return object;
}

static void list_by_topology(const hwloc_api *api, hwloc_topology_t topology,
                             const cpu_set_t *allowed, sherdi_cpu_list *list)
{
    int       depth = api->get_type_depth(topology, HWLOC_OBJ_PU);
    unsigned  count = api->get_nbobjs_by_depth(topology, depth);
    cpu_set_t left  = *allowed; /* so that no CPU is added twice, with any topology */

    list->count = 0;
    for (unsigned i = 0; i < count; i++) {
        hwloc_obj_t pu   = api->get_obj_by_depth(topology, depth, i);
        hwloc_obj_t core = core_of(pu);

        if (pu->os_index < CPU_SETSIZE && CPU_ISSET(pu->os_index, &left)) {
            CPU_CLR(pu->os_index, &left);
            list_add(list, (int)pu->os_index,
                     core != NULL ? (int)core->logical_index : (int)pu->logical_index,
                     pu->nodeset != NULL ? api->bitmap_first(pu->nodeset) : 0);
        }
    }
}

/* Where Linux describes its processors. hwloc complains on standard error if it is not mounted. */
#define TOPOLOGY_FOLDER "/sys/devices/system/cpu"

static void list_read(const cpu_set_t *allowed, sherdi_cpu_list *list)
{
    hwloc_topology_t topology;
    hwloc_api        api;

    list->count = 0;
    if (access(TOPOLOGY_FOLDER, R_OK) == 0 && hwloc_open(&api) &&
        api.topology_init(&topology) == 0) {
        if (api.topology_load(topology) == 0) {
            list_by_topology(&api, topology, allowed, list);
        }
        api.topology_destroy(topology);
    }
    if (list->count != CPU_COUNT(allowed)) {
        list_by_number(allowed, list); /* the topology is of another machine: XML, synthetic */
    }
}

int sherdi_cpu_knows_cores(void)
{
    hwloc_api api;

    return hwloc_open(&api);
}
#else
static void list_read(const cpu_set_t *allowed, sherdi_cpu_list *list)
{
    list_by_number(allowed, list);
}

int sherdi_cpu_knows_cores(void)
{
    return 0;
}
#endif

/* ------------------------------------------------------------------- shares -- */

static int at_least_one(int count)
{
    return count < 1 ? 1 : count;
}

/* Returns how many threads the kernels of a rank without a device have on `cpus` CPUs. */
static int threads_of(int cpus, const sherdi_cpu_params *params)
{
    return params->threads > 0 ? params->threads : at_least_one(cpus / params->shares);
}

/* Returns whether all ranks together have more threads than CPUs. */
static int is_crowded(int cpus, int threads, int shares)
{
    return (long long)threads * shares > cpus;
}

/* Returns where share `share` of `count` things begins. Share number `shares` begins at the end. */
static int share_first(int count, int share, int shares)
{
    return (int)((long long)count * share / shares);
}

/* Returns whether CPU i is the first of its core among the CPUs from `first` on. */
static int is_first_of_core(const sherdi_cpu_list *list, int first, int i)
{
    return i == first || list->cores[i] != list->cores[i - 1];
}

static int cores_of(const sherdi_cpu_list *list, int first, int end)
{
    int cores = 0;

    for (int i = first; i < end; i++) {
        cores += is_first_of_core(list, first, i);
    }
    return cores;
}

/* Returns the position of the first CPU of core number `core` of the list; the end of the list if
 * the core does not exist. */
static int core_find(const sherdi_cpu_list *list, int core)
{
    int i = 0;

    while (i < list->count && (core -= is_first_of_core(list, 0, i)) >= 0) {
        i++;
    }
    return i;
}

/* Takes one CPU of each core of [first, end) first, then the cores' other CPUs. */
static void cpus_take(const sherdi_cpu_list *list, int first, int end, int threads, int *cpus)
{
    int taken = 0;

    for (int is_first = 1; is_first >= 0; is_first--) {
        for (int i = first; i < end && taken < threads; i++) {
            if (is_first_of_core(list, first, i) == is_first) {
                cpus[taken++] = list->cpus[i];
            }
        }
    }
}

/* Finds the CPUs [*first, *end) of a share that consists of whole cores. */
static void share_find(const sherdi_cpu_list *list, int share, int shares, int *first, int *end)
{
    int num_cores = cores_of(list, 0, list->count);

    *first = core_find(list, share_first(num_cores, share, shares));
    *end   = core_find(list, share_first(num_cores, share + 1, shares));
}

/* Returns whether shares must divide cores so that each share has enough CPUs. All ranks get the
 * same answer. */
static int cores_are_cut(const sherdi_cpu_list *list, int threads, int shares)
{
    for (int share = 0; share < shares; share++) {
        int first;
        int end;

        share_find(list, share, shares, &first, &end);
        if (end - first < threads) {
            return 1;
        }
    }
    return 0;
}

static void binding_choose_together(const sherdi_cpu_list *list, const sherdi_cpu_params *params,
                                    sherdi_cpu_binding *out)
{
    int first = share_first(list->count, params->share, params->shares);
    int end   = share_first(list->count, params->share + 1, params->shares);

    out->threads    = threads_of(list->count, params);
    out->is_crowded = is_crowded(list->count, out->threads, params->shares);
    if (!out->is_crowded && !cores_are_cut(list, out->threads, params->shares)) {
        share_find(list, params->share, params->shares, &first, &end);
    }
    if (!out->is_crowded && end - first >= out->threads &&
        out->threads >= cores_of(list, first, end)) {
        cpus_take(list, first, end, out->threads, out->cpus);
        out->count    = out->threads;
        out->is_bound = 1;
    }
}

/* ------------------------------------------------------------ with a device -- */

/* Cuts [*first, *end) to the NUMA node that has most of its cores, the first one of equals. */
static void share_cut_to_node(const sherdi_cpu_list *list, int *first, int *end)
{
    int most      = 0;
    int share_end = *end;

    for (int begin = *first, next; begin < share_end; begin = next) {
        int cores;

        for (next = begin; next < share_end && list->nodes[next] == list->nodes[begin];) {
            next++;
        }
        cores = cores_of(list, begin, next);
        if (cores > most) {
            most   = cores;
            *first = begin;
            *end   = next;
        }
    }
}

/* Returns the number of cores that are reserved for the trainer's thread and the wire's. The update
 * keeps two cores while there are two. */
static int cores_left(int cores)
{
    return cores < 3 ? 0 : cores == 3 ? 1 : 2;
}

static void set_fill(const sherdi_cpu_list *list, int first, int end, cpu_set_t *set)
{
    CPU_ZERO(set);
    for (int i = first; i < end; i++) {
        CPU_SET((size_t)list->cpus[i], set);
    }
}

/* One thread for each core by default: updates wait for memory, and a core's second CPU brings no
 * more of it. */
static void binding_choose_apart(const sherdi_cpu_list *list, const sherdi_cpu_params *params,
                                 sherdi_cpu_binding *out)
{
    int first, end, middle, cores, left;

    share_find(list, params->share, params->shares, &first, &end);
    share_cut_to_node(list, &first, &end);
    cores  = cores_of(list, first, end);
    left   = cores_left(cores);
    middle = core_find(list, cores_of(list, 0, first) + left);

    out->threads    = params->threads > 0 ? params->threads : at_least_one(cores - left);
    out->is_crowded = is_crowded(list->count, out->threads, params->shares);
    if (left > 0 && out->threads <= end - middle) {
        set_fill(list, first, middle, &out->wire);
        set_fill(list, middle, end, &out->updates);
    }
}

void sherdi_cpu_binding_choose(const sherdi_cpu_list *list, const sherdi_cpu_params *params,
                               sherdi_cpu_binding *out)
{
    out->is_bound = 0;
    CPU_ZERO(&out->updates);
    CPU_ZERO(&out->wire);
    if (params->has_device) {
        binding_choose_apart(list, params, out);
    } else {
        binding_choose_together(list, params, out);
    }
}

/* --------------------------------------------------------------------- text -- */

void sherdi_cpus_print(const int *cpus, int count, char *text, size_t text_bytes)
{
    size_t len = 0;

    text[0] = '\0';
    for (int i = 0, next; i < count; i = next) {
        char portion[32];
        int  portion_len;

        for (next = i + 1; next < count && cpus[next] == cpus[next - 1] + 1;) {
            next++;
        }
        portion_len = next - i > 1
                          ? snprintf(portion, sizeof(portion), "%s%d-%d", i > 0 ? "," : "", cpus[i],
                                     cpus[next - 1])
                          : snprintf(portion, sizeof(portion), "%s%d", i > 0 ? "," : "", cpus[i]);
        if (len + (size_t)portion_len + sizeof("..") > text_bytes) {
            (void)snprintf(text + len, text_bytes - len, "..");
            return;
        }
        memcpy(text + len, portion, (size_t)portion_len + 1);
        len += (size_t)portion_len;
    }
}

void sherdi_cpu_set_print(const cpu_set_t *set, char *text, size_t text_bytes)
{
    sherdi_cpu_list list;

    list_by_number(set, &list);
    sherdi_cpus_print(list.cpus, list.count, text, text_bytes);
}

void sherdi_cpu_workers_describe(const int *cpus, int count, char *text, size_t text_bytes)
{
    char list[64];

    sherdi_cpus_print(cpus, count, list, sizeof(list));
    (void)snprintf(text, text_bytes, "workers bound to cpu%s %s", count > 1 ? "s" : "", list);
}

static void cpus_describe(const cpu_set_t *set, char *text, size_t text_bytes)
{
    char cpus[64];

    sherdi_cpu_set_print(set, cpus, sizeof(cpus));
    (void)snprintf(text, text_bytes, "cpu%s %s", CPU_COUNT(set) == 1 ? "" : "s", cpus);
}

void sherdi_cpu_sets_describe(int threads, const cpu_set_t *updates, const cpu_set_t *wire,
                              char *text, size_t text_bytes)
{
    char on[80], left[80];

    cpus_describe(updates, on, sizeof(on));
    cpus_describe(wire, left, sizeof(left));
    (void)snprintf(text, text_bytes, "%d thread%s on %s%s%s%s", threads, threads == 1 ? "" : "s",
                   on, CPU_COUNT(wire) > 0 ? ", which leaves " : "",
                   CPU_COUNT(wire) > 0 ? left : "",
                   CPU_COUNT(wire) > 0 ? " to the trainer and the wire" : "");
}

/* --------------------------------------------------------- the environment -- */

/* Reads SHERD_THREADS into *threads if it is 0, and leaves 0 where that is not set. */
static sherd_status threads_read(int *threads)
{
    const char *text = getenv("SHERD_THREADS");
    char       *end;
    long        value;

    if (*threads > 0 || text == NULL || text[0] == '\0') {
        return SHERD_OK;
    }
    value = strtol(text, &end, 10);
    if (*end != '\0' || value < 1 || value > SHERDI_MOST_CPU_THREADS) {
        return sherdi_fail(SHERD_E_INVAL, "SHERD_THREADS is \"%s\", not a number from 1 to %d",
                           text, SHERDI_MOST_CPU_THREADS);
    }
    *threads = (int)value;
    return SHERD_OK;
}

static sherd_status bind_refuse(const char *text, const cpu_set_t *allowed, const char *why)
{
    char cpus[256];

    sherdi_cpu_set_print(allowed, cpus, sizeof(cpus));
    return sherdi_fail(SHERD_E_INVAL,
                       "SHERD_CPU_BIND is \"%.100s\": %s; give none, auto, or a list like 0-3,8 "
                       "of CPUs out of %s, each once",
                       text, why, cpus);
}

/* Reads a number at *at and moves *at past it; -1: no number. */
static int number_read(const char **at)
{
    int value = -1;

    for (; **at >= '0' && **at <= '9'; (*at)++) {
        value = 10 * (value < 0 ? 0 : value) + (**at - '0');
        value = value < CPU_SETSIZE ? value : CPU_SETSIZE; /* no allowed CPU has this number */
    }
    return value;
}

/* Reads a list of allowed CPUs. Returns NULL, or the error in the text. */
static const char *list_parse(const char *text, const cpu_set_t *allowed, sherdi_cpu_list *list)
{
    const char *at   = text;
    cpu_set_t   left = *allowed;

    list->count = 0;
    for (;;) {
        int first = number_read(&at);
        int last  = first;

        if (first >= 0 && *at == '-') {
            at++;
            last = number_read(&at);
        }
        if (first < 0 || last < first || (*at != ',' && *at != '\0')) {
            return "this is not a list of CPUs";
        }
        for (int cpu = first; cpu <= last; cpu++) {
            if (cpu >= CPU_SETSIZE || !CPU_ISSET((size_t)cpu, allowed)) {
                return "it names a CPU that this process must not use";
            }
            if (!CPU_ISSET((size_t)cpu, &left)) {
                return "it names a CPU twice";
            }
            CPU_CLR((size_t)cpu, &left);
            list_add(list, cpu, cpu, 0);
        }
        if (*at == '\0') {
            return NULL;
        }
        at++;
    }
}

/* Without a number of threads, a rank has one for each CPU of its share of the list. */
static sherd_status list_divide(const char *text, const sherdi_cpu_list *list,
                                const sherdi_cpu_params *params, sherdi_cpu_binding *out)
{
    int first   = share_first(list->count, params->share, params->shares);
    int end     = share_first(list->count, params->share + 1, params->shares);
    int threads = params->threads > 0 ? params->threads : at_least_one(end - first);
    int holds   = params->has_device || threads > 1; /* more than the caller, who is never bound */

    out->threads = threads;
    if (holds && end - first < threads) {
        char why[128];

        (void)snprintf(why, sizeof(why), "%d CPUs are too few for %d ranks of %d threads",
                       list->count, params->shares, threads);
        return bind_refuse(text, &out->allowed, why);
    }
    if (params->has_device) {
        set_fill(list, first, end, &out->updates);
    } else if (holds) {
        memcpy(out->cpus, list->cpus + first, (size_t)threads * sizeof(*out->cpus));
        out->count    = threads;
        out->is_bound = 1;
    }
    return SHERD_OK;
}

/* Which CPUs share a core is read where it matters: it takes time. */
static void machine_divide(const sherdi_cpu_params *params, int is_auto, sherdi_cpu_list *list,
                           sherdi_cpu_binding *out)
{
    int threads = threads_of(list->count, params);

    if (params->has_device ||
        (is_auto && threads > 1 && !is_crowded(list->count, threads, params->shares))) {
        list_read(&out->allowed, list);
    }
    sherdi_cpu_binding_choose(list, params, out);
}

sherd_status sherdi_cpu_binding_find(const sherdi_cpu_params *params, sherdi_cpu_binding *out)
{
    const char       *text  = getenv("SHERD_CPU_BIND");
    sherdi_cpu_params asked = *params;
    sherdi_cpu_list   list;
    int               is_auto = text == NULL || text[0] == '\0' || strcmp(text, "auto") == 0;

    memset(out, 0, sizeof(*out));
    if (sched_getaffinity(0, sizeof(out->allowed), &out->allowed) != 0) {
        CPU_ZERO(&out->allowed);
    }
    SHERDI_TRY(threads_read(&asked.threads));
    if (!is_auto && strcmp(text, "none") != 0) {
        const char *wrong = list_parse(text, &out->allowed, &list);

        return wrong != NULL ? bind_refuse(text, &out->allowed, wrong)
                             : list_divide(text, &list, &asked, out);
    }
    list_by_number(&out->allowed, &list);
    if (list.count == 0) { /* more CPUs than a set holds: the system places the threads */
        out->threads = threads_of((int)sysconf(_SC_NPROCESSORS_ONLN), &asked);
        return SHERD_OK;
    }
    machine_divide(&asked, is_auto, &list, out);
    if (!is_auto) {
        sherdi_cpu_binding_drop(out);
    }
    return SHERD_OK;
}
