/**
 * A child of a fork: inherited views stay valid, clients attach anew, and the rest is an error of the child alone.
 */
#define _POSIX_C_SOURCE 200809L

#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

static void in_the_child(hoplite_node node, hoplite_client client, hoplite_view *view,
                         hoplite_pending pending, hoplite_queue queue) {
    hoplite_node_info info = HOPLITE_INIT(hoplite_node_info);
    hoplite_client other;
    hoplite_pending next;
    int fd;

    CHECK(memcmp(view->data, "text", 4) == 0);
    CHECK_OK(hoplite_view_release(view));
    CHECK_CODE(hoplite_pending_wait(pending, 0), HOPLITE_FORKED_CLIENT);
    CHECK_OK(hoplite_pending_cancel(pending));
    CHECK_CODE(hoplite_queue_fd(queue, &fd), HOPLITE_FORKED_CLIENT);
    CHECK_CODE(hoplite_queue_next(queue, &next, NULL), HOPLITE_FORKED_CLIENT);
    CHECK_CODE(hoplite_node_client(node, NULL, &other), HOPLITE_FORKED_CLIENT);
    CHECK_OK(hoplite_node_get_info(node, &info));

    put_text(client, "child/1", "text");
    CHECK_OK(hoplite_get_async(client, "child/1", NULL, LIMIT, &pending));
    CHECK_OK(hoplite_pending_take_view(pending, view));
    CHECK_OK(hoplite_view_release(view));
    CHECK_OK(hoplite_client_close(client));
    CHECK_CODE(hoplite_node_close(node, 0, NULL), HOPLITE_FORKED_CLIENT);
    exit(0);
}

static void join(pid_t child) {
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/** What a thread uses that calls while the process forks. */
struct busy {
    hoplite_client client;
    atomic_bool ends;
};

static void *call_until_the_end(void *argument) {
    struct busy *busy = argument;
    hoplite_view view = HOPLITE_INIT(hoplite_view);
    while (!atomic_load(&busy->ends)) {
        CHECK_OK(hoplite_get(busy->client, "parent/1", NULL, LIMIT, &view));
        CHECK_OK(hoplite_view_release(&view));
    }
    return NULL;
}

/** No table is locked in the child, whatever other threads did at the fork. */
static void forks_while_threads_call(hoplite_client client) {
    struct busy busy = {.client = client};
    hoplite_view view = HOPLITE_INIT(hoplite_view);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_create(&threads[i], NULL, call_until_the_end, &busy) == 0);
    }
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm((unsigned)LIMIT);
            CHECK_OK(hoplite_get(client, "parent/1", NULL, LIMIT, &view));
            CHECK_OK(hoplite_view_release(&view));
            _exit(0);
        }
        join(child);
    }
    atomic_store(&busy.ends, true);
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
}

int main(void) {
    hoplite_node node = start_node("./fork.sock");
    hoplite_client client = open_client(node);
    hoplite_view view = HOPLITE_INIT(hoplite_view), later = HOPLITE_INIT(hoplite_view);
    hoplite_pending pending;
    hoplite_queue queue;
    pid_t child;

    put_text(client, "parent/1", "text");
    CHECK_OK(hoplite_get(client, "parent/1", NULL, LIMIT, &view));
    CHECK_OK(hoplite_get_async(client, "later", NULL, LIMIT, &pending));
    CHECK_OK(hoplite_queue_new(&queue));
    CHECK_OK(hoplite_pending_enqueue(pending, queue, NULL));

    child = fork();
    if (child == 0) {
        alarm((unsigned)LIMIT);
        in_the_child(node, client, &view, pending, queue);
    }
    join(child);

    CHECK_OK(hoplite_get(client, "child/1", NULL, LIMIT, &later));
    CHECK_OK(hoplite_view_release(&later));
    put_text(client, "later", "text");
    CHECK_OK(hoplite_pending_take_view(pending, &later));
    CHECK_OK(hoplite_view_release(&later));
    CHECK(memcmp(view.data, "text", 4) == 0);
    CHECK_OK(hoplite_view_release(&view));
    forks_while_threads_call(client);
    CHECK_OK(hoplite_queue_close(queue));
    CHECK_OK(hoplite_client_close(client));
    CHECK_OK(hoplite_node_close(node, 0, NULL));
    return 0;
}
