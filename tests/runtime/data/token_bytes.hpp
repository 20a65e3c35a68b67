// Tokens as bytes of files, and read back. The fuzz targets use it, too, so no doctest here.
#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/data/token_file.hpp"

namespace simplescale::test {

template <class Number>
std::string bytes_of(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

template <class Number>
std::string bytes_of(Number number) {
  return bytes_of(std::vector{number});
}

/// `count` tokens, counted from `first`.
template <class Token>
std::vector<Token> counting(int count, int first = 0) {
  std::vector<Token> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), static_cast<Token>(first));
  return tokens;
}

inline std::vector<int32_t> all_tokens(const TokenSource& source) {
  std::vector<int32_t> tokens(source.tokens());
  SS_ASSERT(source.read_sample(0, static_cast<int64_t>(tokens.size()) - 1, tokens.data()).ok());
  return tokens;
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
  return std::string("MMIDIDX\0\0", 9) + bytes_of(uint64_t{1}) + "\x08" +
         bytes_of(std::vector<uint64_t>{lengths.size(), documents.size()}) + bytes_of(lengths) +
         bytes_of(pointers) + bytes_of(documents);
}

}  // namespace simplescale::test
