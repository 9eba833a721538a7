/**
 * Limits of the process: descriptors and signals. They end in errors, not in the end of the program.
 */
#define _GNU_SOURCE

#include "check.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

/** Every thread of the library blocks the signals that a program handles. */
static void threads_receive_no_signals(void) {
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;
    int threads = 0;
    CHECK(tasks != NULL);
    while ((task = readdir(tasks)) != NULL) {
        char path[300], line[200];
        unsigned long long blocked = 0;
        FILE *status;
        if (task->d_name[0] == '.' || atoi(task->d_name) == getpid()) {
            continue;
        }
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        status = fopen(path, "r");
        if (status == NULL) {
            continue;
        }
        while (fgets(line, sizeof line, status) != NULL) {
            sscanf(line, "SigBlk: %llx", &blocked);
        }
        fclose(status);
        CHECK(blocked & 1ull << (SIGTERM - 1));
        CHECK(blocked & 1ull << (SIGXFSZ - 1));
        CHECK(blocked & 1ull << (SIGUSR1 - 1));
        threads++;
    }
    closedir(tasks);
    CHECK(threads > 2);
}

/** The calling thread has its own mask back. */
static void the_caller_receives_signals(void) {
    sigset_t blocked;
    CHECK(sigprocmask(SIG_BLOCK, NULL, &blocked) == 0);
    CHECK(!sigismember(&blocked, SIGTERM) && !sigismember(&blocked, SIGXFSZ));
}

static void note(void *user, hoplite_pending pending) {
    hoplite_pending *noted = user;
    *noted = pending;
}

/** With few descriptors: a node starts, or the error names the limit. */
static void descriptors(hoplite_client client) {
    hoplite_node_options options = HOPLITE_INIT(hoplite_node_options);
    struct rlimit before, few;
    hoplite_client other;
    hoplite_queue queue;
    hoplite_node node;
    int errors = 0;

    options.socket = "./second.sock";
    options.capacity = 1 << 20;
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    few = before;
    for (few.rlim_cur = 3; few.rlim_cur < 45; few.rlim_cur += 3) {
        CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
        if (hoplite_node_start(&options, &node) == HOPLITE_OK) {
            CHECK_OK(hoplite_node_close(node, 0, NULL));
        } else {
            CHECK(strstr(hoplite_last_error(), "ulimit -n") != NULL);
            errors++;
        }
    }
    CHECK(errors > 0);
    few.rlim_cur = 3;
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    CHECK_ERROR(hoplite_queue_new(&queue), HOPLITE_HOST_ERROR, "ulimit -n");
    CHECK_ERROR(hoplite_connect("./limits.sock", NULL, LIMIT, &other), HOPLITE_HOST_ERROR, "ulimit -n");
    put_text(client, "without descriptors", "text");
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

int main(void) {
    hoplite_node node = start_node("./limits.sock");
    hoplite_client client = open_client(node), other;
    static hoplite_pending noted;
    hoplite_pending pending;
    hoplite_view view = HOPLITE_INIT(hoplite_view);

    CHECK_OK(hoplite_connect("./limits.sock", NULL, LIMIT, &other));
    put_text(client, "object", "text");
    CHECK_OK(hoplite_get_async(other, "object", NULL, LIMIT, &pending));
    CHECK_OK(hoplite_pending_wait(pending, LIMIT));
    CHECK_OK(hoplite_pending_on_done(pending, note, &noted));
    CHECK_OK(hoplite_pending_take_view(pending, &view));
    CHECK_OK(hoplite_view_release(&view));
    threads_receive_no_signals();
    the_caller_receives_signals();
    descriptors(client);
    CHECK_OK(hoplite_client_close(other));
    CHECK_OK(hoplite_client_close(client));
    CHECK_OK(hoplite_node_close(node, 0, NULL));
    return 0;
}
