#include "runtime/data/loss_mask.hpp"

#include <filesystem>
#include <utility>
#include <vector>

namespace simplescale {

namespace {

constexpr uint64_t kMagic = 0x314b53414d4c5353;  // "SSLMASK1"
struct Header {
  uint64_t magic = kMagic, tokens = 0, ranges = 0;
};
static_assert(sizeof(Header) == 24 && sizeof(IndexRange) == 16);

uint64_t byte_of(uint64_t index) {
  return sizeof(Header) + index * sizeof(IndexRange);
}

std::string text(const IndexRange& range) {
  return "[" + std::to_string(range.begin) + ", " + std::to_string(range.end) + ")";
}

void put(std::ostream& out, const auto& value) {
  out.write(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

std::string loss_mask_of(const std::string& token_file) {
  return std::filesystem::path(token_file).replace_extension(".mask").string();
}

LossMaskWriter::LossMaskWriter(const std::string& path) : out_(path, Output::replace) {
  put(out_, Header{});
}

Status LossMaskWriter::write(const IndexRange& range) {
  put(out_, range);
  ++ranges_;
  masked_ += range.end - range.begin;
  return out_.status();
}

Status LossMaskWriter::add(const IndexRanges& ranges) {
  for (const IndexRange& range : ranges) {
    SS_ASSERT(range.begin < range.end && (!last_ || last_->end <= range.begin));
    if (last_ && last_->end == range.begin) {
      last_->end = range.end;
      continue;
    }
    if (last_) SS_RETURN_IF_ERROR(write(*last_));
    last_ = range;
  }
  return {};
}

Status LossMaskWriter::finish(uint64_t tokens) {
  if (last_) SS_RETURN_IF_ERROR(write(*last_));
  last_.reset();
  out_.seekp(0);
  put(out_, Header{.tokens = tokens, .ranges = ranges_});
  out_.close();
  return out_.status();
}

Result<LossMask> LossMask::open(const std::string& path, uint64_t tokens, const DataFiles& files) {
  SS_ASSIGN(auto file, files.open(path));
  Header header;
  if (file->bytes() < sizeof header) return bad_byte(path, file->bytes(), "the header ends here");
  SS_RETURN_IF_ERROR(file->read(0, &header, sizeof header));
  if (header.magic != kMagic) return bad_byte(path, 0, "this is no loss mask (docs/formats.md)");
  if (header.tokens != tokens)
    return bad_byte(path, 8,
                    "it was made for " + std::to_string(header.tokens) +
                        " tokens, the token file has " + std::to_string(tokens));
  const uint64_t room = file->bytes() - sizeof header;
  if (room % sizeof(IndexRange) != 0 || room / sizeof(IndexRange) != header.ranges)
    return bad_byte(path, 16,
                    "it says that it has " + std::to_string(header.ranges) +
                        " ranges of 16 bytes, but the file has " + std::to_string(file->bytes()) +
                        " bytes");
  return LossMask(std::move(file), tokens, header.ranges);
}

Result<IndexRange> LossMask::range(uint64_t index) const {
  IndexRange range;
  if (Status read = file_->read(byte_of(index), &range, sizeof range); !read.ok())
    return file_->while_training(read);
  if (range.begin >= range.end || range.end > tokens_)
    return bad_byte(file_->path(), byte_of(index),
                    "range " + std::to_string(index) + ", " + text(range) +
                        ", is empty or ends behind " + "the " + std::to_string(tokens_) +
                        " tokens");
  return range;
}

Result<IndexRanges> LossMask::masked(uint64_t begin, uint64_t end) const {
  uint64_t low = 0, high = ranges_;  // the first range that ends behind `begin` is in [low, high]
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    SS_ASSIGN(const IndexRange at, range(middle));
    if (at.end <= begin)
      low = middle + 1;
    else
      high = middle;
  }
  IndexRanges found;
  for (; low < ranges_; ++low) {
    SS_ASSIGN(const IndexRange at, range(low));
    if (at.begin >= end) break;
    if (!found.empty() && at.begin < found.back().end)
      return bad_byte(file_->path(), byte_of(low),
                      "range " + std::to_string(low) + ", " + text(at) +
                          ", begins before the one before it ends");
    found.push_back(at);
  }
  if (!found.empty()) {
    found.front().begin = std::max(found.front().begin, begin);
    found.back().end = std::min(found.back().end, end);
  }
  return found;
}

Status LossMask::validate() const {
  constexpr uint64_t kPiece = 16 << 10;
  std::vector<IndexRange> piece(std::min(kPiece, ranges_));
  uint64_t before = 0;  // where the range before ends
  for (uint64_t first = 0; first < ranges_; first += piece.size()) {
    const uint64_t count = std::min<uint64_t>(piece.size(), ranges_ - first);
    SS_RETURN_IF_ERROR(file_->read(byte_of(first), piece.data(), count * sizeof(IndexRange)));
    for (uint64_t i = 0; i < count; ++i) {
      const IndexRange& range = piece[i];
      const uint64_t index = first + i;
      if (range.begin >= range.end || range.end > tokens_ || (index > 0 && range.begin <= before))
        return bad_byte(file_->path(), byte_of(index),
                        "range " + std::to_string(index) + ", " + text(range) +
                            ", is wrong: each one must begin behind the end of the one before it" +
                            (index > 0 ? ", " + std::to_string(before) + "," : "") +
                            " and end at or before the last of " + std::to_string(tokens_) +
                            " tokens");
      before = range.end;
    }
  }
  return {};
}

}  // namespace simplescale
