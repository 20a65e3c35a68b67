// The bytes of a Megatron index.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace simplescale::test {

template <class Number>
std::string bytes_of(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

/// A Megatron index (u16) of sequences of these lengths; documents: their first sequences.
inline std::string megatron_index(const std::vector<int32_t>& lengths,
                                  const std::vector<int64_t>& documents) {
  std::vector<int64_t> pointers;
  int64_t byte = 0;
  for (const int32_t length : lengths) {
    pointers.push_back(byte);
    byte += 2 * int64_t{length};
  }
  return std::string("MMIDIDX\0\0", 9) + bytes_of(std::vector<uint64_t>{1}) + "\x08" +
         bytes_of(std::vector<uint64_t>{lengths.size(), documents.size()}) + bytes_of(lengths) +
         bytes_of(pointers) + bytes_of(documents);
}

}  // namespace simplescale::test
