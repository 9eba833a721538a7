/**
 * Wrong arguments: each is an error with a message, and harms nothing.
 */
#include "check.h"

#include <math.h>
#include <stddef.h>

static void null_pointers(hoplite_node node, hoplite_client client) {
    const uint64_t shape[1] = {4};
    hoplite_array value = {.data = "text", .nbytes = 4};
    hoplite_array broken = {.nbytes = 4};
    const char *refs[2] = {"a", NULL};
    hoplite_view view = HOPLITE_INIT(hoplite_view);
    hoplite_pending pending;
    hoplite_ref ref;
    size_t ready[2], count;

    CHECK_ERROR(hoplite_node_start(NULL, NULL), HOPLITE_INVALID_ARGUMENT, "node is NULL");
    CHECK_ERROR(hoplite_node_get_info(node, NULL), HOPLITE_INVALID_ARGUMENT, "info is NULL");
    CHECK_ERROR(hoplite_node_client(node, NULL, NULL), HOPLITE_INVALID_ARGUMENT, "client is NULL");
    CHECK_ERROR(hoplite_connect(NULL, NULL, 1, &client), HOPLITE_INVALID_ARGUMENT, "address is NULL");
    CHECK_ERROR(hoplite_init(NULL, NULL, 1, NULL), HOPLITE_INVALID_ARGUMENT, "client is NULL");
    CHECK_ERROR(hoplite_put(client, NULL, NULL, 1, &ref), HOPLITE_INVALID_ARGUMENT, "value is NULL");
    CHECK_ERROR(hoplite_put(client, &value, NULL, 1, NULL), HOPLITE_INVALID_ARGUMENT, "ref is NULL");
    CHECK_ERROR(hoplite_put(client, &broken, NULL, 1, &ref), HOPLITE_INVALID_ARGUMENT,
                "value->data is NULL");
    broken.data = "text", broken.dtype = "float32", broken.ndim = 1;
    CHECK_ERROR(hoplite_put(client, &broken, NULL, 1, &ref), HOPLITE_INVALID_ARGUMENT,
                "value->shape is NULL");
    CHECK_ERROR(hoplite_create(client, "int8", 1, shape, NULL, 1, NULL), HOPLITE_INVALID_ARGUMENT,
                "buffer is NULL");
    CHECK_ERROR(hoplite_seal(NULL, 1, &ref), HOPLITE_INVALID_ARGUMENT, "buffer is NULL");
    CHECK_ERROR(hoplite_discard(NULL), HOPLITE_INVALID_ARGUMENT, "buffer is NULL");
    CHECK_ERROR(hoplite_get(client, NULL, NULL, 1, &view), HOPLITE_INVALID_ARGUMENT, "ref is NULL");
    CHECK_ERROR(hoplite_get(client, "a", NULL, 1, NULL), HOPLITE_INVALID_ARGUMENT, "view is NULL");
    CHECK_ERROR(hoplite_view_release(NULL), HOPLITE_INVALID_ARGUMENT, "view is NULL");
    CHECK_ERROR(hoplite_get_into(client, "a", NULL, 4, NULL, 0, NULL, 1, NULL),
                HOPLITE_INVALID_ARGUMENT, "out is NULL");
    CHECK_ERROR(hoplite_wait(client, refs, 2, 1, 1, ready, &count), HOPLITE_INVALID_ARGUMENT,
                "refs[1] is NULL");
    CHECK_ERROR(hoplite_wait(client, NULL, 2, 1, 1, ready, &count), HOPLITE_INVALID_ARGUMENT,
                "refs is NULL");
    CHECK_ERROR(hoplite_wait(client, refs, 1, 1, 1, ready, NULL), HOPLITE_INVALID_ARGUMENT,
                "ready_count is NULL");
    CHECK_ERROR(hoplite_reduce(client, refs, 1, NULL, NULL, 1, &ref), HOPLITE_INVALID_ARGUMENT,
                "op is NULL");
    CHECK_ERROR(hoplite_inputs(client, "a", 1, NULL), HOPLITE_INVALID_ARGUMENT, "refs is NULL");
    CHECK_ERROR(hoplite_latest(client, NULL, -1, 1, &ref), HOPLITE_INVALID_ARGUMENT, "prefix is NULL");
    CHECK_ERROR(hoplite_lease_acquire(client, "a", 1, NULL), HOPLITE_INVALID_ARGUMENT, "lease is NULL");
    CHECK_ERROR(hoplite_get_locations(client, "a", 1, NULL), HOPLITE_INVALID_ARGUMENT,
                "locations is NULL");
    CHECK_ERROR(hoplite_status(client, 1, NULL), HOPLITE_INVALID_ARGUMENT, "text is NULL");
    CHECK_ERROR(hoplite_status_async(client, 1, NULL), HOPLITE_INVALID_ARGUMENT, "pending is NULL");
    CHECK_OK(hoplite_status_async(client, 1, &pending));
    CHECK_ERROR(hoplite_pending_on_done(pending, NULL, NULL), HOPLITE_INVALID_ARGUMENT,
                "callback is NULL");
    CHECK_OK(hoplite_pending_cancel(pending));
    CHECK_ERROR(hoplite_queue_new(NULL), HOPLITE_INVALID_ARGUMENT, "queue is NULL");
}

static void handles(hoplite_node node, hoplite_client client) {
    const hoplite_client foreign = {node.id}, never = {12345};
    hoplite_view view = HOPLITE_INIT(hoplite_view), copy;
    hoplite_client closed = open_client(node);
    hoplite_queue queue;
    hoplite_text text = HOPLITE_INIT(hoplite_text);

    CHECK_ERROR(hoplite_status(foreign, 1, &text), HOPLITE_INVALID_HANDLE, "is a hoplite_node handle");
    CHECK_ERROR(hoplite_status(never, 1, &text), HOPLITE_INVALID_HANDLE, "is not a handle");
    CHECK_ERROR(hoplite_status((hoplite_client){0}, 1, &text), HOPLITE_INVALID_HANDLE, "handle is 0");
    CHECK_OK(hoplite_client_close(closed));
    CHECK_ERROR(hoplite_status(closed, 1, &text), HOPLITE_CLIENT_CLOSED, "was closed");
    CHECK_ERROR(hoplite_client_close(closed), HOPLITE_INVALID_HANDLE, "stale");

    put_text(client, "twice", "text");
    CHECK_OK(hoplite_get(client, "twice", NULL, 1, &view));
    copy = view;
    CHECK_OK(hoplite_view_release(&view));
    CHECK_ERROR(hoplite_view_release(&view), HOPLITE_INVALID_HANDLE, "handle is 0");
    CHECK_ERROR(hoplite_view_release(&copy), HOPLITE_INVALID_HANDLE, "hoplite_view handle");
    CHECK_ERROR(hoplite_text_release(&text), HOPLITE_INVALID_HANDLE, "hoplite_text");
    CHECK_OK(hoplite_queue_new(&queue));
    CHECK_OK(hoplite_queue_close(queue));
    CHECK_ERROR(hoplite_queue_close(queue), HOPLITE_INVALID_HANDLE, "hoplite_queue");
    CHECK_ERROR(hoplite_pending_wait((hoplite_pending){queue.id}, 0), HOPLITE_INVALID_HANDLE,
                "pass a hoplite_pending handle");
    CHECK_ERROR(hoplite_lease_release((hoplite_lease){0}), HOPLITE_INVALID_HANDLE, "hoplite_lease");
}

/** Programs that were compiled with an older or a newer header. */
static void sizes(hoplite_client client) {
    struct {
        hoplite_put_options known;
        uint64_t later;
    } newer = {.known = {.size = sizeof newer, .name = "newer"}};
    struct {
        hoplite_view known;
        uint64_t later;
    } large = {.known = {.size = sizeof large}, .later = 7};
    hoplite_put_options options = {.size = offsetof(hoplite_put_options, retain), .name = "older"};
    hoplite_array value = {.data = "text", .nbytes = 4};
    hoplite_view view = {0};
    hoplite_ref ref;

    options.retain = 99;
    CHECK_OK(hoplite_put(client, &value, &options, 1, &ref));
    options.size = sizeof options;
    CHECK_ERROR(hoplite_put(client, &value, &options, 1, &ref), HOPLITE_INVALID_ARGUMENT, "retain");
    options.size = 0;
    CHECK_ERROR(hoplite_put(client, &value, &options, 1, &ref), HOPLITE_INVALID_ARGUMENT,
                "HOPLITE_INIT(hoplite_put_options)");
    options.size = SIZE_MAX;
    CHECK_ERROR(hoplite_put(client, &value, &options, 1, &ref), HOPLITE_INVALID_ARGUMENT, "too large");
    CHECK_OK(hoplite_put(client, &value, &newer.known, 1, &ref));
    newer.later = 1;
    CHECK_ERROR(hoplite_put(client, &value, &newer.known, 1, &ref), HOPLITE_INVALID_ARGUMENT,
                "update the library");

    CHECK_ERROR(hoplite_get(client, "older", NULL, 1, &view), HOPLITE_INVALID_ARGUMENT,
                "HOPLITE_INIT(hoplite_view)");
    view.size = SIZE_MAX / 3;
    CHECK_ERROR(hoplite_get(client, "older", NULL, 1, &view), HOPLITE_INVALID_ARGUMENT, "too large");
    CHECK_OK(hoplite_get(client, "older", NULL, 1, &large.known));
    CHECK(large.later == 0 && large.known.size == sizeof large && large.known.nbytes == 4);
    CHECK_OK(hoplite_view_release(&large.known));
}

static void values(hoplite_client client) {
    const uint64_t shape[2] = {2, 3}, huge[2] = {UINT64_MAX, 2};
    const float elements[6] = {0};
    hoplite_array value = {.data = elements, .nbytes = sizeof elements, .dtype = "float32", .ndim = 2,
                           .shape = shape};
    hoplite_put_options options = HOPLITE_INIT(hoplite_put_options);
    hoplite_buffer buffer = HOPLITE_INIT(hoplite_buffer);
    hoplite_view view = HOPLITE_INIT(hoplite_view);
    hoplite_get_options part = HOPLITE_INIT(hoplite_get_options);
    const char *same[2] = {"a", "a"};
    float out[6];
    size_t ready[2], count;
    hoplite_ref ref;

    options.name = "matrix";
    CHECK_OK(hoplite_put(client, &value, &options, 1, &ref));
    CHECK_ERROR(hoplite_put(client, &value, &options, 1, &ref), HOPLITE_NAME_TAKEN, "matrix");
    options.name = "\xff";
    CHECK_ERROR(hoplite_put(client, &value, &options, 1, &ref), HOPLITE_INVALID_ARGUMENT, "UTF-8");
    options.name = "";
    CHECK_CODE(hoplite_put(client, &value, &options, 1, &ref), HOPLITE_INVALID_ARGUMENT);
    options.name = NULL, options.ttl = -1;
    CHECK_ERROR(hoplite_put(client, &value, &options, 1, &ref), HOPLITE_INVALID_ARGUMENT, "ttl");
    value.nbytes = 20;
    CHECK_ERROR(hoplite_put(client, &value, NULL, 1, &ref), HOPLITE_INVALID_ARGUMENT, "20 bytes");
    value.nbytes = UINT64_MAX;
    CHECK_ERROR(hoplite_put(client, &value, NULL, 1, &ref), HOPLITE_INVALID_ARGUMENT, "value->nbytes");
    value.nbytes = 24, value.dtype = "float33";
    CHECK_ERROR(hoplite_put(client, &value, NULL, 1, &ref), HOPLITE_UNSUPPORTED_DTYPE, "float33");
    value.dtype = NULL;
    CHECK_ERROR(hoplite_put(client, &value, NULL, 1, &ref), HOPLITE_INVALID_ARGUMENT,
                "bytes can't have the shape [2, 3]");

    CHECK_ERROR(hoplite_create(client, "bytes", 1, (uint64_t[]){1ull << 62}, NULL, 1, &buffer),
                HOPLITE_INVALID_ARGUMENT, "use at most 1099511627776");
    CHECK_CODE(hoplite_create(client, "int8", 2, huge, NULL, 1, &buffer), HOPLITE_INVALID_ARGUMENT);
    CHECK_CODE(hoplite_create(client, "bytes", 2, shape, NULL, 1, &buffer), HOPLITE_INVALID_ARGUMENT);
    CHECK_CODE(hoplite_create(client, "int8", 1, (uint64_t[]){1ull << 40}, NULL, 0, &buffer),
               HOPLITE_STORE_FULL);

    CHECK_ERROR(hoplite_get(client, "matrix", NULL, -1, &view), HOPLITE_INVALID_ARGUMENT, "timeout");
    CHECK_ERROR(hoplite_get(client, "matrix", NULL, NAN, &view), HOPLITE_INVALID_ARGUMENT, "timeout");
    CHECK_ERROR(hoplite_get(client, "missing", NULL, 0, &view), HOPLITE_TIMEOUT, "missing");
    CHECK_OK(hoplite_get(client, "matrix", NULL, 1e300, &view));
    CHECK_OK(hoplite_view_release(&view));
    CHECK_OK(hoplite_get(client, "matrix", &part, HOPLITE_NO_TIMEOUT, &view));
    CHECK_OK(hoplite_view_release(&view));
    CHECK_ERROR(hoplite_get_into(client, "matrix", out, 20, NULL, 0, NULL, 1, NULL),
                HOPLITE_SHAPE_MISMATCH, "24 bytes");
    CHECK_ERROR(hoplite_get_into(client, "matrix", out, sizeof out, "int32", 2, shape, 1, NULL),
                HOPLITE_SHAPE_MISMATCH, "float32");
    CHECK_ERROR(hoplite_get_into(client, "matrix", out, sizeof out, "float32", 1, shape, 1, NULL),
                HOPLITE_SHAPE_MISMATCH, "[2, 3]");

    CHECK_ERROR(hoplite_wait(client, same, 2, 1, 0, ready, &count), HOPLITE_INVALID_ARGUMENT, "twice");
    CHECK_ERROR(hoplite_wait(client, same, 1, 2, 0, ready, &count), HOPLITE_INVALID_ARGUMENT, "count");
    CHECK_ERROR(hoplite_reduce(client, same, 1, "median", NULL, 1, &ref), HOPLITE_UNKNOWN_OP, "median");
    CHECK_CODE(hoplite_reduce(client, NULL, 0, "sum", NULL, 1, &ref), HOPLITE_INVALID_ARGUMENT);
    CHECK_ERROR(hoplite_latest(client, "matrix", -1, 0, &ref), HOPLITE_INVALID_ARGUMENT, "matrix/");
    CHECK_ERROR(hoplite_latest(client, "matrix/", -2, 0, &ref), HOPLITE_INVALID_ARGUMENT, "after");
    CHECK_CODE(hoplite_latest(client, "matrix/", 3, 0, &ref), HOPLITE_TIMEOUT);
}

static void nodes(void) {
    hoplite_node_options options = HOPLITE_INIT(hoplite_node_options);
    hoplite_client client;
    hoplite_node node;

    options.capacity = 5;
    CHECK_ERROR(hoplite_node_start(&options, &node), HOPLITE_INVALID_ARGUMENT, "capacity");
    options.capacity = 0, options.detection_timeout = NAN;
    CHECK_ERROR(hoplite_node_start(&options, &node), HOPLITE_INVALID_ARGUMENT, "detection_timeout");
    CHECK_ERROR(hoplite_connect("missing.sock", NULL, 0, &client), HOPLITE_INVALID_ARGUMENT, "missing.sock");
    CHECK_ERROR(hoplite_connect("unix:missing.sock", NULL, 0, &client), HOPLITE_CONNECT_ERROR,
                "missing.sock");
}

int main(void) {
    hoplite_node node = start_node("misuse.sock");
    hoplite_client client = open_client(node);

    null_pointers(node, client);
    handles(node, client);
    sizes(client);
    values(client);
    nodes();

    CHECK_OK(hoplite_client_close(client));
    CHECK_OK(hoplite_node_close(node, 0, NULL));
    CHECK_ERROR(hoplite_node_close(node, 0, NULL), HOPLITE_INVALID_HANDLE, "hoplite_node");
    return 0;
}
