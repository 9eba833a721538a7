// A native worker of Hoplite, which runs each operation as a C++ application of Hoplite would: for C++ what
// hoplite_rank.py in this folder is for Python, with the same calls in the same order.
//
// It embeds a node, or attaches to that of another worker on the same machine.

#include <csignal>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hoplite/hoplite.hpp>

#include "rank.hpp"

namespace {

using Seconds = std::chrono::duration<double>;

constexpr Seconds START_TIMEOUT(60);
// As in hoplite_rank.py: for workers that were left behind; separators between refs.
constexpr double PATIENCE_S = 600;
constexpr char AND = '+';
constexpr char NEXT = '|';

// Counters that stay 0 without a fault, as in hoplite.tools.peace.
constexpr const char* COUNTERS[] = {"reduces_restarted", "fetches_failed", "transfers_slow", "blocks_corrupt",
                                    "copies_corrupt",    "refusals",       "spill_failures", "replicas_late"};

// ---- The status of a node -------------------------------------------------------------------------------------------

// The number of members: each has this key, and nothing else has it.
size_t members(const std::string& status) {
  const std::string key = "\"suspected\":";
  size_t found = 0;
  for (size_t at = status.find(key); at != std::string::npos; at = status.find(key, at + 1)) {
    ++found;
  }
  return found;
}

std::vector<int64_t> counters(const std::string& status) {
  std::vector<int64_t> values;
  const size_t all = status.find("\"counters\":");
  for (const std::string name : COUNTERS) {
    const std::string key = "\"" + name + "\":";
    const size_t at = all == std::string::npos ? all : status.find(key, all);
    if (at == std::string::npos) {
      throw std::runtime_error("the status has no counter " + name);
    }
    values.push_back(std::strtoll(status.c_str() + at + key.size(), nullptr, 10));
  }
  return values;
}

// ---- The rank -----------------------------------------------------------------------------------------------------------

class HopliteRank : public Rank {
 public:
  HopliteRank(hoplite::Client client, bool seal_at_call)
      : client_(std::move(client)),
        seal_at_call_(seal_at_call),
        patience_(timeout_s(PATIENCE_S)),
        counters_(counters(client_.status())) {}

  std::string prepare(const Task& task) override {
    received_.clear();
    unsealed_.clear();
    sent_.clear();
    if ((task.rank > 1 && task.op == "rtt") || (task.rank > 0 && task.op == "broadcast")) {
      return "";
    }
    if (task.op == "rtt") {
      reserved_ = client_.reserve();
      made_.push_back(reserved_);
      if (task.rank == 0) {
        sent_.resize(task.count);
        fill(sent_.data(), sent_.size(), 0, task.seed);
      }
      return reserved_.text();
    }
    std::string token;
    const bool is_late = seal_at_call_ || task.arrival_ns > 0;
    for (int further = 0; further < task.inputs; ++further) {
      // Further inputs count as inputs of additional ranks.
      const int number = task.rank + task.ranks * further;
      const hoplite::Ref named("in/" + std::to_string(task.round) + "/" + std::to_string(number));
      auto buffer = client_.create<float>(task.count, {.name = is_late ? hoplite::Name(named) : hoplite::Name()});
      fill(buffer.data(), buffer.size(), number, task.seed);
      made_.push_back(is_late ? named : buffer.seal());
      if (is_late) {
        unsealed_.push_back(std::move(buffer));
      }
      token += (further ? std::string(1, NEXT) : "") + made_.back().text();
    }
    if (task.op == "allreduce" && task.rank == 0) {
      reserved_ = client_.reserve();
      (token += AND) += reserved_.text();
    }
    return token;
  }

  bool run(const Task& task, const std::vector<std::string>& tokens) override {
    const bool root = task.rank == 0;
    const std::vector<std::string> first = split(tokens.at(0), AND);
    std::vector<hoplite::Ref> refs;
    for (const std::string& token : tokens) {
      for (const std::string& ref : split(split(token, AND)[0], NEXT)) {
        refs.emplace_back(ref);
      }
    }
    const bool has_sealed = !unsealed_.empty();
    for (auto& buffer : unsealed_) {
      buffer.seal({.timeout = patience_});
    }
    unsealed_.clear();
    if (task.op == "rtt" && root) {
      client_.put(sent_, {.name = reserved_, .timeout = patience_});
      get(refs.at(1));
    } else if (task.op == "rtt" && task.rank == 1) {
      get(refs.at(0));
      client_.put(received_[0].span(), {.name = reserved_, .timeout = patience_});
    } else if (task.op == "broadcast" && !root) {
      get(refs.at(0));
    } else if (task.op == "allgather" || (task.op == "gather" && root)) {
      get_all(refs);
    } else if (task.op == "reduce" && root) {
      made_.push_back(client_.reduce(refs, "sum", {.timeout = patience_}));
      get(made_.back());
    } else if (task.op == "allreduce") {
      if (root) {
        made_.push_back(client_.reduce(refs, "sum", {.name = reserved_, .timeout = patience_}));
      }
      get(hoplite::Ref(first.at(1)));
    } else {
      // A rank whose input already exists has nothing to do: it does not call.
      return has_sealed;
    }
    return true;
  }

  std::string check(const Task& task) override {
    const std::string differs = first_difference(task);
    received_.clear();
    client_.del(made_, {.timeout = patience_});
    made_.clear();
    return differs;
  }

  std::string disturbed() override {
    const std::vector<int64_t> before = std::exchange(counters_, counters(client_.status()));
    std::string moved;
    for (size_t i = 0; i < before.size(); ++i) {
      if (counters_[i] != before[i]) {
        moved += (moved.empty() ? "" : ", ") + std::string(COUNTERS[i]) + " +" + std::to_string(counters_[i] - before[i]);
      }
    }
    return moved;
  }

 private:
  void get(const hoplite::Ref& ref) { received_.push_back(client_.get<float>(ref, {.timeout = patience_})); }

  void get_all(const std::vector<hoplite::Ref>& refs) {
    std::vector<hoplite::Pending<hoplite::View<float>>> pending;
    for (const hoplite::Ref& ref : refs) {
      pending.push_back(client_.get_async<float>(ref, {.timeout = patience_}));
    }
    for (auto& one : pending) {
      received_.push_back(one.get());
    }
  }

  // As wrong_at in content.py.
  std::string first_difference(const Task& task) const {
    const bool root = task.rank == 0;
    const bool is_sum = task.op == "allreduce" || (task.op == "reduce" && root);
    const bool is_all = task.op == "allgather" || (task.op == "gather" && root);
    const bool is_first = (task.op == "broadcast" && !root) || (task.op == "rtt" && task.rank < 2);
    const size_t expected = is_all ? task.ranks : is_sum || is_first;
    if (received_.size() != expected) {
      return std::to_string(received_.size()) + " arrays arrived instead of " + std::to_string(expected);
    }
    for (size_t i = 0; i < received_.size(); ++i) {
      const auto& array = received_[i];
      if (array.rank() != 1 || array.size() != task.count) {
        return "an array of " + std::to_string(array.size()) + " elements instead of " + std::to_string(task.count);
      }
      const int count = is_sum ? task.ranks * task.inputs : 1;
      const std::string differs = wrong(array.data(), array.size(), is_all ? static_cast<int>(i) : 0, count, task.seed);
      if (!differs.empty()) {
        return differs;
      }
    }
    return "";
  }

  const hoplite::Client client_;
  const bool seal_at_call_;
  const Seconds patience_;
  std::vector<int64_t> counters_;
  // Objects that the next `check` deletes, also those of a round that failed.
  std::vector<hoplite::Ref> made_;
  hoplite::Ref reserved_;
  std::vector<float> sent_;
  std::vector<hoplite::Buffer<float>> unsealed_;
  std::vector<hoplite::View<float>> received_;
};

// ---- The node -------------------------------------------------------------------------------------------------------

// Calls `start` until it no longer throws `E`, because another worker's node may start a little later.
template <class E, class Start>
auto retry(Start start) {
  const auto deadline = std::chrono::steady_clock::now() + START_TIMEOUT;
  while (true) {
    try {
      return start();
    } catch (const E&) {
      if (std::chrono::steady_clock::now() > deadline) {
        throw;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// The node of this process; none if it attaches to the node of another worker.
std::optional<hoplite::Node> start(const Fields& options) {
  if (!options.count("--capacity")) {
    return std::nullopt;
  }
  hoplite::NodeOptions wanted;
  wanted.capacity = std::stoull(options.at("--capacity"));
  wanted.socket = options.at("--socket");
  // Hosts of a measurement have their own network, so no authentication is needed.
  wanted.no_auth = true;
  if (options.count("--listen")) {
    wanted.listen = options.at("--listen");
    if (options.at("--join") != options.at("--listen")) {
      wanted.join = {options.at("--join")};
    }
  }
  return retry<hoplite::JoinError>([&] { return hoplite::Node(wanted); });
}

// Waits until all nodes have joined, and until they have surveyed their racks.
void wait_for_members(const hoplite::Client& client, size_t nodes) {
  const auto deadline = std::chrono::steady_clock::now() + START_TIMEOUT;
  const auto is_over = [&] { return std::chrono::steady_clock::now() > deadline; };
  while (nodes > 1 && members(client.status()) < nodes) {
    if (is_over()) {
      throw std::runtime_error(std::to_string(members(client.status())) + " of " + std::to_string(nodes) +
                               " nodes joined within 60 s");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  while (client.status().find("\"survey\":\"waiting\"") != std::string::npos && !is_over()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Fields options = options_of(argc, argv);
  try {
    const std::optional<hoplite::Node> node = start(options);
    // The node ends with its worker. No other one will serve the socket.
    const hoplite::Client client = node ? node->client() : retry<hoplite::ConnectError>([&] {
      return hoplite::connect("unix:" + options.at("--socket"), {.reconnect = false});
    });
    wait_for_members(client, std::stoul(options.at("--nodes")));
    HopliteRank rank(client, options.count("--seal-at-call") > 0);
    serve(rank, options, hoplite_version());
  } catch (const std::exception& error) {
    std::cerr << "hoplite_rank: " << error.what() << std::endl;
    return 1;
  }
}
