#ifndef HOPLITE_H
#define HOPLITE_H

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
#define HOPLITE_VERSION "0.1.0"
#define HOPLITE_VERSION_MAJOR 0
#define HOPLITE_VERSION_MINOR 1
#define HOPLITE_VERSION_PATCH 0

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

/** Bytes of a `hoplite_ref` with the final NUL. */
#define HOPLITE_REF_BYTES 1040

/** Result of a function. `hoplite_last_error` has the details of every code but `HOPLITE_OK`. */
typedef enum {
    /** The call succeeded. */
    HOPLITE_OK = 0,
    /** The timeout passed before the call was over. */
    HOPLITE_TIMEOUT = 1,
    /** Every copy of the object is gone, or too few inputs of a reduce remain. */
    HOPLITE_OBJECT_LOST = 2,
    /** The bytes of the object do not match its checksum. */
    HOPLITE_OBJECT_CORRUPT = 3,
    /** The object was deleted. */
    HOPLITE_OBJECT_DELETED = 4,
    /** Another object has this name. */
    HOPLITE_NAME_TAKEN = 5,
    /** The store or a memory limit has no capacity for the object. */
    HOPLITE_STORE_FULL = 6,
    /** The dtype or shape is not the expected one, or two inputs of a reduce differ. */
    HOPLITE_SHAPE_MISMATCH = 7,
    /** The reduce operation does not exist. */
    HOPLITE_UNKNOWN_OP = 8,
    /** The operation does not support this dtype. */
    HOPLITE_UNSUPPORTED_DTYPE = 9,
    /** An argument is not valid; the message names it. */
    HOPLITE_INVALID_ARGUMENT = 10,
    /** The node has failed or was closed. */
    HOPLITE_NODE_DOWN = 11,
    /** The capability of the client does not permit the call. */
    HOPLITE_NOT_ALLOWED = 12,
    /** The client was closed. */
    HOPLITE_CLIENT_CLOSED = 13,
    /** The client belongs to an embedded node of the parent process. */
    HOPLITE_FORKED_CLIENT = 14,
    /** The node could not join the cluster. */
    HOPLITE_JOIN_ERROR = 15,
    /** Another process listens on the address. */
    HOPLITE_ADDRESS_IN_USE = 16,
    /** No connection to the node was possible. */
    HOPLITE_CONNECT_ERROR = 17,
    /** A handle is stale, was released before, or is of another type. */
    HOPLITE_INVALID_HANDLE = 18,
    /** The call was cancelled. */
    HOPLITE_CANCELLED = 19,
    /** The queue is empty. */
    HOPLITE_NOT_READY = 20,
    /**
     * This process or its host denies what the call needs, such as a file within its limit of open files. The message
     * states what to do.
     */
    HOPLITE_HOST_ERROR = 21,
    /** A defect in Hoplite. Report it with its message. */
    HOPLITE_INTERNAL = 99,
} hoplite_code;

/**
 * Options of `hoplite_node_start`. A field that is NULL, 0 or false falls back to the environment variable
 * `HOPLITE_<FIELD>`, then to the file that `HOPLITE_CONFIG` names, then to its default.
 */
typedef struct {
    /** `sizeof(hoplite_node_options)`; `HOPLITE_INIT` sets it. */
    size_t size;
    /**
     * Address and TCP port for other nodes, such as "10.0.0.5:7777"; port 0 selects a free one. Without it, the node
     * listens only if another option configures clustering.
     */
    const char *listen;
    /** Address that other nodes use, if it differs from `listen`. */
    const char *advertise;
    /**
     * Addresses of nodes of the cluster, separated by commas; one that replies is enough. Without it, the node starts a
     * cluster.
     */
    const char *join;
    /** Name of the cluster; only nodes with the same name join. */
    const char *cluster;
    /** Shared secret of the cluster, from `hoplite token new`. The default, on loopback, is a secret of this user. */
    const char *token;
    /** File that holds the token (mode 0600). A second line adds a second accepted token, for rotation. */
    const char *token_file;
    /** PEM file with the certificate of this node, used instead of a token. */
    const char *certificate;
    /** PEM file with the private key of the certificate (mode 0600). */
    const char *key;
    /** PEM file with the CA that issued the certificates of all nodes. */
    const char *ca;
    /** PEM file with the CA's revocation list. */
    const char *crl;
    /** Directory on a disk, for this node alone, for objects that do not fit into memory. */
    const char *spill;
    /** Rack or zone of this host; hosts in one rack use the same name. */
    const char *rack;
    /**
     * Unix socket for processes of this host. By default this user's socket, or one of this node alone if another node
     * serves that.
     */
    const char *socket;
    /** Size limit of the store in bytes, at least 1 MiB; by default 30 % of the memory of the host or cgroup. */
    uint64_t capacity;
    /** Size limit of the files in `spill` in bytes; by default 80 % of the free space. */
    uint64_t spill_limit;
    /** Seconds after which an unresponsive node is declared dead, at least 0.5; 3 by default. */
    double detection_timeout;
    /** Keep the objects that no other node holds in `spill` when this node ends. */
    bool spill_persistent;
    /** Send to other nodes without encryption. */
    bool no_encryption;
    /** Disable authentication: any node that can reach this one may join. */
    bool no_auth;
    /** Reject processes of this host that attach without a capability. */
    bool require_capability;
} hoplite_node_options;

/** An embedded node. Released by `hoplite_node_close`. */
typedef struct {
    /** 0 is no node. */
    uint64_t id;
} hoplite_node;

/** What `hoplite_node_get_info` reports. The pointers are valid until the node is released. */
typedef struct {
    /** `sizeof(hoplite_node_info)`; `HOPLITE_INIT` sets it. */
    size_t size;
    /** Id of the node. */
    const char *id;
    /** Address at which other nodes connect; NULL if the node does not listen. */
    const char *address;
    /** Path of the socket on which other processes of this host connect; NULL if there is none. */
    const char *socket;
    /** Whether the node has stopped. */
    bool closed;
    /** Why the node has failed; NULL if it has not. */
    const char *failure;
} hoplite_node_info;

/** Options of a client. */
typedef struct {
    /** `sizeof(hoplite_client_options)`; `HOPLITE_INIT` sets it. */
    size_t size;
    /**
     * Name that marks all objects that this client creates. They are deleted 5 s after the last client of the job has
     * closed or failed. `HOPLITE_JOB` by default in `hoplite_init`.
     */
    const char *job;
    /** Capability that restricts this client, as its text or the path of its file; `HOPLITE_CAPABILITY` by default. */
    const char *capability;
    /** Do not attach to the next node on the same socket after the process of the node has ended. */
    bool no_reconnect;
    /** Announce a SHA-256 digest with each put, which each receiver checks; `HOPLITE_DIGEST` by default. */
    bool digest;
    /** Seconds that a call with `HOPLITE_DEFAULT_TIMEOUT` waits; the variable HOPLITE_TIMEOUT by default, or else no limit. */
    double default_timeout;
} hoplite_client_options;

/** A client of a node. Released by `hoplite_client_close`. Every thread may use it at the same time. */
typedef struct {
    /** 0 is no client. */
    uint64_t id;
} hoplite_client;

/** A value to put: bytes, or an array in row-major order. */
typedef struct {
    /** The elements; may be NULL if `nbytes` is 0. */
    const void *data;
    /** Bytes at `data`: the product of `shape` times the size of an element. */
    uint64_t nbytes;
    /**
     * Name of the dtype as in numpy ("float32", "int64"); NULL or "bytes" for bytes, which have no axis, or one of
     * length `nbytes`.
     */
    const char *dtype;
    /** Dimensions; 0 for bytes and scalars. */
    uint32_t ndim;
    /** The `ndim` lengths; may be NULL if `ndim` is 0. */
    const uint64_t *shape;
} hoplite_array;

/** Options of `hoplite_put`. */
typedef struct {
    /** `sizeof(hoplite_put_options)`; `HOPLITE_INIT` sets it. */
    size_t size;
    /** Name of the object; NULL: a random one. */
    const char *name;
    /** Nodes that keep a copy until the object is deleted, this one included; 0 means 1. */
    uint32_t replicas;
    /** Newest versions to retain under the prefix of the name, this one included; 0 retains all. */
    uint64_t retain;
    /** Seconds from the completion of the object to its deletion; 0 means no limit. */
    double ttl;
    /** Succeed if an object of this name exists already. */
    bool exist_ok;
    /** Fail if a higher number exists under the prefix of the name. */
    bool newest;
} hoplite_put_options;

/** The text of a ref, which any process of the cluster can pass to `hoplite_get`. */
typedef struct {
    /** NUL-terminated UTF-8. */
    char text[HOPLITE_REF_BYTES];
    /** Nodes that kept a copy when the put or seal that returned the ref completed; 0 for refs of other calls. */
    uint32_t replicas;
} hoplite_ref;

/** Options of `hoplite_create`. */
typedef struct {
    /** `sizeof(hoplite_create_options)`; `HOPLITE_INIT` sets it. */
    size_t size;
    /** Name of the object; NULL: a random one. */
    const char *name;
    /** Nodes that keep a copy until the object is deleted, this one included; 0 means 1. */
    uint32_t replicas;
    /** Seconds from the completion of the object to its deletion; 0 means no limit. */
    double ttl;
} hoplite_create_options;

/**
 * An object that the caller fills before `hoplite_seal`. The pointer is valid until `hoplite_seal` or
 * `hoplite_discard`.
 */
typedef struct {
    /** `sizeof(hoplite_buffer)`; `HOPLITE_INIT` sets it. */
    size_t size;
    /** Handle of the buffer; 0 once it is sealed or discarded. */
    uint64_t id;
    /** The bytes, aligned to 64 bytes and not zeroed. */
    void *data;
    /** Number of bytes. */
    uint64_t nbytes;
    /** Ref of the object, for which other clients can wait already. */
    hoplite_ref ref;
} hoplite_buffer;

/** A list of refs. Released by `hoplite_refs_release`. */
typedef struct {
    /** `sizeof(hoplite_refs)`; `HOPLITE_INIT` sets it. */
    size_t size;
    /** Handle of the list; 0 once it is released. */
    uint64_t id;
    /** The `count` refs, each NUL-terminated. */
    const char *const *items;
    /** Number of refs. */
    size_t count;
} hoplite_refs;

/** Options of `hoplite_reduce`. */
typedef struct {
    /** `sizeof(hoplite_reduce_options)`; `HOPLITE_INIT` sets it. */
    size_t size;
    /** Inputs to fold: the first ones that exist; 0 folds all. */
    uint32_t count;
    /** Name of the result; NULL: a random one. */
    const char *name;
    /** Seconds from the completion of the result to its deletion; 0 means no limit. */
    double ttl;
} hoplite_reduce_options;

/**
 * Options of `hoplite_get`: a part of the object along its first dimension, or of its bytes if it has no shape.
 * Negative bounds count from the end.
 */
typedef struct {
    /** `sizeof(hoplite_get_options)`; `HOPLITE_INIT` sets it. */
    size_t size;
    /** Whether the part begins at `start` (else at 0). */
    bool has_start;
    /** Whether the part ends before `stop` (else at the end). */
    bool has_stop;
    /** First index of the part. */
    int64_t start;
    /** Index after the last one of the part. */
    int64_t stop;
} hoplite_get_options;

/** An object in shared memory, read-only. The pointers are valid until `hoplite_view_release`. */
typedef struct {
    /** `sizeof(hoplite_view)`; `HOPLITE_INIT` sets it. */
    size_t size;
    /** Handle of the view; 0 once it is released. */
    uint64_t id;
    /** The bytes, aligned to 64 bytes. */
    const void *data;
    /** Number of bytes. */
    uint64_t nbytes;
    /** Name of the dtype as in numpy, or "bytes". */
    const char *dtype;
    /** Library whose value was put: "plain", "torch", "arrow" (an IPC stream) or "pickle". */
    const char *form;
    /** Dimensions; 0 for bytes and scalars. */
    uint32_t ndim;
    /** The `ndim` lengths. */
    const uint64_t *shape;
} hoplite_view;

/** A lease of an object: the object is deleted 5 s after its last lease ends. Released by `hoplite_lease_release`. */
typedef struct {
    /** 0 is no lease. */
    uint64_t id;
} hoplite_lease;

/** A node that holds a copy of an object, completely or in part. */
typedef struct {
    /** Id of the node. */
    const char *node;
    /** Address of the node; NULL if it does not listen. */
    const char *address;
    /** Whether the copy is complete. */
    bool complete;
} hoplite_location;

/** A list of locations. Released by `hoplite_locations_release`. */
typedef struct {
    /** `sizeof(hoplite_locations)`; `HOPLITE_INIT` sets it. */
    size_t size;
    /** Handle of the list; 0 once it is released. */
    uint64_t id;
    /** The `count` locations. */
    const hoplite_location *items;
    /** Number of locations. */
    size_t count;
} hoplite_locations;

/** A text. Released by `hoplite_text_release`. */
typedef struct {
    /** `sizeof(hoplite_text)`; `HOPLITE_INIT` sets it. */
    size_t size;
    /** Handle of the text; 0 once it is released. */
    uint64_t id;
    /** NUL-terminated UTF-8. */
    const char *text;
    /** Bytes of `text` without the final NUL. */
    size_t length;
} hoplite_text;

/** An asynchronous call. Released by `hoplite_pending_cancel` or a `hoplite_pending_take_` function. */
typedef struct {
    /** 0 is no call. */
    uint64_t id;
} hoplite_pending;

/**
 * Function that the library calls when an asynchronous call is over, on a thread of its own. It may call every function
 * of this header, and may block. Callbacks of several calls run at the same time.
 *
 * `pending` has the id 0 if the call was taken or cancelled meanwhile. An exception must not leave the function.
 */
typedef void (*hoplite_callback)(void *user, hoplite_pending pending);

/** A queue of asynchronous calls that are over. Released by `hoplite_queue_close`. */
typedef struct {
    /** 0 is no queue. */
    uint64_t id;
} hoplite_queue;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/** Returns the version of the library, such as "0.1.0". The text is static. */
const char *hoplite_version(void);

/** Returns the name of a code, such as "HOPLITE_TIMEOUT"; "" if there is no such code. The text is static. */
const char *hoplite_code_name(int32_t code);

/**
 * Returns the message of this thread's last call that failed, or "" if its last call succeeded.
 *
 * The text is valid until this thread's next call of another function.
 */
const char *hoplite_last_error(void);

/**
 * Starts an embedded node, which runs on threads of this process until `hoplite_node_close` or the end of the process.
 *
 * @param options NULL for the defaults.
 * @param[out] node handle of the node.
 * @return `HOPLITE_INVALID_ARGUMENT`, `HOPLITE_ADDRESS_IN_USE`, `HOPLITE_JOIN_ERROR`.
 */
hoplite_code hoplite_node_start(const hoplite_node_options *options,
                                hoplite_node *node);

/** Returns id, address, socket and state of a node. */
hoplite_code hoplite_node_get_info(hoplite_node node, hoplite_node_info *info);

/**
 * Opens a client of an embedded node.
 *
 * @param options NULL for the defaults.
 * @param[out] client handle of the client.
 */
hoplite_code hoplite_node_client(hoplite_node node,
                                 const hoplite_client_options *options,
                                 hoplite_client *client);

/**
 * Closes a node and releases its handle. Objects without another copy in the cluster are first sent to other nodes.
 *
 * @param timeout seconds for the transfer of the objects; 0 sends none.
 * @param[out] complete whether every object has a copy elsewhere; may be NULL.
 */
hoplite_code hoplite_node_close(hoplite_node node,
                                double timeout,
                                bool *complete);

/**
 * Opens a client of a node; starts an embedded node if there is none, which ends with the last client that uses it.
 *
 * Without an address, the first of these that exists is used: the address in `HOPLITE_ADDRESS`; in a Slurm job, the
 * node of that job on this host; this user's node on this host (`hoplite node`); a node that another process of this
 * user has embedded; a new embedded node, with the settings of the environment.
 *
 * @param address "local" for this host's node; "unix:" and the path of a node's socket; "host:port", several separated
 * by commas, for an embedded node that joins that cluster; NULL searches.
 * @param options NULL for the defaults.
 * @param timeout seconds to wait for the node.
 * @param[out] client handle of the client.
 * @return `HOPLITE_CONNECT_ERROR`, `HOPLITE_JOIN_ERROR`, `HOPLITE_INVALID_ARGUMENT`, `HOPLITE_NOT_ALLOWED`.
 */
hoplite_code hoplite_init(const char *address,
                          const hoplite_client_options *options,
                          double timeout,
                          hoplite_client *client);

/**
 * Opens a client of the node of this host that serves a socket.
 *
 * @param address path of the socket, or "unix:" and the path.
 * @param options NULL for the defaults.
 * @param timeout seconds to wait for the node.
 * @param[out] client handle of the client.
 * @return `HOPLITE_CONNECT_ERROR` if no node replies there; `HOPLITE_NOT_ALLOWED` without a valid capability.
 */
hoplite_code hoplite_connect(const char *address,
                             const hoplite_client_options *options,
                             double timeout,
                             hoplite_client *client);

/**
 * Closes a client and releases its handle. Its calls in progress and later ones return `HOPLITE_CLIENT_CLOSED`; its
 * views stay valid.
 */
hoplite_code hoplite_client_close(hoplite_client client);

/**
 * Copies a value into the store as a new immutable object.
 *
 * @param value bytes or an array.
 * @param options NULL for the defaults.
 * @param timeout seconds to wait for memory in the store and for the replicas.
 * @param[out] ref ref of the object.
 * @return `HOPLITE_NAME_TAKEN`, `HOPLITE_STORE_FULL`, `HOPLITE_INVALID_ARGUMENT`, `HOPLITE_UNSUPPORTED_DTYPE`,
 * `HOPLITE_TIMEOUT` if the replicas were not complete in time.
 */
hoplite_code hoplite_put(hoplite_client client,
                         const hoplite_array *value,
                         const hoplite_put_options *options,
                         double timeout,
                         hoplite_ref *ref);

/**
 * Allocates an array in the store, which the caller fills in place and seals without a copy.
 *
 * @param dtype name of the dtype as in numpy; "bytes" or NULL for bytes, with their number as the only length.
 * @param ndim number of dimensions.
 * @param shape the `ndim` lengths; may be NULL if `ndim` is 0.
 * @param options NULL for the defaults.
 * @param timeout seconds to wait for memory in the store.
 * @param[out] buffer memory and ref of the object. Set its `size` before the call.
 * @return `HOPLITE_NAME_TAKEN` (for up to 32 KiB, `hoplite_seal` returns it), `HOPLITE_STORE_FULL`,
 * `HOPLITE_UNSUPPORTED_DTYPE`.
 */
hoplite_code hoplite_create(hoplite_client client,
                            const char *dtype,
                            uint32_t ndim,
                            const uint64_t *shape,
                            const hoplite_create_options *options,
                            double timeout,
                            hoplite_buffer *buffer);

/**
 * Completes an object. Its memory must not be used afterwards. Releases the buffer, also on an error.
 *
 * @param buffer its `id` becomes 0.
 * @param timeout seconds to wait for the replicas.
 * @param[out] ref ref of the object; may be NULL.
 */
hoplite_code hoplite_seal(hoplite_buffer *buffer,
                          double timeout,
                          hoplite_ref *ref);

/**
 * Abandons an object that is not sealed, and releases the buffer. Calls that wait for the object return
 * `HOPLITE_OBJECT_LOST` or `HOPLITE_OBJECT_DELETED`.
 *
 * @param buffer its `id` becomes 0.
 */
hoplite_code hoplite_discard(hoplite_buffer *buffer);

/**
 * Reserves the ref or the name of an object that does not exist yet, so that others can wait for it or reduce it.
 *
 * Only this client can create the object, with the ref as its name. If the client ends first, waiting calls get
 * `HOPLITE_OBJECT_LOST`, and others can reserve or put the name.
 *
 * @param name name that no object has; NULL: a random one.
 * @param timeout seconds to wait for the node and, with a name, for the owner of the name.
 * @param[out] ref the ref.
 * @return `HOPLITE_NAME_TAKEN` if an object or another client has the name, `HOPLITE_INVALID_ARGUMENT`,
 * `HOPLITE_NOT_ALLOWED`.
 */
hoplite_code hoplite_reserve(hoplite_client client,
                             const char *name,
                             double timeout,
                             hoplite_ref *ref);

/**
 * Makes slots: refs that any client of the cluster may put or create, each once, with the directory entry on the node
 * of this client.
 *
 * Calls that wait for a slot that is not filled, and puts of it, get `HOPLITE_OBJECT_LOST` when this client ends.
 *
 * @param count number of slots.
 * @param timeout seconds to wait for the node.
 * @param[out] refs the slots. Set its `size` before the call.
 * @return `HOPLITE_INVALID_ARGUMENT`, `HOPLITE_NOT_ALLOWED`, `HOPLITE_STORE_FULL` if the node has too many slots.
 */
hoplite_code hoplite_slots(hoplite_client client,
                           uint32_t count,
                           double timeout,
                           hoplite_refs *refs);

/**
 * Folds the first `count` inputs to exist into one new object. Returns at once; `hoplite_get` of the result waits. If
 * the client is closed or its process ends before the result is complete, readers get `HOPLITE_OBJECT_LOST`.
 *
 * @param refs refs of arrays of one dtype and shape; they need not exist yet.
 * @param n number of refs.
 * @param op "sum", "min", "max", "prod" or another operation of the documentation.
 * @param options NULL for the defaults.
 * @param timeout seconds to wait for the node.
 * @param[out] ref ref of the result.
 * @return `HOPLITE_UNKNOWN_OP`, `HOPLITE_NAME_TAKEN`, `HOPLITE_INVALID_ARGUMENT`.
 */
hoplite_code hoplite_reduce(hoplite_client client,
                            const char *const *refs,
                            size_t n,
                            const char *op,
                            const hoplite_reduce_options *options,
                            double timeout,
                            hoplite_ref *ref);

/**
 * Waits until an object is complete on this node, and returns its bytes in shared memory, without a copy.
 *
 * @param ref ref or name of the object.
 * @param options NULL for the whole object.
 * @param timeout seconds to wait; `HOPLITE_NO_TIMEOUT` waits until the object exists or can no longer appear.
 * @param[out] view the bytes with dtype and shape. Set its `size` before the call.
 * @return `HOPLITE_TIMEOUT`, `HOPLITE_OBJECT_LOST`, `HOPLITE_OBJECT_DELETED`, `HOPLITE_OBJECT_CORRUPT`,
 * `HOPLITE_STORE_FULL`.
 */
hoplite_code hoplite_get(hoplite_client client,
                         const char *ref,
                         const hoplite_get_options *options,
                         double timeout,
                         hoplite_view *view);

/**
 * Releases a view: its pointers must not be used afterwards.
 *
 * @param view its `id` becomes 0.
 */
hoplite_code hoplite_view_release(hoplite_view *view);

/**
 * Copies an object into memory of the caller, while it arrives.
 *
 * @param ref ref or name of the object.
 * @param out memory for the bytes; its content is undefined after an error.
 * @param nbytes bytes at `out`: exactly those of the object.
 * @param dtype dtype that the object must have; NULL accepts any dtype and shape.
 * @param ndim number of dimensions that the object must have; ignored without `dtype`.
 * @param shape the `ndim` lengths; may be NULL if `ndim` is 0.
 * @param timeout seconds to wait.
 * @param[out] copied number of bytes copied; may be NULL.
 * @return as `hoplite_get`; `HOPLITE_SHAPE_MISMATCH` if size, dtype or shape differ.
 */
hoplite_code hoplite_get_into(hoplite_client client,
                              const char *ref,
                              void *out,
                              uint64_t nbytes,
                              const char *dtype,
                              uint32_t ndim,
                              const uint64_t *shape,
                              double timeout,
                              uint64_t *copied);

/**
 * Waits until `count` objects are ready: complete on some node, deleted or lost.
 *
 * @param refs refs or names, each listed once; they need not exist yet.
 * @param n number of refs.
 * @param count number of objects to wait for, at most `n`.
 * @param timeout seconds to wait; 0 returns the current state. Fewer ready objects are not an error.
 * @param[out] ready indices into `refs` in the order in which the objects became ready. It has room for `n`.
 * @param[out] ready_count number of indices, at most `count`.
 */
hoplite_code hoplite_wait(hoplite_client client,
                          const char *const *refs,
                          size_t n,
                          size_t count,
                          double timeout,
                          size_t *ready,
                          size_t *ready_count);

/**
 * Returns the inputs that a reduce folded into its result. Waits until they are decided.
 *
 * @param ref result of a `hoplite_reduce` of a client of this node.
 * @param timeout seconds to wait.
 * @param[out] refs the inputs. Set its `size` before the call.
 */
hoplite_code hoplite_inputs(hoplite_client client,
                            const char *ref,
                            double timeout,
                            hoplite_refs *refs);

/**
 * Returns the inputs of a reduce that can no longer be folded, because they were lost or deleted.
 *
 * @param ref result of a `hoplite_reduce` of a client of this node.
 * @param timeout seconds to wait.
 * @param[out] refs the lost inputs. Set its `size` before the call.
 */
hoplite_code hoplite_lost(hoplite_client client,
                          const char *ref,
                          double timeout,
                          hoplite_refs *refs);

/**
 * Releases a list of refs: its pointers must not be used afterwards.
 *
 * @param refs its `id` becomes 0.
 */
hoplite_code hoplite_refs_release(hoplite_refs *refs);

/**
 * Returns the ref of the newest object under a prefix: the one with the highest number after it.
 *
 * @param prefix prefix of the names, which ends in "/".
 * @param after wait for a higher number than this; -1 accepts any.
 * @param timeout seconds to wait for the object.
 * @param[out] ref ref of the object.
 */
hoplite_code hoplite_latest(hoplite_client client,
                            const char *prefix,
                            int64_t after,
                            double timeout,
                            hoplite_ref *ref);

/**
 * Deletes all copies of objects on all nodes. Views of them stay valid; the names can be put again.
 *
 * @param refs refs or names; may be NULL if `n` is 0.
 * @param n number of refs.
 * @param timeout seconds to wait for the confirmation of the objects' owners.
 */
hoplite_code hoplite_delete(hoplite_client client,
                            const char *const *refs,
                            size_t n,
                            double timeout);

/**
 * Takes a lease of an object, which need not exist yet.
 *
 * @param ref ref or name of the object.
 * @param timeout seconds to wait until the owner of the object has registered the lease.
 * @param[out] lease handle of the lease.
 */
hoplite_code hoplite_lease_acquire(hoplite_client client,
                                   const char *ref,
                                   double timeout,
                                   hoplite_lease *lease);

/** Ends a lease, without waiting. */
hoplite_code hoplite_lease_release(hoplite_lease lease);

/**
 * Lists the nodes that hold an object, completely or in part.
 *
 * @param ref ref or name of the object.
 * @param timeout seconds to wait for the reply of the object's owner.
 * @param[out] locations the nodes; none if the object does not exist. Set its `size` before the call.
 */
hoplite_code hoplite_get_locations(hoplite_client client,
                                   const char *ref,
                                   double timeout,
                                   hoplite_locations *locations);

/**
 * Releases a list of locations: its pointers must not be used afterwards.
 *
 * @param locations its `id` becomes 0.
 */
hoplite_code hoplite_locations_release(hoplite_locations *locations);

/**
 * Returns the state of the node and its cluster as JSON.
 *
 * @param timeout seconds to wait for the node.
 * @param[out] text the JSON. Set its `size` before the call.
 */
hoplite_code hoplite_status(hoplite_client client, double timeout, hoplite_text *text);

/**
 * Releases a text: its pointer must not be used afterwards.
 *
 * @param text its `id` becomes 0.
 */
hoplite_code hoplite_text_release(hoplite_text *text);

/**
 * Starts `hoplite_put`; `hoplite_pending_take_ref` returns its result. `value->data` must stay valid until the call is
 * over, taken or cancelled.
 */
hoplite_code hoplite_put_async(hoplite_client client,
                               const hoplite_array *value,
                               const hoplite_put_options *options,
                               double timeout,
                               hoplite_pending *pending);

/** Starts `hoplite_create`; `hoplite_pending_take_buffer` returns its result. */
hoplite_code hoplite_create_async(hoplite_client client,
                                  const char *dtype,
                                  uint32_t ndim,
                                  const uint64_t *shape,
                                  const hoplite_create_options *options,
                                  double timeout,
                                  hoplite_pending *pending);

/** Starts `hoplite_seal`; `hoplite_pending_take_ref` returns its result. Releases the buffer at once. */
hoplite_code hoplite_seal_async(hoplite_buffer *buffer,
                                double timeout,
                                hoplite_pending *pending);

/** Starts `hoplite_reserve`; `hoplite_pending_take_ref` returns its result. */
hoplite_code hoplite_reserve_async(hoplite_client client,
                                   const char *name,
                                   double timeout,
                                   hoplite_pending *pending);

/** Starts `hoplite_slots`; `hoplite_pending_take_refs` returns its result. */
hoplite_code hoplite_slots_async(hoplite_client client,
                                 uint32_t count,
                                 double timeout,
                                 hoplite_pending *pending);

/** Starts `hoplite_reduce`; `hoplite_pending_take_ref` returns its result. */
hoplite_code hoplite_reduce_async(hoplite_client client,
                                  const char *const *refs,
                                  size_t n,
                                  const char *op,
                                  const hoplite_reduce_options *options,
                                  double timeout,
                                  hoplite_pending *pending);

/** Starts `hoplite_get`; `hoplite_pending_take_view` returns its result. */
hoplite_code hoplite_get_async(hoplite_client client,
                               const char *ref,
                               const hoplite_get_options *options,
                               double timeout,
                               hoplite_pending *pending);

/**
 * Starts `hoplite_get_into`; `hoplite_pending_take_size` returns its result. The memory at `out` must stay valid, and
 * belongs to the library, until the call is over, taken or cancelled.
 */
hoplite_code hoplite_get_into_async(hoplite_client client,
                                    const char *ref,
                                    void *out,
                                    uint64_t nbytes,
                                    const char *dtype,
                                    uint32_t ndim,
                                    const uint64_t *shape,
                                    double timeout,
                                    hoplite_pending *pending);

/** Starts `hoplite_wait`; `hoplite_pending_take_ready` returns its result. */
hoplite_code hoplite_wait_async(hoplite_client client,
                                const char *const *refs,
                                size_t n,
                                size_t count,
                                double timeout,
                                hoplite_pending *pending);

/** Starts `hoplite_inputs`; `hoplite_pending_take_refs` returns its result. */
hoplite_code hoplite_inputs_async(hoplite_client client,
                                  const char *ref,
                                  double timeout,
                                  hoplite_pending *pending);

/** Starts `hoplite_lost`; `hoplite_pending_take_refs` returns its result. */
hoplite_code hoplite_lost_async(hoplite_client client,
                                const char *ref,
                                double timeout,
                                hoplite_pending *pending);

/** Starts `hoplite_latest`; `hoplite_pending_take_ref` returns its result. */
hoplite_code hoplite_latest_async(hoplite_client client,
                                  const char *prefix,
                                  int64_t after,
                                  double timeout,
                                  hoplite_pending *pending);

/** Starts `hoplite_delete`; `hoplite_pending_take_done` returns its result. */
hoplite_code hoplite_delete_async(hoplite_client client,
                                  const char *const *refs,
                                  size_t n,
                                  double timeout,
                                  hoplite_pending *pending);

/** Starts `hoplite_lease_acquire`; `hoplite_pending_take_lease` returns its result. */
hoplite_code hoplite_lease_acquire_async(hoplite_client client,
                                         const char *ref,
                                         double timeout,
                                         hoplite_pending *pending);

/** Starts `hoplite_get_locations`; `hoplite_pending_take_locations` returns its result. */
hoplite_code hoplite_get_locations_async(hoplite_client client,
                                         const char *ref,
                                         double timeout,
                                         hoplite_pending *pending);

/** Starts `hoplite_status`; `hoplite_pending_take_text` returns its result. */
hoplite_code hoplite_status_async(hoplite_client client, double timeout, hoplite_pending *pending);

/**
 * Waits until a call is over, with success or an error, without taking its result.
 *
 * @param timeout seconds to wait.
 * @return `HOPLITE_TIMEOUT` if the call is not over by then; `HOPLITE_CANCELLED` if another thread cancels or takes it.
 */
hoplite_code hoplite_pending_wait(hoplite_pending pending,
                                  double timeout);

/**
 * Registers a function that is called exactly once when the call is over, also if it is over already or is cancelled.
 *
 * @param callback function; a call has at most one.
 * @param user first argument of the function.
 */
hoplite_code hoplite_pending_on_done(hoplite_pending pending,
                                     hoplite_callback callback,
                                     void *user);

/**
 * Adds a call to a queue once it is over. A call is in at most one queue.
 *
 * @param user value that `hoplite_queue_next` returns with it.
 */
hoplite_code hoplite_pending_enqueue(hoplite_pending pending, hoplite_queue queue, void *user);

/**
 * Waits for a call and returns its code and ref: of put, seal, reserve, reduce, latest. Releases `pending`.
 *
 * A call with a result of another type is not released: each take function returns `HOPLITE_INVALID_ARGUMENT` then.
 *
 * @param[out] ref the ref; may be NULL.
 */
hoplite_code hoplite_pending_take_ref(hoplite_pending pending,
                                      hoplite_ref *ref);

/**
 * Waits for a get and returns its code and view. Releases `pending`.
 *
 * @param[out] view the view. Set its `size` before the call.
 */
hoplite_code hoplite_pending_take_view(hoplite_pending pending, hoplite_view *view);

/**
 * Waits for a create and returns its code and buffer. Releases `pending`.
 *
 * @param[out] buffer the buffer. Set its `size` before the call.
 */
hoplite_code hoplite_pending_take_buffer(hoplite_pending pending, hoplite_buffer *buffer);

/**
 * Waits for a get into memory and returns its code and the number of bytes. Releases `pending`.
 *
 * @param[out] copied number of bytes; may be NULL.
 */
hoplite_code hoplite_pending_take_size(hoplite_pending pending, uint64_t *copied);

/**
 * Waits for a wait and returns its code and indices. Releases `pending`.
 *
 * @param[out] ready the indices.
 * @param room number of indices that fit at `ready`; the `n` of the call is enough.
 * @param[out] ready_count number of indices.
 */
hoplite_code hoplite_pending_take_ready(hoplite_pending pending,
                                        size_t *ready,
                                        size_t room,
                                        size_t *ready_count);

/**
 * Waits for an inputs, lost or slots call and returns its code and refs. Releases `pending`.
 *
 * @param[out] refs the refs. Set its `size` before the call.
 */
hoplite_code hoplite_pending_take_refs(hoplite_pending pending, hoplite_refs *refs);

/**
 * Waits for a lease and returns its code and handle. Releases `pending`.
 *
 * @param[out] lease the lease.
 */
hoplite_code hoplite_pending_take_lease(hoplite_pending pending, hoplite_lease *lease);

/**
 * Waits for a locations call and returns its code and list. Releases `pending`.
 *
 * @param[out] locations the list. Set its `size` before the call.
 */
hoplite_code hoplite_pending_take_locations(hoplite_pending pending, hoplite_locations *locations);

/**
 * Waits for a status call and returns its code and text. Releases `pending`.
 *
 * @param[out] text the text. Set its `size` before the call.
 */
hoplite_code hoplite_pending_take_text(hoplite_pending pending, hoplite_text *text);

/** Waits for a delete and returns its code. Releases `pending`. */
hoplite_code hoplite_pending_take_done(hoplite_pending pending);

/**
 * Cancels a call and releases it. When this returns, the library no longer uses memory of the caller for it.
 *
 * What the call has done already stays: a put may have created its object.
 */
hoplite_code hoplite_pending_cancel(hoplite_pending pending);

/**
 * Makes a queue of calls that are over, for an event loop.
 *
 * @param[out] queue handle of the queue.
 */
hoplite_code hoplite_queue_new(hoplite_queue *queue);

/**
 * Returns a file descriptor that is readable while the queue is not empty, for poll, epoll or select.
 *
 * The descriptor belongs to the queue: do not read, write or close it.
 */
hoplite_code hoplite_queue_fd(hoplite_queue queue,
                              int *fd);

/**
 * Removes the oldest call from the queue, without waiting. The caller takes its result.
 *
 * @param[out] pending the call.
 * @param[out] user the value of `hoplite_pending_enqueue`; may be NULL.
 * @return `HOPLITE_NOT_READY` if the queue is empty.
 */
hoplite_code hoplite_queue_next(hoplite_queue queue, hoplite_pending *pending, void **user);

/** Closes a queue, and releases it and its descriptor. Its calls go on, and can be waited for and taken. */
hoplite_code hoplite_queue_close(hoplite_queue queue);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HOPLITE_H */
