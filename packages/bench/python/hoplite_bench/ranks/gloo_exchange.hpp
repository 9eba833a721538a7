// Rendezvous of the Gloo ranks: rank 0 distributes the addresses of all ranks, so no shared folder is needed. Does not
// depend on the meaning of the values.

#pragma once

#include <sys/socket.h>
#include <sys/time.h>

#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gloo/rendezvous/store.h>

#include "lines.hpp"

// All ranks set values equally often, and then read the values of others. Therefore, set() exchanges the values of all
// ranks through rank 0. A value is sent as one line: key, space, percent-encoded bytes.
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
        throw std::runtime_error("no rank has set " + key);
      }
    }
  }

 private:
  void accept_all(const std::string& address) {
    const auto found = resolve(address);
    Socket listener(socket(found->ai_family, SOCK_STREAM, 0));
    const int on = 1;
    setsockopt(listener.descriptor(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    // Applies to accept() too: a rank that never connects must not block this one forever.
    const timeval timeout{CONNECT_TIMEOUT.count(), 0};
    setsockopt(listener.descriptor(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    if (bind(listener.descriptor(), found->ai_addr, found->ai_addrlen) != 0 || listen(listener.descriptor(), ranks_) != 0) {
      fail(address);
    }
    for (int i = 1; i < ranks_; ++i) {
      connections_.emplace_back(accept(listener.descriptor(), nullptr, nullptr));
      if (connections_.back().descriptor() < 0) {
        fail(address + ": " + std::to_string(i) + " of " + std::to_string(ranks_) + " ranks connected");
      }
    }
  }

  static std::string next(Socket& connection) {
    std::string line;
    if (!connection.line(line)) {
      throw std::runtime_error("another rank has disconnected");
    }
    return line;
  }

  void keep(const std::string& line) {
    const size_t space = line.find(' ');
    values_[decode(line.substr(0, space))] = decode(line.substr(space + 1));
  }

  const int rank_;
  const int ranks_;
  // Of rank 0 to all others; of the others to rank 0.
  std::vector<Socket> connections_;
  std::map<std::string, std::string> values_;
};
