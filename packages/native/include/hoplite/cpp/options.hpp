/// @file
/// Options of the verbs, which read like keyword arguments: `client.put(value, {.name = "policy/17", .retain = 2})`.
///
/// The options of verbs borrow names until the call returns, so write them in the call. They have no destructor: GCC up
/// to 13 destroys aggregates in the operand of a `co_await` twice.

#ifndef HOPLITE_CPP_OPTIONS_HPP
#define HOPLITE_CPP_OPTIONS_HPP

#include <string>

#include "dtype.hpp"
#include "lists.hpp"

namespace hoplite {
inline namespace HOPLITE_NAMESPACE {

/// Options of `init`, `connect` and `Node::client`.
struct ClientOptions {
    /// Time to wait for the node; absent: no limit. Without effect in `Node::client`.
    Duration timeout = std::chrono::duration<double>(10);
    /// Name that marks all objects this client creates: they are deleted 5 s after the last client of the job ends.
    std::optional<std::string> job = {};
    /// Whether to attach to the next node on the same socket after the node's process ends.
    bool reconnect = true;
    /// Path or text of a capability that restricts this client.
    std::optional<std::string> capability = {};
    /// Whether `put` announces the SHA-256 of the bytes, which every receiver verifies.
    bool digest = false;
    /// Timeout of the calls that set none. Absent: HOPLITE_TIMEOUT, or else no limit.
    Duration default_timeout = {};
};

/// Options of `Client::put`.
struct PutOptions {
    /// Name of the object, such as "policy/17", or a ref from `reserve` of this client. Absent: an id.
    Name name = {};
    /// Nodes, including this one, that keep a copy until `del`.
    std::uint32_t replicas = 1;
    /// Newest versions to retain under the prefix of the name, including this one. Absent: all.
    std::optional<std::uint64_t> retain = {};
    /// Time until the object is deleted, from when it is complete. Absent: no limit.
    Duration ttl = {};
    /// If the name is taken, return the ref of the existing object.
    bool exist_ok = false;
    /// Refuse the put if a higher number exists under the prefix of the name. This is checked before the put.
    bool newest = false;
    /// Time to wait for memory in the store and for the replicas.
    Duration timeout = {};
};

/// Options of `Client::create`.
struct CreateOptions {
    /// Name of the object, as in `PutOptions`.
    Name name = {};
    /// Nodes that keep a copy, as in `PutOptions`; `seal` waits for them.
    std::uint32_t replicas = 1;
    /// Time until the object is deleted, counted from `seal`. Absent: no limit.
    Duration ttl = {};
    /// Time to wait for memory in the store.
    Duration timeout = {};
};

/// Rows of an array along axis 0, or bytes of a bytes object: from `start` until before `stop`.
///
/// Negative bounds count from the end, and bounds outside are clipped. An absent bound is the begin or end.
struct Part {
    std::optional<std::int64_t> start = {};
    std::optional<std::int64_t> stop = {};
};

/// Options of `Client::get`.
struct GetOptions {
    /// The part to get; only its bytes are transferred. The default is the whole object.
    Part part = {};
    /// Time to wait for the object.
    Duration timeout = {};
};

/// Options of `Client::get_into`.
struct GetIntoOptions {
    /// Shape that the object must have. Absent: one axis with the length of the memory.
    std::optional<Shape> shape = {};
    /// Time to wait for the object.
    Duration timeout = {};
};

/// Options of `Client::wait`.
struct WaitOptions {
    /// Number of objects to wait for. Absent: all.
    std::optional<std::size_t> count = {};
    /// Time to wait; 0 returns the current state.
    Duration timeout = {};
};

/// Options of `Client::reduce`.
struct ReduceOptions {
    /// Number of inputs to fold. Absent: all. Later inputs are ignored.
    std::optional<std::uint32_t> count = {};
    /// Name of the result, as in `PutOptions`.
    Name name = {};
    /// Time until the result is deleted, from when it is complete. Absent: no limit.
    Duration ttl = {};
    /// Time for the inputs to arrive and be folded. After that the reduce fails.
    Duration timeout = {};
};

/// Options of `Client::latest`.
struct LatestOptions {
    /// Accept only numbers above this one. Absent: any.
    std::optional<std::uint64_t> after = {};
    /// Time to wait for such a name; 0 does not wait.
    Duration timeout = {};
};

/// Options of `Client::reserve`.
struct ReserveOptions {
    /// Name that no object has. Absent: an id.
    Name name = {};
    /// Time to wait for the node and, with a name, for its owner.
    Duration timeout = {};
};

/// Options of the other verbs that wait.
struct WaitingOptions {
    /// Time to wait for the reply.
    Duration timeout = {};
};

namespace detail {

inline const char* text(const std::optional<std::string>& value) noexcept { return value ? value->c_str() : nullptr; }

// In the structs of C, 0 is the default. Here an absent value is, and 0 is an error.
inline Result<void> check_replicas(std::uint32_t replicas) {
    if (replicas >= 1) return {};
    return failure(invalid("replicas is 0, but the count includes the first copy: set at least 1"));
}

inline Result<void> check_ttl(const Duration& ttl) {
    if (!ttl || ttl->count() > 0) return {};
    return failure(invalid("ttl is " + std::to_string(ttl->count()) +
                           " s: set more than 0, or no ttl to keep the object until it is deleted"));
}

inline Result<hoplite_client_options> raw(const ClientOptions& options) {
    // In the struct of C, 0 is the default.
    if (options.default_timeout && !(options.default_timeout->count() > 0)) {
        return failure(invalid("default_timeout is not above 0 s: set more, or none"));
    }
    hoplite_client_options raw{};
    raw.size = sizeof raw;
    raw.job = text(options.job);
    raw.capability = text(options.capability);
    raw.no_reconnect = !options.reconnect;
    raw.digest = options.digest;
    raw.default_timeout = options.default_timeout ? options.default_timeout->count() : 0;
    return raw;
}

inline Result<hoplite_put_options> raw(const PutOptions& options) {
    if (auto valid = check_replicas(options.replicas); !valid) return failure(valid.error());
    if (auto valid = check_ttl(options.ttl); !valid) return failure(valid.error());
    if (options.retain && *options.retain == 0) {
        return failure(invalid("retain is 0, and it counts the new object: set at least 1"));
    }
    hoplite_put_options raw{};
    raw.size = sizeof raw;
    raw.name = options.name.text();
    raw.replicas = options.replicas;
    raw.retain = options.retain.value_or(0);
    raw.ttl = options.ttl ? options.ttl->count() : 0;
    raw.exist_ok = options.exist_ok;
    raw.newest = options.newest;
    return raw;
}

inline Result<hoplite_create_options> raw(const CreateOptions& options) {
    if (auto valid = check_replicas(options.replicas); !valid) return failure(valid.error());
    if (auto valid = check_ttl(options.ttl); !valid) return failure(valid.error());
    hoplite_create_options raw{};
    raw.size = sizeof raw;
    raw.name = options.name.text();
    raw.replicas = options.replicas;
    raw.ttl = options.ttl ? options.ttl->count() : 0;
    return raw;
}

inline hoplite_get_options raw(const Part& part) noexcept {
    hoplite_get_options raw{};
    raw.size = sizeof raw;
    raw.has_start = part.start.has_value();
    raw.has_stop = part.stop.has_value();
    raw.start = part.start.value_or(0);
    raw.stop = part.stop.value_or(0);
    return raw;
}

inline Result<hoplite_reduce_options> raw(const ReduceOptions& options, std::size_t inputs) {
    if (auto valid = check_ttl(options.ttl); !valid) return failure(valid.error());
    if (options.count && *options.count == 0) {
        return failure(invalid("count is 0: it must be between 1 and the number of inputs, " + std::to_string(inputs)));
    }
    hoplite_reduce_options raw{};
    raw.size = sizeof raw;
    raw.count = options.count.value_or(0);
    raw.name = options.name.text();
    raw.ttl = options.ttl ? options.ttl->count() : 0;
    return raw;
}

inline Result<std::int64_t> raw(const LatestOptions& options) {
    if (!options.after) return std::int64_t{-1};
    if (*options.after > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return failure(invalid("after is " + std::to_string(*options.after) + ": set a number below 2^63"));
    }
    return static_cast<std::int64_t>(*options.after);
}

}  // namespace detail

}  // namespace HOPLITE_NAMESPACE
}  // namespace hoplite

#endif
