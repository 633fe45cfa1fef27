/* sherd launch --elastic: processes come and go while the others train. The launcher says in the
 * folder of the job how many ranks it wants, and starts and ends processes; who is a rank when, the
 * ranks decide between two steps. collectives/roll.h has the files of the folder. See launch.h. */
#include "cli/launch.h"
#include "models/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A newcomer that has trained for so long was well. */
#define LONG_S 60

/* ---- the folder ---- */

static const char *path_of(const launch *job, char out[SOCKET_PATH_BYTES + 32], const char *fmt,
                           ...) __attribute__((format(printf, 3, 4)));

static const char *path_of(const launch *job, char out[SOCKET_PATH_BYTES + 32], const char *fmt,
                           ...)
{
    int     len = snprintf(out, SOCKET_PATH_BYTES + 32, "%s/", job->folder);
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(out + len, (size_t)(SOCKET_PATH_BYTES + 32 - len), fmt, args);
    va_end(args);
    return out;
}

/* Returns for how many seconds the file `word`-`number` has been there; -1: it is not. */
static int64_t word_age(const launch *job, const char *word, int number)
{
    char        path[SOCKET_PATH_BYTES + 32];
    struct stat found;
    int64_t     age;

    if (stat(path_of(job, path, "%s-%d", word, number), &found) != 0) {
        return -1;
    }
    age = (int64_t)time(NULL) - (int64_t)found.st_mtime;
    return age > 0 ? age : 0;
}

static int has_word(const launch *job, const char *word, int number)
{
    return word_age(job, word, number) >= 0;
}

/* Removes the files of a process, or (number is -1) all. */
static void words_remove(const launch *job, int number)
{
    DIR           *folder = opendir(job->folder);
    struct dirent *entry;
    char           path[SOCKET_PATH_BYTES + 32];

    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        int found   = -1;
        int is_word = sscanf(entry->d_name, "waits-%d", &found) == 1 ||
                      sscanf(entry->d_name, "called-%d-", &found) == 1 ||
                      sscanf(entry->d_name, "trains-%d", &found) == 1 ||
                      sscanf(entry->d_name, "leaves-%d", &found) == 1 ||
                      sscanf(entry->d_name, "new-%d", &found) == 1;

        if (number < 0 ? entry->d_name[0] != '.' : is_word && found == number) {
            (void)unlink(path_of(job, path, "%.20s", entry->d_name));
        }
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
}

/* Makes a file appear in one piece. Returns 0, or -1 after it has printed why. */
static int file_write(const launch *job, const char *name, int number)
{
    char  fresh[SOCKET_PATH_BYTES + 32], path[SOCKET_PATH_BYTES + 32];
    FILE *file = fopen(path_of(job, fresh, "launcher-new"), "we");
    int   is_bad;

    is_bad = file == NULL || fprintf(file, "%d\n", number) < 0;
    if (file != NULL) {
        is_bad |= fclose(file) != 0;
    }
    if (is_bad || rename(fresh, path_of(job, path, "%s", name)) != 0) {
        (void)fprintf(stderr, "sherd: %s cannot be written: %s\n", path, strerror(errno));
        return -1;
    }
    return 0;
}

int launch_elastic_open(launch *job)
{
    char path[SOCKET_PATH_BYTES + 32];

    job->elastic.lock = open(path_of(job, path, "launcher"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (job->elastic.lock < 0 || flock(job->elastic.lock, LOCK_EX) != 0) {
        (void)fprintf(stderr, "sherd: %s cannot be locked: %s\n", path, strerror(errno));
        return -1;
    }
    return file_write(job, "wanted", job->elastic.wanted);
}

void launch_elastic_close(launch *job)
{
    words_remove(job, -1);
    if (job->elastic.lock >= 0) {
        (void)close(job->elastic.lock);
    }
}

/* ---- options ---- */

int launch_elastic_read(launch *job)
{
    char end;

    if (sscanf(job->elastic.span, "%d:%d%c", &job->elastic.least, &job->elastic.most, &end) != 2 ||
        job->elastic.least < 1 || job->elastic.most < job->elastic.least ||
        job->elastic.most > LAUNCH_MOST_RANKS) {
        return cli_bad("launch", "--elastic wants MIN:MAX, two numbers of ranks from 1 to 1024");
    }
    if (job->ranks < job->elastic.least || job->ranks > job->elastic.most) {
        return cli_bad("launch", "-n has to be between the numbers of --elastic");
    }
    job->elastic.wanted = job->ranks;
    return 0;
}

/* ---- who is there ---- */

static int is_running(const launch_child *child)
{
    return child->pid > 0 && !child->is_sent_away;
}

static int ranks_count(const launch *job)
{
    int count = 0;

    for (int i = 0; i < job->num_children; i++) {
        count += job->children[i].pid > 0 && has_word(job, "trains", job->children[i].rank);
    }
    return count;
}

/* Counts the processes that are ranks, or will be. */
static int members_count(const launch *job)
{
    int count = 0;

    for (int i = 0; i < job->num_children; i++) {
        const launch_child *child = &job->children[i];

        count += is_running(child) && !has_word(job, "leaves", child->rank);
    }
    return count;
}

static int is_number_taken(const launch *job, int number)
{
    for (int i = 0; i < job->num_children; i++) {
        if (job->children[i].pid > 0 && job->children[i].rank == number) {
            return 1;
        }
    }
    return 0;
}

static int has_room(const launch *job)
{
    for (int i = 0; i < job->num_children; i++) {
        if (job->children[i].pid == 0) {
            return 1;
        }
    }
    return job->num_children < LAUNCH_MOST_RANKS;
}

/* Returns whether a process is a rank, or is called to be one. */
static int is_called(const launch *job, int number)
{
    DIR           *folder   = opendir(job->folder);
    int            is_found = has_word(job, "trains", number) || has_word(job, "leaves", number);
    struct dirent *entry;

    while (!is_found && folder != NULL && (entry = readdir(folder)) != NULL) {
        int found;

        is_found = sscanf(entry->d_name, "called-%d-", &found) == 1 && found == number;
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
    return is_found;
}

/* Tells a newcomer to end that no rank has called: it waits, or has not come so far. Returns whether
 * it did. */
static int newcomer_send_away(launch *job, launch_child *child)
{
    char path[SOCKET_PATH_BYTES + 32];

    if (unlink(path_of(job, path, "waits-%d", child->rank)) != 0 && is_called(job, child->rank)) {
        return 0;
    }
    child->is_sent_away = 1;
    (void)kill(child->pid, SIGTERM);
    return 1;
}

static void newcomers_send_away(launch *job, int most)
{
    for (int i = job->num_children - 1; i >= 0 && most > 0; i--) {
        launch_child *child = &job->children[i];

        if (child->is_late && is_running(child)) {
            most -= newcomer_send_away(job, child);
        }
    }
}

/* Starts nobody any more. Those that wait end by themselves, and those that do not are ended. */
static void ending_begin(launch *job)
{
    if (!job->elastic.is_ending) {
        job->elastic.is_ending = 1;
        (void)file_write(job, "over", 1);
        newcomers_send_away(job, LAUNCH_MOST_RANKS);
    }
}

/* ---- what the launcher does ---- */

void launch_elastic_balance(launch *job)
{
    int members = members_count(job);
    int number  = 0;

    if (job->status != 0 || job->elastic.is_ending) {
        if (job->deadline_s == 0 && job->last_sent == 0 && members == 0 && job->running > 0) {
            job->deadline_s = (int64_t)clock_now_s() + job->grace_s;
        }
        return;
    }
    if (members > job->elastic.wanted) {
        newcomers_send_away(job, members - job->elastic.wanted);
    }
    for (; members < job->elastic.wanted && has_room(job); members++) {
        while (is_number_taken(job, number)) {
            number++;
        }
        if (launch_newcomer_start(job, number) != 0) {
            job->status     = STATUS_NO_PROGRAM;
            job->deadline_s = (int64_t)clock_now_s() + job->grace_s;
            return;
        }
    }
}

/* Sets the number of ranks that is wanted. */
static void wanted_set(launch *job, int wanted)
{
    job->elastic.wanted = wanted;
    if (file_write(job, "wanted", wanted) != 0) {
        job->status     = 1;
        job->deadline_s = (int64_t)clock_now_s() + job->grace_s;
    }
}

void launch_elastic_ask(launch *job, int number)
{
    int wanted = job->elastic.wanted + (number == SIGTTIN ? 1 : -1);

    if (number != SIGTTIN && number != SIGTTOU) {
        if (number == SIGINT || number == SIGTERM || number == SIGHUP) {
            ending_begin(job);
        }
        return;
    }
    if (wanted < job->elastic.least || wanted > job->elastic.most) {
        (void)fprintf(stderr, "sherd: %d rank%s stay%s: --elastic is %s\n", job->elastic.wanted,
                      job->elastic.wanted == 1 ? "" : "s", job->elastic.wanted == 1 ? "s" : "",
                      job->elastic.span);
        return;
    }
    wanted_set(job, wanted);
    (void)fprintf(stderr, "sherd: %d rank%s wanted\n", wanted, wanted == 1 ? " is" : "s are");
}

/* Counts the death of a newcomer that did not train for long. Returns whether these are too many: a
 * program that cannot train would be started again for ever. One that trained for long after the
 * last of these deaths shows that the program can. */
static int is_crash_loop(launch *job, const launch_child *dead, int64_t trained_s)
{
    int64_t now_s = (int64_t)clock_now_s();

    if (!dead->is_late || trained_s >= LONG_S) {
        return 0;
    }
    for (int i = 0; i < job->num_children; i++) {
        const launch_child *child = &job->children[i];
        int64_t             age   = word_age(job, "trains", child->rank);

        if (child->pid > 0 && child->is_late && age >= LONG_S &&
            now_s - age > job->elastic.last_death_s) {
            job->elastic.deaths = 0;
        }
    }
    job->elastic.last_death_s = now_s;
    return ++job->elastic.deaths >= job->elastic.most_deaths;
}

static void job_end(launch *job, const launch_child *child, int status)
{
    job->status      = status != 0 ? status : 1;
    job->failed_rank = child->rank;
    job->deadline_s  = (int64_t)clock_now_s() + job->grace_s;
    ending_begin(job);
}

/* Says how a process ended, and what follows; printf-like. */
static void end_say(const launch_child *child, int status, int was_rank, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static void end_say(const launch_child *child, int status, int was_rank, const char *fmt, ...)
{
    char    how[64], then[256];
    va_list args;

    if (status > 128) {
        (void)snprintf(how, sizeof(how), "was ended by signal %d (%.30s)", status - 128,
                       strsignal(status - 128));
    } else {
        (void)snprintf(how, sizeof(how), "ended with status %d", status);
    }
    va_start(args, fmt);
    (void)vsnprintf(then, sizeof(then), fmt, args);
    va_end(args);
    (void)fprintf(stderr, "sherd: process %d %s%s: %s\n", child->rank, how,
                  was_rank ? "" : " before it was a rank", then);
}

/* A rank or a newcomer has died, and the others train. */
static void death_take(launch *job, const launch_child *child, int status, int64_t trained_s)
{
    int was_rank = trained_s >= 0;
    int left     = ranks_count(job);

    if (left < job->elastic.least) {
        end_say(child, status, was_rank,
                "%d rank%s left, and --elastic wants at least %d; the job "
                "ends",
                left, left == 1 ? " is" : "s are", job->elastic.least);
        job_end(job, child, status);
    } else if (job->elastic.is_not_restarted) {
        int members = members_count(job);

        end_say(child, status, was_rank, "%d rank%s without it", left,
                left == 1 ? " goes on" : "s go on");
        wanted_set(job, members > job->elastic.least ? members : job->elastic.least);
    } else if (is_crash_loop(job, child, trained_s)) {
        end_say(child, status, was_rank,
                "%d processes in a row have ended so within %d seconds of training; the job ends",
                job->elastic.deaths, LONG_S);
        job_end(job, child, status);
    } else {
        end_say(child, status, was_rank, "%d rank%s, and it is started again", left,
                left == 1 ? " goes on" : "s go on");
    }
}

int launch_elastic_ended(launch *job, const launch_child *child, int status)
{
    int64_t trained_s = word_age(job, "trains", child->rank);
    int     has_left  = has_word(job, "leaves", child->rank);

    words_remove(job, child->rank);
    if (child->is_sent_away) {
        return 1;
    }
    if (job->status != 0 || job->elastic.is_ending) {
        return 0;
    }
    if (has_left) {
        if (status != 0) {
            end_say(child, status, 1, "it was about to leave");
        }
        return 1;
    }
    if (trained_s < 0 && !child->is_late && status != 0) {
        return 0; /* the others wait for it, and nobody has begun */
    }
    if (status == 0 && (trained_s >= 0 || !child->is_late)) {
        ending_begin(job); /* it has done its work */
    } else {
        death_take(job, child, status, trained_s);
    }
    return 1;
}
