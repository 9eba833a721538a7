/* Results of calls: how they are taken from a pending call, and the replies that they become. */
#ifndef PEER_RESULTS_H
#define PEER_RESULTS_H

#include <hoplite/hoplite.h>

#include "words.h"

enum { SLOTS_MAX = 1024, AXES_MAX = 64 };

/* Handles that the commands refer to by number. */
typedef struct {
    hoplite_node nodes[SLOTS_MAX];
    hoplite_client clients[SLOTS_MAX];
    hoplite_view views[SLOTS_MAX];
    hoplite_buffer buffers[SLOTS_MAX];
    hoplite_lease leases[SLOTS_MAX];
    size_t node_count, client_count, view_count, buffer_count, lease_count;
} handles;

extern handles held;

typedef enum { NOTHING, REF, VIEW, BUFFER, READY, REFS, LEASE, LOCATIONS, TEXT, SIZE } kind;

/* What a call returns, and the memory that it uses until it is done. */
typedef struct {
    kind kind;
    hoplite_pending pending;
    hoplite_ref ref;
    hoplite_view view;
    hoplite_buffer buffer;
    hoplite_refs refs;
    hoplite_lease lease;
    hoplite_locations locations;
    hoplite_text text;
    uint64_t copied;
    size_t ready[ITEMS_MAX];
    size_t ready_count;
    void *memory;
    uint64_t nbytes;
    char *path;
} result;

/* Takes the result of a pending call. */
hoplite_code take(result *r);

/* Writes the members of a failed call: its code and message; of a successful one, its code. */
void reply_failure(hoplite_code code);

/* Writes the reply to a call that is over, and frees the result. */
void finish(result *r, hoplite_code code);

/* Sum of all bytes, by which the two sides compare values without a file. */
uint64_t sum_of(const void *data, uint64_t nbytes);

#endif
