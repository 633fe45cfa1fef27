/* See loser.h. The parent hands the training to its children in the environment, as bytes. */
#include "tests/engine/loser.h"

#include "tests/engine/mover.h"
#include "tests/lib/check.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SECONDS 60

/* In memory that parent and children share. */
typedef struct shared {
    loser       l;
    char        zero[256], top[256], optimizer[64], folder[256];
    uint64_t    want;       /* hash of all values of the undisturbed training */
    atomic_uint lost, kept; /* ranks: killed; whose state was taken over */
    struct {
        int    moves, refused, again;
        double seconds;
    } ranks[LOSER_MOST_RANKS];
} shared;

static shared *s;

/* --------------------------------------------------------------------- the model -- */

static void model_declare(rig *r, const loser *l, sherd_world *world, int accumulation)
{
    static const char *const UNITS[] = {"first", "second", "third"};
    rig_options              options = l->options;
    sherd_param_params       params;

    options.accumulation = accumulation;
    options.train_batch  = accumulation == 0 ? l->options.accumulation * l->ranks : 0;
    rig_open(r, world, &options);
    for (int u = 0; u < 3; u++) {
        char name[32];

        (void)rig_unit(r, UNITS[u]);
        (void)snprintf(name, sizeof(name), "%s.w", UNITS[u]);
        (void)rig_param(r, u, name, l->elems[u]);
        (void)snprintf(name, sizeof(name), "%s.b", UNITS[u]);
        (void)rig_param(r, u, name, u == 0 ? 64 : u == 1 ? 1 : 130);
    }
    sherd_param_params_init(&params);
    params.frozen = !l->is_all_trained;
    (void)rig_param_as(r, 1, "second.fixed", 777, &params);
}

/* ---------------------------------------------------------------------- the step -- */

static sherd_status forward(rig *r, int unit)
{
    sherd_status status = sherd_unit_acquire(r->engine, r->units[unit], SHERD_FORWARD);

    for (int p = 0; p < r->num_params && status == SHERD_OK; p++) {
        if (r->params[p].unit == unit) {
            (void)rig_read(r, p);
        }
    }
    return status == SHERD_OK ? sherd_unit_release(r->engine, r->units[unit], SHERD_FORWARD)
                              : status;
}

static sherd_status backward(rig *r, int unit)
{
    sherd_status status = sherd_unit_acquire(r->engine, r->units[unit], SHERD_BACKWARD);

    for (int p = 0; p < r->num_params && status == SHERD_OK; p++) {
        if (r->params[p].unit == unit && !r->params[p].is_frozen) {
            rig_touch(r, p, 1);
        }
    }
    return status == SHERD_OK ? sherd_unit_release(r->engine, r->units[unit], SHERD_BACKWARD)
                              : status;
}

static sherd_status micro_batch(rig *r)
{
    for (int u = 0; u < r->num_units; u++) {
        sherd_status status = forward(r, u);

        if (status != SHERD_OK) {
            return status;
        }
    }
    for (int u = r->num_units - 1; u >= 0; u--) {
        sherd_status status = backward(r, u);

        if (status != SHERD_OK) {
            return status;
        }
    }
    return SHERD_OK;
}

static sherd_status step_make(rig *r, const loser *l)
{
    sherd_share  share;
    sherd_status status;

    sherd_share_init(&share);
    status      = sherd_step_share(r->engine, &share);
    r->is_given = 1;
    r->stride   = l->is_sparse ? 211 : 1;
    for (int c = 0; c < share.calls && status == SHERD_OK; c++) {
        r->number = share.number + (int64_t)c * share.stride;
        status    = c < share.count ? micro_batch(r) : sherd_micro_batch_skip(r->engine);
        if (status == SHERD_OK) {
            status = l->is_queued ? sherd_step_queue(r->engine) : sherd_step(r->engine, NULL);
        }
    }
    return status;
}

/* ---------------------------------------------------------------------- the kill -- */

static pthread_mutex_t kill_lock = PTHREAD_MUTEX_INITIALIZER;
static int             is_spared; /* the state was gone once: nobody is killed any more */
static pthread_t       kills[LOSER_MOST_RANKS];
static unsigned        begun; /* which of them were begun, as bits */

static void *dies_later(void *raw)
{
    const loser_kill *kill_of = raw;

    (void)usleep((useconds_t)kill_of->delay_us);
    (void)pthread_mutex_lock(&kill_lock);
    if (!is_spared) {
        (void)atomic_fetch_or(&s->lost, 1u << kill_of->rank);
        (void)kill(getpid(), SIGKILL);
    }
    (void)pthread_mutex_unlock(&kill_lock);
    return raw;
}

static void kills_spare(void)
{
    (void)pthread_mutex_lock(&kill_lock);
    is_spared = 1;
    (void)pthread_mutex_unlock(&kill_lock);
}

/* Each kill that was begun comes, however soon the steps were made. */
static void kills_wait(void)
{
    for (int k = 0; k < LOSER_MOST_RANKS; k++) {
        if (begun >> k & 1) {
            (void)pthread_join(kills[k], NULL);
            begun &= ~(1u << k);
        }
    }
}

static void kill_prepare(const loser *l, int rank, int step)
{
    for (int k = 0; k < l->num_kills; k++) {
        if (l->kills[k].rank == rank && l->kills[k].step == step && (begun >> k & 1) == 0) {
            CHECK(pthread_create(&kills[k], NULL, dies_later, (void *)(uintptr_t)&l->kills[k]) ==
                  0);
            begun |= 1u << k;
        }
    }
}

/* ---------------------------------------------------------------------- the life -- */

typedef struct life {
    const loser *l;
    rig          r;
    sherd_world *world;
    int          first_rank, first_size;
    int          step;  /* that were made */
    unsigned     there; /* ranks of the first world that are in this one */
} life;

/* The ranks of the first world that are in a world. */
static unsigned there_find(const life *me, sherd_world *world)
{
    double bits = (double)(1u << me->first_rank);

    return sherd_world_sum_f64(world, &bits, 1) == SHERD_OK ? (unsigned)bits : 0;
}

static void step_check(const life *me, int made)
{
    int again = me->step - made;

    if (again > s->ranks[me->first_rank].again) {
        s->ranks[me->first_rank].again = again;
    }
    CHECK(again <= 1);
}

static void place_take(life *me, sherd_world *next)
{
    sherd_world_destroy(me->world);
    me->world   = next;
    me->r.world = next;
}

/* The state is gone: nobody is killed any more, and a new engine loads the checkpoint. */
static void begin_again(life *me)
{
    const loser      *l = me->l;
    sherd_engine_info info;

    kills_spare();
    while (sherd_world_barrier(me->world) != SHERD_OK) { /* one was killed before it came here */
        sherd_world *next = NULL;

        CHECK_OK(sherd_world_shrink(me->world, &next));
        place_take(me, next);
    }
    rig_close(&me->r);
    model_declare(&me->r, l, me->world, 0);
    CHECK_OK(sherd_engine_seal(me->r.engine));
    CHECK_OK(sherd_checkpoint_load(me->r.engine, l->folder, NULL, NULL));
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(me->r.engine, &info));
    me->step = (int)info.step;
}

/* Whether a rank that is there has each slice, if the number of ranks of the world has replicas. */
static int replica_survives(const loser *l, unsigned lost, unsigned there)
{
    int      ranks = 0;
    unsigned kept  = 0;

    for (int r = 0; r < l->ranks; r++) {
        ranks += (int)(there >> r & 1);
    }
    if (ranks % l->shards != 0) {
        return lost == 0; /* all share one copy */
    }
    for (int r = 0, rank = 0; r < l->ranks; r++) {
        if (there >> r & 1) {
            kept |= lost >> r & 1 ? 0 : 1u << rank % l->shards;
            rank++;
        }
    }
    return kept == (1u << l->shards) - 1;
}

/* Whether the state survives the loss of ranks of a world, both as bits. */
static int survives(const loser *l, unsigned lost, unsigned there)
{
    if (l->model == LOSER_REPLICAS) {
        return replica_survives(l, lost, there);
    }
    if (l->model != LOSER_PEERS) {
        return l->model == LOSER_ALWAYS;
    }
    for (int r = 0; r < l->ranks; r++) {
        int next = r;

        if (lost >> r & 1) {
            do {
                next = (next + 1) % l->ranks;
            } while ((there >> next & 1) == 0);
            if (lost >> next & 1) {
                return 0;
            }
        }
    }
    return 1;
}

/* Moves the engine to a world of those that are there, however often one more is lost meanwhile.
 * Returns the status of the last move. */
static sherd_status survivors_move(life *me)
{
    for (;;) {
        sherd_world      *next = NULL;
        sherd_move_report report;
        unsigned          there;
        sherd_status      status;

        kill_prepare(me->l, me->first_rank, -1);
        CHECK_OK(sherd_world_shrink(me->world, &next));
        there  = there_find(me, next);
        status = there == 0 ? SHERD_E_PEER_LOST : sherd_engine_move(me->r.engine, next);
        if (status == SHERD_E_PEER_LOST) {
            sherd_world_destroy(next);
            continue;
        }
        if (status == SHERD_OK) {
            sherd_move_report_init(&report);
            CHECK_OK(sherd_move_query(me->r.engine, &report));
            CHECK_INT(sherd_world_size(next), report.new_size);
            CHECK_INT(report.old_size, report.lost_size + report.new_size);
            step_check(me, (int)report.step);
            me->step = (int)report.step;
            s->ranks[me->first_rank].moves++;
            (void)atomic_fetch_or(&s->kept, me->there & ~there);
            if (report.seconds > s->ranks[me->first_rank].seconds) {
                s->ranks[me->first_rank].seconds = report.seconds;
            }
        } else {
            CHECK_INT(SHERD_E_STATE, status);
            CHECK_ERROR_SAYS("the state is gone");
            s->ranks[me->first_rank].refused++;
        }
        CHECK_INT(survives(me->l, me->there & ~there, me->there), status == SHERD_OK);
        me->there = there;
        place_take(me, next);
        return status;
    }
}

static void steps_make(life *me)
{
    while (me->step < LOSER_STEPS) {
        sherd_status status;

        kill_prepare(me->l, me->first_rank, me->step);
        status = step_make(&me->r, me->l);
        if (status == SHERD_OK) {
            me->step++;
            if (me->step == 1 && me->l->folder[0] != '\0') {
                status = sherd_checkpoint_save(me->r.engine, me->l->folder, "one", NULL);
            }
        }
        if (status == SHERD_OK) {
            continue;
        }
        CHECK(status == SHERD_E_PEER_LOST || status == SHERD_E_STATE);
        if (survivors_move(me) != SHERD_OK) {
            begin_again(me);
        }
    }
}

static uint64_t want_make(const loser *l)
{
    rig          r;
    uint64_t     hash;
    sherd_world *world;

    CHECK_OK(sherd_world_self(&world));
    model_declare(&r, l, world, l->options.accumulation * l->ranks);
    rig_seal(&r);
    for (int i = 0; i < LOSER_STEPS; i++) {
        CHECK_OK(step_make(&r, l));
    }
    CHECK_OK(sherd_step_wait(r.engine, NULL));
    hash = mover_values(&r);
    rig_close(&r);
    sherd_world_destroy(world);
    return hash;
}

static shared *shared_map(int fd)
{
    shared *at = mmap(NULL, sizeof(*at), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    CHECK(at != MAP_FAILED);
    return at;
}

/* Texts lie in the shared memory, wherever that is mapped. */
static loser training_read(void)
{
    loser l = s->l;

    l.options.zero      = l.options.zero == NULL ? NULL : s->zero;
    l.options.top       = l.options.top == NULL ? NULL : s->top;
    l.options.optimizer = l.options.optimizer == NULL ? NULL : s->optimizer;
    l.folder            = s->folder;
    return l;
}

void loser_live(void)
{
    life  me = {0};
    loser l;

    s    = shared_map(ranks_variable("LOSER_MEMORY"));
    l    = training_read();
    me.l = &l;
    CHECK_OK(sherd_world_from_env(NULL, &me.world));
    me.first_rank = sherd_world_rank(me.world);
    me.there      = (1u << l.ranks) - 1;
    model_declare(&me.r, &l, me.world, l.options.accumulation);
    rig_seal(&me.r);
    steps_make(&me);
    kills_wait();
    while (sherd_step_wait(me.r.engine, NULL) != SHERD_OK ||
           sherd_world_barrier(me.world) != SHERD_OK) { /* one was killed in its last step */
        if (survivors_move(&me) != SHERD_OK) {
            begin_again(&me);
        }
        steps_make(&me);
        kills_wait();
    }
    CHECK(mover_values(&me.r) == s->want);
    rig_close(&me.r);
    sherd_world_destroy(me.world);
}

/* --------------------------------------------------------------------- the parent -- */

static void text_keep(char *to, size_t bytes, const char *text)
{
    CHECK(text == NULL || strlen(text) < bytes);
    (void)snprintf(to, bytes, "%s", text == NULL ? "" : text);
}

/* Waits for all, and kills who is late. */
static void children_wait(const loser *l, const pid_t *children, loser_result *out)
{
    int  ends[LOSER_MOST_RANKS];
    int  left                      = l->ranks;
    int  is_late                   = 0;
    char is_over[LOSER_MOST_RANKS] = {0};

    for (int ms = 0; left > 0; ms += 2) {
        is_late |= ms > SECONDS * 1000;
        for (int r = 0; r < l->ranks; r++) {
            int raw = 0;

            if (!is_over[r] && is_late) {
                (void)kill(children[r], SIGKILL);
            }
            if (!is_over[r] && waitpid(children[r], &raw, is_late ? 0 : WNOHANG) == children[r]) {
                ends[r]    = WIFSIGNALED(raw) ? -WTERMSIG(raw) : WEXITSTATUS(raw);
                is_over[r] = 1;
                left--;
            }
        }
        (void)poll(NULL, 0, 2);
    }
    for (int r = 0; r < l->ranks; r++) {
        int is_killed = (int)(s->lost >> r) & 1;

        out->killed += is_killed;
        out->survived += is_killed && (s->kept >> r & 1) != 0;
        if (ends[r] != (is_killed ? -SIGKILL : 0)) {
            test_fail(__FILE__, __LINE__, "rank %d of %d ended with %d%s", r, l->ranks, ends[r],
                      is_late ? ", some rank was late" : "");
        }
        if (!is_killed) {
            out->moves   = s->ranks[r].moves > out->moves ? s->ranks[r].moves : out->moves;
            out->refused = s->ranks[r].refused > out->refused ? s->ranks[r].refused : out->refused;
            out->again   = s->ranks[r].again > out->again ? s->ranks[r].again : out->again;
            out->seconds = s->ranks[r].seconds > out->seconds ? s->ranks[r].seconds : out->seconds;
        }
    }
}

void loser_run(const loser *l, loser_result *out)
{
    pid_t children[LOSER_MOST_RANKS];
    char  texts[LOSER_MOST_RANKS][64];
    char  meeting[300], memory[64], size[64];
    int   fd = memfd_create("loser", 0);

    CHECK(fd >= 0 && ftruncate(fd, (off_t)sizeof(shared)) == 0);
    s    = shared_map(fd);
    s->l = *l;
    text_keep(s->zero, sizeof(s->zero), l->options.zero);
    text_keep(s->top, sizeof(s->top), l->options.top);
    text_keep(s->optimizer, sizeof(s->optimizer), l->options.optimizer);
    text_keep(s->folder, sizeof(s->folder), l->folder);
    s->want = want_make(l);
    (void)snprintf(meeting, sizeof(meeting), "SHERD_RENDEZVOUS=%s", ranks_address());
    (void)snprintf(memory, sizeof(memory), "LOSER_MEMORY=%d", fd);
    (void)snprintf(size, sizeof(size), "SHERD_WORLD_SIZE=%d", l->ranks);
    for (int r = 0; r < l->ranks; r++) {
        rank_start start = {.part = "loser_live", .environment = {texts[r], meeting, memory, size}};

        (void)snprintf(texts[r], sizeof(texts[r]), "SHERD_RANK=%d", r);
        children[r] = ranks_start(&start);
        CHECK(children[r] > 0);
    }
    *out = (loser_result){0};
    children_wait(l, children, out);
    (void)munmap(s, sizeof(*s));
    (void)close(fd);
}
