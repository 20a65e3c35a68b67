// Bytes that resize() does not set to zero: they are written next anyway.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace simplescale::stream {

template <class T>
struct Uninitialised : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = Uninitialised<U>;
  };
  template <class U>
  void construct(U* at) {
    ::new (static_cast<void*>(at)) U;
  }
  template <class U, class... Values>
  void construct(U* at, Values&&... values) {
    std::construct_at(at, std::forward<Values>(values)...);
  }
};
using Buffer = std::vector<uint8_t, Uninitialised<uint8_t>>;

/// In place of insert(), which copies byte by byte.
inline void append(Buffer& to, std::span<const uint8_t> bytes) {
  if (bytes.empty()) return;
  to.resize(to.size() + bytes.size());
  std::memcpy(to.data() + to.size() - bytes.size(), bytes.data(), bytes.size());
}

}  // namespace simplescale::stream
