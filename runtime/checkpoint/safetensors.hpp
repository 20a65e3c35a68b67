// Reads and writes the safetensors format: a u64 length N, N bytes of JSON (the header), then the
// data of the tensors without gaps. All fields of a file are checked before they are used. An
// object belongs to one thread, but for read() and write().
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/hash.hpp"
#include "runtime/base/status.hpp"
#include "runtime/checkpoint/file_ops.hpp"

namespace simplescale {

struct TensorEntry {
  std::string name;
  std::string dtype;  // as the format spells it: "F32", "BF16", "F16", ...
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes from the end of the header
  uint64_t count() const;       // elements
};

inline constexpr uint64_t kSafetensorsHeaderMax = 100'000'000;

/// Bytes per element; 0 if the dtype is unknown.
size_t safetensors_element_bytes(const std::string& dtype);

/// The tensors of a header text, in the order of their data. data_bytes: size of the data in the
/// file. Checks shapes, dtypes, bounds, overlaps and gaps. bad_data.
Result<std::vector<TensorEntry>> parse_safetensors_header(const std::string& text,
                                                          uint64_t data_bytes);

/// The first bytes of a file (length and header, padded to 8) for tensors in this order. Sets begin
/// and end of the tensors from their dtypes and shapes.
std::string make_safetensors_header(std::vector<TensorEntry>& tensors,
                                    const std::map<std::string, std::string>& metadata);

/// An open file. Errors: not_found, bad_data, io.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);
  static Result<SafetensorsFile> of(InputFile input);
  const std::string& path() const { return file_.path(); }
  uint64_t bytes() const { return file_.bytes(); }
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  const TensorEntry* find(const std::string& name) const;
  /// Hash of all bytes before the data.
  Hash128 header_hash() const { return header_hash_; }
  /// Reads bytes [first, first + bytes) of a tensor.
  Status read(const TensorEntry& tensor, uint64_t first, void* out, size_t bytes) const;
  /// Reads elements [first, first + count) as fp32, exactly; F64 is rounded. bad_data: not F32, BF16,
  /// F16 or F64.
  Status read_f32(const TensorEntry& tensor, uint64_t first, size_t count, float* out) const;

 private:
  SafetensorsFile(InputFile file) : file_(std::move(file)) {}
  Status read_f64(const TensorEntry& tensor, uint64_t first, size_t count, float* out) const;
  InputFile file_;
  std::vector<TensorEntry> tensors_;
  std::map<std::string, size_t> index_;
  uint64_t data_offset_ = 0;
  Hash128 header_hash_;
};

/// The tensors of a folder: of "model.safetensors", or of all files that
/// "model.safetensors.index.json" names; bad_data if both are there, or a tensor is in two files.
/// None of them may be a link out of the folder.
class SafetensorsFolder {
 public:
  static Result<SafetensorsFolder> open(const std::string& folder);
  struct Place {
    const SafetensorsFile* file = nullptr;
    const TensorEntry* tensor = nullptr;
  };
  std::optional<Place> find(const std::string& name) const;
  /// All names, sorted.
  std::vector<std::string> names() const;

 private:
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::pair<size_t, size_t>> index_;  // name: file, tensor
};

/// Writes a file of tensors that lie in the order given to create().
class SafetensorsWriter {
 public:
  static Result<SafetensorsWriter> create(FileOps& ops, const std::string& path,
                                          std::vector<TensorEntry> tensors,
                                          const std::map<std::string, std::string>& metadata);
  /// Writes bytes [first, first + bytes) of a tensor, given by its place in that order. Each byte
  /// once, in any order. Any thread, also several at once.
  Status write(size_t tensor, uint64_t first, const void* data, size_t bytes);
  /// Called after all data has been written. The file is on disk when this returns ok.
  Status finish();
  uint64_t bytes() const { return header_bytes_ + data_bytes_; }  // of the whole file
  Hash128 header_hash() const { return header_hash_; }

 private:
  SafetensorsWriter(OutputFile file) : file_(std::move(file)) {}
  OutputFile file_;
  std::vector<TensorEntry> tensors_;
  uint64_t header_bytes_ = 0, data_bytes_ = 0, written_ = 0;
  Hash128 header_hash_;
};

}  // namespace simplescale
