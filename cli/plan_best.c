/* sherd plan --best: the layout with the shortest predicted step among those that fit, the reasons,
 * and its configuration. Steps are queued ones, which trainers make by default. */
#include "cli/plan.h"

#include "cli/cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Predictions within this factor count as equal; then the simpler layout is chosen. */
#define NEAR 1.02
/* Shares of the blocks that are tried are multiples of 1 / RATIOS; numbers of buffers are the
 * default times powers of two. */
#define RATIOS    8
#define BUFFERS   4
#define DOUBLINGS 4

static int can_be(const plan_entry *entry)
{
    return entry->refused[0] == '\0' && (!entry->row.has_fit || entry->row.fits);
}

static int copies_of(const planning_layout *layout)
{
    return (layout->replica_ranks > 0) + 2 * (layout->second_copy_ranks > 0);
}

/* The simpler layout has less offload, else the lower stage, else fewer copies. */
static int is_simpler(const plan_entry *a, const plan_entry *b)
{
    const planning_layout *x = &a->asked;
    const planning_layout *y = &b->asked;

    if (x->offload != y->offload) {
        return x->offload < y->offload;
    }
    return x->stage != y->stage ? x->stage < y->stage : copies_of(x) < copies_of(y);
}

/* Returns the possible entry with the shortest step, except `without`; NULL: there is none. */
static const plan_entry *shortest_find(const plan_entry *entries, int count,
                                       const plan_entry *without)
{
    const plan_entry *best = NULL;

    for (int i = 0; i < count; i++) {
        if (can_be(&entries[i]) && &entries[i] != without &&
            (best == NULL || entries[i].row.time.queued_s < best->row.time.queued_s)) {
            best = &entries[i];
        }
    }
    return best;
}

static const plan_entry *simplest_find(const plan_entry *entries, int count,
                                       const plan_entry *shortest)
{
    const plan_entry *best = shortest;

    for (int i = 0; i < count; i++) {
        if (can_be(&entries[i]) &&
            entries[i].row.time.queued_s <= NEAR * shortest->row.time.queued_s &&
            is_simpler(&entries[i], best)) {
            best = &entries[i];
        }
    }
    return best;
}

/* The needs of a layout as multiples of the memory of the device, the host and its drives:
 * resources that do not suffice come first. */
typedef struct excess {
    double worst, sum; /* sum of the parts above 1 */
} excess;

static void excess_add(excess *all, double need, double there)
{
    double ratio = there > 0 ? need / there : 0;

    all->worst = ratio > all->worst ? ratio : all->worst;
    all->sum += ratio > 1 ? ratio : 0;
}

static excess excess_of(const plan_entry *entry)
{
    const planning_request *request = &entry->request;
    excess                  all     = {0};

    excess_add(&all, plan_device_need(entry), (double)request->device_bytes);
    excess_add(&all, plan_host_need(entry), (double)request->host_bytes);
    excess_add(&all, planning_nvme_need(request, &entry->row), (double)request->nvme_bytes);
    return all;
}

static int is_less(const plan_entry *a, const plan_entry *b)
{
    excess of_a = excess_of(a), of_b = excess_of(b);

    return of_a.worst != of_b.worst ? of_a.worst < of_b.worst : of_a.sum < of_b.sum;
}

/* ------------------------------------------------------------- without a loss -- */

static double bytes_of(const plan_entry *entry)
{
    const planning_row *row = &entry->row;

    return (double)row->device_bytes + (double)row->host_bytes + (double)row->nvme_bytes;
}

/* On a drive the same bytes are stored, but fewer are read. */
static int is_smaller(const plan_entry *a, const plan_entry *b)
{
    return bytes_of(a) < bytes_of(b) ||
           a->row.traffic.read_step_planned < b->row.traffic.read_step_planned;
}

/* Whether an option sets a key; a value of the file cannot be changed. */
static int is_given(const plan_options *options, const char *key)
{
    for (size_t i = 0; i < options->request.num_settings; i++) {
        if (strncmp(options->settings[i], key, strlen(key)) == 0) {
            return 1;
        }
    }
    return 0;
}

/* Makes an entry of the same layout with master weights in fewer bytes, without a loss. Returns
 * whether this is possible and saves anything. */
static int beside_make(const plan_options *options, const plan_entry *entry, plan_entry *out)
{
    planning_layout layout = entry->asked;

    layout.is_beside = 1;
    return !is_given(options, PLANNING_MASTER_KEY) && entry->refused[0] == '\0' &&
           plan_entry_make(options, &layout, out) == SHERD_OK && is_smaller(out, entry);
}

/* Proposes this encoding only where a layout does not fit without it. Elsewhere the configuration
 * does not change. */
static void entry_shrink(const plan_options *options, plan_entry *entry)
{
    plan_entry beside;

    if (!can_be(entry) && beside_make(options, entry, &beside) && can_be(&beside)) {
        *entry = beside;
    }
}

/* ----------------------------------------------------------------- tuning -- */

/* Sets the value of a number in a layout. */
typedef void (*tuning_fn)(planning_layout *layout, int number);

static void buffers_set(planning_layout *layout, int number)
{
    layout->buffers = BUFFERS << number;
}

static void kept_set(planning_layout *layout, int number)
{
    layout->ratio = (double)(RATIOS - number) / RATIOS;
}

/* Takes the value of the entry, or else the least number, from 1 to most, whose step is within NEAR
 * of the shortest. */
static void number_tune(const plan_options *options, plan_entry *entry, tuning_fn set, int most)
{
    plan_entry tried[RATIOS] = {*entry}; /* by number */
    double     shortest      = entry->row.time.queued_s;
    int        taken         = 0;

    for (int number = 1; number <= most; number++) {
        planning_layout layout = entry->asked;

        set(&layout, number);
        if (plan_entry_make(options, &layout, &tried[number]) != SHERD_OK ||
            !can_be(&tried[number])) {
            tried[number].row.time.queued_s = INFINITY;
        }
        shortest = fmin(shortest, tried[number].row.time.queued_s);
    }
    while (tried[taken].row.time.queued_s > shortest * NEAR) {
        taken++;
    }
    *entry = tried[taken];
}

/* Whether another value of a key may be tried, and may help: it is known how much memory there is,
 * and the update is waited for. */
static int is_open(const plan_options *options, const plan_entry *entry, const char *key)
{
    return can_be(entry) && entry->row.has_fit && !is_given(options, key) &&
           entry->row.time.wait_update_s > (NEAR - 1) * entry->row.time.queued_s;
}

/* Finds how many buffers the state should pass through, and how much of it the device should keep:
 * the fewest, and the least, of those that give a step near the shortest. So forward hides the
 * update as far as the memory allows. */
static void entry_tune(const plan_options *options, plan_entry *entry)
{
    const char *device = planning_offload_state_device(entry->asked.offload);

    if (is_open(options, entry, PLANNING_BUFFERS_KEY) && strcmp(device, "nvme") == 0) {
        number_tune(options, entry, buffers_set, DOUBLINGS);
    }
    if (is_open(options, entry, PLANNING_RATIO_KEY) && strcmp(device, "none") != 0) {
        number_tune(options, entry, kept_set, RATIOS - 1);
    }
}

/* Whether the trainer's activations are known, and nobody has said where they are. */
static int is_place_open(const plan_options *options, const plan_entry *entry)
{
    return entry->refused[0] == '\0' && entry->row.activation_bytes > 0 &&
           options->request.activation_bytes == 0 && options->request.places.count == 0 &&
           !is_given(options, PLANNING_PLACE_KEY);
}

/* Whether activations can be moved to a device of the engine's; NULL: they stay. */
static int has_tier(const planning_request *request, const char *device)
{
    if (device == NULL) {
        return 1;
    }
    return strcmp(device, "nvme") == 0 ? request->nvme_bytes > 0
                                       : strcmp(request->backend, "cuda") == 0;
}

/* If activations do not fit in addition to the rest, moves them to host memory or the drive, or
 * recomputes them, in part or whole. Chooses the shortest step; if nothing fits, the least need of
 * memory. */
static void entry_move(const plan_options *options, plan_entry *entry)
{
    plan_entry best = *entry, least = *entry;

    if (can_be(entry) || !is_place_open(options, entry)) {
        return;
    }
    for (int place = LAYER_KEPT + 1; place < LAYER_PLACES; place++) {
        planning_layout layout = entry->asked;
        plan_entry      moved;

        layout.place = (layer_place)place;
        if (!has_tier(&options->request, layer_place_device(layout.place)) ||
            plan_entry_make(options, &layout, &moved) != SHERD_OK || moved.refused[0] != '\0') {
            continue;
        }
        least = is_less(&moved, &least) ? moved : least;
        if (can_be(&moved) &&
            (!can_be(&best) || moved.row.time.queued_s < best.row.time.queued_s)) {
            best = moved;
        }
    }
    *entry = can_be(&best) ? best : least;
}

/* ---------------------------------------------------------------- reasons -- */

#define LAYOUT_CHARS 160

/* Writes a layout such as "stage 2, offload optimizer-cpu, ratio 0.75", with "*" if the encoding is
 * changed. */
static const char *layout_text(const plan_entry *entry, char out[LAYOUT_CHARS])
{
    const planning_layout *layout = entry->refused[0] == '\0' ? &entry->row.layout : &entry->asked;
    char                   ratio[32] = "", buffers[32] = "", place[32] = "", sharing[32] = "";

    if (copies_of(layout) > 0) {
        (void)snprintf(sharing, sizeof(sharing), ", %s", planning_sharing_name(layout));
    }
    if (entry->asked.ratio > 0) {
        (void)snprintf(ratio, sizeof(ratio), ", ratio %.10g", entry->asked.ratio);
    }
    if (entry->asked.buffers > 0) {
        (void)snprintf(buffers, sizeof(buffers), ", %d buffers", entry->asked.buffers);
    }
    if (entry->asked.place != LAYER_KEPT) {
        (void)snprintf(place, sizeof(place), ", activations %s",
                       layer_place_name(entry->asked.place));
    }
    (void)snprintf(out, LAYOUT_CHARS, "stage %d, offload %s%s%s%s%s%s", layout->stage,
                   planning_offload_name(layout->offload), sharing, place, ratio, buffers,
                   entry->asked.is_beside ? " *" : "");
    return out;
}

/* Prints needs such as "12.3 GiB of a device, 40 GiB of a host, 1.2 TiB of its drives". */
static void need_print(const plan_entry *entry)
{
    const planning_row *row   = &entry->row;
    const char         *comma = "";
    char                text[PLAN_BYTES_CHARS];

    if (plan_device_need(entry) > 0) {
        (void)fprintf(stderr, "%s of a device", plan_bytes_text(plan_device_need(entry), text));
        comma = ", ";
    }
    if (plan_host_need(entry) >= 0x1p20) { /* less is only bookkeeping */
        (void)fprintf(stderr, "%s%s of a host", comma,
                      plan_bytes_text(plan_host_need(entry), text));
        comma = ", ";
    }
    if (row->nvme_bytes > 0) {
        (void)fprintf(stderr, "%s%s of its drives", comma,
                      plan_bytes_text(planning_nvme_need(&entry->request, row), text));
    }
}

static void head_print(const plan_entry *entry, int count)
{
    const planning_request *request = &entry->request;
    int                     world   = entry->asked.world_size;
    char                    text[PLAN_BYTES_CHARS];

    (void)fprintf(stderr, "%s on %d rank%s, %d to a host: %d layout%s\n", request->model->label,
                  world, world > 1 ? "s" : "", planning_ranks_per_host(request, world), count,
                  count > 1 ? "s" : "");
    if (!entry->row.has_fit) {
        (void)fprintf(stderr,
                      "Neither memory nor drives are given (--device-memory, --host-memory, "
                      "--nvme-space): every layout counts as one that fits.\n");
        return;
    }
    if (request->device_bytes > 0) {
        (void)fprintf(stderr, "A device has %s. ",
                      plan_bytes_text((double)request->device_bytes, text));
    }
    if (request->host_bytes > 0) {
        (void)fprintf(stderr, "A host has %s. ",
                      plan_bytes_text((double)request->host_bytes, text));
    }
    if (request->nvme_bytes > 0) {
        (void)fprintf(stderr, "Its drives have %s. ",
                      plan_bytes_text((double)request->nvme_bytes, text));
    }
    if (entry->row.activation_bytes > 0) {
        (void)fprintf(stderr, "Activations take %s of a rank.\n",
                      plan_bytes_text((double)entry->row.activation_bytes, text));
    } else if (entry->row.lacks_activations) {
        (void)fprintf(stderr, "Activations are not known and not counted: --activations gives "
                              "them.\n");
    } else {
        (void)fprintf(stderr, "\n");
    }
}

static void refused_print(const plan_entry *entries, int count)
{
    char layout[LAYOUT_CHARS];
    char text[PLAN_FIT_CHARS];

    for (int i = 0; i < count; i++) {
        if (entries[i].refused[0] != '\0') {
            (void)fprintf(stderr, "  %-32s cannot be: %s\n", layout_text(&entries[i], layout),
                          entries[i].refused);
        } else if (!can_be(&entries[i])) {
            const char *lack = plan_fit_text(&entries[i], text);

            (void)fprintf(stderr, "  %-32s does not fit: %s\n", layout_text(&entries[i], layout),
                          strncmp(lack, "no: ", 4) == 0 ? lack + 4 : lack);
        }
    }
}

static void fitting_print(const plan_entry *entries, int count)
{
    char layout[LAYOUT_CHARS];

    for (int i = 0; i < count; i++) {
        if (can_be(&entries[i])) {
            (void)fprintf(stderr, "  %-32s %.3g s a step, bound by %s; ",
                          layout_text(&entries[i], layout), entries[i].row.time.queued_s,
                          planning_bound_name(entries[i].row.time.bound));
            need_print(&entries[i]);
            (void)fprintf(stderr, "\n");
        }
    }
}

static void changed_print(const plan_entry *entries, int count)
{
    int is_changed = 0;

    for (int i = 0; i < count; i++) {
        is_changed |= entries[i].asked.is_beside;
    }
    if (is_changed) {
        (void)fprintf(stderr, "* fits with " PLANNING_MASTER_KEY " " PLANNING_MASTER_BESIDE
                              " alone, which loses no bit.\n");
    }
}

/* Prints how much less one entry needs than another, such as "3.46 GiB less of a device". */
static void saving_print(const plan_entry *less, const plan_entry *more)
{
    double device = plan_device_need(more) - plan_device_need(less);
    double host   = plan_host_need(more) - plan_host_need(less);
    double read =
        (double)more->row.traffic.read_step_planned - (double)less->row.traffic.read_step_planned;
    char text[PLAN_BYTES_CHARS];

    if (read > 0) {
        (void)fprintf(stderr, "%s less to be read from a drive in a step",
                      plan_bytes_text(read, text));
    } else {
        (void)fprintf(stderr, "%s less of a %s", plan_bytes_text(device > 0 ? device : host, text),
                      device > 0 ? "device" : "host");
    }
}

/* Prints the changes of tuning and their effect. */
static void tuning_print(const plan_entry *chosen)
{
    const planning_layout *layout = &chosen->asked;
    const planning_time   *time   = &chosen->row.time;

    if (layout->place != LAYER_KEPT) {
        (void)fprintf(
            stderr,
            "All activations do not fit on the device in addition to the rest: the trainer "
            "takes --activations %s.\n",
            layer_place_name(layout->place));
    }

    if (layout->replica_ranks > 0) {
        (void)fprintf(stderr,
                      "Changed: " PLANNING_REPLICA_KEY " is %d: each host has a copy of what is "
                      "sharded, and gradients alone cross between hosts.\n",
                      layout->replica_ranks);
    }
    if (layout->second_copy_ranks > 0) {
        (void)fprintf(stderr,
                      "Changed: " PLANNING_SECOND_COPY_KEY " is %d: each host has a second copy of "
                      "the parameters, for all gathers after the first.\n",
                      layout->second_copy_ranks);
    }
    if (layout->ratio > 0) {
        (void)fprintf(stderr,
                      "Changed: " PLANNING_RATIO_KEY " is %.10g: the device keeps "
                      "the state of the other blocks.\n",
                      layout->ratio);
    }
    if (layout->buffers > 0) {
        (void)fprintf(stderr,
                      "Changed: " PLANNING_BUFFERS_KEY " is %d: more is read "
                      "ahead while backward runs.\n",
                      layout->buffers);
    }
    if (time->beside_s > 0) {
        (void)fprintf(stderr,
                      "Its steps are queued: an update takes %.3g s during the next forward, and "
                      "is waited for %.3g s. With sherd_step a step takes %.3g s.\n",
                      time->beside_s, time->wait_update_s, time->step_s);
    }
}

/* Prints the bytes that the encoding of the chosen layout saves, or that another one would save. */
static void encoding_print(const plan_options *options, const plan_entry *chosen)
{
    planning_layout layout = chosen->asked;
    plan_entry      other;

    if (chosen->asked.is_beside) {
        layout.is_beside = 0;
        if (plan_entry_make(options, &layout, &other) == SHERD_OK) {
            (void)fprintf(stderr, "Changed: " PLANNING_MASTER_KEY " is " PLANNING_MASTER_BESIDE
                                  ", which loses no bit and needs ");
            saving_print(chosen, &other);
            (void)fprintf(stderr, "; without it this layout does not fit.\n");
        }
    } else if (beside_make(options, chosen, &other)) {
        (void)fprintf(stderr, "With " PLANNING_MASTER_KEY " " PLANNING_MASTER_BESIDE
                              ", which loses no bit, it would need ");
        saving_print(&other, chosen);
        (void)fprintf(stderr, ".\n");
    }
}

/* Prints how fast the chosen layout is, and how much of its step each resource is busy. */
static void speed_print(const plan_entry *chosen)
{
    const planning_time *time   = &chosen->row.time;
    double               tokens = (double)chosen->request.batch * (double)chosen->request.length *
                    chosen->row.accumulation * chosen->row.layout.world_size;
    double compute = time->by_bound[PLANNING_BOUND_COMPUTE];

    if (tokens > 0 && compute > 0) {
        (void)fprintf(stderr, "It trains on %.4g tokens/s. ", tokens / time->queued_s);
    }
    (void)fprintf(stderr, "Busy in a step:");
    for (int i = 0; i < PLANNING_BOUNDS; i++) {
        if (time->by_bound[i] > 0) {
            (void)fprintf(stderr, " %s %.0f %%,", planning_bound_name((planning_bound)i),
                          100 * time->by_bound[i] / time->queued_s);
        }
    }
    (void)fprintf(stderr, " and the trainer waits %.0f %%",
                  100 * fmax(0, time->queued_s - compute) / time->queued_s);
    if (time->wait_update_s > 0) {
        (void)fprintf(stderr, ", %.0f %% for its queued update",
                      100 * time->wait_update_s / time->queued_s);
    }
    (void)fprintf(stderr, ".\n");
}

/* Names the assumed rates of its times. */
static void assumed_print(const plan_entry *chosen)
{
    const char *comma = "";

    (void)fprintf(stderr, "The times come from assumed rates (");
    for (int i = 0; i < PLANNING_RATES; i++) {
        if (plan_rate_is_assumed(chosen, (planning_rate)i)) {
            (void)fprintf(stderr, "%s%s", comma, planning_rate_name((planning_rate)i));
            comma = ", ";
        }
    }
    (void)fprintf(stderr, "). To measure: sherd bench --out rates.json on such a machine, then "
                          "--rates rates.json.\n");
}

static void choice_print(const plan_entry *entries, int count, const plan_entry *chosen,
                         const plan_entry *shortest)
{
    const plan_entry *next = shortest_find(entries, count, chosen);
    char              layout[LAYOUT_CHARS];
    char              pinned[PLAN_BYTES_CHARS];

    (void)fprintf(stderr, "Chosen: %s, %.3g s a step, bound by %s.\n", layout_text(chosen, layout),
                  chosen->row.time.queued_s, planning_bound_name(chosen->row.time.bound));
    (void)fprintf(stderr, "It needs ");
    need_print(chosen);
    if (chosen->row.pinned_bytes > 0) {
        (void)fprintf(stderr, "; a rank pins %s of the host's",
                      plan_bytes_text((double)chosen->row.pinned_bytes, pinned));
    }
    (void)fprintf(stderr, ".\n");
    speed_print(chosen);
    if (chosen != shortest) {
        (void)fprintf(stderr,
                      "It is within 2 %% of the shortest, %s with %.3g s, and simpler: less "
                      "offload, then the lower stage%s.\n",
                      layout_text(shortest, layout), shortest->row.time.queued_s,
                      copies_of(&shortest->asked) > 0 ? ", then fewer copies" : "");
    }
    if (next == NULL) {
        (void)fprintf(stderr, "Nothing else fits.\n");
    } else if (next != shortest || chosen == shortest) {
        (void)fprintf(stderr, "Next best: %s, %.3g s a step, %.2f times as long.\n",
                      layout_text(next, layout), next->row.time.queued_s,
                      next->row.time.queued_s / chosen->row.time.queued_s);
    }
    if (chosen->row.time.by_bound[PLANNING_BOUND_COMPUTE] == 0) {
        (void)fprintf(stderr, "Arithmetic is left out of these times: --tokens says how much there "
                              "is.\n");
    }
    if (chosen->row.assumed.text[0] != '\0') {
        (void)fprintf(stderr,
                      "Assumed, since the configuration leaves it to the trainer: %s; the file "
                      "leaves it too.\n",
                      chosen->row.assumed.text);
    }
    if (plan_is_assumed(chosen)) {
        assumed_print(chosen);
    }
}

static void nothing_print(const plan_entry *entries, int count)
{
    const plan_entry *least = &entries[0];
    char              layout[LAYOUT_CHARS];

    for (int i = 1; i < count; i++) {
        if (entries[i].refused[0] == '\0' &&
            (least->refused[0] != '\0' || is_less(&entries[i], least))) {
            least = &entries[i];
        }
    }
    (void)fprintf(stderr, "sherd: nothing fits. The least is %s, which needs ",
                  layout_text(least, layout));
    need_print(least);
    (void)fprintf(stderr, "; %s\n", least->row.why);
}

/* ----------------------------------------------------------------- choice -- */

static int choice_write(const plan_options *options, const plan_entry *chosen)
{
    if (options->is_json &&
        planning_row_write(&chosen->request, &chosen->row, cli_print, stdout) != SHERD_OK) {
        (void)fprintf(stderr, "sherd: the row cannot be written\n");
        return 1;
    }
    if (options->is_json && options->out_path == NULL) {
        return 0;
    }
    return plan_config_write(options, &chosen->asked);
}

static int entries_choose(const plan_options *options, const plan_entry *entries, int count)
{
    const plan_entry *shortest = shortest_find(entries, count, NULL);
    const plan_entry *chosen;

    head_print(plan_first(entries, (size_t)count), count);
    refused_print(entries, count);
    if (shortest == NULL) {
        nothing_print(entries, count);
        return 1;
    }
    fitting_print(entries, count);
    changed_print(entries, count);
    chosen = simplest_find(entries, count, shortest);
    choice_print(entries, count, chosen, shortest);
    tuning_print(chosen);
    encoding_print(options, chosen);
    return choice_write(options, chosen);
}

/* Whether a layout fits that offloads nothing; then there is nothing to tune. */
static int needs_no_offload(const plan_entry *entries, int count)
{
    for (int l = 0; l < count; l++) {
        if (can_be(&entries[l]) && entries[l].row.layout.offload == PLANNING_OFFLOAD_NONE) {
            return 1;
        }
    }
    return 0;
}

static int world_choose(const plan_options *options, int world_size)
{
    plan_entry      entries[PLAN_MOST_LAYOUTS] = {0};
    planning_layout layout;
    int             count = 0;

    for (int l = 0; l < options->num_layouts; l++) {
        if (!plan_layout_make(options, l, world_size, &layout)) {
            continue;
        }
        if (plan_entry_try(options, &layout, &entries[count]) != SHERD_OK) {
            return cli_fail();
        }
        entry_move(options, &entries[count]);
        entry_shrink(options, &entries[count++]);
    }
    for (int l = 0; l < count && !needs_no_offload(entries, count); l++) {
        entry_tune(options, &entries[l]);
    }
    if (plan_are_refused(entries, (size_t)count)) {
        return 1;
    }
    return entries_choose(options, entries, count);
}

int plan_best(const plan_options *options)
{
    int failed = 0;

    for (int w = 0; w < options->num_worlds; w++) {
        failed |= world_choose(options, options->worlds[w]);
    }
    return failed;
}
