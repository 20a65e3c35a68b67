#include "runtime/data/token_split.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "runtime/base/files.hpp"
#include "runtime/data/token_format.hpp"

namespace simplescale {

namespace fs = std::filesystem;

std::string_view NarrowTokens::of(std::span<const int32_t> ids) {
  buffer_.resize(ids.size() * token_bytes_);
  for (size_t i = 0; i < ids.size(); ++i)
    std::memcpy(buffer_.data() + i * token_bytes_, &ids[i], token_bytes_);
  return buffer_;
}

TokenWriter::TokenWriter(const std::string& path, int token_bytes)
    : path_(path), token_bytes_(token_bytes), narrow_(token_bytes) {
  out_.open(path, std::ios::binary | std::ios::trunc);
  out_ << llmc::header(token_bytes, 0);
}

Status TokenWriter::write(std::span<const int32_t> ids) {
  out_ << narrow_.of(ids);
  count_ += ids.size();
  return out_ ? Status() : system_error("cannot write", path_, errno);
}

Status TokenWriter::finish() {
  out_.seekp(0);
  out_ << llmc::header(token_bytes_, count_);
  out_.close();
  return out_ ? Status() : system_error("cannot write", path_, errno);
}

namespace {
/// About 32 pieces are held back if documents are long; fewer of a small text, so that a piece is
/// long enough for samples.
uint64_t piece_max(double fraction, uint64_t text_bytes) {
  constexpr uint64_t kBytesPerToken = 4, kPieces = 32, kLong = 256;
  const auto held_back =
      static_cast<uint64_t>(fraction * static_cast<double>(text_bytes / kBytesPerToken));
  return std::max({held_back / kPieces, std::min(held_back, kLong), uint64_t{1}});
}
}  // namespace

TokenSplit::TokenSplit(const std::string& folder, int token_bytes, double fraction,
                       uint64_t text_bytes)
    : folder_(folder),
      fraction_(fraction),
      piece_max_(piece_max(fraction, text_bytes)),
      train_(folder + "/train.bin.part", token_bytes) {
  if (fraction > 0) validation_.emplace(folder + "/validation.bin.part", token_bytes);
}

Status TokenSplit::write(std::span<const int32_t> ids, bool begins_document) {
  bool begins = begins_document;
  while (!ids.empty()) {
    if (begins || piece_ == piece_max_) begin_piece();
    begins = false;
    const auto count = std::min<uint64_t>(ids.size(), piece_max_ - piece_);
    SS_RETURN_IF_ERROR((held_back_ ? *validation_ : train_).write(ids.first(count)));
    ids = ids.subspan(count);
    piece_ += count;
  }
  return {};
}

void TokenSplit::begin_piece() {
  piece_ = 0;
  if (!validation_) return;
  const auto all = static_cast<double>(train_.count() + validation_->count());
  held_back_ = static_cast<double>(validation_->count()) < fraction_ * all;
}

Status TokenSplit::finish(Manifest& made) {
  made.train_tokens = train_.count();
  made.validation_tokens = validation_ ? validation_->count() : 0;
  std::error_code ignored;
  if (made.validation_tokens > 0) {
    SS_RETURN_IF_ERROR(validation_->finish());
    SS_RETURN_IF_ERROR(publish("validation.bin", made.validation));
  } else {
    fs::remove(folder_ + "/validation.bin", ignored);
    fs::remove(folder_ + "/validation.bin.part", ignored);
  }
  SS_RETURN_IF_ERROR(train_.finish());
  return publish("train.bin", made.train);
}

Status TokenSplit::publish(const std::string& name, FileRecord& record) {
  SS_RETURN_IF_ERROR(publish_file(folder_ + "/" + name + ".part", folder_ + "/" + name));
  SS_ASSIGN(record, record_file(folder_, name));
  return {};
}

}  // namespace simplescale
