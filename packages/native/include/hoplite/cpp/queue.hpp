/// @file
/// Queues of asynchronous calls for event loops.

#ifndef HOPLITE_CPP_QUEUE_HPP
#define HOPLITE_CPP_QUEUE_HPP

#include <memory>
#include <mutex>
#include <unordered_map>

#include "pending.hpp"

namespace hoplite {
inline namespace HOPLITE_NAMESPACE {

/// Completes asynchronous calls on a thread of the program: wait until `fd()` is readable, then call `dispatch()`.
///
/// `add` may be called by any thread. Destroying the queue cancels its calls.
class Queue {
public:
    Queue() : Queue(detail::unwrap(try_new())) {}

    static Result<Queue> try_new() {
        hoplite_queue raw{};
        if (const hoplite_code code = hoplite_queue_new(&raw); code != HOPLITE_OK) {
            return detail::failure(detail::error_of(code));
        }
        return Queue(raw);
    }

    Queue(Queue&& other) noexcept : raw_(std::exchange(other.raw_, {})), calls_(std::move(other.calls_)) {}
    Queue& operator=(Queue&& other) noexcept {
        if (this != &other) {
            close();
            raw_ = std::exchange(other.raw_, {});
            calls_ = std::move(other.calls_);
        }
        return *this;
    }
    Queue(const Queue&) = delete;
    Queue& operator=(const Queue&) = delete;
    ~Queue() { close(); }

    /// File descriptor that is readable while `dispatch` has work, for poll, epoll or select. It belongs to the queue.
    [[nodiscard]] int fd() const { return detail::unwrap(try_fd()); }

    [[nodiscard]] Result<int> try_fd() const {
        int fd = -1;
        if (const hoplite_code code = hoplite_queue_fd(raw_, &fd); code != HOPLITE_OK)
            return detail::failure(error(code));
        return fd;
    }

    /// Lets `dispatch` call `callback(Result<T>)` once the call is over. If it could not start, this thread calls it.
    template <class T, class F>
        requires std::invocable<F&, Result<T>>
    void add(Pending<T> pending, F callback) {
        if (pending.early_ || pending.raw_.id == 0) {
            detail::guarded(callback, pending.try_get());
            return;
        }
        auto call = std::make_unique<CallOf<T, F>>(std::move(pending), std::move(callback));
        Call* const key = call.get();
        const hoplite_pending raw = call->pending.raw_;
        hoplite_code code = HOPLITE_INVALID_HANDLE;
        if (calls_ != nullptr) {
            // `dispatch` of another thread must find the call.
            const std::lock_guard lock(calls_->mutex);
            code = hoplite_pending_enqueue(raw, raw_, key);
            if (code == HOPLITE_OK) calls_->calls.emplace(key, std::move(call));
        }
        if (code != HOPLITE_OK) {
            detail::guarded(call->callback, Result<T>(detail::failure(error(code))));
        }
    }

    /// Runs the callbacks of the calls that are over, without waiting. Returns their number.
    std::size_t dispatch() { return detail::unwrap(try_dispatch()); }

    Result<std::size_t> try_dispatch() {
        for (std::size_t count = 0;; ++count) {
            hoplite_pending pending{};
            void* user = nullptr;
            const hoplite_code code = hoplite_queue_next(raw_, &pending, &user);
            if (code == HOPLITE_NOT_READY) return count;
            if (code != HOPLITE_OK) return detail::failure(error(code));
            std::unique_ptr<Call> call;
            {
                const std::lock_guard lock(calls_->mutex);
                const auto place = calls_->calls.find(static_cast<Call*>(user));
                if (place == calls_->calls.end()) continue;
                call = std::move(place->second);
                calls_->calls.erase(place);
            }
            call->run();
        }
    }

    /// What `co_await queue.resume(client.get_async(ref))` uses: `dispatch` resumes the coroutine.
    template <class T>
    class Awaiter {
    public:
        Awaiter(Queue& queue, Pending<T> pending) : queue_(queue), pending_(std::move(pending)) {}
        Awaiter(const Awaiter&) = delete;
        Awaiter& operator=(const Awaiter&) = delete;
        // Without a result, the coroutine is destroyed while it waits: `dispatch` must not resume it.
        ~Awaiter() {
            if (const std::shared_ptr<Awaiter*> self = std::move(self_)) *self = nullptr;
        }
        [[nodiscard]] bool await_ready() const noexcept { return pending_.ready(); }
        void await_suspend(std::coroutine_handle<> coroutine) {
            self_ = std::make_shared<Awaiter*>(this);
            queue_.add(std::move(pending_), [self = self_, coroutine](Result<T> result) {
                if (*self == nullptr) return;
                (*self)->result_.emplace(std::move(result));
                coroutine.resume();
            });
        }
        T await_resume() { return result_ ? detail::unwrap(std::move(*result_)) : pending_.get(); }

    private:
        Queue& queue_;
        Pending<T> pending_;
        std::optional<Result<T>> result_;
        std::shared_ptr<Awaiter*> self_;
    };

    /// Awaits a call, and lets `dispatch` resume the coroutine.
    template <class T>
    [[nodiscard]] Awaiter<T> resume(Pending<T> pending) {
        return Awaiter<T>(*this, std::move(pending));
    }

    /// Cancels the calls and closes the descriptor. A second call does nothing.
    void close() noexcept {
        if (calls_ != nullptr) calls_.reset();
        if (raw_.id != 0) hoplite_queue_close(std::exchange(raw_, {}));
    }

private:
    struct Call {
        Call() = default;
        Call(const Call&) = delete;
        Call& operator=(const Call&) = delete;
        virtual ~Call() = default;
        virtual void run() noexcept = 0;
    };

    template <class T, class F>
    struct CallOf final : Call {
        CallOf(Pending<T>&& of, F&& then) : pending(std::move(of)), callback(std::move(then)) {}
        void run() noexcept override { detail::guarded(callback, pending.try_get()); }
        Pending<T> pending;
        F callback;
    };

    struct Calls {
        std::mutex mutex;
        std::unordered_map<Call*, std::unique_ptr<Call>> calls;
    };

    explicit Queue(hoplite_queue raw) : raw_(raw), calls_(std::make_unique<Calls>()) {}

    static Error error(hoplite_code code) {
        if (code == HOPLITE_INVALID_HANDLE) return Error(code, "this queue was moved from or closed: create another");
        return detail::error_of(code);
    }

    hoplite_queue raw_{};
    std::unique_ptr<Calls> calls_;
};

}  // namespace HOPLITE_NAMESPACE
}  // namespace hoplite

#endif
