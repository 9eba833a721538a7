#define _GNU_SOURCE
#include "harm.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "verbs.h"

/* How a child ends whose check failed; a crash ends it with a signal instead. */
enum { CHILD_FAILED = 41, CHILD_HANGS_AFTER_S = 30 };

static void on_signal(int signal) {
    /* Also tells which thread runs it: the threads of the library block all signals. */
    const char *event = gettid() == getpid() ? "{\"event\":\"main\"}\n" : "{\"event\":\"other\"}\n";
    (void)signal;
    if (write(STDOUT_FILENO, event, strlen(event)) < 0) {
        _exit(CHILD_FAILED);
    }
}

static void child_requires(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "peer: child: %s: %s\n", what, hoplite_last_error());
        _exit(CHILD_FAILED);
    }
}

/* Puts an object, reads it back and deletes it. The client attaches to the node again, for the child. */
static void child_calls(const words *words) {
    const char text[] = "of the child";
    hoplite_array array = {.data = text, .nbytes = sizeof text};
    hoplite_ref ref;
    hoplite_view view = HOPLITE_INIT(hoplite_view);
    child_requires(hoplite_put(client_of(words), &array, NULL, CHILD_HANGS_AFTER_S, &ref) == HOPLITE_OK, "put");
    child_requires(hoplite_get(client_of(words), ref.text, NULL, CHILD_HANGS_AFTER_S, &view) == HOPLITE_OK, "get");
    child_requires(view.nbytes == sizeof text && memcmp(view.data, text, sizeof text) == 0, "the value differs");
    child_requires(hoplite_view_release(&view) == HOPLITE_OK, "release");
    const char *refs[] = {ref.text};
    child_requires(hoplite_delete(client_of(words), refs, 1, CHILD_HANGS_AFTER_S) == HOPLITE_OK, "delete");
}

/* What the child does; it ends with the code 0 if all is well. */
static void run_child(const words *words) {
    const char *mode = words_text(words, "mode");
    alarm(CHILD_HANGS_AFTER_S);
    if (strcmp(mode, "exec") == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(CHILD_FAILED);
    }
    if (strcmp(mode, "views") == 0) {
        for (size_t at = 0; at < held.view_count; at++) {
            const hoplite_view *view = &held.views[at];
            child_requires((int64_t)sum_of(view->data, view->nbytes) == words_int(words, "sum", 0), "a view changed");
        }
    }
    if (strcmp(mode, "calls") == 0) {
        child_calls(words);
    }
    if (strcmp(mode, "closes") == 0) {
        /* The handles of the child are its own: the parent keeps its client, views and buffers. */
        for (size_t at = 0; at < held.view_count; at++) {
            hoplite_view_release(&held.views[at]);
        }
        for (size_t at = 0; at < held.buffer_count; at++) {
            hoplite_discard(&held.buffers[at]);
        }
        for (size_t at = 0; at < held.client_count; at++) {
            hoplite_client_close(held.clients[at]);
        }
        for (size_t at = 0; at < held.node_count; at++) {
            hoplite_node_close(held.nodes[at], 1.0, NULL);
        }
    }
    if (strcmp(mode, "forked") == 0) {
        hoplite_ref ref;
        child_requires(hoplite_reserve(client_of(words), NULL, 5.0, &ref) == HOPLITE_FORKED_CLIENT, "not FORKED_CLIENT");
    }
    /* Runs the exit handlers and destructors of the library. */
    exit(0);
}

/* Forks and waits for the child. Returns its exit status, or the negative number of the signal that killed it. */
static int fork_once(const words *words) {
    /* So that the child does not write the begun reply too. */
    require(fflush(stdout) == 0, "stdout is closed");
    pid_t child = fork();
    require(child >= 0, "fork");
    if (child == 0) {
        run_child(words);
    }
    int status;
    require(waitpid(child, &status, 0) == child, "waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Threads that call the library while the program forks, so that its locks are held at that moment. */
static atomic_bool is_busy;

static void *call_in_loop(void *user) {
    const words *words = user;
    while (atomic_load(&is_busy)) {
        hoplite_pending pending;
        hoplite_ref ref;
        hoplite_view view = HOPLITE_INIT(hoplite_view);
        const char byte = 7;
        hoplite_array array = {.data = &byte, .nbytes = 1};
        require(hoplite_put_async(client_of(words), &array, NULL, CHILD_HANGS_AFTER_S, &pending) == HOPLITE_OK, "put");
        require(hoplite_pending_take_ref(pending, &ref) == HOPLITE_OK, "take");
        require(hoplite_get(client_of(words), ref.text, NULL, CHILD_HANGS_AFTER_S, &view) == HOPLITE_OK, "get");
        require(hoplite_view_release(&view) == HOPLITE_OK, "release");
        const char *refs[] = {ref.text};
        require(hoplite_delete(client_of(words), refs, 1, CHILD_HANGS_AFTER_S) == HOPLITE_OK, "delete");
    }
    return NULL;
}

static void run_fork(const words *words) {
    pthread_t threads[2];
    int busy = words_flag(words, "busy") ? 2 : 0;
    atomic_store(&is_busy, true);
    for (int at = 0; at < busy; at++) {
        require(pthread_create(&threads[at], NULL, call_in_loop, (void *)words) == 0, "pthread_create");
    }
    int worst = 0;
    for (int64_t turn = words_int(words, "times", 1); turn > 0 && worst == 0; turn--) {
        worst = fork_once(words);
    }
    atomic_store(&is_busy, false);
    for (int at = 0; at < busy; at++) {
        require(pthread_join(threads[at], NULL) == 0, "pthread_join");
    }
    reply_int("code", HOPLITE_OK);
    reply_int("exit", worst);
}

/* Creates handles of each kind and forgets them. The object `ref` exists; nothing under the name `missing` does. */
static void run_leak(const words *words) {
    hoplite_client client = client_of(words);
    const char *ref = words_text(words, "ref"), *missing = words_text(words, "missing");
    const uint64_t shape[] = {1u << 17};
    hoplite_code worst = HOPLITE_OK;
    for (int64_t turn = words_int(words, "count", 1); turn > 0; turn--) {
        hoplite_view view = HOPLITE_INIT(hoplite_view);
        hoplite_buffer buffer = HOPLITE_INIT(hoplite_buffer);
        hoplite_refs refs = HOPLITE_INIT(hoplite_refs);
        hoplite_text text = HOPLITE_INIT(hoplite_text);
        hoplite_locations locations = HOPLITE_INIT(hoplite_locations);
        hoplite_lease lease;
        hoplite_queue queue;
        hoplite_pending in_queue, done, waiting;
        hoplite_client other;
        const char *reduced = words_text(words, "reduced");
        hoplite_code codes[] = {
            hoplite_get(client, ref, NULL, timeout_of(words), &view),
            hoplite_create(client, "uint8", 1, shape, NULL, timeout_of(words), &buffer),
            hoplite_inputs(client, reduced, timeout_of(words), &refs),
            hoplite_status(client, timeout_of(words), &text),
            hoplite_get_locations(client, ref, timeout_of(words), &locations),
            hoplite_lease_acquire(client, ref, timeout_of(words), &lease),
            hoplite_queue_new(&queue),
            hoplite_get_async(client, missing, NULL, HOPLITE_NO_TIMEOUT, &in_queue),
            hoplite_pending_enqueue(in_queue, queue, NULL),
            hoplite_get_async(client, ref, NULL, timeout_of(words), &done),
            hoplite_pending_wait(done, timeout_of(words)),
            hoplite_get_async(client, missing, NULL, HOPLITE_NO_TIMEOUT, &waiting),
            hoplite_connect(words_text(words, "address"), NULL, timeout_of(words), &other),
        };
        for (size_t at = 0; at < sizeof codes / sizeof *codes; at++) {
            worst = codes[at] != HOPLITE_OK ? codes[at] : worst;
        }
    }
    reply_failure(worst);
}

static void run_limit(const words *words) {
    const char *which = words_text(words, "which");
    struct rlimit limit;
    int resource = strcmp(which, "nofile") == 0 ? RLIMIT_NOFILE : RLIMIT_FSIZE;
    require(getrlimit(resource, &limit) == 0, "getrlimit");
    /* The soft limit alone: the reply to `limit` with the old value lifts it again. */
    reply_int("code", HOPLITE_OK);
    reply_int("before", (int64_t)limit.rlim_cur);
    limit.rlim_cur = (rlim_t)words_int(words, "value", 0);
    require(setrlimit(resource, &limit) == 0, "setrlimit");
}

static void run_handler(void) {
    struct sigaction action = {.sa_handler = on_signal};
    require(sigaction(SIGTERM, &action, NULL) == 0, "sigaction");
    reply_int("code", HOPLITE_OK);
}

/* Waits with poll(2) until a queue has the pending result of a get, as an event loop does. */
static void run_queue(const words *words) {
    hoplite_queue queue;
    hoplite_pending pending, next;
    hoplite_view view = HOPLITE_INIT(hoplite_view);
    void *user = NULL;
    struct pollfd polled = {.events = POLLIN};
    hoplite_code code = hoplite_queue_new(&queue);
    code = code ? code : hoplite_queue_fd(queue, &polled.fd);
    code =
        code ? code : hoplite_get_async(client_of(words), words_text(words, "ref"), NULL, timeout_of(words), &pending);
    code = code ? code : hoplite_pending_enqueue(pending, queue, &view);
    if (code == HOPLITE_OK) {
        require(poll(&polled, 1, CHILD_HANGS_AFTER_S * 1000) == 1, "the queue stays empty");
        code = hoplite_queue_next(queue, &next, &user);
    }
    code = code ? code : hoplite_pending_take_view(next, user);
    reply_failure(code);
    if (code == HOPLITE_OK) {
        reply_int("empty", hoplite_queue_next(queue, &next, &user) == HOPLITE_NOT_READY);
        reply_int("sum", (int64_t)sum_of(view.data, view.nbytes));
        hoplite_view_release(&view);
    }
    hoplite_queue_close(queue);
}

bool run_harm(const words *words) {
    const char *command = words->command;
    if (strcmp(command, "fork") == 0) {
        run_fork(words);
    } else if (strcmp(command, "leak") == 0) {
        run_leak(words);
    } else if (strcmp(command, "limit") == 0) {
        run_limit(words);
    } else if (strcmp(command, "handler") == 0) {
        run_handler();
    } else if (strcmp(command, "queue") == 0) {
        run_queue(words);
    } else if (strcmp(command, "exit") == 0) {
        reply_int("code", HOPLITE_OK);
        reply_close('}');
        reply_send();
        exit(0);
    } else {
        return false;
    }
    return true;
}
