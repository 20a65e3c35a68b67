// What libsimplescale_parquet.so offers. It holds all that uses Apache Arrow; the program loads it
// when the first parquet file is read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/status.hpp"

namespace simplescale {

/// The texts of a parquet file's column, in the order of the rows. Memory does not grow with the
/// file. One thread.
class ParquetTexts {
 public:
  virtual ~ParquetTexts() = default;
  /// Reads the next row. False: the file has ended. text: none for null; any bytes, valid until the
  /// next call. bad_data with the file and the row: it cannot be read.
  virtual Result<bool> next(std::optional<std::string_view>& text) = 0;
  /// Number of the row that was read last, from 1.
  virtual uint64_t row() const = 0;
  /// Number of rows of the file.
  virtual uint64_t rows() const = 0;
};

/// bad_data: the file is damaged or no parquet; it has no column of that name, or the column holds
/// no texts. unavailable: the library is missing. Any thread.
Result<std::unique_ptr<ParquetTexts>> open_parquet(const std::string& path,
                                                   const std::string& column);

inline constexpr const char* kParquetLibrary = "libsimplescale_parquet.so";
inline constexpr const char* kParquetLibrarySymbol = "simplescale_open_parquet";
using OpenParquet = Result<std::unique_ptr<ParquetTexts>> (*)(const std::string& path,
                                                              const std::string& column);

}  // namespace simplescale
