/**
 * Checks of the programs in C: a check that fails prints where and why, and ends the program.
 */
#ifndef HOPLITE_TESTS_CHECK_H
#define HOPLITE_TESTS_CHECK_H

#include <hoplite/hoplite.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/** Checks a condition. */
#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);           \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

/** Checks the code of a call, and that the call has a message if it failed. */
#define CHECK_CODE(call, expected) check_code(__FILE__, __LINE__, #call, (call), (expected))

/** Checks that a call succeeds. */
#define CHECK_OK(call) CHECK_CODE(call, HOPLITE_OK)

/** Checks the code of a call that fails, and that its message contains a text. */
#define CHECK_ERROR(call, expected, text)                                             \
    do {                                                                              \
        CHECK_CODE(call, expected);                                                   \
        if (strstr(hoplite_last_error(), (text)) == NULL) {                           \
            fprintf(stderr, "%s:%d: \"%s\" lacks \"%s\"\n", __FILE__, __LINE__,       \
                    hoplite_last_error(), (text));                                    \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

/** Seconds until a call of a test that hangs fails. */
#define LIMIT 30.0

static inline void check_code(const char *file, int line, const char *call, hoplite_code code,
                              hoplite_code expected) {
    int has_message = hoplite_last_error()[0] != '\0';
    if (code != expected || has_message != (code != HOPLITE_OK)) {
        fprintf(stderr, "%s:%d: %s: %s, not %s: \"%s\"\n", file, line, call, hoplite_code_name(code),
                hoplite_code_name(expected), hoplite_last_error());
        exit(1);
    }
}

/** Starts a node of this process alone, without TCP, with a socket of its own. */
static inline hoplite_node start_node(const char *socket) {
    hoplite_node_options options = HOPLITE_INIT(hoplite_node_options);
    hoplite_node node = {0};
    options.capacity = 64 << 20;
    options.socket = socket;
    CHECK_OK(hoplite_node_start(&options, &node));
    return node;
}

/** Opens a client of a node. */
static inline hoplite_client open_client(hoplite_node node) {
    hoplite_client client = {0};
    CHECK_OK(hoplite_node_client(node, NULL, &client));
    return client;
}

/** Puts a text under a name. */
static inline void put_text(hoplite_client client, const char *name, const char *text) {
    hoplite_put_options options = HOPLITE_INIT(hoplite_put_options);
    hoplite_array value = {.data = text, .nbytes = strlen(text)};
    hoplite_ref ref;
    options.name = name;
    CHECK_OK(hoplite_put(client, &value, &options, LIMIT, &ref));
}

/** Puts float32 elements without a name. */
static inline void put_floats(hoplite_client client, const float *elements, uint64_t count,
                              hoplite_ref *ref) {
    hoplite_array value = {.data = elements,
                           .nbytes = count * sizeof *elements,
                           .dtype = "float32",
                           .ndim = 1,
                           .shape = &count};
    CHECK_OK(hoplite_put(client, &value, NULL, LIMIT, ref));
}

#endif
