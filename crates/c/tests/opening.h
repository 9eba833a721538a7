/**
 * @file hoplite.h
 * The C API of Hoplite: put, get and reduce objects of a cluster, shared with Python, C++ and Rust programs.
 *
 * Results. Each function returns a hoplite_code. hoplite_last_error() has the message of a failure. No function
 * unwinds, aborts or exits. After an error, outputs are unchanged unless the function's description says otherwise.
 *
 * Timeouts are in seconds: 0 does not wait, HOPLITE_NO_TIMEOUT waits without limit. A call of a client may pass
 * HOPLITE_DEFAULT_TIMEOUT: the `default_timeout` of the client.
 *
 * Handles are small structs, passed by value; id 0 is no handle. A handle that is stale or of another type gives
 * HOPLITE_INVALID_HANDLE. Handles are valid in the process that opened them; in a forked child, a client connects to
 * its node again on first use.
 *
 * Structs that begin with `size` are initialized by HOPLITE_INIT, so that a program works with a newer library:
 *
 *     hoplite_put_options options = HOPLITE_INIT(hoplite_put_options);
 *
 * A field of options that is 0, false or NULL has its default. NULL in place of options is the default of every field.
 *
 * Threads. Any thread may call any function at any time, except from a signal handler.
 *
 * The caller ensures that each pointer is NULL or points to memory of the described type and length, valid during the
 * call and not written by another thread; that texts are NUL-terminated; and that pointers out of a struct are not used
 * after the release of its handle. The library copies all other arguments before it returns. NULL is an error where the
 * description does not allow it. Texts are UTF-8.
 */

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Version of this header; hoplite_version() is that of the library. */
#define HOPLITE_VERSION "@VERSION@"
#define HOPLITE_VERSION_MAJOR @MAJOR@
#define HOPLITE_VERSION_MINOR @MINOR@
#define HOPLITE_VERSION_PATCH @PATCH@

/** Timeout of a call that waits without limit. */
#define HOPLITE_NO_TIMEOUT ((double)INFINITY)

/**
 * Timeout of a call of a client that has the timeout of that client: `default_timeout` of its options, or else the
 * setting `timeout` (the environment variable HOPLITE_TIMEOUT), or else no limit.
 */
#define HOPLITE_DEFAULT_TIMEOUT (-(double)INFINITY)

/** Initial value of a struct that begins with `size`: every other field is 0. */
#ifdef __cplusplus
#define HOPLITE_INIT(type)         \
    ([] {                          \
        type value{};              \
        value.size = sizeof(type); \
        return value;              \
    }())
#else
#define HOPLITE_INIT(type) {.size = sizeof(type)}
#endif
