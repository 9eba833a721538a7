/// @file
/// Objects that are filled in place, and leases.

#ifndef HOPLITE_CPP_BUFFER_HPP
#define HOPLITE_CPP_BUFFER_HPP

#include "pending.hpp"
#include "value.hpp"

namespace hoplite {
inline namespace HOPLITE_NAMESPACE {

/// Options of `Buffer::seal`.
struct SealOptions {
    /// Time to wait for the node of this host, for the name of a small object, and for the replicas.
    Duration timeout = {};
};

/// Memory for one object, from `Client::create`: fill it, then `seal` it. Readers receive it only after that.
///
/// Initially the elements are undefined. A buffer that is destroyed before `seal` creates no object.
template <Element T>
class Buffer {
public:
    using element_type = T;
    using value_type = T;
    using size_type = std::size_t;
    using iterator = T*;

    Buffer() = default;
    Buffer(const hoplite_buffer& raw, Shape shape, detail::SharedClient client)
        : raw_(raw), shape_(std::move(shape)), client_(std::move(client)) {
        detail::receive();
    }
    Buffer(Buffer&& other) noexcept
        : raw_(std::exchange(other.raw_, {})), shape_(std::move(other.shape_)), client_(std::move(other.client_)) {}
    Buffer& operator=(Buffer&& other) noexcept {
        if (this != &other) {
            discard();
            raw_ = std::exchange(other.raw_, {});
            shape_ = std::move(other.shape_);
            client_ = std::move(other.client_);
        }
        return *this;
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { discard(); }

    /// Whether this buffer can be filled: it was not sealed, discarded or moved from.
    explicit operator bool() const noexcept { return raw_.id != 0; }

    /// Ref of the future object. Processes that receive it can wait for the object before `seal`.
    [[nodiscard]] Ref ref() const { return Ref(checked().ref); }

    /// Length of each axis; the number of bytes for bytes.
    [[nodiscard]] std::span<const std::uint64_t> shape() const noexcept { return shape_.axes(); }

    [[nodiscard]] T* data() const { return static_cast<T*>(checked().data); }
    [[nodiscard]] std::size_t size() const { return nbytes() / sizeof(T); }
    [[nodiscard]] bool empty() const { return size() == 0; }
    [[nodiscard]] std::size_t nbytes() const { return static_cast<std::size_t>(checked().nbytes); }
    [[nodiscard]] std::span<T> span() const { return {data(), size()}; }
    [[nodiscard]] T* begin() const { return data(); }
    [[nodiscard]] T* end() const { return data() + size(); }

    /// The element at a position in row-major order. The position is not checked.
    [[nodiscard]] T& operator[](std::size_t position) const { return data()[position]; }

    /// The element at one index for each axis. The number of indices and their ranges are not checked.
    template <std::integral... I>
        requires(sizeof...(I) > 0)
    [[nodiscard]] T& operator()(I... indices) const {
        std::size_t position = 0;
        std::size_t axis = 0;
        T* const elements = data();
        ((position = position * static_cast<std::size_t>(shape()[axis++]) + static_cast<std::size_t>(indices)), ...);
        return elements[position];
    }

#if HOPLITE_HAS_MDSPAN
    /// The elements with `Rank` axes, which must be their number.
    template <std::size_t Rank>
    [[nodiscard]] std::mdspan<T, std::dextents<std::size_t, Rank>> mdspan() const {
        if (shape().size() != Rank) {
            Error(HOPLITE_SHAPE_MISMATCH, "the buffer has " + std::to_string(shape().size()) + " axes, and mdspan<" +
                                              std::to_string(Rank) + "> requires " + std::to_string(Rank) +
                                              ": pass the number of axes of the buffer")
                .raise();
        }
        std::array<std::size_t, Rank> lengths{};
        for (std::size_t axis = 0; axis < Rank; ++axis) lengths[axis] = static_cast<std::size_t>(shape()[axis]);
        return std::mdspan<T, std::dextents<std::size_t, Rank>>(data(), lengths);
    }
#endif

    /// Completes the object. From now on it exists and never changes; do not use its memory any more. Releases the
    /// buffer, also on an error: create another to retry.
    ///
    /// @throws Timeout The name or the replicas were not confirmed in time, or the node did not reply. If only replicas
    ///     are missing, the object exists.
    /// @throws InvalidHandle The buffer was sealed, discarded or moved from.
    /// @throws NameTaken Another client has put the name of a small object meanwhile.
    /// @throws ObjectDeleted The object was deleted before its replicas were complete.
    Ref seal(const SealOptions& options = {}) { return detail::unwrap(try_seal(options)); }

    Result<Ref> try_seal(const SealOptions& options = {}) {
        if (raw_.id == 0) return detail::failure(gone());
        hoplite_ref ref{};
        detail::publish();
        const hoplite_code code = hoplite_seal(&raw_, detail::seconds(options.timeout), &ref);
        raw_ = {};
        if (code != HOPLITE_OK) return detail::failure(detail::error_of(code, client_));
        return Ref(ref);
    }

    Pending<Ref> seal_async(const SealOptions& options = {}) {
        if (raw_.id == 0) return Pending<Ref>(gone());
        hoplite_buffer raw = std::exchange(raw_, {});
        return Pending<Ref>::begin(client_, {}, [&](hoplite_pending* pending) {
            return hoplite_seal_async(&raw, detail::seconds(options.timeout), pending);
        });
    }

    /// Frees the memory without creating an object. A second call does nothing.
    void discard() noexcept {
        if (raw_.id != 0) {
            detail::publish();
            hoplite_discard(&raw_);
            raw_ = {};
        }
    }

private:
    static Error gone() {
        return Error(HOPLITE_INVALID_HANDLE, "this buffer was sealed, discarded or moved from: create another");
    }

    const hoplite_buffer& checked() const {
        if (raw_.id == 0) gone().raise();
        return raw_;
    }

    hoplite_buffer raw_{};
    Shape shape_;
    detail::SharedClient client_;
};

/// A client's lease of an object, from `Client::lease`. The object is deleted 5 s after its last lease ends.
///
/// A lease ends when it is released or destroyed, or when its client closes or fails.
class Lease {
public:
    Lease() = default;
    Lease(hoplite_lease raw, Ref ref, detail::SharedClient client)
        : raw_(raw), ref_(std::move(ref)), client_(std::move(client)) {}
    Lease(Lease&& other) noexcept
        : raw_(std::exchange(other.raw_, {})), ref_(std::move(other.ref_)), client_(std::move(other.client_)) {}
    Lease& operator=(Lease&& other) noexcept {
        if (this != &other) {
            release();
            raw_ = std::exchange(other.raw_, {});
            ref_ = std::move(other.ref_);
            client_ = std::move(other.client_);
        }
        return *this;
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() { release(); }

    /// The ref of the object.
    [[nodiscard]] const Ref& ref() const noexcept { return ref_; }

    /// Whether the lease was released or moved from, or its client was closed.
    [[nodiscard]] bool released() const noexcept { return raw_.id == 0 || client_->closed(); }

    /// Releases the lease, without waiting. A second call does nothing.
    void release() noexcept {
        if (raw_.id != 0) hoplite_lease_release(std::exchange(raw_, {}));
    }

private:
    hoplite_lease raw_{};
    Ref ref_;
    detail::SharedClient client_;
};

namespace detail {

template <class T>
struct Finish<Buffer<T>> {
    Shape shape;
    hoplite_buffer raw{};
    hoplite_code take(hoplite_pending pending) {
        raw.size = sizeof raw;
        return hoplite_pending_take_buffer(pending, &raw);
    }
    Result<Buffer<T>> value(const SharedClient& client) { return Buffer<T>(raw, std::move(shape), client); }
};

template <>
struct Finish<Lease> {
    Ref ref;
    hoplite_lease raw{};
    hoplite_code take(hoplite_pending pending) { return hoplite_pending_take_lease(pending, &raw); }
    Result<Lease> value(const SharedClient& client) { return Lease(raw, std::move(ref), client); }
};

}  // namespace detail

}  // namespace HOPLITE_NAMESPACE
}  // namespace hoplite

#endif
