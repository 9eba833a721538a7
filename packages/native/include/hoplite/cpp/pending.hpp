/// @file
/// Asynchronous calls.

#ifndef HOPLITE_CPP_PENDING_HPP
#define HOPLITE_CPP_PENDING_HPP

#include <coroutine>
#include <future>

#include "handle.hpp"
#include "lists.hpp"
#include "view.hpp"

namespace hoplite {
inline namespace HOPLITE_NAMESPACE {

/// Runs a function on a thread or event loop of the program, such as
/// `[&](std::function<void()> work) { loop.post(std::move(work)); }`. It must run each function once.
using Executor = std::function<void(std::function<void()>)>;

class Queue;

namespace detail {

/// Takes the result of an asynchronous call, and holds what the call needs until then.
template <class T>
struct Finish;

template <>
struct Finish<void> {
    std::shared_ptr<const void> memory = nullptr;
    static hoplite_code take(hoplite_pending pending) { return hoplite_pending_take_done(pending); }
    Result<void> value(const SharedClient&) { return {}; }
};

template <>
struct Finish<Ref> {
    std::shared_ptr<const void> memory = nullptr;
    hoplite_ref raw{};
    hoplite_code take(hoplite_pending pending) { return hoplite_pending_take_ref(pending, &raw); }
    Result<Ref> value(const SharedClient&) { return Ref(raw); }
};

template <>
struct Finish<std::uint64_t> {
    std::shared_ptr<const void> memory = nullptr;
    std::uint64_t raw = 0;
    hoplite_code take(hoplite_pending pending) { return hoplite_pending_take_size(pending, &raw); }
    Result<std::uint64_t> value(const SharedClient&) { return raw; }
};

template <class T>
struct Finish<View<T>> {
    std::string ref;
    hoplite_view raw{};
    hoplite_code take(hoplite_pending pending) {
        raw.size = sizeof raw;
        return hoplite_pending_take_view(pending, &raw);
    }
    Result<View<T>> value(const SharedClient&) { return view_of<T>(raw, ref.c_str()); }
};

template <>
struct Finish<Waited> {
    std::vector<Ref> refs;
    std::vector<std::size_t> ready = {};
    std::size_t count = 0;
    hoplite_code take(hoplite_pending pending) {
        ready.resize(refs.size());
        return hoplite_pending_take_ready(pending, ready.data(), ready.size(), &count);
    }
    Result<Waited> value(const SharedClient&) {
        Waited waited;
        std::vector<bool> is_ready(refs.size(), false);
        for (std::size_t place = 0; place < count; ++place) {
            waited.ready.push_back(refs[ready[place]]);
            is_ready[ready[place]] = true;
        }
        for (std::size_t place = 0; place < refs.size(); ++place) {
            if (!is_ready[place]) waited.remaining.push_back(refs[place]);
        }
        return waited;
    }
};

template <>
struct Finish<std::vector<Ref>> {
    hoplite_refs raw{};
    hoplite_code take(hoplite_pending pending) {
        raw.size = sizeof raw;
        return hoplite_pending_take_refs(pending, &raw);
    }
    Result<std::vector<Ref>> value(const SharedClient&) {
        std::vector<Ref> refs;
        for (std::size_t place = 0; place < raw.count; ++place) refs.emplace_back(raw.items[place]);
        hoplite_refs_release(&raw);
        return refs;
    }
};

template <>
struct Finish<std::vector<Location>> {
    hoplite_locations raw{};
    hoplite_code take(hoplite_pending pending) {
        raw.size = sizeof raw;
        return hoplite_pending_take_locations(pending, &raw);
    }
    Result<std::vector<Location>> value(const SharedClient&) {
        std::vector<Location> locations;
        for (std::size_t place = 0; place < raw.count; ++place) {
            const hoplite_location& item = raw.items[place];
            Location location{item.node, std::nullopt, item.complete};
            if (item.address != nullptr) location.address = item.address;
            locations.push_back(std::move(location));
        }
        hoplite_locations_release(&raw);
        return locations;
    }
};

template <>
struct Finish<std::string> {
    hoplite_text raw{};
    hoplite_code take(hoplite_pending pending) {
        raw.size = sizeof raw;
        return hoplite_pending_take_text(pending, &raw);
    }
    Result<std::string> value(const SharedClient&) {
        std::string text(raw.text, raw.length);
        hoplite_text_release(&raw);
        return text;
    }
};

/// A suspended coroutine, shared by its `Pending` and the callback of the library. The thread sanitizer does not see
/// what the library does between the two threads: the callback first loads an atomic that the suspending thread stored.
class Waiter {
public:
    explicit Waiter(Executor executor) : executor_(std::move(executor)) {}

    /// Publishes everything that this thread did before to the thread of the callback.
    void arm(std::coroutine_handle<> coroutine) noexcept {
        address_.store(coroutine.address(), std::memory_order_release);
    }

    /// Called by the library, exactly once.
    static void done(void* user, hoplite_pending) noexcept {
        Waiter* const waiter = static_cast<Waiter*>(user);
        const bool waits = waiter->address_.load(std::memory_order_acquire) != nullptr;
        if (!waits || !waiter->executor_) {
            guarded([waiter] { waiter->resume(); });
            waiter->drop();
            return;
        }
        // The coroutine may be destroyed before the executor runs the function.
        const std::shared_ptr<Waiter> owner(waiter, [](Waiter* last) { last->drop(); });
        guarded(waiter->executor_, [owner] { owner->resume(); });
    }

    /// The coroutine is destroyed: it is not resumed.
    void forget() noexcept { address_.store(nullptr, std::memory_order_release); }

    void drop() noexcept {
        if (owners_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
    }

private:
    ~Waiter() = default;

    /// Resumes the coroutine unless it was destroyed.
    void resume() {
        void* const address = address_.exchange(nullptr, std::memory_order_acq_rel);
        if (address != nullptr) std::coroutine_handle<>::from_address(address).resume();
    }

    Executor executor_;
    std::atomic<int> owners_{2};
    std::atomic<void*> address_{nullptr};
};

}  // namespace detail

/// An asynchronous call: `co_await` it, or use one of `get`, `then` and `future`.
///
/// Errors are reported with the result, also those that are known at once. Destroying it cancels the call, and returns
/// when the library no longer uses memory of the caller. What the call has done already stays. Another thread may wait
/// for the result, but only one thread may use a `Pending` at a time.
///
/// `co_await` works in every coroutine type. Threads of the library resume coroutines and call callbacks, several at a
/// time; they may call every function. To resume on a loop of the program, use `via`, or `Queue::resume`. A `Pending`
/// must not be moved while a coroutine waits for it.
template <class T>
class [[nodiscard]] Pending {
public:
    using value_type = T;

    Pending() = default;
    explicit Pending(Error error) : early_(std::move(error)) {}
    Pending(Pending&& other) noexcept
        : raw_(std::exchange(other.raw_, {})),
          client_(std::move(other.client_)),
          finish_(std::move(other.finish_)),
          early_(std::exchange(other.early_, std::nullopt)),
          executor_(std::move(other.executor_)) {}
    Pending& operator=(Pending&& other) noexcept {
        if (this != &other) {
            cancel();
            raw_ = std::exchange(other.raw_, {});
            client_ = std::move(other.client_);
            finish_ = std::move(other.finish_);
            early_ = std::exchange(other.early_, std::nullopt);
            executor_ = std::move(other.executor_);
        }
        return *this;
    }
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;
    ~Pending() { cancel(); }

    /// Starts a call: `start(&raw)` calls the C function. Used by `Client`.
    template <class F>
    static Pending begin(detail::SharedClient client, detail::Finish<T> finish, F&& start) {
        Pending pending;
        pending.client_ = std::move(client);
        pending.finish_ = std::move(finish);
        detail::publish();
        if (const hoplite_code code = std::forward<F>(start)(&pending.raw_); code != HOPLITE_OK) {
            pending.early_ = detail::error_of(code, pending.client_);
            pending.raw_ = {};
        }
        return pending;
    }

    /// Whether the call is over.
    [[nodiscard]] bool ready() const noexcept { return wait_for(std::chrono::duration<double>(0)); }

    /// Waits until the call is over, and returns whether it is.
    bool wait_for(std::chrono::duration<double> timeout) const noexcept {
        return early_ || hoplite_pending_wait(raw_, timeout.count()) != HOPLITE_TIMEOUT;
    }

    /// Waits for the result and takes it.
    T get() { return detail::unwrap(try_get()); }

    /// Waits for the result and takes it. A second call returns `InvalidHandle`.
    Result<T> try_get() {
        if (early_) {
            Error error = *std::exchange(early_, std::nullopt);
            return detail::failure(std::move(error));
        }
        if (raw_.id == 0) {
            return detail::failure(
                Error(HOPLITE_INVALID_HANDLE, "this call was taken, cancelled or moved from: start another call"));
        }
        const hoplite_code code = finish_.take(std::exchange(raw_, {}));
        detail::receive();
        if (code != HOPLITE_OK) return detail::failure(detail::error_of(code, client_));
        return finish_.value(client_);
    }

    /// Cancels the call. A second call does nothing.
    void cancel() noexcept {
        if (waiter_ != nullptr) waiter_->forget();
        if (raw_.id != 0) hoplite_pending_cancel(std::exchange(raw_, {}));
        if (waiter_ != nullptr) std::exchange(waiter_, nullptr)->drop();
        early_.reset();
    }

    /// Runs the coroutine or callback that waits for this call through an executor.
    Pending via(Executor executor) && {
        executor_ = std::move(executor);
        return std::move(*this);
    }

    /// Calls `callback(Result<T>)` when the call is over: on a thread of the library, or by the executor of `via`. If
    /// the call could not start, this thread calls it. The callback may call every function, and should not block for
    /// long. Its exceptions go to the handler of `set_callback_error_handler`.
    template <class F>
        requires std::invocable<F&, Result<T>>
    void then(F callback) && {
        auto* const task = new Task<F>(std::move(*this), std::move(callback));
        const hoplite_pending raw = task->pending.raw_;
        const bool started = !task->pending.early_;
        task->armed.store(true, std::memory_order_release);
        if (!started || hoplite_pending_on_done(raw, &Task<F>::done, task) != HOPLITE_OK) {
            Task<F>::done(task, raw);
        }
    }

    /// A standard future of the result. Destroying it does not cancel the call.
    std::future<T> future() && {
        std::promise<T> promise;
        std::future<T> future = promise.get_future();
        std::move(*this).then([promise = std::move(promise)](Result<T> result) mutable {
#if HOPLITE_HAS_EXCEPTIONS
            try {
                if constexpr (std::is_void_v<T>) {
                    detail::unwrap(std::move(result));
                    promise.set_value();
                } else {
                    promise.set_value(detail::unwrap(std::move(result)));
                }
            } catch (...) {
                promise.set_exception(std::current_exception());
            }
#else
            if constexpr (std::is_void_v<T>) {
                detail::unwrap(std::move(result));
                promise.set_value();
            } else {
                promise.set_value(detail::unwrap(std::move(result)));
            }
#endif
        });
        return future;
    }

    /// What `co_await` uses.
    class Awaiter {
    public:
        explicit Awaiter(Pending& pending) noexcept : pending_(pending) {}
        [[nodiscard]] bool await_ready() const noexcept { return pending_.ready(); }
        bool await_suspend(std::coroutine_handle<> coroutine) { return pending_.suspend(coroutine); }
        T await_resume() { return pending_.get(); }

    private:
        Pending& pending_;
    };

    Awaiter operator co_await() & noexcept { return Awaiter(*this); }
    Awaiter operator co_await() && noexcept { return Awaiter(*this); }

private:
    friend class Queue;

    template <class F>
    struct Task {
        Task(Pending&& of, F&& then) : pending(std::move(of)), callback(std::move(then)) {}

        static void done(void* user, hoplite_pending) noexcept {
            Task* const task = static_cast<Task*>(user);
            // The first access, as in `Waiter`.
            (void)task->armed.load(std::memory_order_acquire);
            std::shared_ptr<Task> owner(task);
            if (task->pending.executor_) {
                const Executor executor = std::move(task->pending.executor_);
                detail::guarded(executor, [owner] { owner->run(); });
            } else {
                task->run();
            }
        }

        void run() noexcept {
            detail::guarded([this] { callback(pending.try_get()); });
        }

        Pending pending;
        F callback;
        std::atomic<bool> armed{false};
    };

    /// Returns whether the coroutine stays suspended. It may run, and destroy this, before the function returns.
    bool suspend(std::coroutine_handle<> coroutine) {
        const hoplite_pending raw = raw_;
        auto* const waiter = new detail::Waiter(executor_);
        waiter_ = waiter;
        waiter->arm(coroutine);
        if (hoplite_pending_on_done(raw, &detail::Waiter::done, waiter) == HOPLITE_OK) return true;
        waiter->drop();
        return false;
    }

    hoplite_pending raw_{};
    detail::SharedClient client_;
    detail::Finish<T> finish_{};
    std::optional<Error> early_;
    Executor executor_;
    detail::Waiter* waiter_ = nullptr;
};

}  // namespace HOPLITE_NAMESPACE
}  // namespace hoplite

#endif
