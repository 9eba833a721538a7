/// @file
/// Errors: one exception class for each code, and `Result`, which holds a value or an error.

#ifndef HOPLITE_CPP_ERROR_HPP
#define HOPLITE_CPP_ERROR_HPP

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "config.hpp"

#if HOPLITE_HAS_EXPECTED
#include <expected>
#endif

namespace hoplite {
inline namespace HOPLITE_NAMESPACE {

/// Base class of all errors of Hoplite. `what()` states what failed, on what, and why.
class Error : public std::runtime_error {
public:
    Error(hoplite_code code, const std::string& message) : std::runtime_error(message), code_(code) {}

    /// The code, such as `HOPLITE_TIMEOUT`.
    [[nodiscard]] hoplite_code code() const noexcept { return code_; }

    /// Name of the code, such as "HOPLITE_TIMEOUT".
    [[nodiscard]] const char* name() const noexcept { return hoplite_code_name(code_); }

    /// Throws this error as the class of its code. Without exceptions, prints it and aborts.
    [[noreturn]] void raise() const;

private:
    hoplite_code code_;
};

/// The error of one code.
template <hoplite_code C>
class ErrorOf final : public Error {
public:
    explicit ErrorOf(const std::string& message) : Error(C, message) {}
};

/// The timeout of a call expired. The object may still appear.
using Timeout = ErrorOf<HOPLITE_TIMEOUT>;
/// No copy of an object is left, or too few inputs of a reduce can still arrive.
using ObjectLost = ErrorOf<HOPLITE_OBJECT_LOST>;
/// All nodes with a copy sent bytes that do not match the digest of the put.
using ObjectCorrupt = ErrorOf<HOPLITE_OBJECT_CORRUPT>;
/// The object, or an input of the reduce that produces it, was deleted.
using ObjectDeleted = ErrorOf<HOPLITE_OBJECT_DELETED>;
/// An object with this name exists.
using NameTaken = ErrorOf<HOPLITE_NAME_TAKEN>;
/// The node had no capacity for an object within the timeout, or the object is larger than the store.
using StoreFull = ErrorOf<HOPLITE_STORE_FULL>;
/// Two inputs of a reduce, an object and the memory for it, or an object and `T`, differ in shape or dtype.
using ShapeMismatch = ErrorOf<HOPLITE_SHAPE_MISMATCH>;
/// The op of a reduce is unknown.
using UnknownOp = ErrorOf<HOPLITE_UNKNOWN_OP>;
/// A value or dtype is not supported.
using UnsupportedDtype = ErrorOf<HOPLITE_UNSUPPORTED_DTYPE>;
/// An argument or setting is not valid.
using InvalidArgument = ErrorOf<HOPLITE_INVALID_ARGUMENT>;
/// The node of this client has closed, failed or does not reply.
using NodeDown = ErrorOf<HOPLITE_NODE_DOWN>;
/// The client's capability does not permit the call.
using NotAllowed = ErrorOf<HOPLITE_NOT_ALLOWED>;
/// The client was closed.
using ClientClosed = ErrorOf<HOPLITE_CLIENT_CLOSED>;
/// A client was used in a forked child, which can't attach to the node of its parent.
using ForkedClient = ErrorOf<HOPLITE_FORKED_CLIENT>;
/// A node could not join its cluster.
using JoinError = ErrorOf<HOPLITE_JOIN_ERROR>;
/// Another process uses the address or the socket on which a node should listen.
using AddressInUse = ErrorOf<HOPLITE_ADDRESS_IN_USE>;
/// No node serves the socket to which a client should attach.
using ConnectError = ErrorOf<HOPLITE_CONNECT_ERROR>;
/// An object of this API was moved from, released or closed before.
using InvalidHandle = ErrorOf<HOPLITE_INVALID_HANDLE>;
/// The call was cancelled.
using Cancelled = ErrorOf<HOPLITE_CANCELLED>;
/// A queue is empty.
using NotReady = ErrorOf<HOPLITE_NOT_READY>;
/// This process or its host denies what the call needs, such as a file within its limit of open files.
using HostError = ErrorOf<HOPLITE_HOST_ERROR>;
/// A defect in Hoplite. Report it with its message.
using Internal = ErrorOf<HOPLITE_INTERNAL>;

inline void Error::raise() const {
#if HOPLITE_HAS_EXCEPTIONS
    switch (code_) {
        case HOPLITE_TIMEOUT:
            throw Timeout(what());
        case HOPLITE_OBJECT_LOST:
            throw ObjectLost(what());
        case HOPLITE_OBJECT_CORRUPT:
            throw ObjectCorrupt(what());
        case HOPLITE_OBJECT_DELETED:
            throw ObjectDeleted(what());
        case HOPLITE_NAME_TAKEN:
            throw NameTaken(what());
        case HOPLITE_STORE_FULL:
            throw StoreFull(what());
        case HOPLITE_SHAPE_MISMATCH:
            throw ShapeMismatch(what());
        case HOPLITE_UNKNOWN_OP:
            throw UnknownOp(what());
        case HOPLITE_UNSUPPORTED_DTYPE:
            throw UnsupportedDtype(what());
        case HOPLITE_INVALID_ARGUMENT:
            throw InvalidArgument(what());
        case HOPLITE_NODE_DOWN:
            throw NodeDown(what());
        case HOPLITE_NOT_ALLOWED:
            throw NotAllowed(what());
        case HOPLITE_CLIENT_CLOSED:
            throw ClientClosed(what());
        case HOPLITE_FORKED_CLIENT:
            throw ForkedClient(what());
        case HOPLITE_JOIN_ERROR:
            throw JoinError(what());
        case HOPLITE_ADDRESS_IN_USE:
            throw AddressInUse(what());
        case HOPLITE_CONNECT_ERROR:
            throw ConnectError(what());
        case HOPLITE_INVALID_HANDLE:
            throw InvalidHandle(what());
        case HOPLITE_CANCELLED:
            throw Cancelled(what());
        case HOPLITE_NOT_READY:
            throw NotReady(what());
        case HOPLITE_HOST_ERROR:
            throw HostError(what());
        case HOPLITE_INTERNAL:
            throw Internal(what());
        default:
            throw *this;
    }
#else
    std::fprintf(stderr, "hoplite: %s\n", what());
    std::abort();
#endif
}

#if HOPLITE_HAS_EXPECTED
/// A value or an error.
template <class T>
using Result = std::expected<T, Error>;

namespace detail {
inline std::unexpected<Error> failure(Error error) { return std::unexpected<Error>(std::move(error)); }
}  // namespace detail
#else
namespace detail {
struct Failure {
    Error error;
};
inline Failure failure(Error error) { return {std::move(error)}; }
struct Nothing {};
}  // namespace detail

/// A value or an error: the part of `std::expected<T, Error>` that C++20 compilers lack.
template <class T>
class [[nodiscard]] Result {
    using Stored = std::conditional_t<std::is_void_v<T>, detail::Nothing, T>;

public:
    Result() = default;
    Result(detail::Failure failure) : state_(std::in_place_index<1>, std::move(failure.error)) {}
    template <class U = Stored>
        requires(std::is_constructible_v<Stored, U &&> && !std::is_same_v<std::remove_cvref_t<U>, Result> &&
                 !std::is_same_v<std::remove_cvref_t<U>, detail::Failure>)
    Result(U&& value) : state_(std::in_place_index<0>, std::forward<U>(value)) {}

    [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }

    [[nodiscard]] const Error& error() const noexcept { return *std::get_if<1>(&state_); }

    /// The value. Throws the error if there is none.
    Stored& value() & {
        if (!has_value()) error().raise();
        return *std::get_if<0>(&state_);
    }
    Stored&& value() && { return std::move(value()); }
    Stored& operator*() & noexcept { return *std::get_if<0>(&state_); }
    Stored&& operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
    const Stored& operator*() const& noexcept { return *std::get_if<0>(&state_); }
    Stored* operator->() noexcept { return std::get_if<0>(&state_); }
    const Stored* operator->() const noexcept { return std::get_if<0>(&state_); }

private:
    std::variant<Stored, Error> state_;
};
#endif

/// Receives the exceptions that leave callbacks of the program, on the thread of the callback.
using CallbackErrorHandler = std::function<void(std::exception_ptr)>;

namespace detail {

inline Error error_of(hoplite_code code) { return Error(code, hoplite_last_error()); }

inline Error invalid(const std::string& message) { return Error(HOPLITE_INVALID_ARGUMENT, message); }

/// The value of a result, or its error as an exception.
template <class T>
T unwrap(Result<T> result) {
    if (!result) result.error().raise();
    if constexpr (!std::is_void_v<T>) return std::move(*result);
}

struct CallbackErrors {
    std::mutex mutex;
    CallbackErrorHandler handler;
};

// Never destroyed: callbacks may run until the process ends.
inline CallbackErrors& callback_errors() {
    static CallbackErrors* errors = new CallbackErrors;
    return *errors;
}

inline void report_callback_error() noexcept {
#if HOPLITE_HAS_EXCEPTIONS
    CallbackErrorHandler handler;
    try {
        CallbackErrors& errors = callback_errors();
        {
            const std::lock_guard lock(errors.mutex);
            handler = errors.handler;
        }
        if (handler) {
            handler(std::current_exception());
            return;
        }
        throw;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "hoplite: a callback threw an exception: %s\n", error.what());
    } catch (...) {
        std::fprintf(stderr, "hoplite: a callback threw an exception that is not a std::exception\n");
    }
#endif
}

/// Calls a function of the program. No exception of it enters the library.
template <class F, class... A>
void guarded(F&& function, A&&... arguments) noexcept {
#if HOPLITE_HAS_EXCEPTIONS
    try {
        std::forward<F>(function)(std::forward<A>(arguments)...);
    } catch (...) {
        report_callback_error();
    }
#else
    std::forward<F>(function)(std::forward<A>(arguments)...);
#endif
}

}  // namespace detail

/// Sets the function that receives the exceptions of callbacks. The default prints one line to stderr.
inline void set_callback_error_handler(CallbackErrorHandler handler) {
    detail::CallbackErrors& errors = detail::callback_errors();
    const std::lock_guard lock(errors.mutex);
    errors.handler = std::move(handler);
}

}  // namespace HOPLITE_NAMESPACE
}  // namespace hoplite

#endif
