/// @file
/// Embedded nodes.

#ifndef HOPLITE_CPP_NODE_HPP
#define HOPLITE_CPP_NODE_HPP

#include "client.hpp"

namespace hoplite {
inline namespace HOPLITE_NAMESPACE {

/// Options of a node. An absent option is read from the environment variable HOPLITE_<OPTION>, then from the file in
/// HOPLITE_CONFIG.
struct NodeOptions {
    /// Address and TCP port for other nodes, as "10.0.0.1:7420". Port 0 selects a free port.
    std::optional<std::string> listen = {};
    /// Address that other nodes use, if it differs from the one listened on.
    std::optional<std::string> advertise = {};
    /// Addresses of nodes of the cluster; one that replies is enough.
    std::vector<std::string> join = {};
    /// Size limit of the store in bytes, at least 1 MiB. The default is 30 % of the memory of the host or cgroup.
    std::optional<std::uint64_t> capacity = {};
    /// Directory on a disk for objects that do not fit in memory.
    std::optional<std::string> spill = {};
    /// Size limit of the files there in bytes. The default is 80 % of the free space.
    std::optional<std::uint64_t> spill_limit = {};
    /// Keep objects that no other node holds in the directory when this node ends.
    bool spill_persistent = false;
    /// Name of the cluster. Only nodes with the same name join.
    std::optional<std::string> cluster = {};
    /// Shared secret of the cluster. The default, on loopback, is a secret of this user.
    std::optional<std::string> token = {};
    /// File with the token (mode 0600).
    std::optional<std::string> token_file = {};
    /// PEM file with the certificate of this node, used instead of a token.
    std::optional<std::string> certificate = {};
    /// PEM file with the private key of the certificate (mode 0600).
    std::optional<std::string> key = {};
    /// PEM file with the CA that issued the certificates of all nodes.
    std::optional<std::string> ca = {};
    /// PEM file with the CA's revocation list.
    std::optional<std::string> crl = {};
    /// Send to other nodes without encryption.
    bool no_encryption = false;
    /// Disable authentication: any node that can reach this one may join.
    bool no_auth = false;
    /// Reject processes of this host that attach without a capability.
    bool require_capability = false;
    /// Rack or zone of this host; hosts in one rack use the same name.
    std::optional<std::string> rack = {};
    /// Time after which an unresponsive node is declared dead, at least 0.5 s; the default is 3 s.
    Duration detection_timeout = {};
    /// Path of the Unix socket for processes of this host.
    std::optional<std::string> socket = {};
};

/// A node embedded in this process: a shared-memory store for the processes of this host, and a cluster member.
///
/// It listens on TCP only if clustering is configured. Destroying it closes it, within 60 s.
class Node {
public:
    /// Starts a node.
    ///
    /// @throws AddressInUse Another process uses the port or the socket.
    /// @throws InvalidArgument An option is not valid, or other hosts can reach the node and it has neither a token nor
    /// a
    ///     certificate.
    /// @throws JoinError No node of the cluster replied, or its cluster name, token, CA or protocol version differs.
    explicit Node(const NodeOptions& options = {}) : Node(detail::unwrap(try_start(options))) {}

    static Result<Node> try_start(const NodeOptions& options = {}) {
        if (options.capacity && *options.capacity == 0) {
            return detail::failure(detail::invalid("capacity 0 B is too small: set at least 1 MiB"));
        }
        if (options.detection_timeout && !(options.detection_timeout->count() > 0)) {
            return detail::failure(detail::invalid("detection_timeout is not above 0 s: set at least 0.5 s"));
        }
        if (options.spill_limit && *options.spill_limit == 0) {
            return detail::failure(detail::invalid("spill_limit 0 B is too small: set more, or no limit"));
        }
        std::string join;
        for (const std::string& address : options.join) join += (join.empty() ? "" : ",") + address;
        hoplite_node_options raw{};
        raw.size = sizeof raw;
        raw.listen = detail::text(options.listen);
        raw.advertise = detail::text(options.advertise);
        raw.join = options.join.empty() ? nullptr : join.c_str();
        raw.cluster = detail::text(options.cluster);
        raw.token = detail::text(options.token);
        raw.token_file = detail::text(options.token_file);
        raw.certificate = detail::text(options.certificate);
        raw.key = detail::text(options.key);
        raw.ca = detail::text(options.ca);
        raw.crl = detail::text(options.crl);
        raw.spill = detail::text(options.spill);
        raw.rack = detail::text(options.rack);
        raw.socket = detail::text(options.socket);
        raw.capacity = options.capacity.value_or(0);
        raw.spill_limit = options.spill_limit.value_or(0);
        raw.detection_timeout = options.detection_timeout ? options.detection_timeout->count() : 0;
        raw.spill_persistent = options.spill_persistent;
        raw.no_encryption = options.no_encryption;
        raw.no_auth = options.no_auth;
        raw.require_capability = options.require_capability;
        hoplite_node node{};
        if (const hoplite_code code = hoplite_node_start(&raw, &node); code != HOPLITE_OK) {
            return detail::failure(detail::error_of(code));
        }
        return Node(node);
    }

    Node(Node&& other) noexcept
        : raw_(std::exchange(other.raw_, {})),
          id_(std::move(other.id_)),
          address_(std::move(other.address_)),
          socket_(std::move(other.socket_)) {}
    Node& operator=(Node&& other) noexcept {
        if (this != &other) {
            if (raw_.id != 0) (void)try_close();
            raw_ = std::exchange(other.raw_, {});
            id_ = std::move(other.id_);
            address_ = std::move(other.address_);
            socket_ = std::move(other.socket_);
        }
        return *this;
    }
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;
    ~Node() {
        if (raw_.id != 0) (void)try_close();
    }

    /// Identity of the node in hex, new at each start.
    [[nodiscard]] const std::string& id() const noexcept { return id_; }

    /// Address and port that other nodes join; absent if the node has no TCP port.
    [[nodiscard]] const std::optional<std::string>& address() const noexcept { return address_; }

    /// Path of the Unix socket that processes of this host attach to, for `hoplite::connect`.
    [[nodiscard]] const std::optional<std::string>& socket() const noexcept { return socket_; }

    /// Whether the node has left or failed, or was moved from.
    [[nodiscard]] bool closed() const noexcept {
        hoplite_node_info info{};
        info.size = sizeof info;
        return raw_.id == 0 || hoplite_node_get_info(raw_, &info) != HOPLITE_OK || info.closed;
    }

    /// Why the node failed; absent if it did not.
    [[nodiscard]] std::optional<std::string> failure() const {
        hoplite_node_info info{};
        info.size = sizeof info;
        if (raw_.id == 0 || hoplite_node_get_info(raw_, &info) != HOPLITE_OK || info.failure == nullptr)
            return std::nullopt;
        return info.failure;
    }

    /// Attaches a client. Several clients can be attached; each is closed on its own.
    ///
    /// @throws NodeDown The node is closed.
    [[nodiscard]] Client client(const ClientOptions& options = {}) const { return detail::unwrap(try_client(options)); }

    [[nodiscard]] Result<Client> try_client(const ClientOptions& options = {}) const {
        if (raw_.id == 0) return detail::failure(gone());
        const auto raw_options = detail::raw(options);
        if (!raw_options) return detail::failure(raw_options.error());
        hoplite_client raw{};
        return detail::attached(hoplite_node_client(raw_, &*raw_options, &raw), raw);
    }

    /// Leaves the cluster: hands over the objects that only this node holds, then frees its store. Views stay valid.
    /// Closing a closed node does nothing.
    ///
    /// @param timeout Time for all of that; 60 s if absent.
    /// @return Whether other nodes hold every object that only this one held, or no other node remains.
    bool close(const Duration& timeout = {}) { return detail::unwrap(try_close(timeout)); }

    Result<bool> try_close(const Duration& timeout = {}) {
        if (raw_.id == 0) return true;
        bool complete = false;
        const double seconds = timeout ? timeout->count() : 60.0;
        const hoplite_code code = hoplite_node_close(raw_, seconds, &complete);
        if (code != HOPLITE_INVALID_ARGUMENT) raw_ = {};
        if (code != HOPLITE_OK) return detail::failure(detail::error_of(code));
        return complete;
    }

private:
    explicit Node(hoplite_node raw) : raw_(raw) {
        hoplite_node_info info{};
        info.size = sizeof info;
        if (hoplite_node_get_info(raw_, &info) != HOPLITE_OK) return;
        id_ = info.id;
        if (info.address != nullptr) address_ = info.address;
        if (info.socket != nullptr) socket_ = info.socket;
    }

    static Error gone() { return Error(HOPLITE_NODE_DOWN, "this node is closed or was moved from: start another"); }

    hoplite_node raw_{};
    std::string id_;
    std::optional<std::string> address_;
    std::optional<std::string> socket_;
};

}  // namespace HOPLITE_NAMESPACE
}  // namespace hoplite

#endif
