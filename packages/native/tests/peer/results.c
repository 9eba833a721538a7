#include "results.h"

#include <stdlib.h>

handles held;

uint64_t sum_of(const void *data, uint64_t nbytes) {
    const unsigned char *bytes = data;
    uint64_t sum = 0;
    for (uint64_t at = 0; at < nbytes; at++) {
        sum += bytes[at];
    }
    return sum;
}

void reply_failure(hoplite_code code) {
    reply_int("code", code);
    if (code != HOPLITE_OK) {
        reply_text("message", hoplite_last_error());
    }
}

hoplite_code take(result *r) {
    switch (r->kind) {
        case NOTHING:
            return hoplite_pending_take_done(r->pending);
        case REF:
            return hoplite_pending_take_ref(r->pending, &r->ref);
        case VIEW:
            return hoplite_pending_take_view(r->pending, &r->view);
        case BUFFER:
            return hoplite_pending_take_buffer(r->pending, &r->buffer);
        case READY:
            return hoplite_pending_take_ready(r->pending, r->ready, ITEMS_MAX, &r->ready_count);
        case REFS:
            return hoplite_pending_take_refs(r->pending, &r->refs);
        case LEASE:
            return hoplite_pending_take_lease(r->pending, &r->lease);
        case LOCATIONS:
            return hoplite_pending_take_locations(r->pending, &r->locations);
        case TEXT:
            return hoplite_pending_take_text(r->pending, &r->text);
        case SIZE:
            return hoplite_pending_take_size(r->pending, &r->copied);
    }
    return HOPLITE_INTERNAL;
}

static void show_view(result *r) {
    hoplite_view *view = &r->view;
    reply_text("dtype", view->dtype);
    reply_text("form", view->form);
    reply_int("nbytes", (int64_t)view->nbytes);
    reply_numbers("shape", view->shape, view->ndim);
    reply_int("sum", (int64_t)sum_of(view->data, view->nbytes));
    reply_int("misaligned", (int64_t)((uintptr_t)view->data % 64));
    if (r->path != NULL) {
        file_write(r->path, view->data, view->nbytes);
        hoplite_view_release(view);
    } else {
        require(held.view_count < SLOTS_MAX, "too many views");
        held.views[held.view_count] = *view;
        reply_int("view", (int64_t)held.view_count++);
    }
}

static void show_locations(hoplite_locations *locations) {
    reply_open("locations", '[');
    for (size_t at = 0; at < locations->count; at++) {
        reply_open(NULL, '{');
        reply_text("node", locations->items[at].node);
        reply_text("address", locations->items[at].address);
        reply_flag("complete", locations->items[at].complete);
        reply_close('}');
    }
    reply_close(']');
    hoplite_locations_release(locations);
}

static void show(result *r) {
    switch (r->kind) {
        case NOTHING:
            break;
        case REF:
            reply_text("ref", r->ref.text);
            reply_int("replicas", r->ref.replicas);
            break;
        case VIEW:
            show_view(r);
            break;
        case BUFFER:
            require(held.buffer_count < SLOTS_MAX, "too many buffers");
            reply_text("ref", r->buffer.ref.text);
            reply_int("nbytes", (int64_t)r->buffer.nbytes);
            held.buffers[held.buffer_count] = r->buffer;
            reply_int("buffer", (int64_t)held.buffer_count++);
            break;
        case READY: {
            uint64_t ready[ITEMS_MAX];
            for (size_t at = 0; at < r->ready_count; at++) {
                ready[at] = r->ready[at];
            }
            reply_numbers("ready", ready, r->ready_count);
            break;
        }
        case REFS:
            reply_texts("refs", r->refs.items, r->refs.count);
            hoplite_refs_release(&r->refs);
            break;
        case LEASE:
            require(held.lease_count < SLOTS_MAX, "too many leases");
            held.leases[held.lease_count] = r->lease;
            reply_int("lease", (int64_t)held.lease_count++);
            break;
        case LOCATIONS:
            show_locations(&r->locations);
            break;
        case TEXT:
            reply_text("text", r->text.text);
            hoplite_text_release(&r->text);
            break;
        case SIZE:
            reply_int("copied", (int64_t)r->copied);
            if (r->path != NULL) {
                file_write(r->path, r->memory, r->nbytes);
            }
            break;
    }
}

void finish(result *r, hoplite_code code) {
    reply_failure(code);
    if (code == HOPLITE_OK) {
        show(r);
    }
    free(r->memory);
    free(r->path);
    free(r);
}
