/**
 * Threads that end: pthread_cancel during a call, and calls of destructors and exit handlers.
 */
#define _GNU_SOURCE

#include "check.h"

#include <pthread.h>
#include <unistd.h>

static hoplite_node node;
static hoplite_client client;
static pthread_key_t key;
static int calls;

/** Calls of every kind, also of those that wait. */
static void use(const char *name) {
    hoplite_node_options options = HOPLITE_INIT(hoplite_node_options);
    hoplite_view view = HOPLITE_INIT(hoplite_view);
    hoplite_pending pending;
    hoplite_node other;
    char text[4];
    uint64_t copied;

    put_text(client, name, "text");
    CHECK(hoplite_get(client, name, NULL, LIMIT, &view) == HOPLITE_OK);
    CHECK(memcmp(view.data, "text", 4) == 0);
    CHECK(hoplite_view_release(&view) == HOPLITE_OK);
    CHECK(hoplite_get_into(client, name, text, 4, NULL, 0, NULL, LIMIT, &copied) == HOPLITE_OK);
    CHECK(hoplite_get_into(client, "never", text, 4, NULL, 0, NULL, 0.01, NULL) == HOPLITE_TIMEOUT);
    CHECK(hoplite_get_async(client, "never", NULL, LIMIT, &pending) == HOPLITE_OK);
    CHECK(hoplite_pending_cancel(pending) == HOPLITE_OK);
    options.socket = "ending-other.sock";
    CHECK(hoplite_node_start(&options, &other) == HOPLITE_OK);
    CHECK(hoplite_node_close(other, 0, NULL) == HOPLITE_OK);
    calls++;
}

/** pthread_cancel takes effect after the call, not inside the library. */
static void *cancelled(void *name) {
    CHECK(pthread_cancel(pthread_self()) == 0);
    use(name);
    pthread_testcancel();
    return NULL;
}

/** A destructor of the thread, which runs after those of the library. */
static void destructor(void *name) {
    use(name);
}

static void *with_destructor(void *name) {
    put_text(client, "of the thread", "text");
    CHECK(pthread_setspecific(key, name) == 0);
    return NULL;
}

/** Closes the node after the destructors of the main thread. */
static void at_exit(void) {
    use("at exit");
    CHECK(hoplite_client_close(client) == HOPLITE_OK);
    CHECK(hoplite_node_close(node, 0, NULL) == HOPLITE_OK);
    CHECK(calls == 3);
    puts("closed at exit");
}

int main(void) {
    pthread_t thread;
    void *result;

    node = start_node("ending.sock");
    client = open_client(node);
    CHECK(pthread_create(&thread, NULL, cancelled, "cancelled") == 0);
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
    CHECK(pthread_key_create(&key, destructor) == 0);
    CHECK(pthread_create(&thread, NULL, with_destructor, "destructor") == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(calls == 2);
    return atexit(at_exit);
}
