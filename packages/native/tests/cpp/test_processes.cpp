// Other processes and hard limits: killed nodes, forks, reconnects, capabilities, strange servers, no memory, no files.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <fstream>

#include "support.hpp"

namespace {

// A server on a Unix socket that replies to every connection with the same bytes.
class StrangeServer {
public:
    explicit StrangeServer(std::string reply) : path_(fresh(".sock")), reply_(std::move(reply)) {
        listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
        path_.copy(address.sun_path, sizeof address.sun_path - 1);
        if (bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
            listen(listener_, 8) != 0) {
            throw std::runtime_error("the server can not listen");
        }
        thread_ = std::thread([this] {
            while (true) {
                const int connection = accept(listener_, nullptr, nullptr);
                if (connection < 0) return;
                // A client that only looks whether a server listens has gone.
                [[maybe_unused]] const ssize_t sent = send(connection, reply_.data(), reply_.size(), MSG_NOSIGNAL);
                close(connection);
            }
        });
    }
    StrangeServer(const StrangeServer&) = delete;
    StrangeServer& operator=(const StrangeServer&) = delete;
    ~StrangeServer() {
        shutdown(listener_, SHUT_RDWR);
        thread_.join();
        close(listener_);
    }

    const std::string& path() const { return path_; }

private:
    std::string path_;
    std::string reply_;
    int listener_;
    std::thread thread_;
};

}  // namespace

TEST(Processes, an_attached_client_shares_objects_with_the_node) {
    const NodeProcess process;
    const hoplite::Client client = hoplite::connect("unix:" + process.socket());
    const hoplite::Client other = hoplite::connect(process.socket());
    client.put(numbers(LARGE), {.name = "object"});
    same(other.get<float>("object", {.timeout = SOON}), numbers(LARGE));
}

TEST(Processes, calls_end_when_the_node_is_killed) {
    NodeProcess process;
    const hoplite::Client client = hoplite::connect(process.socket(), {.reconnect = false});
    const auto view = client.get<float>(client.put(numbers(LARGE)), {.timeout = SOON});
    auto buffer = client.create(LARGE);
    auto pending = client.get_async("never");
    auto blocked = std::async(std::launch::async, [&] { (void)client.get("never"); });
    eventually([&] { return integer(client.status(), "waiting") == 2; });
    process.stop(SIGKILL);
    fails<hoplite::NodeDown>([&] { blocked.get(); });
    fails<hoplite::NodeDown>([&] { (void)pending.get(); });
    fails<hoplite::NodeDown>([&] { client.put("x", {.timeout = 5s}); });
    fails<hoplite::NodeDown>([&] { buffer.seal({.timeout = 5s}); });
    same(view, numbers(LARGE));
}

TEST(Processes, objects_of_a_killed_node_are_lost) {
    const hoplite::Node node(
        {.listen = "127.0.0.1:0", .capacity = 64 * hoplite::MiB, .token = TOKEN, .socket = fresh(".sock")});
    NodeProcess process({"listen=127.0.0.1:0", "join=" + *node.address(), "token=" + TOKEN});
    const hoplite::Client there = hoplite::connect(process.socket());
    const hoplite::Client here = node.client();
    there.put(numbers(LARGE), {.name = "gone"});
    there.put(numbers(LARGE), {.name = "kept", .replicas = 2, .timeout = SOON});
    const hoplite::Ref total = here.reduce({"gone", "never"});
    EXPECT_EQ(here.locations("gone", {.timeout = SOON}).size(), 1U);
    process.stop(SIGKILL);
    fails<hoplite::ObjectLost>([&] { (void)here.get("gone", {.timeout = SOON}); }, {"gone"});
    same(here.get<float>("kept", {.timeout = SOON}), numbers(LARGE));
    fails<hoplite::ObjectLost>([&] { (void)here.get(total, {.timeout = SOON}); }, {"gone"});
    // The name is free.
    here.put(numbers(SMALL), {.name = "gone"});
    same(here.get<float>("gone", {.timeout = SOON}), numbers(SMALL));
}

TEST(Processes, a_client_reconnects_to_the_next_node) {
    NodeProcess first;
    const hoplite::Client client = hoplite::connect(first.socket());
    client.put("old", {.name = "object"});
    auto pending = client.get_async("never");
    first.stop(SIGKILL);
    fails<hoplite::NodeDown>([&] { (void)pending.get(); });
    const NodeProcess second({"socket=" + first.socket()});
    EXPECT_EQ(client.put("new", {.name = "object", .timeout = SOON}).text(), "object");
    EXPECT_EQ(client.get<char>("object", {.timeout = SOON}).text(), "new");
}

TEST(Processes, a_forked_child_uses_views_and_clients_of_its_parent) {
    const NodeProcess process;
    const hoplite::Node node = lone_node();
    for (const hoplite::Client& client : {hoplite::connect(process.socket()), node.client()}) {
        client.put(numbers(LARGE), {.name = "inherited"});
        const auto view = client.get<float>("inherited", {.timeout = SOON});
        auto pending = client.get_async("from the child");
        in_child([&] {
            same(view, numbers(LARGE));
            same(client.get<float>("inherited", {.timeout = SOON}), numbers(LARGE));
            client.put(numbers(SMALL), {.name = "from the child"});
            EXPECT_EQ(client.get_async<float>("from the child").get().size(), SMALL);
        });
        EXPECT_EQ(pending.get().nbytes(), 4 * SMALL);
        // The child has ended, and with it its own connection alone.
        same(client.get<float>("inherited", {.timeout = SOON}), numbers(LARGE));
        client.put("x", {.name = "after"});
    }
}

TEST(Processes, a_forked_child_that_is_killed_harms_nobody) {
    const hoplite::Node node = lone_node();
    const hoplite::Client client = node.client();
    client.put(numbers(LARGE), {.name = "object"});
    int ready[2];
    ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
    const pid_t child = fork();
    if (child == 0) {
        const auto buffer = client.create(LARGE, {.name = "unfinished"});
        const auto view = client.get("object", {.timeout = SOON});
        if (write(ready[1], "x", 1) == 1) pause();
        _exit(0);
    }
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(ready[0]);
    close(ready[1]);
    // The name of its buffer is free.
    eventually([&] { return client.try_put(numbers(LARGE), {.name = "unfinished"}).has_value(); });
    client.del({"object", "unfinished"});
    eventually([&] { return integer(client.status(), "used") == 0; });
}

TEST(Processes, a_thread_that_forks_disturbs_no_other_thread) {
    const hoplite::Node node = lone_node();
    const hoplite::Client client = node.client();
    std::atomic<bool> over = false;
    std::vector<std::thread> threads;
    for (int number = 0; number < 3; ++number) {
        threads.emplace_back([&, number] {
            while (!over) {
                const hoplite::Ref ref = client.put(numbers(number == 0 ? LARGE : SMALL));
                EXPECT_GT(client.get(ref, {.timeout = SOON}).nbytes(), 0U);
                client.del(ref);
            }
        });
    }
    for (int turn = 0; turn < 5; ++turn) {
        in_child([&] { EXPECT_EQ(client.get<char>(client.put("x"), {.timeout = SOON}).text(), "x"); });
    }
    over = true;
    for (std::thread& thread : threads) thread.join();
}

TEST(Processes, a_server_that_is_no_node_is_a_connect_error) {
    for (const std::string& reply : {std::string(), std::string("HTTP/1.1 400 Bad Request\r\n\r\n"),
                                     std::string(4096, '\0'), std::string(4096, '\xFF')}) {
        const StrangeServer server(reply);
        fails<hoplite::ConnectError>([&] { (void)hoplite::connect(server.path(), {.timeout = 100ms}); },
                                     {server.path().c_str()});
    }
    const std::string path = fresh(".sock");
    fails<hoplite::ConnectError>([&] { (void)hoplite::connect(path, {.timeout = 0s}); }, {path.c_str()});
    fails<hoplite::ConnectError>([&] { (void)hoplite::init("unix:" + path, {.timeout = 10ms}); }, {path.c_str()});
    fails<hoplite::InvalidArgument>([&] { (void)hoplite::connect(""); });
}

TEST(Processes, a_wrong_capability_is_rejected) {
    const hoplite::Node node({.listen = "127.0.0.1:0",
                              .capacity = 64 * hoplite::MiB,
                              .token = TOKEN,
                              .require_capability = true,
                              .socket = fresh(".sock")});
    const auto wrong = hoplite::try_connect(*node.socket(), {.capability = "not-a-capability"});
    ASSERT_FALSE(wrong.has_value());
    EXPECT_TRUE(wrong.error().code() == HOPLITE_NOT_ALLOWED || wrong.error().code() == HOPLITE_INVALID_ARGUMENT)
        << wrong.error().name();
    fails<hoplite::NotAllowed>([&] { (void)hoplite::connect(*node.socket()); }, {"capability"});
    // Clients of this process need none.
    EXPECT_EQ(node.client().put("x", {.name = "x"}).text(), "x");
}

TEST(Processes, addresses_in_use_and_clusters_out_of_reach) {
    const hoplite::Node node(
        {.listen = "127.0.0.1:0", .capacity = 64 * hoplite::MiB, .token = TOKEN, .socket = fresh(".sock")});
    fails<hoplite::AddressInUse>([&] { lone_node({.socket = node.socket()}); }, {node.socket()->c_str()});
    fails<hoplite::AddressInUse>([&] { lone_node({.listen = node.address(), .token = TOKEN}); },
                                 {node.address()->c_str()});
    fails<hoplite::JoinError>(
        [&] { lone_node({.listen = "127.0.0.1:0", .join = {*node.address()}, .token = OTHER_TOKEN}); });
    fails<hoplite::InvalidArgument>([&] { lone_node({.listen = "nonsense"}); }, {"nonsense"});
    fails<hoplite::InvalidArgument>([&] { lone_node({.capacity = 5}); }, {"5 B", "1 MiB"});
    fails<hoplite::InvalidArgument>([&] { lone_node({.capacity = 0}); }, {"0 B", "1 MiB"});
    fails<hoplite::InvalidArgument>([&] { lone_node({.detection_timeout = 10ms}); });
}

TEST(Processes, init_finds_a_node_or_starts_one) {
    const NodeProcess process;
    setenv("HOPLITE_ADDRESS", ("unix:" + process.socket()).c_str(), 1);
    hoplite::init().put("x", {.name = "object"});
    unsetenv("HOPLITE_ADDRESS");
    EXPECT_EQ(hoplite::connect(process.socket()).get<char>("object", {.timeout = SOON}).text(), "x");
    setenv("HOPLITE_CAPACITY", "64MiB", 1);
    {
        const hoplite::Client embedded = hoplite::init();
        EXPECT_EQ(integer(embedded.status(), "capacity"), 64 << 20);
        embedded.put("y", {.name = "object"});
        EXPECT_EQ(hoplite::init().get<char>("object", {.timeout = SOON}).text(), "y");
    }
    // The node has ended with its client.
    EXPECT_TRUE(hoplite::init().wait("object", {.timeout = 0s}).ready.empty());
    unsetenv("HOPLITE_CAPACITY");
}

TEST(Processes, a_full_store_states_its_numbers) {
    const hoplite::Node node = lone_node({.capacity = hoplite::MiB});
    const hoplite::Client client = node.client();
    fails<hoplite::StoreFull>([&] { client.put(std::vector<std::uint8_t>(2 << 20), {.timeout = 0s}); },
                              {"1048576", "2097152"});
    fails<hoplite::StoreFull>([&] { (void)client.create<double>(1 << 20, {.timeout = 0s}); }, {"1048576", "8388608"});
    const hoplite::Ref held = client.put(std::vector<std::uint8_t>(900 << 10));
    fails<hoplite::StoreFull>([&] { client.put(std::vector<std::uint8_t>(900 << 10), {.timeout = 10ms}); },
                              {"921600", "pinned"});
    client.del(held);
    client.put(std::vector<std::uint8_t>(900 << 10), {.timeout = SOON});
}

namespace {

// Open descriptors of this process.
rlim_t open_files() {
    rlim_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
    return count;
}

void without_descriptors() {
    const hoplite::Node node = lone_node();
    const hoplite::Client client = node.client();
    client.put("x", {.name = "object"});
    const std::string socket = fresh(".sock");
    rlimit old{};
    getrlimit(RLIMIT_NOFILE, &old);
    // All descriptors below the limit are in use.
    const rlimit low{.rlim_cur = open_files() + 8, .rlim_max = old.rlim_max};
    setrlimit(RLIMIT_NOFILE, &low);
    std::vector<int> files;
    for (int file = open("/dev/null", O_RDONLY); file >= 0; file = open("/dev/null", O_RDONLY)) files.push_back(file);
    // With the functions of C: UBSan needs descriptors to check the type of an error.
    std::vector<std::pair<hoplite_code, std::string>> errors;
    const auto note = [&](hoplite_code code) { errors.emplace_back(code, hoplite_last_error()); };
    hoplite_client no_client{};
    note(hoplite_connect(node.socket()->c_str(), nullptr, 0.1, &no_client));
    hoplite_node_options options{};
    options.size = sizeof options;
    options.capacity = 64 * hoplite::MiB;
    options.socket = socket.c_str();
    hoplite_node no_node{};
    note(hoplite_node_start(&options, &no_node));
    hoplite_queue no_queue{};
    note(hoplite_queue_new(&no_queue));
    // An open client goes on.
    EXPECT_EQ(client.get<char>("object", {.timeout = SOON}).text(), "x");
    for (const int file : files) close(file);
    setrlimit(RLIMIT_NOFILE, &old);
    for (const auto& [code, message] : errors) {
        EXPECT_NE(code, HOPLITE_OK);
        EXPECT_TRUE(message.find("descriptor") != std::string::npos || message.find("open files") != std::string::npos)
            << message;
    }
    same(client.get<float>(client.put(numbers(LARGE)), {.timeout = SOON}), numbers(LARGE));
    EXPECT_EQ(hoplite::connect(*node.socket()).get<char>("object", {.timeout = SOON}).text(), "x");
}

void with_small_files() {
    signal(SIGXFSZ, SIG_DFL);
    const rlimit limit{.rlim_cur = 64 << 10, .rlim_max = RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    const auto node = hoplite::Node::try_start({.capacity = 64 * hoplite::MiB, .socket = fresh(".sock")});
    if (!node) {
        EXPECT_NE(std::string(node.error().what()), "");
        return;
    }
    const hoplite::Client client = node->client();
    for (const std::size_t size : {std::size_t{LARGE}, std::size_t{5} << 20U}) {
        const auto put = client.try_put(numbers(size), {.timeout = 200ms});
        if (!put) {
            EXPECT_EQ(put.error().code(), HOPLITE_STORE_FULL) << put.error().what();
        }
        const auto buffer = client.try_create<float>(size, {.timeout = 200ms});
        if (!buffer) {
            EXPECT_EQ(buffer.error().code(), HOPLITE_STORE_FULL) << buffer.error().what();
        }
    }
    EXPECT_EQ(client.get<char>(client.put("small"), {.timeout = SOON}).text(), "small");
}

// A program that ends with everything open: a node, clients, calls, buffers.
void end_with_everything_open() {
    static auto* const node = new hoplite::Node(lone_node());
    static auto* const client = new hoplite::Client(node->client());
    static auto* const buffer = new hoplite::Buffer<float>(client->create(LARGE));
    buffer->data()[0] = 1;
    client->get_async("never").then([](hoplite::Result<hoplite::View<>>) {});
}

const Scenario scenarios[] = {{"without_descriptors", without_descriptors},
                              {"with_small_files", with_small_files},
                              {"end_with_everything_open", end_with_everything_open}};

}  // namespace

TEST(Processes, a_descriptor_limit_is_a_clear_error) { in_new_process("without_descriptors"); }

TEST(Processes, a_limit_of_the_file_size_ends_no_process) { in_new_process("with_small_files"); }

TEST(Processes, a_program_may_end_with_everything_open) { in_new_process("end_with_everything_open"); }
