#include "tools/prepare/token_split.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

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
    : token_bytes_(token_bytes), narrow_(token_bytes), out_(path, Output::replace) {
  out_ << llmc::header(token_bytes, 0);
}

Status TokenWriter::write(std::span<const int32_t> ids) {
  out_ << narrow_.of(ids);
  count_ += ids.size();
  return out_.status();
}

Status TokenWriter::finish() {
  out_.seekp(0);
  out_ << llmc::header(token_bytes_, count_);
  out_.close();
  return out_.status();
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

TokenSplit::Output::Output(const std::string& output_folder, const std::string& output_name,
                           int token_bytes)
    : folder(output_folder),
      name(output_name),
      tokens(folder + "/" + name + ".bin.part", token_bytes) {}

Status TokenSplit::Output::write(std::span<const int32_t> ids, const IndexRanges& masked) {
  if (!masked.empty()) {
    if (!mask) mask.emplace(folder + "/" + name + ".mask.part");
    IndexRanges of_file;
    append_ranges(of_file, masked, tokens.count());
    SS_RETURN_IF_ERROR(mask->add(of_file));
  }
  return tokens.write(ids);
}

Status TokenSplit::Output::finish(FileRecord& tokens_record, FileRecord& mask_record,
                                  uint64_t& masked_tokens) {
  const auto publish = [&](const std::string& file, FileRecord& record) -> Status {
    SS_RETURN_IF_ERROR(publish_file(folder + "/" + file + ".part", folder + "/" + file));
    SS_ASSIGN(record, record_file(folder, file));
    return {};
  };
  SS_RETURN_IF_ERROR(tokens.finish());
  if (mask) {
    SS_RETURN_IF_ERROR(mask->finish(tokens.count()));
    SS_RETURN_IF_ERROR(publish(name + ".mask", mask_record));
    masked_tokens += mask->masked();
  }
  return publish(name + ".bin", tokens_record);
}

TokenSplit::TokenSplit(const std::string& folder, const Options& options)
    : folder_(folder),
      options_(options),
      piece_max_(piece_max(options.fraction, options.text_bytes)),
      train_(folder, "train", options.token_bytes) {
  if (options.fraction > 0) validation_.emplace(folder, "validation", options.token_bytes);
}

Status TokenSplit::write(std::span<const int32_t> ids, bool begins_document,
                         const IndexRanges& masked) {
  bool begins = begins_document;
  for (size_t at = 0; at < ids.size();) {
    if (begins || piece_ >= piece_max_) SS_RETURN_IF_ERROR(begin_piece(begins));
    begins = false;
    auto count = std::min<uint64_t>(ids.size() - at, piece_max_ - piece_);
    // EOS is no piece of its own.
    if (at + count + 1 == ids.size() && ids.back() == options_.eos) ++count;
    Output& out = held_back_ ? *validation_ : train_;
    SS_RETURN_IF_ERROR(out.write(ids.subspan(at, count), masked.empty()
                                                             ? IndexRanges()
                                                             : cut_ranges(masked, at, at + count)));
    at += count;
    piece_ += count;
  }
  return {};
}

Status TokenSplit::begin_piece(bool begins_document) {
  piece_ = 0;
  if (!validation_) return {};
  const uint64_t held_back = validation_->tokens.count();
  const auto all = static_cast<double>(train_.tokens.count() + held_back);
  const bool before =
      std::exchange(held_back_, static_cast<double>(held_back) < options_.fraction * all);
  if (begins_document || held_back_ == before || options_.bos < 0) return {};
  return (held_back_ ? *validation_ : train_).write({&options_.bos, 1}, {});
}

Status TokenSplit::finish(Manifest& made) {
  made.train_tokens = train_.tokens.count();
  made.validation_tokens = validation_ ? validation_->tokens.count() : 0;
  std::error_code ignored;  // a mask or validation tokens that were made before
  for (const char* name : {"train.mask", "validation.mask", "validation.bin"})
    fs::remove(folder_ + "/" + name, ignored);
  if (made.validation_tokens > 0)
    SS_RETURN_IF_ERROR(
        validation_->finish(made.validation, made.validation_mask, made.masked_tokens));
  else
    fs::remove(folder_ + "/validation.bin.part", ignored);
  return train_.finish(made.train, made.train_mask, made.masked_tokens);
}

}  // namespace simplescale
