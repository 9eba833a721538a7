/// @file
/// C++20 API of Hoplite, over the C functions of hoplite.h. Include this file and link libhoplite.
///
/// The verbs, argument names and defaults are those of the Python API. Each verb of `hoplite::Client` has three forms:
/// - `client.get<float>(ref)` blocks, returns the value and throws a subclass of `hoplite::Error`.
/// - `client.try_get<float>(ref)` blocks and returns a `hoplite::Result`, which holds the value or the error. It never
///   throws an error of Hoplite, and is available with -fno-exceptions.
/// - `client.get_async<float>(ref)` returns a `hoplite::Pending` at once, for `co_await`, futures, callbacks and
/// queues.
///
/// Without exceptions, the first form and `Pending::get` print the error and abort.
///
/// Timeouts are durations such as `5s`; an absent timeout waits until the object exists or can no longer appear.

#ifndef HOPLITE_HOPLITE_HPP
#define HOPLITE_HOPLITE_HPP

#if __cplusplus <= 201703L
#error "hoplite.hpp needs C++20: compile with -std=c++20, or set CMAKE_CXX_STANDARD to 20"
#endif

#include "cpp/buffer.hpp"
#include "cpp/client.hpp"
#include "cpp/config.hpp"
#include "cpp/dlpack.hpp"
#include "cpp/dtype.hpp"
#include "cpp/error.hpp"
#include "cpp/lists.hpp"
#include "cpp/node.hpp"
#include "cpp/pending.hpp"
#include "cpp/queue.hpp"
#include "cpp/ref.hpp"
#include "cpp/value.hpp"
#include "cpp/view.hpp"

#endif
