// A file on disk or in a bucket, as Arrow reads files. One thread.
#pragma once

#include <arrow/buffer.h>
#include <arrow/io/interfaces.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "runtime/base/index_ranges.hpp"
#include "runtime/data/data_files.hpp"

namespace simplescale {

class ArrowFile : public arrow::io::RandomAccessFile {
 public:
  explicit ArrowFile(std::shared_ptr<const DataFile> file) : file_(std::move(file)) {}
  /// The bytes that will be read, so that objects can be read ahead.
  void announce(IndexRanges wanted) { wanted_ = std::move(wanted); }
  /// Of the last read.
  const Status& error() const { return error_; }

  arrow::Result<int64_t> GetSize() override { return static_cast<int64_t>(file_->bytes()); }
  arrow::Result<int64_t> Tell() const override { return at_; }
  arrow::Status Seek(int64_t position) override {
    at_ = position;
    return {};
  }
  arrow::Result<int64_t> Read(int64_t bytes, void* out) override {
    const auto at = static_cast<uint64_t>(at_);
    for (const IndexRange& next : cut_ranges(wanted_, at, at + kAheadBytes))
      if (!file_->read_ahead(at + next.begin, next.end - next.begin)) break;
    bytes = std::clamp<int64_t>(static_cast<int64_t>(file_->bytes()) - at_, 0, bytes);
    error_ = file_->read(at, out, static_cast<size_t>(bytes));
    if (!error_.ok()) return arrow::Status::IOError(error_.message());
    at_ += bytes;
    return bytes;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t bytes) override {
    ARROW_ASSIGN_OR_RAISE(auto buffer, arrow::AllocateResizableBuffer(bytes));
    ARROW_ASSIGN_OR_RAISE(const int64_t got, Read(bytes, buffer->mutable_data()));
    ARROW_RETURN_NOT_OK(buffer->Resize(got));
    return std::shared_ptr<arrow::Buffer>(std::move(buffer));
  }
  arrow::Status Close() override {
    closed_ = true;
    return {};
  }
  bool closed() const override { return closed_; }

 private:
  static constexpr uint64_t kAheadBytes = 32 << 20;

  const std::shared_ptr<const DataFile> file_;
  IndexRanges wanted_;
  int64_t at_ = 0;
  bool closed_ = false;
  Status error_;
};

}  // namespace simplescale
