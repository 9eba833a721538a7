#include "support.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>

#include <atomic>
#include <iostream>
#include <map>

extern char** environ;

const std::filesystem::path& directory() {
    static const std::filesystem::path path = [] {
        std::string text = "/tmp/hoplite-cpp-XXXXXX";
        if (mkdtemp(text.data()) == nullptr) std::abort();
        return std::filesystem::path(text);
    }();
    return path;
}

std::string fresh(const std::string& suffix) {
    static std::atomic<int> count = 0;
    return directory() / (std::to_string(++count) + suffix);
}

hoplite::Node lone_node(hoplite::NodeOptions options) {
    if (!options.capacity) options.capacity = 64 * hoplite::MiB;
    if (!options.socket) options.socket = fresh(".sock");
    return hoplite::Node(options);
}

namespace {

// Path of this program. valgrind shows it in the link, not when it is executed.
std::string program() { return std::filesystem::read_symlink("/proc/self/exe"); }

}  // namespace

NodeProcess::NodeProcess(const std::vector<std::string>& options) {
    std::vector<std::string> arguments{program(), "--node", "socket=" + fresh(".sock")};
    arguments.insert(arguments.end(), options.begin(), options.end());
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    int input[2];
    int output[2];
    if (pipe2(input, O_CLOEXEC) != 0 || pipe2(output, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input[0], 0);
    posix_spawn_file_actions_adddup2(&actions, output[1], 1);
    const int error = posix_spawn(&id_, pointers[0], &actions, nullptr, pointers.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(input[0]);
    ::close(output[1]);
    input_ = input[1];
    if (error != 0) throw std::runtime_error("no child process");
    // The child prints its socket and its address once it runs.
    std::string text;
    char byte = 0;
    while (count_of(text, "\n") < 2 && ::read(output[0], &byte, 1) == 1) text += byte;
    ::close(output[0]);
    if (count_of(text, "\n") < 2) throw std::runtime_error("the node process has failed");
    const std::size_t line = text.find('\n');
    socket_ = text.substr(0, line);
    address_ = text.substr(line + 1, text.size() - line - 2);
}

void NodeProcess::stop(int signal) {
    if (id_ == 0) return;
    kill(id_, signal);
    int status = 0;
    waitpid(id_, &status, 0);
    ::close(input_);
    id_ = 0;
}

// Runs a node until the end of the standard input, or of the parent.
int run_node(const std::vector<std::string>& options) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    hoplite::NodeOptions node_options{.capacity = 64 * hoplite::MiB};
    for (const std::string& option : options) {
        const std::size_t equals = option.find('=');
        const std::string name = option.substr(0, equals);
        const std::string value = option.substr(equals + 1);
        if (name == "socket") node_options.socket = value;
        if (name == "listen") node_options.listen = value;
        if (name == "join") node_options.join = {value};
        if (name == "token") node_options.token = value;
    }
    const hoplite::Node node(node_options);
    std::cout << *node.socket() << "\n" << node.address().value_or("-") << std::endl;
    char byte = 0;
    while (::read(0, &byte, 1) > 0) {
    }
    return 0;
}

namespace {

void expect_success(pid_t child) {
    int status = 0;
    const auto deadline = std::chrono::steady_clock::now() + SOON;
    while (true) {
        const pid_t ended = waitpid(child, &status, WNOHANG);
        if (ended == child) break;
        if (std::chrono::steady_clock::now() > deadline) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            FAIL() << "the child has not ended";
        }
        std::this_thread::sleep_for(1ms);
    }
    EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 0) << "see the messages of the child above";
}

std::map<std::string, void (*)()>& scenarios() {
    static std::map<std::string, void (*)()> all;
    return all;
}

int run(const std::function<void()>& work) {
    try {
        work();
        return testing::Test::HasFailure() ? 1 : 0;
    } catch (const std::exception& error) {
        std::cerr << "error in a child: " << error.what() << std::endl;
        return 2;
    }
}

}  // namespace

void in_child(const std::function<void()>& work) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) _exit(run(work));
    expect_success(child);
}

void in_new_process(const std::string& scenario) {
    std::vector<std::string> arguments{program(), "--scenario", scenario};
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    pid_t child = 0;
    ASSERT_EQ(posix_spawn(&child, pointers[0], nullptr, nullptr, pointers.data(), environ), 0);
    expect_success(child);
}

Scenario::Scenario(const char* name, void (*run)()) { scenarios().emplace(name, run); }

int run_scenario(const std::string& name) { return run(scenarios().at(name)); }
