// One rank of Gloo, as far as Debian's libgloo has it: what rank.py and content.py of this folder are for Python, and the
// collectives of one C++ library. The meaning of the lines is told in rank.py.
//
// Knows neither what is measured nor how often. Ranks find each other through rank 0, which hands everyone's addresses
// to everyone; no folder need be shared.

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

namespace {

using Fields = std::map<std::string, std::string>;
using Array = std::vector<float>;

// Longer than any round takes, and than the bench waits for one: 1 GiB from each of 16 hosts takes 260 s at 500 Mbit/s.
constexpr std::chrono::minutes TIMEOUT(60);
constexpr std::chrono::seconds CONNECT_TIMEOUT(30);

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

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

// ---- Connections ----------------------------------------------------------------------------------------------------

// A socket that is closed at the end of its scope.
class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), read_(std::move(other.read_)) {}
  ~Socket() {
    if (descriptor_ >= 0) {
      close(descriptor_);
    }
  }
  int descriptor() const { return descriptor_; }

  void send(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t sent = ::send(descriptor_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent < 0) {
        fail("send");
      }
      at += sent;
    }
  }

  // Up to the next end of line, without it; false if the other end hung up.
  bool line(std::string& out) {
    size_t end;
    while ((end = read_.find('\n')) == std::string::npos) {
      char chunk[4096];
      const ssize_t got = recv(descriptor_, chunk, sizeof chunk, 0);
      if (got < 0) {
        fail("receive");
      }
      if (got == 0) {
        return false;
      }
      read_.append(chunk, got);
    }
    out = read_.substr(0, end);
    read_.erase(0, end + 1);
    return true;
  }

 private:
  int descriptor_;
  std::string read_;
};

struct Freed {
  void operator()(addrinfo* found) const { freeaddrinfo(found); }
};

// What "host:port" stands for.
std::unique_ptr<addrinfo, Freed> resolve(const std::string& address) {
  const size_t colon = address.rfind(':');
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(address.substr(0, colon).c_str(), address.substr(colon + 1).c_str(), &wanted, &found);
  if (code != 0) {
    throw std::runtime_error(address + ": " + gai_strerror(code));
  }
  return std::unique_ptr<addrinfo, Freed>(found);
}

// Connects to "unix:/path" or to "host:port", where a listener may come a little later.
Socket connect(const std::string& address) {
  if (address.rfind("unix:", 0) == 0) {
    sockaddr_un path{};
    path.sun_family = AF_UNIX;
    std::strncpy(path.sun_path, address.c_str() + 5, sizeof path.sun_path - 1);
    Socket connection(socket(AF_UNIX, SOCK_STREAM, 0));
    if (::connect(connection.descriptor(), reinterpret_cast<sockaddr*>(&path), sizeof path) != 0) {
      fail(address);
    }
    return connection;
  }
  const auto found = resolve(address);
  const auto deadline = std::chrono::steady_clock::now() + CONNECT_TIMEOUT;
  while (true) {
    Socket connection(socket(found->ai_family, SOCK_STREAM, 0));
    if (::connect(connection.descriptor(), found->ai_addr, found->ai_addrlen) == 0) {
      const int on = 1;
      setsockopt(connection.descriptor(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      return connection;
    }
    if (errno != ECONNREFUSED || std::chrono::steady_clock::now() > deadline) {
      fail(address);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// ---- Lines ----------------------------------------------------------------------------------------------------------

std::string encode(const std::string& text) {
  static const char hex[] = "0123456789ABCDEF";
  std::string out;
  for (const unsigned char c : text) {
    if (std::isalnum(c) || std::string("_.-~,:/").find(c) != std::string::npos) {
      out += static_cast<char>(c);
    } else {
      (out += '%') += hex[c >> 4];
      out += hex[c & 15];
    }
  }
  return out;
}

std::string decode(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '%') {
      out += static_cast<char>(std::stoi(text.substr(at + 1, 2), nullptr, 16));
      at += 2;
    } else {
      out += text[at];
    }
  }
  return out;
}

std::string parse(const std::string& line, Fields& fields) {
  std::istringstream parts(line);
  std::string word, part;
  parts >> word;
  while (parts >> part) {
    const size_t equals = part.find('=');
    fields[part.substr(0, equals)] = decode(part.substr(equals + 1));
  }
  return word;
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

// What differs from the sum of the inputs of the ranks from `first` on; nothing if all is right.
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

// ---- How ranks find each other ----------------------------------------------------------------------------------------

// Every rank sets a value of its own as often as all others, and then reads those of others: so to set is to exchange them
// all, through rank 0. A value goes as one line: key, space, percent-encoded bytes.
class Exchange : public gloo::rendezvous::Store {
 public:
  Exchange(const std::string& address, int rank, int ranks) : rank_(rank), ranks_(ranks) {
    if (rank_ == 0) {
      accept_all(address);
    } else {
      connections_.push_back(connect(address));
    }
  }

  void set(const std::string& key, const std::vector<char>& data) override {
    const std::string mine = encode(key) + " " + encode(std::string(data.begin(), data.end())) + "\n";
    if (rank_ != 0) {
      connections_.front().send(mine);
      for (int i = 0; i < ranks_; ++i) {
        keep(next(connections_.front()));
      }
      return;
    }
    std::string all = mine;
    for (auto& connection : connections_) {
      all += next(connection) + "\n";
    }
    for (auto& connection : connections_) {
      connection.send(all);
    }
    std::istringstream lines(all);
    for (std::string line; std::getline(lines, line);) {
      keep(line);
    }
  }

  std::vector<char> get(const std::string& key) override {
    wait({key});
    const std::string& value = values_.at(key);
    return {value.begin(), value.end()};
  }

  void wait(const std::vector<std::string>& keys) override {
    for (const auto& key : keys) {
      if (values_.count(key) == 0) {
        throw std::runtime_error("no rank has told " + key);
      }
    }
  }

 private:
  void accept_all(const std::string& address) {
    const auto found = resolve(address);
    Socket listener(socket(found->ai_family, SOCK_STREAM, 0));
    const int on = 1;
    setsockopt(listener.descriptor(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    // Also of accept: a rank that never comes must not keep this one for ever.
    const timeval timeout{CONNECT_TIMEOUT.count(), 0};
    setsockopt(listener.descriptor(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    if (bind(listener.descriptor(), found->ai_addr, found->ai_addrlen) != 0 || listen(listener.descriptor(), ranks_) != 0) {
      fail(address);
    }
    for (int i = 1; i < ranks_; ++i) {
      connections_.emplace_back(accept(listener.descriptor(), nullptr, nullptr));
      if (connections_.back().descriptor() < 0) {
        fail(address + ": " + std::to_string(i) + " of " + std::to_string(ranks_) + " ranks came");
      }
    }
  }

  static std::string next(Socket& connection) {
    std::string line;
    if (!connection.line(line)) {
      throw std::runtime_error("another rank has gone");
    }
    return line;
  }

  void keep(const std::string& line) {
    const size_t space = line.find(' ');
    values_[decode(line.substr(0, space))] = decode(line.substr(space + 1));
  }

  const int rank_;
  const int ranks_;
  // Of rank 0 to all others, of the others to rank 0.
  std::vector<Socket> connections_;
  std::map<std::string, std::string> values_;
};

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
    // Reduce and allreduce work in place, as Gloo's users let them: that spares a copy.
    const bool receives_only = (op_ == "rtt" || op_ == "broadcast") && !root;
    sent_ = Array(receives_only ? 0 : count_);
    fill(sent_, context_->rank, seed_);
    if (op_ == "rtt") {
      received_ = Array(context_->rank < 2 ? count_ : 0, -1);
    } else if (op_ == "broadcast") {
      received_ = Array(root ? 0 : count_, -1);
    } else if (op_ == "gather") {
      received_ = Array(root ? count_ * context_->size : 0, -1);
    } else {
      received_.swap(sent_);
    }
    if (variant_ != "default") {
      algorithm_ = forced();
    }
  }

  int64_t call_at(int64_t at_ns) const { return at_ns + context_->rank * arrival_ns_; }

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
    if (op_ == "gather") {
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
  // The classes connect their buffers when they are made, and count in int.
  std::unique_ptr<gloo::Algorithm> forced() {
    if (received_.size() * sizeof(float) > static_cast<size_t>(std::numeric_limits<int>::max())) {
      throw std::runtime_error("Gloo's " + variant_ + " allreduce takes less than 2 GiB");
    }
    const std::vector<float*> pointers{received_.data()};
    if (variant_ == "ring chunked") {
      return std::make_unique<gloo::AllreduceRingChunked<float>>(context_, pointers, count_);
    }
    if (variant_ == "halving-doubling") {
      return std::make_unique<gloo::AllreduceHalvingDoubling<float>>(context_, pointers, count_);
    }
    throw std::runtime_error("Gloo has no " + op_ + " by " + variant_);
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
    return "done start=" + std::to_string(start_ns) + " end=" + std::to_string(end_ns);
  }
  if (word == "check") {
    return "checked wrong=" + encode(rank.check());
  }
  throw std::runtime_error("the bench said " + word + ", which this rank does not know");
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
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  context->setTimeout(TIMEOUT);
  Exchange exchange(store, rank, ranks);
  context->connectFullMesh(exchange, device);
  return context;
}

}  // namespace

int main(int argc, char** argv) {
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
  // Without destructors: another rank may be gone already, which Gloo's would tell as an error.
  std::_Exit(0);
}
