/// @file
/// Views of objects in shared memory.

#ifndef HOPLITE_CPP_VIEW_HPP
#define HOPLITE_CPP_VIEW_HPP

#include <array>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "dtype.hpp"

#if HOPLITE_HAS_MDSPAN
#include <mdspan>
#endif

// Structs of DLPack, which dlpack.h defines.
struct DLManagedTensor;
struct DLManagedTensorVersioned;

namespace hoplite {
inline namespace HOPLITE_NAMESPACE {

/// An object in shared memory, read-only: a write into it ends the process.
///
/// `View<T>` has elements of `T`; `View<>` has an object of any dtype, see below. A view stays valid after its object
/// is deleted and its client is closed. It keeps the memory until it is destroyed or released. It can be moved, not
/// copied.
template <class T = void>
class View;

/// An object of any dtype.
template <>
class View<void> {
public:
    View() = default;
    explicit View(const hoplite_view& raw) noexcept : raw_(raw) { detail::receive(); }
    View(View&& other) noexcept : raw_(std::exchange(other.raw_, {})) {}
    View& operator=(View&& other) noexcept {
        if (this != &other) {
            release();
            raw_ = std::exchange(other.raw_, {});
        }
        return *this;
    }
    View(const View&) = delete;
    View& operator=(const View&) = delete;
    ~View() { release(); }

    /// Whether this view has an object: it was not moved from or released.
    explicit operator bool() const noexcept { return raw_.id != 0; }

    /// Name of the dtype as in NumPy, or "bytes".
    [[nodiscard]] std::string_view dtype() const { return checked().dtype; }

    /// Library whose value was put: "plain", "torch", "arrow" (an IPC stream) or "pickle".
    [[nodiscard]] std::string_view form() const { return checked().form; }

    /// Length of each axis; empty for bytes and scalars.
    [[nodiscard]] std::span<const std::uint64_t> shape() const { return {checked().shape, raw_.ndim}; }

    [[nodiscard]] std::size_t rank() const { return checked().ndim; }
    [[nodiscard]] std::size_t nbytes() const { return static_cast<std::size_t>(checked().nbytes); }

    /// The bytes, aligned to 64 bytes unless the view is a part.
    [[nodiscard]] std::span<const std::byte> bytes() const {
        return {static_cast<const std::byte*>(checked().data), static_cast<std::size_t>(raw_.nbytes)};
    }

    /// The bytes as text.
    [[nodiscard]] std::string_view text() const {
        const auto all = bytes();
        return {reinterpret_cast<const char*>(all.data()), all.size()};
    }

    /// This view as one of elements of `T`.
    ///
    /// @throws ShapeMismatch The object has another dtype; this view is released then.
    template <Element T>
    [[nodiscard]] View<T> as() &&;

    template <Element T>
    [[nodiscard]] Result<View<T>> try_as(const char* ref = nullptr) &&;

    /// Passes this view to another library as a tensor in memory of the CPU, which must not be written. The library
    /// calls its deleter. Bytes are a tensor of uint8. An error leaves the view as it is.
    ///
    /// @throws UnsupportedDtype DLPack does not have the dtype.
    [[nodiscard]] ::DLManagedTensor* to_dlpack() && { return detail::unwrap(std::move(*this).try_to_dlpack()); }
    [[nodiscard]] Result<::DLManagedTensor*> try_to_dlpack() &&;

    /// `to_dlpack` with the struct of DLPack 1.0, which states that the memory is read-only.
    [[nodiscard]] ::DLManagedTensorVersioned* to_dlpack_versioned() && {
        return detail::unwrap(std::move(*this).try_to_dlpack_versioned());
    }
    [[nodiscard]] Result<::DLManagedTensorVersioned*> try_to_dlpack_versioned() &&;

    /// Releases the memory. A second call does nothing.
    void release() noexcept {
        if (raw_.id != 0) {
            detail::publish();
            hoplite_view_release(&raw_);
            raw_ = {};
        }
    }

protected:
    const hoplite_view& checked() const {
        if (raw_.id == 0)
            Error(HOPLITE_INVALID_HANDLE, "this view was moved from or released: get the object again").raise();
        return raw_;
    }

    hoplite_view raw_{};
};

/// An array with elements of `T`, or bytes for `std::byte` and `char`.
template <class T>
class View : public View<void> {
public:
    using element_type = const T;
    using value_type = T;
    using size_type = std::size_t;
    using iterator = const T*;
    using const_iterator = const T*;

    View() = default;

    [[nodiscard]] const T* data() const { return static_cast<const T*>(checked().data); }
    [[nodiscard]] std::size_t size() const { return nbytes() / sizeof(T); }
    [[nodiscard]] bool empty() const { return size() == 0; }
    [[nodiscard]] std::span<const T> span() const { return {data(), size()}; }
    [[nodiscard]] const T* begin() const { return data(); }
    [[nodiscard]] const T* end() const { return data() + size(); }

    /// The element at a position in row-major order. The position is not checked.
    [[nodiscard]] const T& operator[](std::size_t position) const { return data()[position]; }

    /// The element at one index for each axis. The number of indices and their ranges are not checked.
    template <std::integral... I>
        requires(sizeof...(I) > 0)
    [[nodiscard]] const T& operator()(I... indices) const {
        std::size_t position = 0;
        std::size_t axis = 0;
        const std::uint64_t* lengths = checked().shape;
        ((position = position * static_cast<std::size_t>(lengths[axis++]) + static_cast<std::size_t>(indices)), ...);
        return data()[position];
    }

    /// A private copy of the elements.
    [[nodiscard]] std::vector<T> copy() const { return std::vector<T>(begin(), end()); }

#if HOPLITE_HAS_MDSPAN
    /// The elements with `Rank` axes.
    ///
    /// @throws ShapeMismatch The object has another number of axes.
    template <std::size_t Rank>
    [[nodiscard]] std::mdspan<const T, std::dextents<std::size_t, Rank>> mdspan() const {
        if (rank() != Rank) {
            Error(HOPLITE_SHAPE_MISMATCH, "the object has " + std::to_string(rank()) + " axes, and mdspan<" +
                                              std::to_string(Rank) + "> requires " + std::to_string(Rank) +
                                              ": pass the number of axes of the object")
                .raise();
        }
        std::array<std::size_t, Rank> lengths{};
        for (std::size_t axis = 0; axis < Rank; ++axis) lengths[axis] = static_cast<std::size_t>(shape()[axis]);
        return std::mdspan<const T, std::dextents<std::size_t, Rank>>(data(), lengths);
    }
#endif

private:
    friend class View<void>;
    explicit View(View<void>&& view) noexcept : View<void>(std::move(view)) {}
};

template <Element T>
Result<View<T>> View<void>::try_as(const char* ref) && {
    if (raw_.id == 0)
        return detail::failure(
            Error(HOPLITE_INVALID_HANDLE, "this view was moved from or released: get the object again"));
    if (dtype() != dtype_of<T>::name) {
        const std::string object = ref == nullptr ? "the object" : std::string("object ") + ref;
        Error error(HOPLITE_SHAPE_MISMATCH, object + " has dtype " + std::string(dtype()) + ", and T has dtype " +
                                                dtype_of<T>::name + ": use a T of dtype " + std::string(dtype()) +
                                                ", or View<> for any dtype");
        release();
        return detail::failure(std::move(error));
    }
    return View<T>(std::move(*this));
}

template <Element T>
View<T> View<void>::as() && {
    return detail::unwrap(std::move(*this).template try_as<T>());
}

namespace detail {
template <class T>
Result<View<T>> view_of(const hoplite_view& raw, const char* ref) {
    View<void> view(raw);
    if constexpr (std::is_void_v<T>) {
        return view;
    } else {
        return std::move(view).template try_as<T>(ref);
    }
}
}  // namespace detail

}  // namespace HOPLITE_NAMESPACE
}  // namespace hoplite

#endif
