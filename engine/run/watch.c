/* Monitoring of the training: lines in the log and numbers in files (engine/monitor/), as the
 * configuration asks for them. Rank 0 writes all of it except the times of wall_clock_breakdown,
 * which every rank logs. The horizontal axis is samples, as in DeepSpeed, and tags that DeepSpeed
 * has too have its names. */
#include "base/clock.h"
#include "base/log.h"
#include "engine/monitor/monitor.h"
#include "engine/modules.h"
#include "engine/run/failure.h"
#include "engine/run/marks.h"
#include "engine/run/needs.h"
#include "sherd_tools.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

/* The module's state in an engine while it is sealed. */
struct sherdi_watch {
    sherdi_monitors monitors;
    int64_t         printed_ns, printed_micro; /* at the last line of steps_per_print */
    int             is_due; /* the last boundary is not shown: its update may not be over */
};
typedef struct sherdi_watch sherdi_watch;

static int is_watcher(const sherd_engine *engine)
{
    return engine->rank == 0;
}

/* ---- memory ---- */

/* The most memory that the process had, in MiB. */
static double process_peak(void)
{
    struct rusage usage;

    return getrusage(RUSAGE_SELF, &usage) == 0 ? (double)usage.ru_maxrss / 1024 : NAN;
}

static double mib(size_t bytes)
{
    return (double)bytes / 0x1p20;
}

static void memory_log(sherd_engine *engine)
{
    sherd_memory_report held;

    sherd_memory_report_init(&held);
    if (sherd_engine_memory(engine, &held) != SHERD_OK) {
        return;
    }
    sherdi_log(
        SHERD_LOG_INFO, engine->rank,
        "memory (MiB): parameters %.1f, gradients %.1f, state %.1f, gathered %.1f, transient "
        "%.1f, staging %.1f; offloaded to the host: parameters %.1f, gradients %.1f, state "
        "%.1f, staging %.1f; transport %.1f; held altogether %.1f, of it pinned %.1f; the "
        "process at most %.1f",
        mib(held.params_held), mib(held.grads_held), mib(held.state_held), mib(held.gather_held),
        mib(held.transient_held), mib(held.staging_held), mib(held.host_params_held),
        mib(held.host_grads_held), mib(held.host_state_held), mib(held.host_staging_held),
        mib(held.receive_held + held.transport_held), mib(held.total_held), mib(held.pinned_held),
        process_peak());
}

/* ---- collectives ---- */

static void transfers_log(sherd_engine *engine, sherdi_mark_kind kind, const char *name)
{
    const sherdi_mark_sum *sum   = &engine->times.own->sums[kind];
    uint64_t               count = atomic_load_explicit(&sum->count, memory_order_relaxed);
    double                 bytes = (double)atomic_load_explicit(&sum->bytes, memory_order_relaxed);
    double seconds = (double)atomic_load_explicit(&sum->ns, memory_order_relaxed) * 1e-9;

    if (count == 0) {
        return;
    }
    sherdi_log(SHERD_LOG_INFO, engine->rank,
               "comms: %s: count %llu, %.1f MiB, %.2f MiB each, total %.1f ms, average %.3f ms, "
               "%.2f Gbps",
               name, (unsigned long long)count, bytes / 0x1p20, bytes / 0x1p20 / (double)count,
               seconds * 1e3, seconds * 1e3 / (double)count,
               seconds == 0 ? 0 : 8e-9 * bytes / seconds);
}

static void comms_log(sherd_engine *engine)
{
    transfers_log(engine, SHERDI_MARK_GATHER, "all_gather");
    transfers_log(engine, SHERDI_MARK_REDUCE, "reduce_scatter");
}

/* ---- steps ---- */

/* The samples that all ranks had seen at the boundary. */
static int64_t boundary_samples(const sherd_engine *engine)
{
    return sherdi_samples_at(engine, engine->boundary.micro_step);
}

static void times_log(const sherd_engine *engine)
{
    const sherd_step_report *report     = &engine->boundary;
    char                     beside[80] = "";

    if (report->beside_s > 0) {
        (void)snprintf(beside, sizeof(beside), "; update beside the passes %.1f (waited %.1f)",
                       report->beside_s * 1e3, report->wait_update_s * 1e3);
    }
    sherdi_log(
        SHERD_LOG_INFO, engine->rank,
        "step %lld: time (ms) | forward %.1f | backward %.1f | gather %.1f (waited %.1f) | reduce "
        "%.1f (waited %.1f) | step %.1f: norm %.1f, update %.1f; waited for reads %.1f, writes "
        "%.1f, parameters %.1f%s; NVMe %.1f MiB read, %.1f MiB written; link %.1f MiB down, %.1f "
        "MiB "
        "up",
        (long long)report->step, engine->times.own->forward_s * 1e3,
        engine->times.own->backward_s * 1e3, report->gather_s * 1e3, report->wait_gather_s * 1e3,
        report->reduce_s * 1e3, report->wait_reduce_s * 1e3, report->step_s * 1e3,
        report->norm_s * 1e3, report->update_s * 1e3, report->wait_read_s * 1e3,
        report->wait_write_s * 1e3, report->wait_param_s * 1e3, beside,
        (double)report->nvme_read_bytes / 0x1p20, (double)report->nvme_written_bytes / 0x1p20,
        (double)report->link_down_bytes / 0x1p20, (double)report->link_up_bytes / 0x1p20);
}

/* Returns the samples per second since the last line; 0: not known. */
static double rate_take(sherd_engine *engine)
{
    sherdi_watch *watch   = engine->watch;
    int64_t       now_ns  = sherdi_now_ns();
    int64_t       micro   = engine->boundary.micro_step;
    double        samples = (double)sherdi_samples_of(engine, micro - watch->printed_micro);
    double        seconds = (double)(now_ns - watch->printed_ns) * 1e-9;
    double        rate    = watch->printed_ns == 0 || seconds <= 0 ? 0 : samples / seconds;

    watch->printed_ns    = now_ns;
    watch->printed_micro = micro;
    return rate;
}

static void step_log(sherd_engine *engine)
{
    const sherd_step_report *report   = &engine->boundary;
    double                   rate     = rate_take(engine);
    char                     text[48] = "", fingerprint[48] = "";

    if (!engine->fingerprints.is_unreported) {
        (void)snprintf(fingerprint, sizeof(fingerprint), " fingerprint 0x%016llx,",
                       (unsigned long long)report->fingerprint);
    }
    if (rate > 0) {
        (void)snprintf(text, sizeof(text), ", %.1f samples/s", rate);
    }
    sherdi_log(SHERD_LOG_INFO, engine->rank,
               "step %lld: skipped %lld, lr %g, gradient norm %g, loss scale %g,%s "
               "%lld samples%s",
               (long long)report->step, (long long)report->skipped_steps, report->lr,
               report->grad_norm, report->loss_scale, fingerprint,
               (long long)boundary_samples(engine), text);
}

/* Logs the lines that are due. Skipped steps count, as in DeepSpeed. */
static void lines_log(sherd_engine *engine)
{
    const sherdi_settings *settings = &engine->settings;
    int                    every    = settings->steps_per_print > 0 ? settings->steps_per_print : 1;
    int is_due = (engine->boundary.step + engine->boundary.skipped_steps) % every == 0;

    if (settings->steps_per_print > 0 && is_due) {
        step_log(engine);
        if (settings->watch.logs_comms) {
            comms_log(engine);
        }
    }
    if (settings->watch.memory_breakdown && is_due) {
        memory_log(engine);
    }
}

/* ---- monitors ---- */

#define TAG(name) "Train/Samples/" name

static void events_write(sherd_engine *engine)
{
    const sherd_step_report *report = &engine->boundary;
    sherdi_monitor_event     events[SHERDI_MONITOR_MOST_EVENTS];
    size_t                   count = 0;

    events[count++] = (sherdi_monitor_event){TAG("lr"), report->lr};
    if (engine->settings.numerics.compute_dtype == SHERD_F16) {
        events[count++] = (sherdi_monitor_event){TAG("loss_scale"), report->loss_scale};
    }
    events[count++] = (sherdi_monitor_event){TAG("grad_norm"), report->grad_norm};
    if (engine->settings.watch.wall_clock_breakdown) {
        const sherdi_monitor_event times[] = {
            {TAG("elapsed_time_ms_forward"), engine->times.own->forward_s * 1e3},
            {TAG("elapsed_time_ms_backward"),
             engine->times.own->backward_s * 1e3 + report->wait_reduce_s * 1e3},
            {TAG("elapsed_time_ms_backward_inner"), engine->times.own->backward_s * 1e3},
            {TAG("elapsed_time_ms_backward_allreduce"), report->reduce_s * 1e3},
            {TAG("elapsed_time_ms_step"), report->step_s * 1e3},
            {TAG("elapsed_time_ms_gather"), report->gather_s * 1e3},
            {TAG("elapsed_time_ms_waited"), report->exposed_s * 1e3 - report->step_s * 1e3},
        };

        memcpy(&events[count], times, sizeof(times));
        count += sizeof(times) / sizeof(times[0]);
    }
    sherdi_monitors_write(&engine->watch->monitors, events, count, boundary_samples(engine));
}

static int tag_is_good(const char *tag)
{
    size_t len = strlen(tag);

    for (size_t i = 0; i < len && i < SHERDI_MONITOR_TAG_BYTES; i++) {
        if (!isprint((unsigned char)tag[i])) {
            return 0;
        }
    }
    return len > 0 && len < SHERDI_MONITOR_TAG_BYTES;
}

sherd_status sherd_monitor_write(sherd_engine *engine, const char *tag, double value)
{
    SHERDI_TRY(sherdi_engine_check_alive(engine, "sherd_monitor_write"));
    SHERDI_TRY(sherdi_api_need(tag != NULL, "sherd_monitor_write", "tag"));
    if (!tag_is_good(tag)) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd_monitor_write: the tag must have 1 to %d printable ASCII "
                           "characters, as in \"Train/Samples/train_loss\"",
                           SHERDI_MONITOR_TAG_BYTES - 1);
    }
    if (engine->watch != NULL) { /* from seal on */
        sherdi_monitors_write(&engine->watch->monitors, &(sherdi_monitor_event){tag, value}, 1,
                              sherdi_samples_seen(engine));
    }
    return SHERD_OK;
}

/* ---- life ---- */

static sherd_status watch_open(sherd_engine *engine)
{
    sherdi_watch *watch   = engine->watch;
    int           is_kept = watch != NULL; /* the engine moves to another world */

    if (!is_kept) {
        watch = sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, sizeof(*watch));
        if (watch == NULL) {
            return SHERD_E_NOMEM;
        }
        memset(watch, 0, sizeof(*watch));
        engine->watch = watch;
    }
    if (!is_watcher(engine) || (sherdi_world_caps(engine->world) & SHERDI_WORLD_SIMULATES) != 0) {
        return SHERD_OK;
    }
    engine->times.own->logs_transfers =
        engine->settings.watch.logs_comms && engine->settings.watch.logs_each_comm;
    return is_kept
               ? SHERD_OK
               : sherdi_monitors_open(&watch->monitors, engine->settings.monitors, &engine->mem);
}

static void watch_sealed(sherd_engine *engine)
{
    if (is_watcher(engine) && engine->settings.watch.memory_breakdown) {
        memory_log(engine);
    }
}

/* Shows the last boundary if that was not done: its report is complete, or will not be. A dry
 * engine has no watch. */
static void watch_told(sherd_engine *engine)
{
    if (engine->watch == NULL || !engine->watch->is_due) {
        return;
    }
    engine->watch->is_due = 0;
    if (engine->settings.watch.wall_clock_breakdown) {
        times_log(engine); /* on every rank: their times differ */
    }
    if (!is_watcher(engine)) {
        return;
    }
    lines_log(engine);
    if (sherdi_monitors_are_on(&engine->watch->monitors)) {
        events_write(engine);
    }
}

static void watch_boundary(sherd_engine *engine)
{
    if (engine->watch == NULL) {
        return;
    }
    engine->watch->is_due = 1;
    if (!engine->fingerprints.is_unreported) {
        watch_told(engine);
    }
}

static void watch_dropped(sherd_engine *engine)
{
    if (engine->watch != NULL) {
        engine->watch->is_due = 0;
    }
}

static void watch_close(sherd_engine *engine)
{
    if (engine->watch == NULL) {
        return;
    }
    if (engine->failure.why.status == SHERD_OK) {
        watch_told(engine);
    }
    if (is_watcher(engine) && engine->settings.watch.logs_comms) {
        comms_log(engine);
    }
    sherdi_monitors_close(&engine->watch->monitors);
    sherdi_free(engine->watch);
    engine->watch = NULL;
}

const sherdi_module sherdi_module_monitors = {
    .open     = watch_open,
    .sealed   = watch_sealed,
    .boundary = watch_boundary,
    .reported = watch_told,
    .dropped  = watch_dropped,
    .close    = watch_close,
};
