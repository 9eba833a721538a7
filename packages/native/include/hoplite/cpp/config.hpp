/// @file
/// What the other headers adapt to: language version, exceptions, and the thread sanitizer.

#ifndef HOPLITE_CPP_CONFIG_HPP
#define HOPLITE_CPP_CONFIG_HPP

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <version>

#include "../hoplite.h"

#if defined(__cpp_lib_expected) && __cpp_lib_expected >= 202202L
#define HOPLITE_HAS_EXPECTED 1
#else
#define HOPLITE_HAS_EXPECTED 0
#endif

#if defined(__cpp_lib_mdspan)
#define HOPLITE_HAS_MDSPAN 1
#else
#define HOPLITE_HAS_MDSPAN 0
#endif

#if defined(__cpp_exceptions)
#define HOPLITE_HAS_EXCEPTIONS 1
#else
#define HOPLITE_HAS_EXCEPTIONS 0
#endif

// Files of one program may be compiled with different settings. Their types differ then, and so must their names.
#if HOPLITE_HAS_EXPECTED && HOPLITE_HAS_EXCEPTIONS
#define HOPLITE_NAMESPACE v0_expected
#elif HOPLITE_HAS_EXPECTED
#define HOPLITE_NAMESPACE v0_expected_no_exceptions
#elif HOPLITE_HAS_EXCEPTIONS
#define HOPLITE_NAMESPACE v0
#else
#define HOPLITE_NAMESPACE v0_no_exceptions
#endif

#if defined(__SANITIZE_THREAD__)
#define HOPLITE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HOPLITE_TSAN 1
#endif
#endif
#ifndef HOPLITE_TSAN
#define HOPLITE_TSAN 0
#endif

#if defined(__clang__)
#define HOPLITE_LIFETIME_BOUND [[clang::lifetimebound]]
#else
#define HOPLITE_LIFETIME_BOUND
#endif

namespace hoplite {
inline namespace HOPLITE_NAMESPACE {

/// A timeout or another time. 0 does not wait. A call without a timeout has that of its client, by default no limit.
using Duration = std::optional<std::chrono::duration<double>>;

/// Timeout of a call that waits without limit, whatever the timeout of its client is.
inline constexpr std::chrono::duration<double> no_timeout{std::numeric_limits<double>::infinity()};

/// Bytes in one KiB, MiB and GiB, as in `.capacity = 64 * hoplite::MiB`.
inline constexpr std::uint64_t KiB = 1024, MiB = 1024 * KiB, GiB = 1024 * MiB;

namespace detail {

inline double seconds(const Duration& timeout) noexcept { return timeout ? timeout->count() : HOPLITE_DEFAULT_TIMEOUT; }

// The library is not instrumented, so the thread sanitizer does not see that filling a buffer happens before reading
// the view of another thread. Memory goes to the library by `publish`, and comes from it by `receive`.
#if HOPLITE_TSAN
inline std::atomic<unsigned> library_memory{0};
inline void publish() noexcept { library_memory.fetch_add(1, std::memory_order_release); }
inline void receive() noexcept { (void)library_memory.load(std::memory_order_acquire); }
#else
inline void publish() noexcept {}
inline void receive() noexcept {}
#endif

}  // namespace detail
}  // namespace HOPLITE_NAMESPACE
}  // namespace hoplite

#endif
