// Asynchronous calls: coroutines, executors, callbacks, futures, queues and cancellation.

#include <poll.h>
#include <sys/epoll.h>

#include <deque>
#include <set>

#include "stage.hpp"

namespace {

class Async : public testing::Test {
protected:
    hoplite::Node node = lone_node();
    hoplite::Client client = node.client();

    long long waiting() const { return integer(client.status(), "waiting"); }
};

// A coroutine whose frame its owner may destroy while it is suspended.
struct Task {
    struct promise_type {
        Task get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { std::terminate(); }
    };
    std::coroutine_handle<promise_type> handle;
};

// A loop of the program: it runs the functions that other threads post.
class Loop {
public:
    void post(std::function<void()> work) {
        const std::lock_guard lock(mutex_);
        work_.push_back(std::move(work));
        posted_.notify_one();
    }

    // Waits until a function is posted.
    void wait() {
        std::unique_lock lock(mutex_);
        ASSERT_TRUE(posted_.wait_for(lock, SOON, [this] { return !work_.empty(); }));
    }

    void run_one() {
        std::unique_lock lock(mutex_);
        ASSERT_TRUE(posted_.wait_for(lock, SOON, [this] { return !work_.empty(); }));
        const std::function<void()> work = std::move(work_.front());
        work_.pop_front();
        lock.unlock();
        work();
    }

private:
    std::mutex mutex_;
    std::condition_variable posted_;
    std::deque<std::function<void()>> work_;
};

// The exceptions of callbacks, while it exists.
class CallbackErrors {
public:
    CallbackErrors() {
        hoplite::set_callback_error_handler([this](std::exception_ptr error) {
            try {
                std::rethrow_exception(error);
            } catch (const std::exception& exception) {
                seen.set_value(exception.what());
            }
        });
    }
    CallbackErrors(const CallbackErrors&) = delete;
    CallbackErrors& operator=(const CallbackErrors&) = delete;
    ~CallbackErrors() { hoplite::set_callback_error_handler(nullptr); }

    std::promise<std::string> seen;
};

template <class T>
T within(std::future<T> future) {
    if (future.wait_for(SOON) != std::future_status::ready) throw std::runtime_error("not ready in time");
    return future.get();
}

}  // namespace

TEST_F(Async, a_coroutine_continues_on_a_thread_of_the_library) {
    std::promise<std::thread::id> promise;
    auto thread = promise.get_future();
    [](hoplite::Client hp, std::promise<std::thread::id> result) -> Detached {
        const auto view = co_await hp.get_async<float>("later");
        EXPECT_EQ(view.size(), LARGE);
        result.set_value(std::this_thread::get_id());
    }(client, std::move(promise));
    eventually([&] { return waiting() == 1; });
    client.put(numbers(LARGE), {.name = "later"});
    EXPECT_NE(within(std::move(thread)), std::this_thread::get_id());
}

TEST_F(Async, a_coroutine_does_not_suspend_for_a_call_that_is_over) {
    auto pending = client.put_async("x");
    ASSERT_TRUE(pending.wait_for(SOON));
    bool done = false;
    [](hoplite::Pending<hoplite::Ref>& call, bool& is_done) -> Detached {
        co_await call;
        is_done = true;
    }(pending, done);
    EXPECT_TRUE(done);
}

TEST_F(Async, arguments_written_in_a_co_await_are_valid) {
    std::promise<void> promise;
    auto end = promise.get_future();
    [](hoplite::Client hp, std::promise<void> result) -> Detached {
        const std::string prefix = "a prefix that is too long for the small buffer of a string/";
        const hoplite::Ref one = co_await hp.put_async(numbers(LARGE), {.name = prefix + "1", .timeout = SOON});
        EXPECT_EQ(one.text(), prefix + "1");
        auto buffer = co_await hp.create_async<float>({2, 3}, {.name = prefix + std::to_string(2)});
        std::ranges::fill(buffer, 1.0F);
        const hoplite::Ref two = co_await buffer.seal_async({.timeout = SOON});
        EXPECT_EQ((co_await hp.wait_async({one, two}, {.count = 2, .timeout = SOON})).ready.size(), 2U);
        EXPECT_EQ((co_await hp.get_async<float>(prefix + "2", {.part = {0, 1}, .timeout = SOON})).size(), 3U);
        std::vector<float> out(6);
        EXPECT_EQ(co_await hp.get_into_async(two, out, {.shape = hoplite::Shape(2, 3), .timeout = SOON}), 24U);
        const hoplite::Ref total = co_await hp.reduce_async({two.text()}, "sum", {.name = prefix + "total/3"});
        EXPECT_EQ((co_await hp.inputs_async(total)).size(), 1U);
        EXPECT_EQ((co_await hp.latest_async(prefix + "total/", {.after = 2, .timeout = SOON})).number(), 3U);
        co_await hp.del_async({one, two, total});
        result.set_value();
    }(client, std::move(promise));
    within(std::move(end));
}

TEST_F(Async, an_executor_resumes_a_coroutine_on_a_loop) {
    Loop loop;
    const auto post = [&loop](std::function<void()> work) { loop.post(std::move(work)); };
    std::thread::id thread;
    [](hoplite::Client hp, hoplite::Executor executor, std::thread::id& id) -> Detached {
        const hoplite::Ref ref = co_await hp.put_async(numbers(LARGE), {.name = "object"}).via(executor);
        EXPECT_EQ(ref.text(), "object");
        id = std::this_thread::get_id();
    }(client, post, thread);
    if (thread == std::thread::id()) loop.run_one();
    EXPECT_EQ(thread, std::this_thread::get_id());
    bool done = false;
    client.get_async<float>("object").via(post).then(
        [&](hoplite::Result<hoplite::View<float>> view) { done = view.has_value(); });
    loop.run_one();
    EXPECT_TRUE(done);
}

TEST_F(Async, many_calls_wait_in_one_coroutine_each) {
    constexpr int count = 200;
    std::vector<std::future<void>> ends;
    for (int number = 0; number < count; ++number) {
        std::promise<void> promise;
        ends.push_back(promise.get_future());
        [](hoplite::Client hp, int own, std::promise<void> end) -> Detached {
            const std::string name = "object/" + std::to_string(own);
            // Each gets what another one puts.
            auto get = hp.get_async<int>("object/" + std::to_string((own + 1) % count));
            co_await hp.put_async(own, {.name = name});
            const auto view = co_await get;
            EXPECT_EQ(view[0], (own + 1) % count);
            end.set_value();
        }(client, number, std::move(promise));
    }
    for (auto& end : ends) within(std::move(end));
}

TEST_F(Async, errors_arrive_with_the_result) {
    auto at_once = client.put_async("x", {.replicas = 0});
    EXPECT_TRUE(at_once.ready());
    fails<hoplite::InvalidArgument>([&] { at_once.get(); }, {"replicas is 0"});
    fails<hoplite::InvalidHandle>([&] { at_once.get(); });
    auto late = client.get_async("never", {.timeout = 10ms});
    fails<hoplite::Timeout>([&] { (void)late.get(); }, {"never"});
    fails<hoplite::InvalidHandle>([&] { (void)late.get(); }, {"taken"});
    fails<hoplite::Timeout>([&] { (void)within(client.get_async("never", {.timeout = 0s}).future()); }, {"never"});
    fails<hoplite::Timeout>([&] { (void)run_coroutine(client.get_async("never", {.timeout = 10ms})); }, {"never"});
    const hoplite::Result<hoplite::View<>> result = client.get_async("never", {.timeout = 0s}).try_get();
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code(), HOPLITE_TIMEOUT);
    EXPECT_STREQ(result.error().name(), "HOPLITE_TIMEOUT");
}

TEST_F(Async, a_destroyed_call_is_cancelled) {
    {
        const auto pending = client.get_async("never");
        EXPECT_FALSE(pending.ready());
        EXPECT_FALSE(pending.wait_for(10ms));
        EXPECT_EQ(waiting(), 1);
    }
    eventually([&] { return waiting() == 0; });
    // The memory belongs to the caller again.
    std::vector<float> out(LARGE, 9);
    auto into = client.get_into_async("late", out);
    into.cancel();
    into.cancel();
    client.put(numbers(LARGE), {.name = "late"});
    EXPECT_EQ(out, std::vector<float>(LARGE, 9));
    fails<hoplite::InvalidHandle>([&] { into.get(); }, {"cancelled"});
    auto moved = client.get_async("never");
    auto pending = std::move(moved);
    pending = client.get_async("late");
    EXPECT_EQ(pending.get().nbytes(), 4 * LARGE);
    eventually([&] { return waiting() == 0; });
}

TEST_F(Async, a_coroutine_may_be_destroyed_while_it_waits) {
    bool resumed = false;
    const Task task = [](hoplite::Client hp, bool& is_resumed) -> Task {
        (void)co_await hp.get_async("never");
        is_resumed = true;
    }(client, resumed);
    eventually([&] { return waiting() == 1; });
    task.handle.destroy();
    eventually([&] { return waiting() == 0; });
    client.put("x", {.name = "never"});
    EXPECT_FALSE(resumed);
}

TEST_F(Async, a_coroutine_may_be_destroyed_before_its_executor_resumes_it) {
    Loop loop;
    bool resumed = false;
    const Task task = [](hoplite::Client hp, Loop& own, bool& is_resumed) -> Task {
        (void)co_await hp.get_async("later").via([&own](std::function<void()> work) { own.post(std::move(work)); });
        is_resumed = true;
    }(client, loop, resumed);
    eventually([&] { return waiting() == 1; });
    client.put("x", {.name = "later"});
    loop.wait();
    task.handle.destroy();
    loop.run_one();
    EXPECT_FALSE(resumed);
}

TEST_F(Async, a_coroutine_may_be_destroyed_while_it_waits_for_a_queue) {
    hoplite::Queue queue;
    bool resumed = false;
    const Task task = [](hoplite::Client hp, hoplite::Queue& own, bool& is_resumed) -> Task {
        (void)co_await own.resume(hp.get_async("later"));
        is_resumed = true;
    }(client, queue, resumed);
    client.put("x", {.name = "later"});
    pollfd ready{.fd = queue.fd(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&ready, 1, 30'000), 1);
    task.handle.destroy();
    queue.dispatch();
    EXPECT_FALSE(resumed);
}

TEST_F(Async, a_callback_runs_once_on_a_thread_of_the_library) {
    std::promise<std::pair<std::thread::id, std::size_t>> promise;
    auto result = promise.get_future();
    client.get_async<float>("later").then([&](hoplite::Result<hoplite::View<float>> view) {
        promise.set_value({std::this_thread::get_id(), view.value().size()});
    });
    client.put(numbers(LARGE), {.name = "later"});
    const auto [thread, size] = within(std::move(result));
    EXPECT_NE(thread, std::this_thread::get_id());
    EXPECT_EQ(size, LARGE);
}

TEST_F(Async, a_callback_may_call_every_function) {
    std::promise<hoplite::Client> promise;
    auto result = promise.get_future();
    auto own = std::make_shared<hoplite::Client>(node.client());
    own->put_async(numbers(LARGE), {.name = "first"}).then([own, &promise](hoplite::Result<hoplite::Ref> ref) {
        auto view = own->get<float>(*ref, {.timeout = SOON});
        view.release();
        own->put("x", {.name = "second"});
        auto cancelled = own->get_async("never");
        cancelled.cancel();
        own->get_async("second").then([own, &promise](hoplite::Result<hoplite::View<>> second) {
            EXPECT_TRUE(second.has_value());
            own->close();
            promise.set_value(*own);
        });
    });
    EXPECT_TRUE(within(std::move(result)).closed());
    EXPECT_EQ(client.get<char>("second", {.timeout = SOON}).text(), "x");
}

TEST_F(Async, an_exception_of_a_callback_is_reported) {
    {
        CallbackErrors errors;
        client.put_async("x").then([](hoplite::Result<hoplite::Ref>) { throw std::runtime_error("of the callback"); });
        EXPECT_EQ(within(errors.seen.get_future()), "of the callback");
    }
    {
        CallbackErrors errors;
        client.put_async("x")
            .via([](std::function<void()>) { throw std::runtime_error("of the executor"); })
            .then([](hoplite::Result<hoplite::Ref>) {});
        EXPECT_EQ(within(errors.seen.get_future()), "of the executor");
    }
    {
        // A coroutine type that passes exceptions on to its resumer, which destroys it.
        struct Throwing {
            struct promise_type {
                Throwing get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
                std::suspend_never initial_suspend() noexcept { return {}; }
                std::suspend_never final_suspend() noexcept { return {}; }
                void return_void() {}
                void unhandled_exception() { throw; }
            };
            std::coroutine_handle<> handle;
        };
        CallbackErrors errors;
        const Throwing coroutine = [](hoplite::Client hp) -> Throwing {
            (void)co_await hp.get_async("later");
            throw std::runtime_error("of the coroutine");
        }(client);
        client.put("x", {.name = "later"});
        EXPECT_EQ(within(errors.seen.get_future()), "of the coroutine");
        coroutine.handle.destroy();
    }
    // The library goes on.
    EXPECT_EQ(client.get_async<char>("later").get().text(), "x");
}

TEST_F(Async, futures_of_every_type) {
    const hoplite::Ref ref = within(client.put_async(numbers(SMALL), {.name = "one/1"}).future());
    EXPECT_EQ(within(client.latest_async("one/").future()), ref);
    EXPECT_EQ(within(client.wait_async({ref}).future()).ready.size(), 1U);
    EXPECT_EQ(within(client.locations_async(ref).future()).size(), 1U);
    const hoplite::Ref total = within(client.reduce_async(ref).future());
    EXPECT_EQ(within(client.inputs_async(total).future()), std::vector<hoplite::Ref>{ref});
    EXPECT_TRUE(within(client.lost_async(total).future()).empty());
    EXPECT_EQ(within(client.lease_async(ref).future()).ref(), ref);
    EXPECT_GT(within(client.status_async().future()).size(), 100U);
    std::vector<float> out(SMALL);
    EXPECT_EQ(within(client.get_into_async(ref, out).future()), 4 * SMALL);
    auto buffer = within(client.create_async<float>(SMALL).future());
    std::ranges::copy(out, buffer.begin());
    const hoplite::Ref sealed = within(buffer.seal_async().future());
    same(within(client.get_async<float>(sealed).future()), out);
    within(client.del_async({ref, sealed}).future());
}

TEST_F(Async, a_queue_completes_calls_on_an_epoll_loop) {
    hoplite::Queue queue;
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{.events = EPOLLIN, .data = {}};
    ASSERT_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, queue.fd(), &event), 0);
    const auto readable = [&](std::chrono::milliseconds timeout) {
        return epoll_wait(epoll, &event, 1, static_cast<int>(timeout.count())) == 1;
    };
    EXPECT_FALSE(readable(0ms));
    EXPECT_EQ(queue.dispatch(), 0U);
    std::set<std::string> seen;
    for (const std::string name : {"a", "b", "c"}) {
        queue.add(client.get_async<char>(name), [&seen](hoplite::Result<hoplite::View<char>> view) {
            seen.insert(std::string(view.value().text()));
        });
    }
    queue.add(client.get_async("never", {.timeout = 10ms}), [&](hoplite::Result<hoplite::View<>> view) {
        EXPECT_EQ(view.error().code(), HOPLITE_TIMEOUT);
        seen.insert("timeout");
    });
    queue.add(client.put_async("x", {.replicas = 0}), [&](hoplite::Result<hoplite::Ref> ref) {
        EXPECT_EQ(ref.error().code(), HOPLITE_INVALID_ARGUMENT);
        seen.insert("at once");
    });
    EXPECT_EQ(seen.count("at once"), 1U);
    std::size_t count = 0;
    for (const std::string name : {"c", "a", "b"}) {
        client.put("value of " + name, {.name = name});
        ASSERT_TRUE(readable(SOON));
        count += queue.dispatch();
    }
    while (count < 4) {
        ASSERT_TRUE(readable(SOON));
        count += queue.dispatch();
    }
    EXPECT_EQ(count, 4U);
    EXPECT_FALSE(readable(0ms));
    EXPECT_EQ(seen, (std::set<std::string>{"at once", "timeout", "value of a", "value of b", "value of c"}));
    close(epoll);
}

TEST_F(Async, a_queue_resumes_coroutines) {
    hoplite::Queue queue;
    std::vector<std::thread::id> threads;
    const auto work = [](hoplite::Client hp, hoplite::Queue& own, std::vector<std::thread::id>& ids) -> Detached {
        const auto view = co_await own.resume(hp.get_async<float>("later"));
        EXPECT_EQ(view.size(), LARGE);
        ids.push_back(std::this_thread::get_id());
        try {
            (void)co_await own.resume(hp.get_async<double>("later"));
            ADD_FAILURE();
        } catch (const hoplite::ShapeMismatch&) {
            ids.push_back(std::this_thread::get_id());
        }
    };
    work(client, queue, threads);
    work(client, queue, threads);
    client.put(numbers(LARGE), {.name = "later"});
    while (threads.size() < 4) {
        pollfd ready{.fd = queue.fd(), .events = POLLIN, .revents = 0};
        ASSERT_EQ(poll(&ready, 1, 30'000), 1);
        queue.dispatch();
    }
    for (const std::thread::id thread : threads) EXPECT_EQ(thread, std::this_thread::get_id());
}

TEST_F(Async, a_closed_queue_cancels_its_calls) {
    hoplite::Queue queue;
    bool called = false;
    queue.add(client.get_async("never"), [&](hoplite::Result<hoplite::View<>>) { called = true; });
    eventually([&] { return waiting() == 1; });
    queue.close();
    queue.close();
    eventually([&] { return waiting() == 0; });
    EXPECT_FALSE(called);
    fails<hoplite::InvalidHandle>([&] { (void)queue.fd(); }, {"queue"});
    fails<hoplite::InvalidHandle>([&] { queue.dispatch(); }, {"queue"});
    queue.add(client.get_async("never"), [&](hoplite::Result<hoplite::View<>> view) {
        EXPECT_EQ(view.error().code(), HOPLITE_INVALID_HANDLE);
        called = true;
    });
    EXPECT_TRUE(called);
}

TEST_F(Async, closing_the_client_or_the_node_ends_pending_calls) {
    hoplite::Client other = node.client();
    auto one = other.get_async("never");
    auto two = client.get_async("never");
    eventually([&] { return waiting() == 2; });
    other.close();
    fails<hoplite::ClientClosed>([&] { (void)one.get(); }, {"closed"});
    node.close(0s);
    fails<hoplite::NodeDown>([&] { (void)two.get(); });
}
