/* A native program for the tests across languages: runs one call of hoplite.h per line of standard input.
 *
 * The reply to each command is one line: a JSON object with `code` and, after an error, `message`. See words.h for the
 * format, verbs.c for the calls, results.c for the replies, harm.c for forks, limits and signals. Nodes, clients and
 * buffers are here. The end of the input closes everything in order.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harm.h"
#include "verbs.h"

static hoplite_client_options client_options(const words *words) {
    hoplite_client_options options = HOPLITE_INIT(hoplite_client_options);
    options.job = words_text(words, "job");
    options.capability = words_text(words, "capability");
    options.no_reconnect = words_flag(words, "no_reconnect");
    options.digest = words_flag(words, "digest");
    return options;
}

static void start_node(const words *words) {
    hoplite_node_options options = HOPLITE_INIT(hoplite_node_options);
    options.listen = words_text(words, "listen");
    options.advertise = words_text(words, "advertise");
    options.join = words_text(words, "join");
    options.cluster = words_text(words, "cluster");
    options.token = words_text(words, "token");
    options.token_file = words_text(words, "token_file");
    options.spill = words_text(words, "spill");
    options.socket = words_text(words, "socket");
    options.capacity = words_size(words, "capacity", 0);
    options.detection_timeout = words_real(words, "detection_timeout", 0);
    options.no_auth = words_flag(words, "no_auth");
    hoplite_node *node = &held.nodes[held.node_count];
    hoplite_code code = hoplite_node_start(&options, node);
    hoplite_node_info info = HOPLITE_INIT(hoplite_node_info);
    code = code ? code : hoplite_node_get_info(*node, &info);
    reply_failure(code);
    if (code == HOPLITE_OK) {
        reply_text("id", info.id);
        reply_text("address", info.address);
        reply_text("socket", info.socket);
        reply_int("node", (int64_t)held.node_count++);
    }
}

static void open_client(const words *words) {
    hoplite_client_options options = client_options(words);
    hoplite_client *client = &held.clients[held.client_count];
    hoplite_code code;
    if (strcmp(words->command, "client") == 0) {
        code = hoplite_node_client(held.nodes[words_int(words, "node", 0)], &options, client);
    } else if (strcmp(words->command, "connect") == 0) {
        code = hoplite_connect(words_text(words, "address"), &options, timeout_of(words), client);
    } else {
        code = hoplite_init(words_text(words, "address"), &options, timeout_of(words), client);
    }
    reply_failure(code);
    if (code == HOPLITE_OK) {
        reply_int("client", (int64_t)held.client_count++);
    }
}

static void fill(const words *words) {
    hoplite_buffer *buffer = &held.buffers[words_int(words, "buffer", 0)];
    uint64_t nbytes;
    void *data = file_read(words_text(words, "data"), &nbytes);
    require(nbytes <= buffer->nbytes, "more bytes than the buffer has");
    if (nbytes > 0) {
        memcpy(buffer->data, data, nbytes);
    }
    free(data);
    reply_failure(HOPLITE_OK);
}

static void release(const words *words) {
    hoplite_code code = HOPLITE_OK;
    if (words_text(words, "view")) {
        code = hoplite_view_release(&held.views[words_int(words, "view", 0)]);
    } else if (words_text(words, "buffer")) {
        code = hoplite_discard(&held.buffers[words_int(words, "buffer", 0)]);
    } else if (words_text(words, "lease")) {
        code = hoplite_lease_release(held.leases[words_int(words, "lease", 0)]);
    } else if (words_text(words, "node")) {
        bool is_complete = false;
        code = hoplite_node_close(held.nodes[words_int(words, "node", 0)], timeout_of(words), &is_complete);
        reply_flag("complete", is_complete);
    } else {
        code = hoplite_client_close(client_of(words));
    }
    reply_failure(code);
}

/* The sum of a view that is held: its bytes are valid until it is released. */
static void sum(const words *words) {
    const hoplite_view *view = &held.views[words_int(words, "view", 0)];
    reply_failure(HOPLITE_OK);
    reply_int("sum", (int64_t)sum_of(view->data, view->nbytes));
}

static void run(const words *words) {
    const char *command = words->command;
    if (run_call(words) || run_harm(words)) {
        /* They have written the reply. */
    } else if (strcmp(command, "node") == 0) {
        start_node(words);
    } else if (strcmp(command, "client") == 0 || strcmp(command, "connect") == 0 || strcmp(command, "init") == 0) {
        open_client(words);
    } else if (strcmp(command, "fill") == 0) {
        fill(words);
    } else if (strcmp(command, "release") == 0) {
        release(words);
    } else if (strcmp(command, "sum") == 0) {
        sum(words);
    } else if (strcmp(command, "version") == 0) {
        reply_failure(HOPLITE_OK);
        reply_text("text", hoplite_version());
    } else if (strcmp(command, "code") == 0) {
        reply_failure(HOPLITE_OK);
        reply_text("text", hoplite_code_name((hoplite_code)words_int(words, "number", 0)));
    } else {
        require(false, command);
    }
}

int main(void) {
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, stdin) > 0) {
        words words;
        words_parse(line, &words);
        reply_open(NULL, '{');
        run(&words);
        reply_close('}');
        reply_send();
    }
    free(line);
    for (size_t at = 0; at < held.view_count; at++) {
        hoplite_view_release(&held.views[at]);
    }
    for (size_t at = 0; at < held.client_count; at++) {
        hoplite_client_close(held.clients[at]);
    }
    for (size_t at = 0; at < held.node_count; at++) {
        hoplite_node_close(held.nodes[at], 0.0, NULL);
    }
    return 0;
}
