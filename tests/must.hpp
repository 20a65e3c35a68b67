// What a test case needs to go on, or why it cannot, and texts that say something.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "runtime/base/status.hpp"

namespace simplescale {

/// The result, which has a value. Otherwise the test case ends with its message.
template <class T>
Result<T> must(Result<T> result) {
  REQUIRE_MESSAGE(result.ok(), result.status().message());
  return result;
}
inline void must(const Status& status) {
  REQUIRE_MESSAGE(status.ok(), status.message());
}

/// Says that this test case cannot run on this machine, or not all of it: return skipped("why").
inline void skipped(const std::string& why) {
  MESSAGE("SKIPPED: ", why);
}

/// True if the text, or the message of the status, contains the part.
inline bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}
inline bool has(const Status& status, std::string_view part) {
  return has(status.message(), part);
}
/// True if the status is ok; shows it otherwise.
inline bool works(const Status& status) {
  if (!status.ok()) MESSAGE(status.message());
  return status.ok();
}
/// True if the status has this code and a message that contains the part; shows it otherwise.
inline bool says(const Status& status, Code code, std::string_view part) {
  const bool right = status.code() == code && has(status, part);
  if (!right) MESSAGE(to_string(status.code()), ": ", status.message());
  return right;
}

}  // namespace simplescale
