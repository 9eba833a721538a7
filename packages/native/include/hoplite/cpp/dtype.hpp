/// @file
/// The dtype of each C++ element type, and shapes.

#ifndef HOPLITE_CPP_DTYPE_HPP
#define HOPLITE_CPP_DTYPE_HPP

#include <algorithm>
#include <array>
#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>

#if defined(__STDCPP_FLOAT16_T__) || defined(__STDCPP_BFLOAT16_T__)
#include <stdfloat>
#endif

#include "error.hpp"

namespace hoplite {
inline namespace HOPLITE_NAMESPACE {

/// Name of the dtype whose elements `T` holds, as in NumPy; "bytes" for `std::byte` and `char`.
///
/// Specialize it for types of your own that have the layout of a dtype:
/// `template <> struct hoplite::dtype_of<Eigen::bfloat16> { static constexpr const char* name = "bfloat16"; };`
template <class T>
struct dtype_of {};

template <std::integral T>
    requires(!std::same_as<T, bool> && !std::same_as<T, char> && !std::same_as<T, wchar_t> &&
             !std::same_as<T, char8_t> && !std::same_as<T, char16_t> && !std::same_as<T, char32_t> && sizeof(T) <= 8)
struct dtype_of<T> {
    static constexpr const char* name = std::is_signed_v<T> ? (sizeof(T) == 1   ? "int8"
                                                               : sizeof(T) == 2 ? "int16"
                                                               : sizeof(T) == 4 ? "int32"
                                                                                : "int64")
                                                            : (sizeof(T) == 1   ? "uint8"
                                                               : sizeof(T) == 2 ? "uint16"
                                                               : sizeof(T) == 4 ? "uint32"
                                                                                : "uint64");
};
template <>
struct dtype_of<float> {
    static constexpr const char* name = "float32";
};
template <>
struct dtype_of<double> {
    static constexpr const char* name = "float64";
};
template <>
struct dtype_of<bool> {
    static constexpr const char* name = "bool";
};
template <>
struct dtype_of<std::complex<float>> {
    static constexpr const char* name = "complex64";
};
template <>
struct dtype_of<std::complex<double>> {
    static constexpr const char* name = "complex128";
};
template <>
struct dtype_of<std::byte> {
    static constexpr const char* name = "bytes";
};
template <>
struct dtype_of<char> {
    static constexpr const char* name = "bytes";
};
#if defined(__STDCPP_FLOAT16_T__)
template <>
struct dtype_of<std::float16_t> {
    static constexpr const char* name = "float16";
};
#elif defined(__FLT16_MANT_DIG__) && (!defined(__GNUC__) || defined(__clang__) || __GNUC__ >= 13)
template <>
struct dtype_of<_Float16> {
    static constexpr const char* name = "float16";
};
#endif
#if defined(__STDCPP_BFLOAT16_T__)
template <>
struct dtype_of<std::bfloat16_t> {
    static constexpr const char* name = "bfloat16";
};
#endif

/// An element type of arrays, or of bytes.
template <class T>
concept Element = std::is_trivially_copyable_v<T> && requires {
    { dtype_of<T>::name } -> std::convertible_to<const char*>;
};

/// Whether objects of these elements are bytes, which have no shape.
template <class T>
inline constexpr bool is_bytes = std::same_as<T, std::byte> || std::same_as<T, char>;

/// Length of each axis: `10`, `{2, 3}`, or any range of integers. `{}` is a scalar. It has up to 64 axes.
class Shape {
public:
    static constexpr std::size_t axes_max = 64;

    Shape() = default;
    template <std::integral... I>
        requires(sizeof...(I) <= axes_max)
    Shape(I... axes) noexcept {
        (push(axes), ...);
    }
    template <std::ranges::input_range R>
        requires(std::integral<std::ranges::range_value_t<R>> && !std::same_as<std::remove_cvref_t<R>, Shape>)
    Shape(R&& axes) {
        for (const auto axis : axes) push(axis);
    }

    [[nodiscard]] std::span<const std::uint64_t> axes() const noexcept {
        return {axes_.data(), std::min<std::size_t>(rank_, axes_max)};
    }
    [[nodiscard]] std::uint32_t rank() const noexcept { return static_cast<std::uint32_t>(axes().size()); }
    [[nodiscard]] const std::uint64_t* data() const noexcept { return axes_.data(); }

    /// Number of elements; absent if the shape is not valid or the product exceeds 64 bits.
    [[nodiscard]] std::optional<std::uint64_t> elements() const noexcept {
        if (negative_ || rank_ > axes_max) return std::nullopt;
        std::uint64_t product = 1;
        for (const std::uint64_t axis : axes()) {
            if (__builtin_mul_overflow(product, axis, &product)) return std::nullopt;
        }
        return product;
    }

    [[nodiscard]] std::string text() const {
        std::string text = "(";
        for (const std::uint64_t axis : axes()) {
            if (text.size() > 1) text += ", ";
            text += negative_ ? std::to_string(static_cast<std::int64_t>(axis)) : std::to_string(axis);
        }
        return text + (rank_ == 1 ? ",)" : ")");
    }

    /// Checks that no axis is negative, and that there are at most 64.
    [[nodiscard]] Result<void> check() const {
        if (negative_) {
            const std::string reason = " has a negative axis: use lengths from 0 up";
            return detail::failure(detail::invalid("the shape " + text() + reason));
        }
        if (rank_ > axes_max) {
            return detail::failure(detail::invalid("the shape has " + std::to_string(rank_) + " axes: use at most 64"));
        }
        return {};
    }

private:
    template <std::integral I>
    void push(I axis) noexcept {
        if constexpr (std::is_signed_v<I>) negative_ = negative_ || axis < 0;
        if (rank_ < axes_max) axes_[rank_] = static_cast<std::uint64_t>(axis);
        ++rank_;
    }

    std::array<std::uint64_t, axes_max> axes_{};
    std::size_t rank_ = 0;
    bool negative_ = false;
};

}  // namespace HOPLITE_NAMESPACE
}  // namespace hoplite

#endif
