// Helpers of several tests: values whose sums are exact, bounded waits, temporary directories and child processes.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <hoplite/hoplite.hpp>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

// Timeout of everything that can hang: long enough for a busy machine. It is not a performance assertion.
inline constexpr auto SOON = 30s;

// Elements of float32: one object that is sent inside messages, and one in its own memory.
inline constexpr std::size_t SMALL = 100, LARGE = 50'000;

// Tokens of clusters, as `hoplite token new` creates them.
inline const std::string TOKEN = "hpt1_dGVzdHMgb2YgaG9wbGl0ZS5ocHAsIG9uZSBjbHVzdGXGb9ac";
inline const std::string OTHER_TOKEN = "hpt1_dGVzdHMgb2YgaG9wbGl0ZS5ocHAsIGFub3RoZXIgb27ppltu";

// Whole numbers from 0 to 3: sums and products of a few are exact in every dtype.
template <class T = float>
std::vector<T> numbers(std::size_t count, unsigned seed = 0) {
    std::vector<T> values(count);
    std::uint32_t state = 2'463'534'242U + 7919U * seed;
    for (T& value : values) {
        state ^= state << 13U;
        state ^= state >> 17U;
        state ^= state << 5U;
        value = static_cast<T>(static_cast<float>(state % 4U));
    }
    return values;
}

template <class View, class Expected>
void same(const View& got, const Expected& expected) {
    ASSERT_EQ(got.size(), std::ranges::size(expected));
    EXPECT_TRUE(std::ranges::equal(got, expected));
}

inline std::vector<std::uint64_t> axes(std::span<const std::uint64_t> shape) { return {shape.begin(), shape.end()}; }

// Polls a condition until it is true. Use it only where no call can be waited for.
inline void eventually(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + SOON;
    while (!condition()) {
        ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "the condition is not met";
        std::this_thread::sleep_for(2ms);
    }
}

// A call in its own thread. `get` waits for it and throws its error.
template <class F, class T = std::invoke_result_t<F>>
class Later {
public:
    explicit Later(F call) : result_(std::async(std::launch::async, std::move(call))) {}

    bool done(std::chrono::milliseconds within = 0ms) { return result_.wait_for(within) == std::future_status::ready; }

    T get() {
        if (!done(SOON)) {
            std::fprintf(stderr, "a call of another thread has not ended\n");
            std::abort();
        }
        return result_.get();
    }

private:
    std::future<T> result_;
};

// The first integer after a key of a JSON text.
inline long long integer(const std::string& json, const std::string& key) {
    const std::size_t place = json.find('"' + key + "\":");
    if (place == std::string::npos) throw std::runtime_error("no key " + key + " in " + json);
    return std::atoll(json.c_str() + place + key.size() + 3);
}

inline std::size_t count_of(const std::string& text, const std::string& part) {
    std::size_t count = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
    return count;
}

// Expects an error of a class with each of some texts in its message.
template <class E, class F>
void fails(F&& call, std::initializer_list<const char*> texts = {}) {
    try {
        std::forward<F>(call)();
        ADD_FAILURE() << "no error";
    } catch (const hoplite::Error& error) {
        EXPECT_NE(dynamic_cast<const E*>(&error), nullptr) << error.name() << ": " << error.what();
        for (const char* text : texts)
            EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
}

// A directory for the sockets and files of this process; removed at its end.
const std::filesystem::path& directory();

// Path in that directory which no other call returned.
std::string fresh(const std::string& suffix);

// A node with a socket of its own, which is not a member of a cluster.
hoplite::Node lone_node(hoplite::NodeOptions options = {});

// This program as a child process that runs a node, with `--node` and these options, each as NAME=VALUE.
class NodeProcess {
public:
    explicit NodeProcess(const std::vector<std::string>& options = {});
    NodeProcess(const NodeProcess&) = delete;
    NodeProcess& operator=(const NodeProcess&) = delete;
    ~NodeProcess() { stop(SIGKILL); }

    const std::string& socket() const { return socket_; }
    const std::string& address() const { return address_; }
    pid_t id() const { return id_; }

    // Sends a signal and waits until the process has ended.
    void stop(int signal);

private:
    pid_t id_ = 0;
    int input_ = -1;
    std::string socket_;
    std::string address_;
};

// Runs a function in a forked child, and expects that it returns without an error within SOON.
void in_child(const std::function<void()>& work);

// Runs a test of this program by its name in a new process, with resource limits that must not hold for others.
void in_new_process(const std::string& scenario);

// Functions for `in_new_process`, by name.
struct Scenario {
    Scenario(const char* name, void (*run)());
};
int run_scenario(const std::string& name);
