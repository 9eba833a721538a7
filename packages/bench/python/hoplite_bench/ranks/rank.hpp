// The interface of a system's program in C++, and the protocol with the bench: for C++ what rank.py and content.py in
// this folder are for Python. rank.py documents the protocol.
//
// Does not depend on what is measured, or how often.

#pragma once

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "lines.hpp"

// As in rank.py: a timeout in seconds that the bench sets instead of a program's own.
constexpr const char* TIMEOUT_VARIABLE = "_HOPLITE_BENCH_TIMEOUT_S";
constexpr int64_t HEAD_START_NS = 1000000;

// ---- Time -----------------------------------------------------------------------------------------------------------

inline int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

inline void sleep_until(int64_t at_ns) {
  timespec at{at_ns / 1000000000LL, at_ns % 1000000000LL};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) == EINTR) {
  }
}

// The timeout of the measured system's calls in seconds.
inline double timeout_s(double usual) {
  const char* seconds = std::getenv(TIMEOUT_VARIABLE);
  return seconds ? std::stod(seconds) : usual;
}

// ---- Content: as in content.py ----------------------------------------------------------------------------------------

constexpr int PERIOD = 1021;
constexpr int ROUNDS = 61;

inline int64_t constant(int rank, int64_t seed) { return (1LL << rank) % 65521 + seed % ROUNDS; }

// Writes the input of a rank.
inline void fill(float* out, size_t size, int rank, int64_t seed) {
  const float added = constant(rank, seed);
  for (size_t i = 0; i < size; ++i) {
    out[i] = static_cast<float>(i % PERIOD) + added;
  }
}

// Returns the first difference from the sum of the inputs of `count` ranks from `first` on; empty if there is none.
inline std::string wrong(const float* found, size_t size, int first, int count, int64_t seed) {
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

// One round of one operation, as in rank.py; `count` elements of float are each rank's array.
struct Task {
  std::string op;
  std::string variant;
  size_t count = 0;
  uint32_t round = 0;
  int64_t seed = 0;
  int64_t arrival_ns = 0;
  int inputs = 1;
  int rank = 0;
  int ranks = 0;
};

// A system's program. An exception in a method ends the round with its message.
class Rank {
 public:
  virtual ~Rank() = default;

  // Creates the inputs and touches all memory that the operation writes; returns a token for all ranks.
  virtual std::string prepare(const Task& task) = 0;

  // Runs the operation. Returns false if this rank had nothing to do, so that its call does not count.
  virtual bool run(const Task& task, const std::vector<std::string>& tokens) = 0;

  // Returns the error in the result, or an empty text; then releases the memory of the round.
  virtual std::string check(const Task& task) = 0;

  // Returns what was retried, failed or refused since the last call.
  virtual std::string disturbed() { return ""; }
};

inline std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

inline Task task_of(const Fields& fields, int rank, int ranks) {
  Task task;
  task.op = fields.at("op");
  task.variant = fields.at("variant");
  task.count = std::stoull(fields.at("bytes")) / sizeof(float);
  task.round = static_cast<uint32_t>(std::stoul(fields.at("round")));
  task.seed = std::stoll(fields.at("seed"));
  task.arrival_ns = std::stoll(fields.at("arrival"));
  task.inputs = fields.count("inputs") ? std::stoi(fields.at("inputs")) : 1;
  task.rank = rank;
  task.ranks = ranks;
  return task;
}

inline std::string go(Rank& rank, const Task& task, const Fields& fields) {
  const std::vector<std::string> tokens = split(fields.at("tokens"), ',');
  const int64_t at_ns = std::stoll(fields.at("at"));
  // Immediately without an instant, one rank after the other, and rank 0 of a round trip a little later.
  const int64_t head_start_ns = task.op == "rtt" && task.rank == 0 ? HEAD_START_NS : 0;
  sleep_until((at_ns ? at_ns : now_ns()) + task.rank * task.arrival_ns + head_start_ns);
  const int64_t start_ns = now_ns();
  const bool has_run = rank.run(task, tokens);
  const int64_t end_ns = now_ns();
  const int64_t took_ns = has_run ? end_ns - start_ns : 0;
  return "done start=" + std::to_string(has_run ? start_ns : 0) + " end=" + std::to_string(has_run ? end_ns : 0) +
      " part_collective=" + std::to_string(took_ns);
}

// Executes requests of the bench until it disconnects.
inline void serve(Rank& rank, const Fields& options, const std::string& version) {
  const int number = std::stoi(options.at("--rank"));
  const int ranks = std::stoi(options.at("--ranks"));
  Socket bench = connect(options.at("--control"));
  bench.send("hello rank=" + std::to_string(number) + " version=" + encode(version) +
             " pid=" + std::to_string(getpid()) + "\n");
  Task task;
  std::string line;
  while (bench.line(line)) {
    Fields fields;
    const std::string word = parse(line, fields);
    std::string reply;
    try {
      if (word == "prepare") {
        task = task_of(fields, number, ranks);
        reply = "ready token=" + encode(rank.prepare(task));
      } else if (word == "go") {
        reply = go(rank, task, fields);
      } else if (word == "check") {
        reply = "checked wrong=" + encode(rank.check(task));
        reply += " disturbed=" + encode(rank.disturbed()) + " extra=0";
      } else {
        throw std::runtime_error("unknown request " + word);
      }
    } catch (const std::exception& error) {
      std::cerr << error.what() << std::endl;
      reply = "failed why=" + encode(error.what());
    }
    bench.send(reply + "\n");
  }
}

// The options of the command line: "--name value", or "--name" alone, whose value is empty.
inline Fields options_of(int argc, char** argv) {
  Fields options;
  for (int i = 1; i < argc; ++i) {
    const bool has_value = i + 1 < argc && std::string(argv[i + 1]).rfind("--", 0) != 0;
    options[argv[i]] = has_value ? argv[i + 1] : "";
    i += has_value;
  }
  return options;
}
