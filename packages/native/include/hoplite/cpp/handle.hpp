/// @file
/// The handle that all copies of a client share.

#ifndef HOPLITE_CPP_HANDLE_HPP
#define HOPLITE_CPP_HANDLE_HPP

#include <memory>

#include "error.hpp"

namespace hoplite {
inline namespace HOPLITE_NAMESPACE {
namespace detail {

inline Error client_closed() {
    return Error(HOPLITE_CLIENT_CLOSED, "this client is closed: create another with hoplite::init() or node.client()");
}

class ClientHandle {
public:
    explicit ClientHandle(hoplite_client raw) noexcept : raw_(raw) {}
    ClientHandle(const ClientHandle&) = delete;
    ClientHandle& operator=(const ClientHandle&) = delete;
    ~ClientHandle() { close(); }

    [[nodiscard]] hoplite_client raw() const noexcept { return raw_; }
    [[nodiscard]] bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }

    void close() noexcept {
        if (!closed_.exchange(true, std::memory_order_acq_rel)) hoplite_client_close(raw_);
    }

private:
    hoplite_client raw_;
    std::atomic<bool> closed_{false};
};

using SharedClient = std::shared_ptr<ClientHandle>;

/// The error of a code. The C functions do not know the handle of a closed client any more.
inline Error error_of(hoplite_code code, const SharedClient& client) {
    if (code == HOPLITE_INVALID_HANDLE && client == nullptr) {
        return Error(code, "this client was moved from: use the client that it was moved to");
    }
    const bool of_closed = code == HOPLITE_INVALID_HANDLE || code == HOPLITE_CLIENT_CLOSED;
    if (of_closed && client->closed()) return client_closed();
    return error_of(code);
}

}  // namespace detail
}  // namespace HOPLITE_NAMESPACE
}  // namespace hoplite

#endif
