// Threads share clients, buffers, views and calls.

#include <barrier>

#include "support.hpp"

namespace {

constexpr int THREADS = 8;

// Runs work in several threads that begin at the same time; `work` gets the number of its thread.
void together(const std::function<void(int)>& work) {
    std::barrier begin(THREADS);
    std::vector<std::thread> threads;
    for (int number = 0; number < THREADS; ++number) {
        threads.emplace_back([&, number] {
            begin.arrive_and_wait();
            work(number);
        });
    }
    for (std::thread& thread : threads) thread.join();
}

}  // namespace

TEST(Threads, put_get_and_delete_with_one_client) {
    const hoplite::Node node = lone_node();
    const hoplite::Client client = node.client();
    together([&](int own) {
        for (int turn = 0; turn < 20; ++turn) {
            const std::size_t size = turn % 2 == 0 ? SMALL : LARGE;
            const std::string name = "object/" + std::to_string(own) + "-" + std::to_string(turn);
            const std::string other = "object/" + std::to_string((own + 1) % THREADS) + "-" + std::to_string(turn);
            client.put(numbers(size, static_cast<unsigned>(own)), {.name = name});
            same(client.get<float>(other, {.timeout = SOON}),
                 numbers(size, static_cast<unsigned>((own + 1) % THREADS)));
            auto buffer = client.create(size);
            std::ranges::fill(buffer, static_cast<float>(own));
            const hoplite::Ref ref = buffer.seal();
            EXPECT_EQ(client.get<float>(ref, {.timeout = SOON})[size - 1], static_cast<float>(own));
            client.del(ref);
        }
    });
}

TEST(Threads, one_object_is_read_by_all) {
    const hoplite::Node node = lone_node();
    const hoplite::Client client = node.client();
    auto buffer = client.create(LARGE, {.name = "object"});
    std::thread filler([&] {
        std::ranges::copy(numbers(LARGE), buffer.begin());
        buffer.seal();
    });
    together([&](int own) {
        const hoplite::Client mine = own % 2 == 0 ? client : hoplite::connect(*node.socket());
        same(mine.get<float>("object", {.timeout = SOON}), numbers(LARGE));
    });
    filler.join();
}

TEST(Threads, calls_complete_on_other_threads) {
    const hoplite::Node node = lone_node();
    const hoplite::Client client = node.client();
    together([&](int own) {
        const std::string name = "object/" + std::to_string(own);
        std::vector<std::future<std::size_t>> futures;
        for (int turn = 0; turn < 10; ++turn) {
            auto promise = std::make_shared<std::promise<std::size_t>>();
            futures.push_back(promise->get_future());
            client.get_async<float>(name).then([promise](hoplite::Result<hoplite::View<float>> view) {
                promise->set_value(view.has_value() ? view->size() : 0);
            });
        }
        client.put(numbers(LARGE), {.name = name});
        for (auto& future : futures) EXPECT_EQ(future.get(), LARGE);
    });
}

TEST(Threads, clients_come_and_go_while_others_work) {
    const hoplite::Node node = lone_node();
    const hoplite::Ref ref = node.client().put(numbers(LARGE));
    together([&](int own) {
        for (int turn = 0; turn < 5; ++turn) {
            hoplite::Client client = own % 2 == 0 ? node.client() : hoplite::connect(*node.socket());
            same(client.get<float>(ref, {.timeout = SOON}), numbers(LARGE));
            auto pending = client.get_async("never");
            client.close();
            fails<hoplite::ClientClosed>([&] { (void)pending.get(); });
        }
    });
}

TEST(Threads, two_nodes_in_one_process_share_objects) {
    hoplite::Node one(
        {.listen = "127.0.0.1:0", .capacity = 64 * hoplite::MiB, .token = TOKEN, .socket = fresh(".sock")});
    const hoplite::Node two({.listen = "127.0.0.1:0",
                             .join = {*one.address()},
                             .capacity = 64 * hoplite::MiB,
                             .token = TOKEN,
                             .socket = fresh(".sock")});
    EXPECT_NE(one.id(), two.id());
    const hoplite::Client first = one.client();
    const hoplite::Client second = two.client();
    const hoplite::Ref ref = first.put(numbers(LARGE), {.name = "object"});
    same(second.get<float>(ref, {.timeout = SOON}), numbers(LARGE));
    const hoplite::Ref only = first.put(numbers(LARGE, 1));
    // What only the first node holds, the second one takes over.
    EXPECT_TRUE(one.close(SOON));
    same(second.get<float>(only, {.timeout = SOON}), numbers(LARGE, 1));
    fails<hoplite::NodeDown>([&] { first.put("x"); });
}
