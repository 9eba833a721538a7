/// @file
/// Values to put: memory of the caller with a dtype and a shape.

#ifndef HOPLITE_CPP_VALUE_HPP
#define HOPLITE_CPP_VALUE_HPP

#include <cstring>
#include <memory>
#include <ranges>
#include <span>

#include "dtype.hpp"

#if HOPLITE_HAS_MDSPAN
#include <mdspan>
#endif

// Structs of DLPack, which dlpack.h defines.
struct DLManagedTensor;
struct DLManagedTensorVersioned;

namespace hoplite {
inline namespace HOPLITE_NAMESPACE {

namespace detail {
template <class R>
concept ContiguousElements = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> &&
                             Element<std::remove_cv_t<std::ranges::range_value_t<R>>>;
}  // namespace detail

/// A value to put: an array of one axis or more, a scalar, or bytes.
///
/// It borrows the memory of an lvalue, and owns that of a temporary or moved container. `char` and `std::byte` are
/// bytes, other elements are arrays: a `std::string` is bytes, a `std::vector<std::uint8_t>` is an array of uint8.
class Value {
public:
    /// Elements of a contiguous range. If the range has a shape, as `View` and `Buffer` do, it is kept.
    template <detail::ContiguousElements R>
        requires(!std::same_as<std::remove_cvref_t<R>, Value>)
    Value(R&& range) {
        if constexpr (std::is_lvalue_reference_v<R> || std::ranges::borrowed_range<R>) {
            borrow(range);
        } else {
            auto owner = std::make_shared<std::remove_cvref_t<R>>(std::forward<R>(range));
            borrow(*owner);
            owner_ = std::move(owner);
        }
    }

    /// Elements of a contiguous range with a shape, in row-major order.
    template <detail::ContiguousElements R>
    Value(R&& range, Shape shape) : Value(std::forward<R>(range)) {
        shape_ = std::move(shape);
    }

    /// Text, as bytes.
    Value(const char* text) noexcept : data_(text), nbytes_(std::strlen(text)), dtype_("bytes") {}

    /// An array without axes. The value is copied.
    template <Element T>
        requires(!is_bytes<T> && !detail::ContiguousElements<T>)
    Value(const T& scalar) : nbytes_(sizeof(T)), item_bytes_(sizeof(T)), dtype_(dtype_of<T>::name) {
        auto owner = std::make_shared<T>(scalar);
        data_ = owner.get();
        owner_ = std::move(owner);
    }

    /// A tensor of another library, in memory of the CPU. It is borrowed: the deleter is not called. A tensor with
    /// strides is copied.
    Value(const ::DLManagedTensor* tensor);
    Value(const ::DLManagedTensorVersioned* tensor);

#if HOPLITE_HAS_MDSPAN
    /// A multi-dimensional array in row-major order.
    template <class T, class Extents, class Accessor>
        requires Element<std::remove_cv_t<T>>
    Value(const std::mdspan<T, Extents, std::layout_right, Accessor>& array)
        : data_(array.data_handle()),
          nbytes_(static_cast<std::uint64_t>(array.size()) * sizeof(T)),
          item_bytes_(sizeof(T)),
          dtype_(dtype_of<std::remove_cv_t<T>>::name) {
        std::vector<std::uint64_t> axes;
        for (std::size_t axis = 0; axis < array.rank(); ++axis)
            axes.push_back(static_cast<std::uint64_t>(array.extent(axis)));
        shape_ = Shape(axes);
    }
#endif

    /// Elements of any dtype by its name, such as "bfloat16" or "datetime64[ns]", in row-major order.
    ///
    /// @param owner keeps the memory until the value is no longer used; may be null.
    static Value raw(const char* dtype, const void* data, std::uint64_t nbytes, Shape shape,
                     std::shared_ptr<const void> owner = nullptr) {
        Value value;
        value.data_ = data;
        value.nbytes_ = nbytes;
        value.dtype_ = dtype;
        value.shape_ = std::move(shape);
        value.owner_ = std::move(owner);
        return value;
    }

    [[nodiscard]] const void* data() const noexcept { return data_; }
    [[nodiscard]] std::uint64_t nbytes() const noexcept { return nbytes_; }
    [[nodiscard]] const char* dtype() const noexcept { return dtype_; }
    [[nodiscard]] const Shape& shape() const noexcept { return shape_; }

    /// Keeps the memory of a value that owns it.
    [[nodiscard]] const std::shared_ptr<const void>& owner() const noexcept { return owner_; }

    /// The struct of the C function; valid while this value is.
    [[nodiscard]] hoplite_array raw() const noexcept {
        hoplite_array array{};
        array.data = data_;
        array.nbytes = nbytes_;
        array.dtype = dtype_;
        array.ndim = shape_.rank();
        array.shape = shape_.data();
        return array;
    }

    /// Checks that the shape has as many elements as the memory, and that Hoplite has the dtype of a tensor.
    [[nodiscard]] Result<void> check() const {
        if (error_) return detail::failure(*error_);
        if (auto valid = shape_.check(); !valid) return valid;
        if (item_bytes_ == 0) return {};
        const auto elements = shape_.elements();
        if (!elements || *elements != nbytes_ / item_bytes_) {
            return detail::failure(detail::invalid("the shape " + shape_.text() + " does not fit " +
                                                   std::to_string(nbytes_ / item_bytes_) + " elements of " + dtype_ +
                                                   ": pass a shape with this number of elements"));
        }
        return {};
    }

private:
    Value() = default;

    template <class R>
    void borrow(const R& range) {
        using T = std::remove_cv_t<std::ranges::range_value_t<R>>;
        data_ = std::ranges::data(range);
        nbytes_ = std::ranges::size(range) * sizeof(T);
        dtype_ = dtype_of<T>::name;
        if constexpr (!is_bytes<T>) {
            item_bytes_ = sizeof(T);
            if constexpr (requires { range.shape(); }) {
                shape_ = Shape(range.shape());
            } else {
                shape_ = Shape(std::ranges::size(range));
            }
        }
    }

    const void* data_ = nullptr;
    std::uint64_t nbytes_ = 0;
    std::uint64_t item_bytes_ = 0;
    const char* dtype_ = nullptr;
    Shape shape_;
    std::shared_ptr<const void> owner_;
    std::optional<Error> error_;
};

}  // namespace HOPLITE_NAMESPACE
}  // namespace hoplite

#endif
