#include <hoplite/hoplite.hpp>
#include <iostream>

using namespace std::chrono_literals;

// The smallest coroutine type. Programs use the one of their framework.
struct Task {
    struct promise_type {
        Task get_return_object() { return {}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { std::terminate(); }
    };
};

Task print(hoplite::Client hp, std::promise<void>& done) {
    auto weights = hp.get_async<float>("weights/1", {.timeout = 10s});
    auto note = hp.put_async("started", {.name = "note/1"});  // both run in the background
    co_await note;
    std::cout << (co_await weights)[5] << "\n";
    done.set_value();
}

int main() {
    std::promise<void> done;
    print(hoplite::init(), done);
    done.get_future().wait();
}
