// One rank of Gloo, with the collectives of Debian's libgloo: for C++ what rank.py and content.py in this folder are
// for Python. rank.py documents the protocol.
//
// Does not depend on what is measured, or how often.

#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>

#include "gloo_exchange.hpp"
#include "gloo_lines.hpp"

namespace {

using Array = std::vector<float>;

// Longer than any round, and than any timeout of the bench: 1 GiB from each of 16 hosts takes 260 s at 500 Mbit/s.
constexpr std::chrono::milliseconds TIMEOUT(std::chrono::minutes(60));
// As in rank.py: a timeout in seconds that the bench sets instead.
constexpr const char* TIMEOUT_VARIABLE = "_HOPLITE_BENCH_TIMEOUT_S";
constexpr int64_t HEAD_START_NS = 1000000;
// Number of ranks that exchange data in one round of a BCube, like BCUBE_BASE in gloo.py.
constexpr int BCUBE_BASE = 4;

// ---- Time -----------------------------------------------------------------------------------------------------------

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

void sleep_until(int64_t at_ns) {
  timespec at{at_ns / 1000000000LL, at_ns % 1000000000LL};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) == EINTR) {
  }
}

// ---- Content: as in content.py ----------------------------------------------------------------------------------------

constexpr int PERIOD = 1021;
constexpr int ROUNDS = 61;

int64_t constant(int rank, int64_t seed) { return (1LL << rank) % 65521 + seed % ROUNDS; }

void fill(Array& out, int rank, int64_t seed) {
  const float added = constant(rank, seed);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(i % PERIOD) + added;
  }
}

// Returns the first difference from the sum of the inputs of `count` ranks from `first` on; empty if there is none.
std::string wrong(const float* found, size_t size, int first, int count, int64_t seed) {
  int64_t added = 0;
  for (int rank = first; rank < first + count; ++rank) {
    added += constant(rank, seed);
  }
  for (size_t i = 0; i < size; ++i) {
    const float expected = static_cast<float>(i % PERIOD) * count + added;
    if (found[i] != expected) {
      return "element " + std::to_string(i) + " of " + std::to_string(size) + " is " + std::to_string(found[i]) +
          " and not " + std::to_string(expected);
    }
  }
  return "";
}

// ---- The rank -----------------------------------------------------------------------------------------------------------

class Rank {
 public:
  Rank(std::shared_ptr<gloo::Context> context) : context_(std::move(context)) {}

  void prepare(const Fields& task) {
    op_ = task.at("op");
    variant_ = task.at("variant");
    seed_ = std::stoll(task.at("seed"));
    arrival_ns_ = std::stoll(task.at("arrival"));
    tag_ = static_cast<uint32_t>(std::stoul(task.at("round")));
    count_ = std::stoull(task.at("bytes")) / sizeof(float);
    algorithm_.reset();
    received_ = Array();
    const bool root = context_->rank == 0;
    // Reduce and allreduce work in place, as Gloo allows: that avoids a copy.
    const bool receives_only = (op_ == "rtt" || op_ == "broadcast") && !root;
    sent_ = Array(receives_only ? 0 : count_);
    fill(sent_, context_->rank, seed_);
    if (op_ == "rtt") {
      received_ = Array(context_->rank < 2 ? count_ : 0, -1);
    } else if (op_ == "broadcast") {
      received_ = Array(root ? 0 : count_, -1);
    } else if (op_ == "gather") {
      received_ = Array(root ? count_ * context_->size : 0, -1);
    } else if (op_ == "allgather") {
      received_ = Array(count_ * context_->size, -1);
    } else {
      received_.swap(sent_);
    }
    if (variant_ != "default") {
      algorithm_ = forced();
    }
  }

  // As in rank.py: immediately without an instant, one rank after the other, and rank 0 of a round trip a little later.
  int64_t call_at(int64_t at_ns) const {
    const int64_t head_start_ns = op_ == "rtt" && context_->rank == 0 ? HEAD_START_NS : 0;
    return (at_ns ? at_ns : now_ns()) + context_->rank * arrival_ns_ + head_start_ns;
  }

  void run() {
    if (op_ == "rtt") {
      round_trip();
    } else if (op_ == "broadcast") {
      gloo::BroadcastOptions options(context_);
      Array& array = context_->rank == 0 ? sent_ : received_;
      options.setOutput(array.data(), array.size());
      options.setRoot(0);
      options.setTag(tag_);
      gloo::broadcast(options);
    } else if (op_ == "gather") {
      gloo::GatherOptions options(context_);
      options.setInput(sent_.data(), sent_.size());
      if (context_->rank == 0) {
        options.setOutput(received_.data(), received_.size());
      }
      options.setRoot(0);
      options.setTag(tag_);
      gloo::gather(options);
    } else if (op_ == "allgather") {
      gloo::AllgatherOptions options(context_);
      options.setInput(sent_.data(), sent_.size());
      options.setOutput(received_.data(), received_.size());
      options.setTag(tag_);
      gloo::allgather(options);
    } else if (op_ == "reduce") {
      gloo::ReduceOptions options(context_);
      options.setOutput(received_.data(), received_.size());
      options.setReduceFunction(add());
      options.setRoot(0);
      options.setTag(tag_);
      gloo::reduce(options);
    } else if (algorithm_) {
      algorithm_->run();
    } else {
      gloo::AllreduceOptions options(context_);
      options.setOutput(received_.data(), received_.size());
      options.setReduceFunction(add());
      options.setTag(tag_);
      gloo::allreduce(options);
    }
  }

  std::string check() {
    std::string differs;
    if (op_ == "gather" || op_ == "allgather") {
      for (int rank = 0; rank < context_->size && !received_.empty() && differs.empty(); ++rank) {
        differs = wrong(received_.data() + rank * count_, count_, rank, 1, seed_);
        if (!differs.empty()) {
          differs = "block " + std::to_string(rank) + ": " + differs;
        }
      }
    } else if (op_ == "allreduce" || (op_ == "reduce" && context_->rank == 0)) {
      differs = wrong(received_.data(), received_.size(), 0, context_->size, seed_);
    } else if (op_ != "reduce") {
      differs = wrong(received_.data(), received_.size(), 0, 1, seed_);
    }
    algorithm_.reset();
    sent_ = Array();
    received_ = Array();
    return differs;
  }

 private:
  // The classes connect their buffers when they are created, and count in int.
  std::unique_ptr<gloo::Algorithm> forced() {
    if (received_.size() * sizeof(float) > static_cast<size_t>(std::numeric_limits<int>::max())) {
      throw std::runtime_error("Gloo's " + variant_ + " allreduce supports less than 2 GiB");
    }
    const std::vector<float*> pointers{received_.data()};
    if (variant_ == "ring chunked") {
      return std::make_unique<gloo::AllreduceRingChunked<float>>(context_, pointers, count_);
    }
    if (variant_ == "halving-doubling") {
      return std::make_unique<gloo::AllreduceHalvingDoubling<float>>(context_, pointers, count_);
    }
    if (variant_ == "bcube") {
      return std::make_unique<gloo::AllreduceBcube<float>>(context_, pointers, count_);
    }
    throw std::runtime_error("Gloo has no variant " + variant_ + " of " + op_);
  }

  void round_trip() {
    const auto received = context_->createUnboundBuffer(received_.data(), received_.size() * sizeof(float));
    if (context_->rank == 0) {
      const auto sent = context_->createUnboundBuffer(sent_.data(), sent_.size() * sizeof(float));
      received->recv(1, tag_);
      sent->send(1, tag_);
      sent->waitSend();
      received->waitRecv();
    } else if (context_->rank == 1) {
      received->recv(0, tag_);
      received->waitRecv();
      received->send(0, tag_);
      received->waitSend();
    }
  }

  static gloo::AllreduceOptions::Func add() {
    return static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>);
  }

  const std::shared_ptr<gloo::Context> context_;
  std::string op_;
  std::string variant_;
  int64_t seed_ = 0;
  int64_t arrival_ns_ = 0;
  uint32_t tag_ = 0;
  size_t count_ = 0;
  Array sent_;
  Array received_;
  std::unique_ptr<gloo::Algorithm> algorithm_;
};

std::string answer(Rank& rank, const std::string& word, const Fields& fields) {
  if (word == "prepare") {
    rank.prepare(fields);
    return "ready token=";
  }
  if (word == "go") {
    sleep_until(rank.call_at(std::stoll(fields.at("at"))));
    const int64_t start_ns = now_ns();
    rank.run();
    const int64_t end_ns = now_ns();
    return "done start=" + std::to_string(start_ns) + " end=" + std::to_string(end_ns) +
        " part_collective=" + std::to_string(end_ns - start_ns);
  }
  if (word == "check") {
    return "checked wrong=" + encode(rank.check());
  }
  throw std::runtime_error("unknown request " + word);
}

void serve(Rank& rank, Socket& bench) {
  std::string line;
  while (bench.line(line)) {
    Fields fields;
    const std::string word = parse(line, fields);
    std::string said;
    try {
      said = answer(rank, word, fields);
    } catch (const std::exception& error) {
      std::cerr << error.what() << std::endl;
      said = "failed why=" + encode(error.what());
    }
    bench.send(said + "\n");
  }
}

std::shared_ptr<gloo::Context> mesh(const std::string& address, const std::string& store, int rank, int ranks) {
  gloo::transport::tcp::attr here(address.c_str());
  auto device = gloo::transport::tcp::CreateDevice(here);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks, BCUBE_BASE);
  const char* seconds = std::getenv(TIMEOUT_VARIABLE);
  context->setTimeout(seconds ? std::chrono::milliseconds(static_cast<int64_t>(std::stod(seconds) * 1000)) : TIMEOUT);
  Exchange exchange(store, rank, ranks);
  context->connectFullMesh(exchange, device);
  return context;
}

}  // namespace

int main(int argc, char** argv) {
  // Gloo may write to the connection of a dead rank. Python ignores the signal too.
  std::signal(SIGPIPE, SIG_IGN);
  Fields options;
  for (int i = 1; i + 1 < argc; i += 2) {
    options[argv[i]] = argv[i + 1];
  }
  try {
    const int number = std::stoi(options.at("--rank"));
    const int ranks = std::stoi(options.at("--ranks"));
    Rank rank(mesh(options.at("--address"), options.at("--store"), number, ranks));
    Socket bench = connect(options.at("--control"));
    bench.send("hello rank=" + std::to_string(number) + " version=" + encode(options.at("--version")) +
               " pid=" + std::to_string(getpid()) + "\n");
    serve(rank, bench);
  } catch (const std::exception& error) {
    std::cerr << "gloo_rank: " << error.what() << std::endl;
    return 1;
  }
  // Skips destructors: if another rank has already ended, Gloo's would report that as an error.
  std::_Exit(0);
}
