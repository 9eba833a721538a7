#include "verbs.h"

#include <stdlib.h>
#include <string.h>

static result *started[SLOTS_MAX];
static size_t started_count;

hoplite_client client_of(const words *words) { return held.clients[words_int(words, "client", 0)]; }

double timeout_of(const words *words) { return words_real(words, "timeout", HOPLITE_NO_TIMEOUT); }

static char *copy_of(const char *text) {
    char *copy = text ? strdup(text) : NULL;
    require(text == NULL || copy != NULL, "no memory");
    return copy;
}

/* Each verb below makes the call, or starts it if `later` is not NULL. */

static hoplite_code put(const words *w, result *r, hoplite_pending *later) {
    uint64_t shape[AXES_MAX];
    hoplite_array array = {.dtype = words_text(w, "dtype"), .shape = shape};
    const char *text = words_text(w, "text");
    if (text != NULL) {
        array.nbytes = strlen(text);
        r->memory = copy_of(text);
    } else {
        r->memory = file_read(words_text(w, "data"), &array.nbytes);
    }
    array.data = r->memory;
    array.ndim = words_numbers(w, "shape", shape, AXES_MAX);
    hoplite_put_options options = HOPLITE_INIT(hoplite_put_options);
    options.name = words_text(w, "name");
    options.replicas = (uint32_t)words_size(w, "replicas", 0);
    options.retain = words_size(w, "retain", 0);
    options.ttl = words_real(w, "ttl", 0);
    options.exist_ok = words_flag(w, "exist_ok");
    options.newest = words_flag(w, "newest");
    r->kind = REF;
    return later ? hoplite_put_async(client_of(w), &array, &options, timeout_of(w), later)
                 : hoplite_put(client_of(w), &array, &options, timeout_of(w), &r->ref);
}

static hoplite_code create(const words *w, result *r, hoplite_pending *later) {
    uint64_t shape[AXES_MAX];
    uint32_t ndim = words_numbers(w, "shape", shape, AXES_MAX);
    hoplite_create_options options = HOPLITE_INIT(hoplite_create_options);
    options.name = words_text(w, "name");
    options.replicas = (uint32_t)words_size(w, "replicas", 0);
    options.ttl = words_real(w, "ttl", 0);
    r->kind = BUFFER;
    r->buffer = (hoplite_buffer)HOPLITE_INIT(hoplite_buffer);
    const char *dtype = words_text(w, "dtype");
    return later ? hoplite_create_async(client_of(w), dtype, ndim, shape, &options, timeout_of(w), later)
                 : hoplite_create(client_of(w), dtype, ndim, shape, &options, timeout_of(w), &r->buffer);
}

static hoplite_code seal(const words *w, result *r, hoplite_pending *later) {
    hoplite_buffer *buffer = &held.buffers[words_int(w, "buffer", 0)];
    r->kind = REF;
    return later ? hoplite_seal_async(buffer, timeout_of(w), later) : hoplite_seal(buffer, timeout_of(w), &r->ref);
}

static hoplite_code get(const words *w, result *r, hoplite_pending *later) {
    hoplite_get_options options = HOPLITE_INIT(hoplite_get_options);
    options.has_start = words_text(w, "start") != NULL;
    options.has_stop = words_text(w, "stop") != NULL;
    options.start = words_int(w, "start", 0);
    options.stop = words_int(w, "stop", 0);
    r->kind = VIEW;
    r->view = (hoplite_view)HOPLITE_INIT(hoplite_view);
    r->path = copy_of(words_text(w, "to"));
    const char *ref = words_text(w, "ref");
    return later ? hoplite_get_async(client_of(w), ref, &options, timeout_of(w), later)
                 : hoplite_get(client_of(w), ref, &options, timeout_of(w), &r->view);
}

static hoplite_code get_into(const words *w, result *r, hoplite_pending *later) {
    uint64_t shape[AXES_MAX];
    uint32_t ndim = words_numbers(w, "shape", shape, AXES_MAX);
    r->nbytes = words_size(w, "nbytes", 0);
    r->memory = malloc(r->nbytes ? r->nbytes : 1);
    require(r->memory != NULL, "no memory");
    r->kind = SIZE;
    r->path = copy_of(words_text(w, "to"));
    const char *ref = words_text(w, "ref"), *dtype = words_text(w, "dtype");
    return later ? hoplite_get_into_async(client_of(w), ref, r->memory, r->nbytes, dtype, ndim, shape, timeout_of(w),
                                          later)
                 : hoplite_get_into(client_of(w), ref, r->memory, r->nbytes, dtype, ndim, shape, timeout_of(w),
                                    &r->copied);
}

static hoplite_code wait_for(const words *w, result *r, hoplite_pending *later) {
    word_list refs = words_items(w, "refs");
    size_t count = words_size(w, "count", refs.count);
    r->kind = READY;
    return later ? hoplite_wait_async(client_of(w), refs.items, refs.count, count, timeout_of(w), later)
                 : hoplite_wait(client_of(w), refs.items, refs.count, count, timeout_of(w), r->ready, &r->ready_count);
}

static hoplite_code reduce(const words *w, result *r, hoplite_pending *later) {
    word_list refs = words_items(w, "refs");
    hoplite_reduce_options options = HOPLITE_INIT(hoplite_reduce_options);
    options.count = (uint32_t)words_size(w, "count", 0);
    options.name = words_text(w, "name");
    options.ttl = words_real(w, "ttl", 0);
    const char *op = words_text(w, "op");
    r->kind = REF;
    return later ? hoplite_reduce_async(client_of(w), refs.items, refs.count, op, &options, timeout_of(w), later)
                 : hoplite_reduce(client_of(w), refs.items, refs.count, op, &options, timeout_of(w), &r->ref);
}

static hoplite_code inputs(const words *w, result *r, hoplite_pending *later) {
    r->kind = REFS;
    r->refs = (hoplite_refs)HOPLITE_INIT(hoplite_refs);
    return later ? hoplite_inputs_async(client_of(w), words_text(w, "ref"), timeout_of(w), later)
                 : hoplite_inputs(client_of(w), words_text(w, "ref"), timeout_of(w), &r->refs);
}

static hoplite_code lost(const words *w, result *r, hoplite_pending *later) {
    r->kind = REFS;
    r->refs = (hoplite_refs)HOPLITE_INIT(hoplite_refs);
    return later ? hoplite_lost_async(client_of(w), words_text(w, "ref"), timeout_of(w), later)
                 : hoplite_lost(client_of(w), words_text(w, "ref"), timeout_of(w), &r->refs);
}

static hoplite_code delete_refs(const words *w, result *r, hoplite_pending *later) {
    word_list refs = words_items(w, "refs");
    r->kind = NOTHING;
    return later ? hoplite_delete_async(client_of(w), refs.items, refs.count, timeout_of(w), later)
                 : hoplite_delete(client_of(w), refs.items, refs.count, timeout_of(w));
}

static hoplite_code latest(const words *w, result *r, hoplite_pending *later) {
    const char *prefix = words_text(w, "prefix");
    int64_t after = words_int(w, "after", -1);
    r->kind = REF;
    return later ? hoplite_latest_async(client_of(w), prefix, after, timeout_of(w), later)
                 : hoplite_latest(client_of(w), prefix, after, timeout_of(w), &r->ref);
}

static hoplite_code reserve(const words *w, result *r, hoplite_pending *later) {
    const char *name = words_text(w, "name");
    r->kind = REF;
    return later ? hoplite_reserve_async(client_of(w), name, timeout_of(w), later)
                 : hoplite_reserve(client_of(w), name, timeout_of(w), &r->ref);
}

static hoplite_code slots(const words *w, result *r, hoplite_pending *later) {
    uint32_t count = (uint32_t)words_size(w, "count", 0);
    r->kind = REFS;
    r->refs = (hoplite_refs)HOPLITE_INIT(hoplite_refs);
    return later ? hoplite_slots_async(client_of(w), count, timeout_of(w), later)
                 : hoplite_slots(client_of(w), count, timeout_of(w), &r->refs);
}

static hoplite_code lease(const words *w, result *r, hoplite_pending *later) {
    r->kind = LEASE;
    return later ? hoplite_lease_acquire_async(client_of(w), words_text(w, "ref"), timeout_of(w), later)
                 : hoplite_lease_acquire(client_of(w), words_text(w, "ref"), timeout_of(w), &r->lease);
}

static hoplite_code locations(const words *w, result *r, hoplite_pending *later) {
    r->kind = LOCATIONS;
    r->locations = (hoplite_locations)HOPLITE_INIT(hoplite_locations);
    return later ? hoplite_get_locations_async(client_of(w), words_text(w, "ref"), timeout_of(w), later)
                 : hoplite_get_locations(client_of(w), words_text(w, "ref"), timeout_of(w), &r->locations);
}

static hoplite_code status(const words *w, result *r, hoplite_pending *later) {
    r->kind = TEXT;
    r->text = (hoplite_text)HOPLITE_INIT(hoplite_text);
    return later ? hoplite_status_async(client_of(w), timeout_of(w), later)
                 : hoplite_status(client_of(w), timeout_of(w), &r->text);
}

static const struct {
    const char *name;
    hoplite_code (*call)(const words *, result *, hoplite_pending *);
} verbs[] = {
    {"put", put},           {"create", create},       {"seal", seal},     {"get", get},
    {"get_into", get_into}, {"wait", wait_for},       {"reduce", reduce}, {"inputs", inputs},
    {"lost", lost},         {"delete", delete_refs},  {"latest", latest}, {"reserve", reserve},
    {"slots", slots},       {"lease", lease},         {"locations", locations}, {"status", status},
};

bool run_call(const words *words) {
    if (strcmp(words->command, "take") == 0 || strcmp(words->command, "cancel") == 0) {
        result *r = started[words_int(words, "pending", 0)];
        if (words->command[0] == 'c') {
            r->kind = NOTHING;
            finish(r, hoplite_pending_cancel(r->pending));
        } else {
            finish(r, take(r));
        }
        return true;
    }
    for (size_t at = 0; at < sizeof verbs / sizeof *verbs; at++) {
        if (strcmp(words->command, verbs[at].name) != 0) {
            continue;
        }
        result *r = calloc(1, sizeof *r);
        require(r != NULL, "no memory");
        bool is_async = words_flag(words, "async");
        hoplite_code code = verbs[at].call(words, r, is_async ? &r->pending : NULL);
        if (!is_async || code != HOPLITE_OK) {
            finish(r, code);
            return true;
        }
        require(started_count < SLOTS_MAX, "too many calls in progress");
        started[started_count] = r;
        reply_failure(code);
        reply_int("pending", (int64_t)started_count++);
        return true;
    }
    return false;
}
