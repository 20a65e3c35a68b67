// The connections of the HTTP server. One thread reads and writes all of them without waiting for
// any, so slow clients delay no other client; some threads make the answers. Everything is bounded:
// the number of connections, the bytes of a request, and the time that a client has for sending a
// request and for taking its answer, each as a whole.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale {

class HttpConnections {
 public:
  /// Returns the whole answer to a request; the connection is closed after it. request: from the
  /// first byte to the empty line, and perhaps more. Called on several threads at once.
  using Answer = std::function<std::string(const std::string& request)>;

  /// Listens at an address or name of this host. port 0: any. unavailable: it cannot.
  static Result<std::unique_ptr<HttpConnections>> listen(const std::string& host, int port,
                                                         Answer answer);
  ~HttpConnections();
  int port() const { return port_; }

 private:
  struct Connection;
  HttpConnections(int listener, int wake, int port, Answer answer);
  void run();
  void work();
  void accept_all();
  bool make_room();
  void take_answers();
  void forget(uint64_t id);
  bool step(Connection& connection, short events);
  bool read(Connection& connection);
  bool write(Connection& connection);

  const int listener_, wake_, port_;
  const Answer answer_;
  std::list<std::unique_ptr<Connection>> connections_;  // of the thread of run(), oldest first
  std::mutex mutex_;                                    // of what follows
  std::condition_variable asked_;
  std::deque<std::pair<uint64_t, std::string>> requests_, answers_;  // id of the connection, text
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace simplescale
