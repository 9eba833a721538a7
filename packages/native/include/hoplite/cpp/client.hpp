/// @file
/// Clients: the verbs.

#ifndef HOPLITE_CPP_CLIENT_HPP
#define HOPLITE_CPP_CLIENT_HPP

#include "buffer.hpp"
#include "options.hpp"

namespace hoplite {
inline namespace HOPLITE_NAMESPACE {

/// A process's connection to the node of its host: `hoplite::init()`, `hoplite::connect()` or `node.client()`.
///
/// Copies share the connection, which closes with the last of them. All methods are thread-safe. A timeout of 0 does
/// not wait. A call without one has the `default_timeout` of the client. If that has none, or with `no_timeout`, a call
/// waits until the object exists or can no longer appear.
///
/// All methods report `ClientClosed` after `close`, and `NodeDown` if the node has closed or failed. In a forked child,
/// a client attaches to the node again on first use. It reports `ForkedClient` if the node has no socket.
class Client {
public:
    Client() = default;
    explicit Client(hoplite_client raw) : handle_(std::make_shared<detail::ClientHandle>(raw)) {}

    /// Whether this client has a connection: it was not moved from.
    explicit operator bool() const noexcept { return handle_ != nullptr; }

    /// Whether `close` was called.
    [[nodiscard]] bool closed() const noexcept { return handle_ == nullptr || handle_->closed(); }

    /// Detaches all copies of this client from the node. Objects and views stay. Calls that wait report `ClientClosed`.
    void close() noexcept {
        if (handle_ != nullptr) handle_->close();
    }

    /// The handle for the C functions.
    [[nodiscard]] hoplite_client raw() const noexcept { return handle_ == nullptr ? hoplite_client{} : handle_->raw(); }

    /// Copies a value into the store as a new immutable object. Returns its ref once its bytes are in the store and
    /// `replicas` nodes, or all nodes, keep a copy.
    ///
    /// @throws InvalidArgument The name is empty or too long, or is a ref that this client did not reserve; or `retain`
    ///     is given and the name has no number; or an option is not valid.
    /// @throws NameTaken An object with that name exists.
    /// @throws NotAllowed The capability of this client does not allow the put.
    /// @throws ObjectDeleted The object was deleted before `replicas` nodes kept a copy.
    /// @throws StoreFull The store had no capacity in time, or the object is larger than the store.
    /// @throws Timeout The replicas were not complete in time, and the object exists; or the node did not reply, and
    ///     there is no object. The message states which.
    Ref put(const Value& value, const PutOptions& options = {}) const {
        return detail::unwrap(try_put(value, options));
    }

    Result<Ref> try_put(const Value& value, const PutOptions& options = {}) const {
        if (auto valid = value.check(); !valid) return detail::failure(valid.error());
        const auto raw_options = detail::raw(options);
        if (!raw_options) return detail::failure(raw_options.error());
        const hoplite_array array = value.raw();
        hoplite_ref ref{};
        detail::publish();
        return result(hoplite_put(raw(), &array, &*raw_options, detail::seconds(options.timeout), &ref),
                      [&] { return Ref(ref); });
    }

    /// `put`, asynchronously. The memory of an lvalue must stay valid and unchanged until the call is over.
    Pending<Ref> put_async(const Value& value, const PutOptions& options = {}) const {
        if (auto valid = value.check(); !valid) return Pending<Ref>(valid.error());
        const auto raw_options = detail::raw(options);
        if (!raw_options) return Pending<Ref>(raw_options.error());
        const hoplite_array array = value.raw();
        return begin<Ref>({.memory = value.owner()}, [&](hoplite_pending* pending) {
            return hoplite_put_async(raw(), &array, &*raw_options, detail::seconds(options.timeout), pending);
        });
    }

    /// Allocates an array in the store, to be filled in place and sealed without any copy. For bytes, the shape is
    /// their number.
    ///
    /// @throws InvalidArgument The shape has a negative axis, or an option is not valid.
    /// @throws NameTaken An object with that name exists. For an object of up to 32 KiB, `seal` reports this.
    /// @throws StoreFull The store had no capacity in time, or the object is larger than the store.
    template <Element T = float>
    Buffer<T> create(const Shape& shape, const CreateOptions& options = {}) const {
        return detail::unwrap(try_create<T>(shape, options));
    }

    template <Element T = float>
    Result<Buffer<T>> try_create(const Shape& shape, const CreateOptions& options = {}) const {
        if (auto valid = shape.check(); !valid) return detail::failure(valid.error());
        const auto raw_options = detail::raw(options);
        if (!raw_options) return detail::failure(raw_options.error());
        hoplite_buffer buffer{};
        buffer.size = sizeof buffer;
        return result(hoplite_create(raw(), dtype_of<T>::name, shape.rank(), shape.data(), &*raw_options,
                                     detail::seconds(options.timeout), &buffer),
                      [&] { return Buffer<T>(buffer, shape, handle_); });
    }

    template <Element T = float>
    Pending<Buffer<T>> create_async(const Shape& shape, const CreateOptions& options = {}) const {
        if (auto valid = shape.check(); !valid) return Pending<Buffer<T>>(valid.error());
        const auto raw_options = detail::raw(options);
        if (!raw_options) return Pending<Buffer<T>>(raw_options.error());
        return begin<Buffer<T>>({.shape = shape}, [&](hoplite_pending* pending) {
            return hoplite_create_async(raw(), dtype_of<T>::name, shape.rank(), shape.data(), &*raw_options,
                                        detail::seconds(options.timeout), pending);
        });
    }

    /// Waits until an object is complete on this host, and returns it without a copy.
    ///
    /// `get<float>(ref)` requires an array of float32; `get(ref)` returns a `View<>` of any dtype.
    ///
    /// @throws Timeout The object was not here in time; with 0, it is not here.
    /// @throws InvalidArgument `part` is given and the object has no parts.
    /// @throws ObjectCorrupt The bytes of all nodes with a copy do not match the object's digest.
    /// @throws ObjectDeleted The object was deleted.
    /// @throws ObjectLost No copy of the object is left.
    /// @throws ShapeMismatch The object has another dtype than `T`.
    /// @throws StoreFull This node had no capacity in time.
    template <class T = void>
        requires(std::is_void_v<T> || Element<T>)
    View<T> get(Name ref, const GetOptions& options = {}) const {
        return detail::unwrap(try_get<T>(ref, options));
    }

    template <class T = void>
        requires(std::is_void_v<T> || Element<T>)
    Result<View<T>> try_get(Name ref, const GetOptions& options = {}) const {
        const hoplite_get_options raw_options = detail::raw(options.part);
        hoplite_view view{};
        view.size = sizeof view;
        const hoplite_code code = hoplite_get(raw(), ref.text(), &raw_options, detail::seconds(options.timeout), &view);
        if (code != HOPLITE_OK) return detail::failure(error(code));
        return detail::view_of<T>(view, ref.text());
    }

    template <class T = void>
        requires(std::is_void_v<T> || Element<T>)
    Pending<View<T>> get_async(Name ref, const GetOptions& options = {}) const {
        const hoplite_get_options raw_options = detail::raw(options.part);
        return begin<View<T>>({.ref = ref.text() == nullptr ? "" : ref.text()}, [&](hoplite_pending* pending) {
            return hoplite_get_async(raw(), ref.text(), &raw_options, detail::seconds(options.timeout), pending);
        });
    }

    /// Copies an object into memory of the caller while it arrives. Returns the number of bytes copied. After an error
    /// the contents are undefined.
    ///
    /// Memory of `std::byte` or `char` accepts objects of any dtype and shape that fit.
    ///
    /// @throws ShapeMismatch The memory has another dtype, shape or size.
    template <detail::ContiguousElements R>
    std::uint64_t get_into(Name ref, R&& out, const GetIntoOptions& options = {}) const {
        return detail::unwrap(try_get_into(ref, out, options));
    }

    template <detail::ContiguousElements R>
    Result<std::uint64_t> try_get_into(Name ref, R&& out, const GetIntoOptions& options = {}) const {
        auto into = Into::of(out, options);
        if (!into) return detail::failure(into.error());
        std::uint64_t copied = 0;
        const hoplite_code code =
            hoplite_get_into(raw(), ref.text(), into->data, into->nbytes, into->dtype, into->shape.rank(),
                             into->shape.data(), detail::seconds(options.timeout), &copied);
        detail::receive();
        return result(code, [&] { return copied; });
    }

    /// `get_into`, asynchronously. The memory must stay valid, and belongs to the library, until the call is over.
    template <detail::ContiguousElements R>
    Pending<std::uint64_t> get_into_async(Name ref, R&& out, const GetIntoOptions& options = {}) const {
        auto into = Into::of(out, options);
        if (!into) return Pending<std::uint64_t>(into.error());
        return begin<std::uint64_t>({}, [&](hoplite_pending* pending) {
            return hoplite_get_into_async(raw(), ref.text(), into->data, into->nbytes, into->dtype, into->shape.rank(),
                                          into->shape.data(), detail::seconds(options.timeout), pending);
        });
    }

    /// Waits until some of several objects are ready: complete somewhere in the cluster, deleted or lost. Returns the
    /// ready ones, exactly `count` of them unless the timeout expired, and the others.
    ///
    /// @throws InvalidArgument A ref is listed twice, or `count` is above the number of refs.
    Waited wait(const Names& refs, const WaitOptions& options = {}) const {
        return detail::unwrap(try_wait(refs, options));
    }

    Result<Waited> try_wait(const Names& refs, const WaitOptions& options = {}) const {
        detail::Finish<Waited> finish{.refs = refs.refs()};
        finish.ready.resize(refs.size());
        const hoplite_code code = hoplite_wait(raw(), refs.data(), refs.size(), options.count.value_or(refs.size()),
                                               detail::seconds(options.timeout), finish.ready.data(), &finish.count);
        if (code != HOPLITE_OK) return detail::failure(error(code));
        return finish.value(handle_);
    }

    Pending<Waited> wait_async(const Names& refs, const WaitOptions& options = {}) const {
        return begin<Waited>({.refs = refs.refs()}, [&](hoplite_pending* pending) {
            return hoplite_wait_async(raw(), refs.data(), refs.size(), options.count.value_or(refs.size()),
                                      detail::seconds(options.timeout), pending);
        });
    }

    /// Folds the first `count` inputs to arrive into one new object. Returns the ref of the result at once: `get` waits
    /// for it, `inputs` returns the inputs that were folded, and `lost` those that are lost. If this client is closed or
    /// its process ends before the result is complete, readers get `ObjectLost`.
    ///
    /// @param inputs Refs or names of arrays with the same dtype and shape, each listed once. They need not exist yet.
    /// @param op "sum", "min", "max", "prod" or "mean", or for bool "any" or "all", element by element.
    /// @throws InvalidArgument The list is empty or has an input twice, or an option is not valid.
    /// @throws NameTaken An object with that name exists, or another reduce produces it.
    /// @throws ObjectDeleted An input was deleted before it was folded. `get` on the result reports this too.
    /// @throws ShapeMismatch Two inputs differ in shape or dtype. `get` on the result reports this too.
    /// @throws UnknownOp The op is not one of these.
    /// @throws UnsupportedDtype An input is not an array, or the op does not support its dtype.
    Ref reduce(const Names& inputs, const std::string& op = "sum", const ReduceOptions& options = {}) const {
        return detail::unwrap(try_reduce(inputs, op, options));
    }

    Result<Ref> try_reduce(const Names& inputs, const std::string& op = "sum",
                           const ReduceOptions& options = {}) const {
        const auto raw_options = detail::raw(options, inputs.size());
        if (!raw_options) return detail::failure(raw_options.error());
        hoplite_ref ref{};
        return result(hoplite_reduce(raw(), inputs.data(), inputs.size(), op.c_str(), &*raw_options,
                                     detail::seconds(options.timeout), &ref),
                      [&] { return Ref(ref); });
    }

    Pending<Ref> reduce_async(const Names& inputs, const std::string& op = "sum",
                              const ReduceOptions& options = {}) const {
        const auto raw_options = detail::raw(options, inputs.size());
        if (!raw_options) return Pending<Ref>(raw_options.error());
        return begin<Ref>({}, [&](hoplite_pending* pending) {
            return hoplite_reduce_async(raw(), inputs.data(), inputs.size(), op.c_str(), &*raw_options,
                                        detail::seconds(options.timeout), pending);
        });
    }

    /// Returns the inputs that a reduce folded into its result. Waits until they are decided. Only clients of the node
    /// on which the reduce was called can query this.
    ///
    /// @throws Timeout Fewer than `count` inputs arrived in time.
    /// @throws InvalidArgument The object is not the result of a reduce that was called on this node.
    /// @throws ObjectDeleted The result, or one of its inputs, was deleted.
    /// @throws ObjectLost Too few inputs can still arrive.
    std::vector<Ref> inputs(Name ref, const WaitingOptions& options = {}) const {
        return detail::unwrap(try_inputs(ref, options));
    }

    Result<std::vector<Ref>> try_inputs(Name ref, const WaitingOptions& options = {}) const {
        detail::Finish<std::vector<Ref>> finish;
        finish.raw.size = sizeof finish.raw;
        const hoplite_code code = hoplite_inputs(raw(), ref.text(), detail::seconds(options.timeout), &finish.raw);
        if (code != HOPLITE_OK) return detail::failure(error(code));
        return finish.value(handle_);
    }

    Pending<std::vector<Ref>> inputs_async(Name ref, const WaitingOptions& options = {}) const {
        return begin<std::vector<Ref>>({}, [&](hoplite_pending* pending) {
            return hoplite_inputs_async(raw(), ref.text(), detail::seconds(options.timeout), pending);
        });
    }

    /// Returns the inputs of a reduce that are lost now: deleted, or held only by nodes that failed.
    ///
    /// @throws InvalidArgument As `inputs`.
    /// @throws ObjectDeleted The result was deleted, or so many inputs that the reduce can't succeed.
    /// @throws ObjectLost So many inputs are lost that the reduce can't succeed. The message names them.
    std::vector<Ref> lost(Name ref, const WaitingOptions& options = {}) const {
        return detail::unwrap(try_lost(ref, options));
    }

    Result<std::vector<Ref>> try_lost(Name ref, const WaitingOptions& options = {}) const {
        detail::Finish<std::vector<Ref>> finish;
        finish.raw.size = sizeof finish.raw;
        const hoplite_code code = hoplite_lost(raw(), ref.text(), detail::seconds(options.timeout), &finish.raw);
        if (code != HOPLITE_OK) return detail::failure(error(code));
        return finish.value(handle_);
    }

    Pending<std::vector<Ref>> lost_async(Name ref, const WaitingOptions& options = {}) const {
        return begin<std::vector<Ref>>({}, [&](hoplite_pending* pending) {
            return hoplite_lost_async(raw(), ref.text(), detail::seconds(options.timeout), pending);
        });
    }

    /// Returns the newest object under a prefix: the one with the highest number. With `after`, waits for a number
    /// higher than that.
    ///
    /// @param prefix Text before the number, with the slash: "policy/" for "policy/17".
    /// @throws Timeout No such name existed in time.
    /// @throws InvalidArgument The prefix does not end in "/".
    Ref latest(Name prefix, const LatestOptions& options = {}) const {
        return detail::unwrap(try_latest(prefix, options));
    }

    Result<Ref> try_latest(Name prefix, const LatestOptions& options = {}) const {
        const auto after = detail::raw(options);
        if (!after) return detail::failure(after.error());
        hoplite_ref ref{};
        return result(hoplite_latest(raw(), prefix.text(), *after, detail::seconds(options.timeout), &ref),
                      [&] { return Ref(ref); });
    }

    Pending<Ref> latest_async(Name prefix, const LatestOptions& options = {}) const {
        const auto after = detail::raw(options);
        if (!after) return Pending<Ref>(after.error());
        return begin<Ref>({}, [&](hoplite_pending* pending) {
            return hoplite_latest_async(raw(), prefix.text(), *after, detail::seconds(options.timeout), pending);
        });
    }

    /// Deletes all copies of objects on all nodes. Views of them stay valid. Calls that wait for a deleted object
    /// report `ObjectDeleted`. The name of a deleted object can be put again. (`delete` is a keyword of C++.)
    void del(const Names& refs, const WaitingOptions& options = {}) const { detail::unwrap(try_del(refs, options)); }

    Result<void> try_del(const Names& refs, const WaitingOptions& options = {}) const {
        const hoplite_code code = hoplite_delete(raw(), refs.data(), refs.size(), detail::seconds(options.timeout));
        if (code != HOPLITE_OK) return detail::failure(error(code));
        return {};
    }

    Pending<void> del_async(const Names& refs, const WaitingOptions& options = {}) const {
        return begin<void>({}, [&](hoplite_pending* pending) {
            return hoplite_delete_async(raw(), refs.data(), refs.size(), detail::seconds(options.timeout), pending);
        });
    }

    /// Reserves the ref or the name of an object that does not exist yet, so that others can wait for it or reduce it.
    /// Only this client can create the object, with `.name =` the ref. If it ends first, waiting calls report
    /// `ObjectLost`, and others can reserve or put the name.
    ///
    /// @throws NameTaken An object has the name, or another client has reserved it.
    Ref reserve(const ReserveOptions& options = {}) const { return detail::unwrap(try_reserve(options)); }

    Result<Ref> try_reserve(const ReserveOptions& options = {}) const {
        hoplite_ref ref{};
        return result(hoplite_reserve(raw(), options.name.text(), detail::seconds(options.timeout), &ref),
                      [&] { return Ref(ref); });
    }

    Pending<Ref> reserve_async(const ReserveOptions& options = {}) const {
        return begin<Ref>({}, [&](hoplite_pending* pending) {
            return hoplite_reserve_async(raw(), options.name.text(), detail::seconds(options.timeout), pending);
        });
    }

    /// Makes slots: refs that any client of the cluster may put or create, each once, with the directory entry on this
    /// host's node. Calls that wait for one that is not filled, and puts of it, report `ObjectLost` when this client
    /// ends.
    ///
    /// @throws NotAllowed The capability of this client has a prefix.
    /// @throws StoreFull The node has too many slots.
    std::vector<Ref> slots(std::uint32_t count, const WaitingOptions& options = {}) const {
        return detail::unwrap(try_slots(count, options));
    }

    Result<std::vector<Ref>> try_slots(std::uint32_t count, const WaitingOptions& options = {}) const {
        detail::Finish<std::vector<Ref>> finish;
        finish.raw.size = sizeof finish.raw;
        const hoplite_code code = hoplite_slots(raw(), count, detail::seconds(options.timeout), &finish.raw);
        if (code != HOPLITE_OK) return detail::failure(error(code));
        return finish.value(handle_);
    }

    Pending<std::vector<Ref>> slots_async(std::uint32_t count, const WaitingOptions& options = {}) const {
        return begin<std::vector<Ref>>({}, [&](hoplite_pending* pending) {
            return hoplite_slots_async(raw(), count, detail::seconds(options.timeout), pending);
        });
    }

    /// Takes a lease of an object, which need not exist yet. The object is deleted 5 s after its last lease ends.
    ///
    /// @throws Timeout The owner of the object did not reply in time. The lease is released.
    [[nodiscard]] Lease lease(Name ref, const WaitingOptions& options = {}) const {
        return detail::unwrap(try_lease(ref, options));
    }

    [[nodiscard]] Result<Lease> try_lease(Name ref, const WaitingOptions& options = {}) const {
        hoplite_lease lease{};
        return result(hoplite_lease_acquire(raw(), ref.text(), detail::seconds(options.timeout), &lease),
                      [&] { return Lease(lease, Ref(ref.text()), handle_); });
    }

    Pending<Lease> lease_async(Name ref, const WaitingOptions& options = {}) const {
        return begin<Lease>({.ref = Ref(ref.text() == nullptr ? "" : ref.text())}, [&](hoplite_pending* pending) {
            return hoplite_lease_acquire_async(raw(), ref.text(), detail::seconds(options.timeout), pending);
        });
    }

    /// Lists the nodes that hold an object, completely or in part; none if the object does not exist.
    ///
    /// @throws Timeout The owner of the object did not reply in time.
    /// @throws ObjectDeleted The object was deleted.
    /// @throws ObjectLost No copy of it is left.
    std::vector<Location> locations(Name ref, const WaitingOptions& options = {}) const {
        return detail::unwrap(try_locations(ref, options));
    }

    Result<std::vector<Location>> try_locations(Name ref, const WaitingOptions& options = {}) const {
        detail::Finish<std::vector<Location>> finish;
        finish.raw.size = sizeof finish.raw;
        const hoplite_code code =
            hoplite_get_locations(raw(), ref.text(), detail::seconds(options.timeout), &finish.raw);
        if (code != HOPLITE_OK) return detail::failure(error(code));
        return finish.value(handle_);
    }

    Pending<std::vector<Location>> locations_async(Name ref, const WaitingOptions& options = {}) const {
        return begin<std::vector<Location>>({}, [&](hoplite_pending* pending) {
            return hoplite_get_locations_async(raw(), ref.text(), detail::seconds(options.timeout), pending);
        });
    }

    /// Reports the state of this host's node as JSON: identity, members, store, limits and counters.
    std::string status(const WaitingOptions& options = {}) const { return detail::unwrap(try_status(options)); }

    Result<std::string> try_status(const WaitingOptions& options = {}) const {
        detail::Finish<std::string> finish;
        finish.raw.size = sizeof finish.raw;
        const hoplite_code code = hoplite_status(raw(), detail::seconds(options.timeout), &finish.raw);
        if (code != HOPLITE_OK) return detail::failure(error(code));
        return finish.value(handle_);
    }

    Pending<std::string> status_async(const WaitingOptions& options = {}) const {
        return begin<std::string>({}, [&](hoplite_pending* pending) {
            return hoplite_status_async(raw(), detail::seconds(options.timeout), pending);
        });
    }

private:
    struct Into {
        void* data;
        std::uint64_t nbytes;
        const char* dtype;
        Shape shape;

        template <class R>
        static Result<Into> of(R& out, const GetIntoOptions& options) {
            using T = std::ranges::range_value_t<R>;
            static_assert(!std::is_const_v<std::remove_pointer_t<decltype(std::ranges::data(out))>>,
                          "get_into needs memory that can be written");
            const std::size_t size = std::ranges::size(out);
            Into into{std::ranges::data(out), size * sizeof(T), is_bytes<T> ? nullptr : dtype_of<T>::name,
                      options.shape.value_or(Shape(size))};
            if (auto valid = into.shape.check(); !valid) return detail::failure(valid.error());
            if (const auto elements = into.shape.elements(); !is_bytes<T> && (!elements || *elements != size)) {
                return detail::failure(detail::invalid("the shape " + into.shape.text() + " does not fit memory of " +
                                                       std::to_string(size) +
                                                       " elements: pass a shape with this number"));
            }
            return into;
        }
    };

    [[nodiscard]] Error error(hoplite_code code) const { return detail::error_of(code, handle_); }

    template <class F, class T = std::invoke_result_t<F>>
    Result<T> result(hoplite_code code, F&& value) const {
        if (code != HOPLITE_OK) return detail::failure(error(code));
        return value();
    }

    template <class T, class F>
    Pending<T> begin(detail::Finish<T> finish, F&& start) const {
        return Pending<T>::begin(handle_, std::move(finish), std::forward<F>(start));
    }

    detail::SharedClient handle_;
};

namespace detail {
inline Result<Client> attached(hoplite_code code, hoplite_client raw) {
    if (code != HOPLITE_OK) return failure(error_of(code));
    return Client(raw);
}
}  // namespace detail

/// Attaches this process to a node of this host; starts an embedded node, which ends with the client, if there is none.
///
/// Without an address, the first of these that exists is used: the address in HOPLITE_ADDRESS; in a Slurm job, the node
/// of that job on this host; this user's node on this host; a node that another process has embedded; a new one.
///
/// @param address "unix:" and the path of a node's socket, or the path alone.
/// @throws ConnectError No node served the socket in time.
/// @throws NotAllowed The node rejects the capability, or requires one.
inline Result<Client> try_init(const std::optional<std::string>& address = {}, const ClientOptions& options = {}) {
    const auto raw_options = detail::raw(options);
    if (!raw_options) return detail::failure(raw_options.error());
    hoplite_client raw{};
    return detail::attached(
        hoplite_init(detail::text(address), &*raw_options, options.timeout.value_or(no_timeout).count(), &raw), raw);
}

inline Client init(const std::optional<std::string>& address = {}, const ClientOptions& options = {}) {
    return detail::unwrap(try_init(address, options));
}

/// Attaches this process to a given node of this host. Unlike `init`, it never starts a node.
///
/// @param address "unix:" and the path of the node's socket, or the path alone.
/// @throws ConnectError No node served that socket in time.
/// @throws InvalidArgument The address is not a socket path, or the capability is not valid.
/// @throws NotAllowed The node rejects the capability, or requires one.
inline Result<Client> try_connect(const std::string& address, const ClientOptions& options = {}) {
    const auto raw_options = detail::raw(options);
    if (!raw_options) return detail::failure(raw_options.error());
    hoplite_client raw{};
    return detail::attached(
        hoplite_connect(address.c_str(), &*raw_options, options.timeout.value_or(no_timeout).count(), &raw), raw);
}

inline Client connect(const std::string& address, const ClientOptions& options = {}) {
    return detail::unwrap(try_connect(address, options));
}

}  // namespace HOPLITE_NAMESPACE
}  // namespace hoplite

#endif
