// Puts and gets of one C++ program on this host, for `hoplite bench local`: for C++ what local_cases.py is for Python.
//
// A request on stdin is "op bytes rounds"; the reply is one line of JSON with the seconds of each run and the error in
// the last result.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iomanip>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <hoplite/hoplite.hpp>

#include "rank.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using View = hoplite::View<float>;

// As in local_cases.py.
constexpr std::chrono::duration<double> PATIENCE(120);
constexpr int GETS = 1000;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// One run: its seconds, its result, and the object to delete.
struct Done {
  double seconds;
  View found;
  hoplite::Ref ref;
};

Done run(const hoplite::Client& client, const std::string& op, const std::vector<float>& value) {
  const auto start = Clock::now();
  if (op == "create_seal") {
    auto buffer = client.create<float>(value.size(), {.timeout = PATIENCE});
    // A constant, in place of the computation of a producer.
    std::fill(buffer.begin(), buffer.end(), 1.0F);
    const hoplite::Ref ref = buffer.seal({.timeout = PATIENCE});
    const double took = since(start);
    return {took, client.get<float>(ref, {.timeout = PATIENCE}), ref};
  }
  const hoplite::Ref ref = client.put(value, {.timeout = PATIENCE});
  const double put = since(start);
  const auto got = Clock::now();
  View found = client.get<float>(ref, {.timeout = PATIENCE});
  const double get = since(got);
  if (op == "put") {
    return {put, std::move(found), ref};
  }
  if (op == "get") {
    return {get, std::move(found), ref};
  }
  if (op == "put_get") {
    return {put + get, std::move(found), ref};
  }
  if (op == "get_repeated") {
    const auto again = Clock::now();
    for (int i = 0; i < GETS; ++i) {
      found = client.get<float>(ref, {.timeout = PATIENCE});
    }
    return {since(again) / GETS, std::move(found), ref};
  }
  throw std::runtime_error("unknown operation " + op);
}

std::string not_one(const View& found) {
  const auto differs = std::find_if(found.begin(), found.end(), [](float element) { return element != 1.0F; });
  return differs == found.end() ? "" : "element " + std::to_string(differs - found.begin()) + " is not 1";
}

void answer(const hoplite::Client& client, const std::string& op, size_t count, int rounds) {
  std::vector<float> value(count);
  fill(value.data(), count, 0, 0);
  std::string differs;
  std::cout << "{\"seconds\": [" << std::setprecision(9);
  for (int round = 0; round < rounds; ++round) {
    Done done = run(client, op, value);
    if (round + 1 == rounds) {
      differs = op == "create_seal" ? not_one(done.found) : wrong(done.found.data(), done.found.size(), 0, 1, 0);
    }
    done.found.release();
    client.del(done.ref, {.timeout = PATIENCE});
    std::cout << (round ? ", " : "") << done.seconds;
  }
  // The texts of `wrong` need no escapes.
  std::cout << "], \"wrong\": \"" << differs << "\"}" << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  const Fields options = options_of(argc, argv);
  try {
    std::optional<hoplite::Node> node;
    if (options.count("--capacity")) {
      node.emplace(hoplite::NodeOptions{.capacity = std::stoull(options.at("--capacity"))});
    }
    const hoplite::Client client = node ? node->client() : hoplite::connect("unix:" + options.at("--socket"));
    std::cout << "{\"version\": \"" << hoplite_version() << "\"}" << std::endl;
    std::string op;
    size_t bytes = 0;
    int rounds = 0;
    while (std::cin >> op >> bytes >> rounds) {
      answer(client, op, bytes / sizeof(float), rounds);
    }
  } catch (const std::exception& error) {
    std::cerr << "hoplite_local: " << error.what() << std::endl;
    return 1;
  }
}
