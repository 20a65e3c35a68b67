// Tries of an operation of the file system whose error may be temporary. Any thread; blocks.
#pragma once

#include <chrono>
#include <thread>

#include "runtime/base/log.hpp"
#include "runtime/base/status.hpp"

namespace simplescale {

/// How often an operation is tried again after an error.
struct Retries {
  int tries = 5;
  std::chrono::milliseconds first_pause{100};  // doubles with each try
};

inline const Status& status_of(const Status& status) {
  return status;
}
template <class T>
const Status& status_of(const Result<T>& result) {
  return result.status();
}

/// Calls `operation`, which returns a Status or a Result, and calls it again after an I/O error. An
/// operation that was carried out in spite of its error must tolerate that.
template <class Operation>
auto with_retries(const Retries& retries, Operation operation) {
  auto result = operation();
  for (int tried = 0; tried < retries.tries && status_of(result).code() == Code::io; ++tried) {
    log::warn("trying again: {}", status_of(result).message());
    std::this_thread::sleep_for(retries.first_pause * (1 << tried));
    result = operation();
  }
  return result;
}

}  // namespace simplescale
