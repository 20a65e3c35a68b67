// A call of ObjectStore and what came of it. Used in runtime/object_store/ only.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/object_store/object_store.hpp"

namespace simplescale {

/// A request before it is signed.
struct ObjectStore::Call {
  std::string method;
  std::string key = {};                           // "": the bucket
  std::map<std::string, std::string> query = {};  // sorted, as its signature needs it
  std::vector<std::string> headers = {};
  std::span<const char> body = {};
  std::span<char> into = {};  // GET: filled with the bytes from `offset` on
  uint64_t offset = 0;
  size_t body_bytes_max = 16 << 20;
};

struct ObjectStore::Outcome {
  Status status;
  HttpAnswer answer;  // of the last try
  int tries = 0;      // with more than one, an earlier try may have been carried out
};

}  // namespace simplescale
