// What libsimplescale_parquet.so offers. It holds all that uses Apache Arrow; the program loads it
// when the first parquet file is read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/status.hpp"
#include "runtime/data/data_files.hpp"

namespace simplescale {

/// A row of a parquet file.
struct ParquetRow {
  std::optional<std::string_view> text;  // none: null; any bytes, valid until the next row is read
  std::string mask;                      // its value in JSON, as "[[0,8]]"; "": none, or null
};

/// The rows of a parquet file in their order. Memory does not grow with the file. One thread.
class ParquetRows {
 public:
  virtual ~ParquetRows() = default;
  /// Reads the next row. False: the file has ended. bad_data with the file and the row: it cannot be
  /// read; otherwise errors of DataFile.
  virtual Result<bool> next(ParquetRow& row) = 0;
  /// Number of the row that was read last, from 1.
  virtual uint64_t number() const = 0;
  /// Number of rows of the file.
  virtual uint64_t rows() const = 0;
};

/// text_key: the column of the texts. mask_key: that of lists of ranges, which are lists of whole
/// numbers; "", or a file without such a column: there are none. bad_data: the file is damaged or no
/// parquet, or a column holds something else, or there are no texts; unavailable: the library is
/// missing; otherwise errors of DataFile. Any thread.
Result<std::unique_ptr<ParquetRows>> open_parquet(std::shared_ptr<const DataFile> file,
                                                  const std::string& text_key,
                                                  const std::string& mask_key);

inline constexpr const char* kParquetLibrary = "libsimplescale_parquet.so";
inline constexpr const char* kParquetLibrarySymbol = "simplescale_open_parquet";
/// permit: called before a file takes more than 64 MiB; what it returns is held until it takes less.
using OpenParquet = Result<std::unique_ptr<ParquetRows>> (*)(std::shared_ptr<const DataFile> file,
                                                             const std::string& text_key,
                                                             const std::string& mask_key,
                                                             std::shared_ptr<void> (*permit)());

}  // namespace simplescale
