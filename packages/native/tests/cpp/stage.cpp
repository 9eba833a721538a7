#include "stage.hpp"

namespace {
std::unique_ptr<Stage> stage;
}

Stage::Stage() {
    for (int number = 0; number < 3; ++number) {
        hoplite::NodeOptions options{.listen = "127.0.0.1:0", .capacity = 128 * hoplite::MiB, .token = TOKEN};
        options.socket = fresh(".sock");
        if (number > 0) options.join = {*nodes[0].address()};
        nodes.emplace_back(options);
    }
    const hoplite::Client embedded = nodes[0].client();
    const hoplite::Client last = nodes[2].client();
    const hoplite::Client process = hoplite::connect("unix:" + *nodes[0].socket());
    const hoplite::Client neighbor = hoplite::connect(*nodes[0].socket());
    const hoplite::Client far = hoplite::connect("unix:" + *nodes[1].socket());
    for (const hoplite::Client& client : {embedded, last, far}) {
        eventually([&] { return count_of(client.status(), "\"rtt_us\"") >= 3; });
    }
    clients[0] = {embedded, embedded, embedded};
    clients[1] = {process, neighbor, process};
    // The getter is a separate process next to its node, as workers are.
    clients[2] = {embedded, far, last};
}

Stage& Stage::get() {
    if (stage == nullptr) stage.reset(new Stage);
    return *stage;
}

void Stage::close() { stage.reset(); }

void Contract::SetUp() {
    Stage& shared = Stage::get();
    const auto& clients = shared.clients[static_cast<int>(place())];
    putter = std::make_unique<Verbs>(clients[0], how());
    getter = std::make_unique<Verbs>(clients[1], how());
    reducer = std::make_unique<Verbs>(clients[2], how());
    all = {putter.get(), getter.get(), reducer.get()};
    node_count = place() == Place::cluster ? 3 : 1;
    static int count = 0;
    prefix_ = "case-" + std::to_string(++count);
}

void Contract::TearDown() {
    settled();
    putter->client.del(names_, {.timeout = SOON});
    for (const Verbs* verbs : all) {
        eventually([&] { return integer(verbs->client.status(), "used") == 0; });
    }
}

std::string Contract::name(const std::string& text) {
    const std::string name = prefix_ + "/" + text;
    if (!text.empty() && std::ranges::find(names_, name) == names_.end()) names_.push_back(name);
    return name;
}

hoplite::Ref Contract::mine(hoplite::Ref ref) {
    names_.push_back(ref.text());
    return ref;
}

Verbs Contract::another() const {
    const hoplite::Node& node = Stage::get().nodes[0];
    return {place() == Place::attached ? hoplite::connect("unix:" + *node.socket()) : node.client(), how()};
}

long long Contract::waiting() const {
    long long sum = 0;
    for (std::size_t number = 0; number < node_count; ++number) sum += all[number]->waiting();
    return sum;
}

void Contract::settled() const {
    for (std::size_t number = 0; number < node_count; ++number) {
        eventually([&] {
            const std::string status = all[number]->client.status();
            return integer(status, "waiting") == 0 && integer(status, "reduces") == 0;
        });
    }
}
