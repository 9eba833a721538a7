// One rank of Gloo, with the collectives of Debian's libgloo.

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
#include "rank.hpp"

namespace {

using Array = std::vector<float>;

// Longer than any round, and than any timeout of the bench: 1 GiB from each of 16 hosts takes 260 s at 500 Mbit/s.
constexpr double TIMEOUT_S = 3600;
// Number of ranks that exchange data in one round of a BCube, like BCUBE_BASE in gloo.py.
constexpr int BCUBE_BASE = 4;

class GlooRank : public Rank {
 public:
  explicit GlooRank(std::shared_ptr<gloo::Context> context) : context_(std::move(context)) {}

  std::string prepare(const Task& task) override {
    op_ = task.op;
    variant_ = task.variant;
    seed_ = task.seed;
    tag_ = task.round;
    count_ = task.count;
    algorithm_.reset();
    received_ = Array();
    const bool root = context_->rank == 0;
    // Reduce and allreduce work in place, as Gloo allows: that avoids a copy.
    const bool receives_only = (op_ == "rtt" || op_ == "broadcast") && !root;
    sent_ = Array(receives_only ? 0 : count_);
    fill(sent_.data(), sent_.size(), context_->rank, seed_);
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
    return "";
  }

  bool run(const Task&, const std::vector<std::string>&) override {
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
    return true;
  }

  std::string check(const Task&) override {
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
  uint32_t tag_ = 0;
  size_t count_ = 0;
  Array sent_;
  Array received_;
  std::unique_ptr<gloo::Algorithm> algorithm_;
};

std::shared_ptr<gloo::Context> mesh(const std::string& address, const std::string& store, int rank, int ranks) {
  gloo::transport::tcp::attr here(address.c_str());
  auto device = gloo::transport::tcp::CreateDevice(here);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks, BCUBE_BASE);
  context->setTimeout(std::chrono::milliseconds(static_cast<int64_t>(timeout_s(TIMEOUT_S) * 1000)));
  Exchange exchange(store, rank, ranks);
  context->connectFullMesh(exchange, device);
  return context;
}

}  // namespace

int main(int argc, char** argv) {
  // Gloo may write to the connection of a dead rank. Python ignores the signal too.
  std::signal(SIGPIPE, SIG_IGN);
  const Fields options = options_of(argc, argv);
  try {
    const int number = std::stoi(options.at("--rank"));
    const int ranks = std::stoi(options.at("--ranks"));
    GlooRank rank(mesh(options.at("--address"), options.at("--store"), number, ranks));
    serve(rank, options, options.at("--version"));
  } catch (const std::exception& error) {
    std::cerr << "gloo_rank: " << error.what() << std::endl;
    return 1;
  }
  // Skips destructors: if another rank has already ended, Gloo's would report that as an error.
  std::_Exit(0);
}
