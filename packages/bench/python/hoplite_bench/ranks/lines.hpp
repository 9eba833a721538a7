// The connections of a rank and the lines that are sent over them: for C++ what rank.py in this folder is for Python.
// rank.py documents the protocol.

#pragma once

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

using Fields = std::map<std::string, std::string>;

constexpr std::chrono::seconds CONNECT_TIMEOUT(30);

[[noreturn]] inline void fail(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

// ---- Connections ----------------------------------------------------------------------------------------------------

// A socket that closes at the end of its scope.
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

  // Reads up to the next end of line, without it; returns false if the other end has disconnected.
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

// Resolves "host:port".
inline std::unique_ptr<addrinfo, Freed> resolve(const std::string& address) {
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

// Connects to "unix:/path" or to "host:port"; a listener at the latter may start a little later.
inline Socket connect(const std::string& address) {
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

inline std::string encode(const std::string& text) {
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

inline std::string decode(const std::string& text) {
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

inline std::string parse(const std::string& line, Fields& fields) {
  std::istringstream parts(line);
  std::string word, part;
  parts >> word;
  while (parts >> part) {
    const size_t equals = part.find('=');
    fields[part.substr(0, equals)] = decode(part.substr(equals + 1));
  }
  return word;
}
