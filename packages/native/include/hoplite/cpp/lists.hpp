/// @file
/// Arguments that name objects, and lists that calls return.

#ifndef HOPLITE_CPP_LISTS_HPP
#define HOPLITE_CPP_LISTS_HPP

#include <ranges>
#include <string>
#include <vector>

#include "ref.hpp"

namespace hoplite {
inline namespace HOPLITE_NAMESPACE {

/// A ref or a name as an argument or option of a call. It borrows the text until the call returns.
class Name {
public:
    /// No name.
    Name() = default;
    Name(const char* text) noexcept : text_(text) {}
    Name(const std::string& text HOPLITE_LIFETIME_BOUND) noexcept : text_(text.c_str()) {}
    Name(const Ref& ref HOPLITE_LIFETIME_BOUND) noexcept : text_(ref.text().c_str()) {}

    /// The text; null without a name.
    [[nodiscard]] const char* text() const noexcept { return text_; }

private:
    const char* text_ = nullptr;
};

/// Refs or names as an argument of a call: one of them, a braced list, or any range of them. It borrows the texts until
/// the call returns.
class Names {
public:
    Names() = default;
    // Not of a std::initializer_list: GCC up to 13 has no braced list of them in the operand of a `co_await`.
    template <class... N>
        requires(sizeof...(N) > 0 && (std::convertible_to<const N&, Name> && ...))
    Names(const N&... names) : texts_{Name(names).text()...} {}
    template <std::ranges::input_range R>
        requires(!std::convertible_to<const R&, Name> && std::convertible_to<std::ranges::range_reference_t<R>, Name> &&
                 std::is_reference_v<std::ranges::range_reference_t<R>>)
    Names(R&& names) {
        for (auto& name : names) texts_.push_back(Name(name).text());
    }

    [[nodiscard]] const char* const* data() const noexcept { return texts_.data(); }
    [[nodiscard]] std::size_t size() const noexcept { return texts_.size(); }

    /// Copies of the names, as refs.
    [[nodiscard]] std::vector<Ref> refs() const {
        std::vector<Ref> refs;
        refs.reserve(texts_.size());
        for (const char* text : texts_) refs.emplace_back(text == nullptr ? "" : text);
        return refs;
    }

private:
    std::vector<const char*> texts_;
};

/// Result of `Client::wait`.
struct Waited {
    /// The refs whose objects are ready, in the order in which they became ready.
    std::vector<Ref> ready;
    /// The others, in the order given.
    std::vector<Ref> remaining;
};

/// One node that holds a copy of an object.
struct Location {
    /// Id of the node, as `Node::id`.
    std::string node;
    /// Host and port of the node; absent if the node has no TCP port.
    std::optional<std::string> address;
    /// Whether the copy has all bytes. A copy that is not complete still grows.
    bool complete = false;
};

}  // namespace HOPLITE_NAMESPACE
}  // namespace hoplite

#endif
