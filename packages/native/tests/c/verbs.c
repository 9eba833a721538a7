/**
 * Every blocking function, with valid arguments.
 */
#define _POSIX_C_SOURCE 200809L

#include "check.h"

static void objects(hoplite_client client) {
    const int32_t numbers[6] = {1, 2, 3, 4, 5, 6};
    const uint64_t shape[2] = {3, 2};
    hoplite_array value = {.data = numbers, .nbytes = sizeof numbers, .dtype = "int32", .ndim = 2,
                           .shape = shape};
    hoplite_put_options put = HOPLITE_INIT(hoplite_put_options);
    hoplite_view view = HOPLITE_INIT(hoplite_view);
    hoplite_get_options part = HOPLITE_INIT(hoplite_get_options);
    hoplite_ref ref;
    int32_t copy[6] = {0};
    uint64_t copied = 0;

    put.name = "numbers/1";
    put.ttl = 3600;
    CHECK_OK(hoplite_put(client, &value, &put, LIMIT, &ref));
    CHECK(strcmp(ref.text, "numbers/1") == 0);
    CHECK(ref.replicas == 1);
    put.exist_ok = true;
    CHECK_OK(hoplite_put(client, &value, &put, LIMIT, &ref));

    CHECK_OK(hoplite_get(client, "numbers/1", NULL, LIMIT, &view));
    CHECK(view.id != 0);
    CHECK(view.nbytes == sizeof numbers);
    CHECK(view.ndim == 2 && view.shape[0] == 3 && view.shape[1] == 2);
    CHECK(strcmp(view.dtype, "int32") == 0);
    CHECK(strcmp(view.form, "plain") == 0);
    CHECK((uintptr_t)view.data % 64 == 0);
    CHECK(memcmp(view.data, numbers, sizeof numbers) == 0);
    CHECK_OK(hoplite_view_release(&view));
    CHECK(view.id == 0);

    part.has_start = true;
    part.start = -1;
    CHECK_OK(hoplite_get(client, "numbers/1", &part, LIMIT, &view));
    CHECK(view.shape[0] == 1 && ((const int32_t *)view.data)[0] == 5);
    CHECK_OK(hoplite_view_release(&view));

    CHECK_OK(hoplite_get_into(client, "numbers/1", copy, sizeof copy, "int32", 2, shape, LIMIT, &copied));
    CHECK(copied == sizeof copy && memcmp(copy, numbers, sizeof copy) == 0);
    CHECK_OK(hoplite_get_into(client, "numbers/1", copy, sizeof copy, NULL, 0, NULL, LIMIT, NULL));

    CHECK_OK(hoplite_latest(client, "numbers/", -1, LIMIT, &ref));
    CHECK(strcmp(ref.text, "numbers/1") == 0);
    CHECK(ref.replicas == 0);
}

static void scalars_and_empty_objects(hoplite_client client) {
    const double pi = 3.25;
    hoplite_array scalar = {.data = &pi, .nbytes = sizeof pi, .dtype = "float64"};
    hoplite_array empty = {.dtype = "bytes"};
    hoplite_view view = HOPLITE_INIT(hoplite_view);
    hoplite_ref ref;

    CHECK_OK(hoplite_put(client, &scalar, NULL, LIMIT, &ref));
    CHECK_OK(hoplite_get(client, ref.text, NULL, LIMIT, &view));
    CHECK(view.ndim == 0 && *(const double *)view.data == 3.25);
    CHECK_OK(hoplite_view_release(&view));
    CHECK_OK(hoplite_put(client, &empty, NULL, LIMIT, &ref));
    CHECK_OK(hoplite_get(client, ref.text, NULL, LIMIT, &view));
    CHECK(view.nbytes == 0 && strcmp(view.dtype, "bytes") == 0);
    CHECK_OK(hoplite_view_release(&view));
    CHECK_OK(hoplite_get_into(client, ref.text, NULL, 0, NULL, 0, NULL, LIMIT, NULL));
}

static void buffers(hoplite_client client) {
    const uint64_t lengths[2] = {16, 1 << 20};
    for (int i = 0; i < 2; i++) {
        hoplite_create_options options = HOPLITE_INIT(hoplite_create_options);
        hoplite_buffer buffer = HOPLITE_INIT(hoplite_buffer);
        hoplite_view view = HOPLITE_INIT(hoplite_view);
        hoplite_code code;
        hoplite_ref ref;
        options.replicas = 1;
        CHECK_OK(hoplite_create(client, "uint8", 1, &lengths[i], &options, LIMIT, &buffer));
        CHECK(buffer.nbytes == lengths[i] && (uintptr_t)buffer.data % 64 == 0);
        memset(buffer.data, 7, lengths[i]);
        CHECK_OK(hoplite_seal(&buffer, LIMIT, &ref));
        CHECK(buffer.id == 0 && strcmp(buffer.ref.text, ref.text) == 0);
        CHECK_OK(hoplite_get(client, ref.text, NULL, LIMIT, &view));
        CHECK(((const uint8_t *)view.data)[lengths[i] - 1] == 7);
        CHECK_OK(hoplite_view_release(&view));

        CHECK_OK(hoplite_create(client, NULL, 1, &lengths[i], NULL, LIMIT, &buffer));
        CHECK_OK(hoplite_discard(&buffer));
        CHECK(buffer.id == 0);
        code = hoplite_get(client, buffer.ref.text, NULL, LIMIT, &view);
        CHECK(code == HOPLITE_OBJECT_LOST || code == HOPLITE_OBJECT_DELETED);
    }
}

static void reduces(hoplite_client client) {
    const float first[2] = {1, 2}, second[2] = {10, 20};
    hoplite_reduce_options options = HOPLITE_INIT(hoplite_reduce_options);
    hoplite_view view = HOPLITE_INIT(hoplite_view);
    hoplite_refs refs = HOPLITE_INIT(hoplite_refs);
    hoplite_ref a, b, reserved, sum;
    const char *inputs[3];
    size_t ready[3], count = 0;

    put_floats(client, first, 2, &a);
    put_floats(client, second, 2, &b);
    CHECK_OK(hoplite_reserve(client, NULL, LIMIT, &reserved));
    inputs[0] = a.text, inputs[1] = b.text, inputs[2] = reserved.text;
    options.count = 2;
    options.name = "sum";
    CHECK_OK(hoplite_reduce(client, inputs, 3, "sum", &options, LIMIT, &sum));
    CHECK_OK(hoplite_get(client, sum.text, NULL, LIMIT, &view));
    CHECK(((const float *)view.data)[1] == 22);
    CHECK_OK(hoplite_view_release(&view));

    CHECK_OK(hoplite_inputs(client, sum.text, LIMIT, &refs));
    CHECK(refs.count == 2 && strcmp(refs.items[0], refs.items[1]) != 0);
    CHECK_OK(hoplite_refs_release(&refs));
    CHECK_OK(hoplite_lost(client, sum.text, LIMIT, &refs));
    CHECK(refs.count == 0);
    CHECK_OK(hoplite_refs_release(&refs));

    CHECK_OK(hoplite_wait(client, inputs, 3, 3, 0, ready, &count));
    CHECK(count == 2 && ready[0] + ready[1] == 1);
    CHECK_OK(hoplite_wait(client, NULL, 0, 0, 0, NULL, &count));
    CHECK(count == 0);
}

/** A name that a client reserved is lost with the client; others can then put it. */
static void names(hoplite_node node, hoplite_client client) {
    hoplite_client producer = open_client(node);
    hoplite_view view = HOPLITE_INIT(hoplite_view);
    hoplite_pending get;
    hoplite_ref ref;

    CHECK_OK(hoplite_reserve(producer, "grad/1", LIMIT, &ref));
    CHECK(strcmp(ref.text, "grad/1") == 0);
    CHECK_ERROR(hoplite_reserve(client, "grad/1", LIMIT, &ref), HOPLITE_NAME_TAKEN, "grad/1");
    CHECK_OK(hoplite_get_async(client, "grad/1", NULL, LIMIT, &get));
    CHECK_OK(hoplite_client_close(producer));
    CHECK_ERROR(hoplite_pending_take_view(get, &view), HOPLITE_OBJECT_LOST, "grad/1");
    put_text(client, "grad/1", "text");
    CHECK_ERROR(hoplite_reserve(client, "grad/1", LIMIT, &ref), HOPLITE_NAME_TAKEN, "grad/1");
}

/** Another client fills a slot, once. One that is not filled is lost with the client that made it. */
static void slots(hoplite_node node, hoplite_client client) {
    hoplite_client caller = open_client(node);
    hoplite_array value = {.data = "text", .nbytes = 4};
    hoplite_put_options options = HOPLITE_INIT(hoplite_put_options);
    hoplite_refs refs = HOPLITE_INIT(hoplite_refs);
    hoplite_view view = HOPLITE_INIT(hoplite_view);
    hoplite_ref ref;

    CHECK_OK(hoplite_slots(caller, 3, LIMIT, &refs));
    CHECK(refs.count == 3 && strcmp(refs.items[1], refs.items[2]) != 0);
    options.name = refs.items[0];
    CHECK_OK(hoplite_put(client, &value, &options, LIMIT, &ref));
    CHECK(strcmp(ref.text, refs.items[0]) == 0);
    CHECK_CODE(hoplite_put(client, &value, &options, LIMIT, &ref), HOPLITE_NAME_TAKEN);
    CHECK_OK(hoplite_get(caller, refs.items[0], NULL, LIMIT, &view));
    CHECK(view.nbytes == 4 && memcmp(view.data, "text", 4) == 0);
    CHECK_OK(hoplite_view_release(&view));
    CHECK_OK(hoplite_client_close(caller));
    CHECK_CODE(hoplite_get(client, refs.items[1], NULL, LIMIT, &view), HOPLITE_OBJECT_LOST);
    options.name = refs.items[2];
    CHECK_CODE(hoplite_put(client, &value, &options, LIMIT, &ref), HOPLITE_OBJECT_LOST);
    CHECK_OK(hoplite_refs_release(&refs));
}

/** A call with HOPLITE_DEFAULT_TIMEOUT has the timeout of its client, or else that of the environment. */
static void default_timeouts(hoplite_node node) {
    hoplite_client_options options = HOPLITE_INIT(hoplite_client_options);
    hoplite_view view = HOPLITE_INIT(hoplite_view);
    hoplite_client client, unlimited;
    hoplite_pending get;
    const char *never[1] = {"never"};
    size_t ready[1], count;

    options.default_timeout = 0.01;
    CHECK_OK(hoplite_node_client(node, &options, &client));
    CHECK_ERROR(hoplite_get(client, "never", NULL, HOPLITE_DEFAULT_TIMEOUT, &view), HOPLITE_TIMEOUT, "0.01");
    CHECK_OK(hoplite_wait(client, never, 1, 1, HOPLITE_DEFAULT_TIMEOUT, ready, &count));
    CHECK(count == 0);
    CHECK_OK(hoplite_get_async(client, "never", NULL, HOPLITE_DEFAULT_TIMEOUT, &get));
    CHECK_CODE(hoplite_pending_take_view(get, &view), HOPLITE_TIMEOUT);
    CHECK_OK(hoplite_client_close(client));

    CHECK(setenv("HOPLITE_TIMEOUT", "0.02", 1) == 0);
    CHECK_OK(hoplite_node_client(node, NULL, &client));
    options.default_timeout = HOPLITE_NO_TIMEOUT;
    CHECK_OK(hoplite_node_client(node, &options, &unlimited));
    CHECK(unsetenv("HOPLITE_TIMEOUT") == 0);
    CHECK_OK(hoplite_get_async(unlimited, "never", NULL, HOPLITE_DEFAULT_TIMEOUT, &get));
    CHECK_ERROR(hoplite_get(client, "never", NULL, HOPLITE_DEFAULT_TIMEOUT, &view), HOPLITE_TIMEOUT, "0.02");
    CHECK_CODE(hoplite_pending_wait(get, 0.05), HOPLITE_TIMEOUT);
    CHECK_OK(hoplite_pending_cancel(get));
    CHECK_OK(hoplite_client_close(client));
    CHECK_OK(hoplite_client_close(unlimited));

    options.default_timeout = -2;
    CHECK_ERROR(hoplite_node_client(node, &options, &client), HOPLITE_INVALID_ARGUMENT, "default_timeout is -2");
    CHECK_ERROR(hoplite_init(NULL, NULL, HOPLITE_DEFAULT_TIMEOUT, &client), HOPLITE_INVALID_ARGUMENT,
                "HOPLITE_DEFAULT_TIMEOUT");
}

static void lives(hoplite_client client) {
    hoplite_locations locations = HOPLITE_INIT(hoplite_locations);
    hoplite_view view = HOPLITE_INIT(hoplite_view);
    hoplite_text status = HOPLITE_INIT(hoplite_text);
    hoplite_lease lease = {0};
    const char *names[1] = {"leased"};

    CHECK_OK(hoplite_lease_acquire(client, "leased", LIMIT, &lease));
    put_text(client, "leased", "text");
    CHECK_OK(hoplite_get_locations(client, "leased", LIMIT, &locations));
    CHECK(locations.count == 1 && locations.items[0].complete);
    CHECK(locations.items[0].node[0] != '\0' && locations.items[0].address == NULL);
    CHECK_OK(hoplite_locations_release(&locations));
    CHECK_OK(hoplite_get(client, "leased", NULL, LIMIT, &view));
    CHECK_OK(hoplite_delete(client, names, 1, LIMIT));
    CHECK(memcmp(view.data, "text", 4) == 0);
    CHECK_OK(hoplite_view_release(&view));
    CHECK_OK(hoplite_delete(client, NULL, 0, LIMIT));
    CHECK_OK(hoplite_lease_release(lease));

    CHECK_OK(hoplite_status(client, LIMIT, &status));
    CHECK(status.length == strlen(status.text) && status.text[0] == '{');
    CHECK_OK(hoplite_text_release(&status));
}

int main(void) {
    const char *socket = "./verbs.sock";
    hoplite_node node = start_node(socket);
    hoplite_client client = open_client(node), other = {0};
    hoplite_node_info info = HOPLITE_INIT(hoplite_node_info);
    hoplite_client_options options = HOPLITE_INIT(hoplite_client_options);
    hoplite_view view = HOPLITE_INIT(hoplite_view);
    bool complete = false;

    CHECK(strcmp(hoplite_version(), HOPLITE_VERSION) == 0);
    CHECK(strcmp(hoplite_code_name(HOPLITE_TIMEOUT), "HOPLITE_TIMEOUT") == 0);
    CHECK(strcmp(hoplite_code_name(98), "") == 0);
    CHECK_OK(hoplite_node_get_info(node, &info));
    CHECK(info.id[0] != '\0' && info.address == NULL && strstr(info.socket, socket) != NULL);
    CHECK(!info.closed && info.failure == NULL);

    objects(client);
    scalars_and_empty_objects(client);
    buffers(client);
    reduces(client);
    lives(client);
    names(node, client);
    slots(node, client);
    default_timeouts(node);

    options.job = "job";
    options.digest = true;
    CHECK_OK(hoplite_connect(info.socket, &options, LIMIT, &other));
    put_text(other, "of the other", "text");
    CHECK_OK(hoplite_get(client, "of the other", NULL, LIMIT, &view));
    CHECK_OK(hoplite_client_close(other));
    CHECK_OK(hoplite_init("unix:./verbs.sock", NULL, LIMIT, &other));
    CHECK_OK(hoplite_client_close(other));

    CHECK_OK(hoplite_node_close(node, 0, &complete));
    CHECK(complete);
    CHECK(memcmp(view.data, "text", 4) == 0);
    CHECK_OK(hoplite_view_release(&view));
    CHECK_CODE(hoplite_get(client, "sum", NULL, LIMIT, &view), HOPLITE_NODE_DOWN);
    CHECK_OK(hoplite_client_close(client));
    return 0;
}
