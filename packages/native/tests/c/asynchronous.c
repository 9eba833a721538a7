/**
 * Every asynchronous function: taken after a wait, by a callback, out of a queue, and cancelled.
 */
#define _POSIX_C_SOURCE 200809L

#include "check.h"

#include <poll.h>
#include <semaphore.h>
#include <time.h>

/** What a callback was called with. */
struct called {
    sem_t done;
    int count;
    hoplite_code code;
    hoplite_pending pending;
};

static void await(struct called *called) {
    struct timespec until;
    CHECK(clock_gettime(CLOCK_REALTIME, &until) == 0);
    until.tv_sec += (time_t)LIMIT;
    CHECK(sem_timedwait(&called->done, &until) == 0);
}

static void note(void *user, hoplite_pending pending) {
    struct called *called = user;
    called->count++;
    called->pending = pending;
    CHECK(sem_post(&called->done) == 0);
}

/** Takes the text of an object inside the callback, and puts another object. */
static void take(void *user, hoplite_pending pending) {
    struct called *called = user;
    hoplite_view view = HOPLITE_INIT(hoplite_view);
    called->code = hoplite_pending_take_view(pending, &view);
    CHECK(called->code != HOPLITE_OK || memcmp(view.data, "text", 4) == 0);
    if (view.id != 0) {
        CHECK_OK(hoplite_view_release(&view));
    }
    note(user, pending);
}

static void cancel(void *user, hoplite_pending pending) {
    CHECK_OK(hoplite_pending_cancel(pending));
    note(user, pending);
}

static void results(hoplite_client client) {
    const float elements[2] = {1, 2};
    const uint64_t shape[1] = {2}, large[1] = {1 << 20};
    hoplite_array value = {.data = elements, .nbytes = 8, .dtype = "float32", .ndim = 1, .shape = shape};
    hoplite_put_options options = HOPLITE_INIT(hoplite_put_options);
    hoplite_buffer buffer = HOPLITE_INIT(hoplite_buffer);
    hoplite_view view = HOPLITE_INIT(hoplite_view);
    hoplite_refs refs = HOPLITE_INIT(hoplite_refs);
    hoplite_locations locations = HOPLITE_INIT(hoplite_locations);
    hoplite_text text = HOPLITE_INIT(hoplite_text);
    const char *names[2] = {"a/1", "missing"};
    hoplite_pending p;
    hoplite_lease lease;
    hoplite_ref ref, sum;
    size_t ready[2], count;
    uint64_t copied;
    float out[2];

    options.name = "a/1";
    CHECK_OK(hoplite_put_async(client, &value, &options, LIMIT, &p));
    CHECK_OK(hoplite_pending_wait(p, LIMIT));
    CHECK_ERROR(hoplite_pending_take_view(p, &view), HOPLITE_INVALID_ARGUMENT, "hoplite_pending_take_ref");
    CHECK_OK(hoplite_pending_take_ref(p, &ref));
    CHECK(strcmp(ref.text, "a/1") == 0 && ref.replicas == 1);
    CHECK_CODE(hoplite_pending_take_ref(p, &ref), HOPLITE_INVALID_HANDLE);
    CHECK_OK(hoplite_put_async(client, &value, &options, LIMIT, &p));
    CHECK_OK(hoplite_pending_wait(p, LIMIT));
    CHECK_ERROR(hoplite_pending_take_ref(p, NULL), HOPLITE_NAME_TAKEN, "a/1");

    CHECK_OK(hoplite_get_async(client, "a/1", NULL, LIMIT, &p));
    CHECK_OK(hoplite_pending_take_view(p, &view));
    CHECK(((const float *)view.data)[1] == 2);
    CHECK_OK(hoplite_view_release(&view));
    CHECK_OK(hoplite_get_into_async(client, "a/1", out, sizeof out, "float32", 1, shape, LIMIT, &p));
    CHECK_OK(hoplite_pending_take_size(p, &copied));
    CHECK(copied == 8 && out[1] == 2);

    CHECK_OK(hoplite_create_async(client, "uint8", 1, large, NULL, LIMIT, &p));
    CHECK_OK(hoplite_pending_take_buffer(p, &buffer));
    memset(buffer.data, 1, buffer.nbytes);
    CHECK_OK(hoplite_seal_async(&buffer, LIMIT, &p));
    CHECK(buffer.id == 0);
    CHECK_OK(hoplite_pending_take_ref(p, NULL));

    CHECK_OK(hoplite_reduce_async(client, names, 1, "sum", NULL, LIMIT, &p));
    CHECK_OK(hoplite_pending_take_ref(p, &sum));
    CHECK_OK(hoplite_inputs_async(client, sum.text, LIMIT, &p));
    CHECK_OK(hoplite_pending_take_refs(p, &refs));
    CHECK(refs.count == 1 && strcmp(refs.items[0], "a/1") == 0);
    CHECK_OK(hoplite_refs_release(&refs));
    CHECK_OK(hoplite_lost_async(client, sum.text, LIMIT, &p));
    CHECK_OK(hoplite_pending_take_refs(p, &refs));
    CHECK(refs.count == 0);
    CHECK_OK(hoplite_refs_release(&refs));

    CHECK_OK(hoplite_wait_async(client, names, 2, 1, LIMIT, &p));
    CHECK_OK(hoplite_pending_take_ready(p, ready, 2, &count));
    CHECK(count == 1 && ready[0] == 0);
    CHECK_OK(hoplite_latest_async(client, "a/", 0, LIMIT, &p));
    CHECK_OK(hoplite_pending_take_ref(p, &ref));
    CHECK(strcmp(ref.text, "a/1") == 0);
    CHECK_OK(hoplite_reserve_async(client, NULL, LIMIT, &p));
    CHECK_OK(hoplite_pending_take_ref(p, &ref));
    CHECK_OK(hoplite_reserve_async(client, "mine", LIMIT, &p));
    CHECK_OK(hoplite_pending_take_ref(p, &ref));
    CHECK(strcmp(ref.text, "mine") == 0);
    CHECK_OK(hoplite_slots_async(client, 2, LIMIT, &p));
    CHECK_OK(hoplite_pending_take_refs(p, &refs));
    CHECK(refs.count == 2 && strcmp(refs.items[0], refs.items[1]) != 0);
    CHECK_OK(hoplite_refs_release(&refs));
    CHECK_OK(hoplite_lease_acquire_async(client, "a/1", LIMIT, &p));
    CHECK_OK(hoplite_pending_take_lease(p, &lease));
    CHECK_OK(hoplite_lease_release(lease));
    CHECK_OK(hoplite_get_locations_async(client, "a/1", LIMIT, &p));
    CHECK_OK(hoplite_pending_take_locations(p, &locations));
    CHECK(locations.count == 1 && locations.items[0].complete);
    CHECK_OK(hoplite_locations_release(&locations));
    CHECK_OK(hoplite_status_async(client, LIMIT, &p));
    CHECK_OK(hoplite_pending_take_text(p, &text));
    CHECK(text.text[0] == '{');
    CHECK_OK(hoplite_text_release(&text));
    CHECK_OK(hoplite_delete_async(client, names, 1, LIMIT, &p));
    CHECK_OK(hoplite_pending_take_done(p));
}

static void callbacks(hoplite_client client) {
    struct called called = {.count = 0};
    hoplite_pending p;
    CHECK(sem_init(&called.done, 0, 0) == 0);

    CHECK_OK(hoplite_get_async(client, "later", NULL, LIMIT, &p));
    CHECK_CODE(hoplite_pending_wait(p, 0), HOPLITE_TIMEOUT);
    CHECK_OK(hoplite_pending_on_done(p, take, &called));
    CHECK_ERROR(hoplite_pending_on_done(p, take, &called), HOPLITE_INVALID_ARGUMENT, "callback");
    put_text(client, "later", "text");
    await(&called);
    CHECK(called.code == HOPLITE_OK && called.count == 1 && called.pending.id == p.id);
    CHECK_CODE(hoplite_pending_wait(p, 0), HOPLITE_INVALID_HANDLE);

    CHECK_OK(hoplite_get_async(client, "missing", NULL, 0, &p));
    CHECK_OK(hoplite_pending_wait(p, LIMIT));
    CHECK_OK(hoplite_pending_on_done(p, take, &called));
    await(&called);
    CHECK(called.code == HOPLITE_TIMEOUT && called.count == 2);

    CHECK_OK(hoplite_get_async(client, "never", NULL, HOPLITE_NO_TIMEOUT, &p));
    CHECK_OK(hoplite_pending_on_done(p, note, &called));
    CHECK_OK(hoplite_pending_cancel(p));
    await(&called);
    CHECK(called.pending.id == 0 && called.count == 3);

    CHECK_OK(hoplite_status_async(client, LIMIT, &p));
    CHECK_OK(hoplite_pending_on_done(p, cancel, &called));
    await(&called);
    CHECK(called.count == 4);
    CHECK(sem_destroy(&called.done) == 0);
}

static short poll_once(int fd, int limit) {
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    CHECK(poll(&polled, 1, limit) >= 0);
    return polled.revents;
}

static void queues(hoplite_client client) {
    hoplite_view view = HOPLITE_INIT(hoplite_view);
    hoplite_pending first, second, cancelled, next;
    hoplite_queue queue;
    int fd = -1, tags[3];
    void *user = NULL;

    CHECK_OK(hoplite_queue_new(&queue));
    CHECK_OK(hoplite_queue_fd(queue, &fd));
    CHECK_CODE(hoplite_queue_next(queue, &next, &user), HOPLITE_NOT_READY);
    CHECK_OK(hoplite_get_async(client, "queued/1", NULL, LIMIT, &first));
    CHECK_OK(hoplite_get_async(client, "queued/2", NULL, LIMIT, &second));
    CHECK_OK(hoplite_get_async(client, "queued/3", NULL, LIMIT, &cancelled));
    CHECK_OK(hoplite_pending_enqueue(first, queue, &tags[0]));
    CHECK_OK(hoplite_pending_enqueue(second, queue, &tags[1]));
    CHECK_OK(hoplite_pending_enqueue(cancelled, queue, &tags[2]));
    CHECK_ERROR(hoplite_pending_enqueue(first, queue, NULL), HOPLITE_INVALID_ARGUMENT, "queue");
    CHECK(poll_once(fd, 0) == 0);

    put_text(client, "queued/2", "text");
    CHECK(poll_once(fd, (int)LIMIT * 1000) == POLLIN);
    CHECK_OK(hoplite_queue_next(queue, &next, &user));
    CHECK(next.id == second.id && user == &tags[1]);
    CHECK_OK(hoplite_pending_take_view(next, &view));
    CHECK_OK(hoplite_view_release(&view));
    CHECK(poll_once(fd, 0) == 0);

    CHECK_OK(hoplite_pending_cancel(cancelled));
    put_text(client, "queued/1", "text");
    CHECK_OK(hoplite_pending_wait(first, LIMIT));
    do {
        CHECK(poll_once(fd, (int)LIMIT * 1000) == POLLIN);
    } while (hoplite_queue_next(queue, &next, NULL) == HOPLITE_NOT_READY);
    CHECK(next.id == first.id);
    CHECK_OK(hoplite_queue_close(queue));
    CHECK_OK(hoplite_pending_take_view(next, &view));
    CHECK_OK(hoplite_view_release(&view));
}

/** After a cancellation the library does not use the memory, and a put leaves no object. */
static void cancellations(hoplite_client client) {
    const size_t nbytes = 8 << 20;
    char *memory = malloc(nbytes);
    hoplite_pending p;
    CHECK(memory != NULL);
    for (int i = 0; i < 50; i++) {
        hoplite_array value = {.data = memory, .nbytes = nbytes};
        memset(memory, i, nbytes);
        CHECK_OK(hoplite_put_async(client, &value, NULL, LIMIT, &p));
        CHECK_OK(hoplite_pending_cancel(p));
        CHECK_OK(hoplite_get_into_async(client, "never", memory, nbytes, NULL, 0, NULL, LIMIT, &p));
        CHECK_OK(hoplite_pending_cancel(p));
    }
    free(memory);
}

int main(void) {
    hoplite_node node = start_node("asynchronous.sock");
    hoplite_client client = open_client(node);
    hoplite_client other = open_client(node);
    hoplite_view view = HOPLITE_INIT(hoplite_view);
    hoplite_pending p;

    results(client);
    callbacks(client);
    queues(client);
    cancellations(client);

    CHECK_OK(hoplite_get_async(other, "never", NULL, LIMIT, &p));
    CHECK_OK(hoplite_client_close(other));
    CHECK_CODE(hoplite_pending_take_view(p, &view), HOPLITE_CLIENT_CLOSED);
    CHECK_OK(hoplite_get_async(client, "never", NULL, LIMIT, &p));
    CHECK_OK(hoplite_node_close(node, 0, NULL));
    CHECK_CODE(hoplite_pending_take_view(p, &view), HOPLITE_NODE_DOWN);
    CHECK_OK(hoplite_client_close(client));
    return 0;
}
