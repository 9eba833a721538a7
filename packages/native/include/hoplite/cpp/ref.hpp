/// @file
/// Refs of objects.

#ifndef HOPLITE_CPP_REF_HPP
#define HOPLITE_CPP_REF_HPP

#include <compare>
#include <functional>
#include <ostream>
#include <string>

#include "error.hpp"

namespace hoplite {
inline namespace HOPLITE_NAMESPACE {

/// Identifies one object, by an id that `put` or `reduce` generated or by a name such as "policy/17".
///
/// Refs with the same text are equal. A ref does not keep its object alive. To use it in another process, send its
/// text.
class Ref {
public:
    Ref() = default;
    explicit Ref(std::string text) : text_(std::move(text)) {}
    explicit Ref(const hoplite_ref& ref) : text_(ref.text), replicas_(replicas_of(ref)) {}

    [[nodiscard]] const std::string& text() const noexcept { return text_; }

    /// Number at the end of a name, such as 17 for "policy/17".
    ///
    /// @throws InvalidArgument The ref is not a name that ends in "/" and a number.
    [[nodiscard]] std::uint64_t number() const { return detail::unwrap(try_number()); }

    [[nodiscard]] Result<std::uint64_t> try_number() const {
        const std::size_t slash = text_.rfind('/');
        const std::size_t first = slash == std::string::npos ? text_.size() : slash + 1;
        bool valid = first < text_.size();
        std::uint64_t number = 0;
        for (std::size_t place = first; place < text_.size(); ++place) {
            const char digit = text_[place];
            valid = valid && digit >= '0' && digit <= '9' &&
                    !__builtin_mul_overflow(number, std::uint64_t{10}, &number) &&
                    !__builtin_add_overflow(number, static_cast<std::uint64_t>(digit - '0'), &number);
        }
        if (!valid) {
            return detail::failure(
                detail::invalid(text_ + " does not end in \"/\" and a number: use a name such as \"policy/17\""));
        }
        return number;
    }

    /// Number of nodes that kept a copy when the `put` or `seal` that returned this ref completed. It is below the
    /// requested replicas if the cluster has fewer nodes, and absent for refs from other sources.
    [[nodiscard]] std::optional<std::uint32_t> replicas() const noexcept {
        return replicas_ == 0 ? std::nullopt : std::optional<std::uint32_t>(replicas_);
    }

    friend bool operator==(const Ref& a, const Ref& b) noexcept { return a.text_ == b.text_; }
    friend std::strong_ordering operator<=>(const Ref& a, const Ref& b) noexcept { return a.text_ <=> b.text_; }
    friend std::ostream& operator<<(std::ostream& stream, const Ref& ref) { return stream << ref.text_; }

private:
    template <class R>
    static std::uint32_t replicas_of(const R& ref) noexcept {
        if constexpr (requires { ref.replicas; }) {
            return ref.replicas;
        } else {
            return 0;
        }
    }

    std::string text_;
    std::uint32_t replicas_ = 0;
};

}  // namespace HOPLITE_NAMESPACE
}  // namespace hoplite

template <>
struct std::hash<hoplite::Ref> {
    std::size_t operator()(const hoplite::Ref& ref) const noexcept { return std::hash<std::string>{}(ref.text()); }
};

#endif
