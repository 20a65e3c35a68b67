#include "runtime/data/packing.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <set>
#include <utility>

#include "runtime/base/log.hpp"
#include "runtime/base/open_output.hpp"
#include "runtime/base/sync_path.hpp"

namespace simplescale {

namespace {

constexpr char kPackMagic[] = "SSPACK01";
constexpr size_t kPackKeyBytes = 32, kPackHeadBytes = 8 + 4 * sizeof(uint64_t) + kPackKeyBytes;

uint64_t word_of(const PackedPiece& piece) {
  return piece.first << 22 | uint64_t{piece.count - 1} << 2 | uint64_t{piece.ends} << 1 |
         uint64_t{piece.begins};
}

PackedPiece unpacked(uint64_t word) {
  return {.first = word >> 22,
          .count = static_cast<uint32_t>(word >> 2 & 0xfffff) + 1,
          .begins = (word & 1) != 0,
          .ends = (word & 2) != 0};
}

void put_word(OutputStream& file, uint64_t word) {
  file.write(reinterpret_cast<const char*>(&word), sizeof word);
}

/// Appends a file to another one.
Status append_file(const std::string& from, OutputStream& to) {
  SS_ASSIGN(const InputFile file, InputFile::open(from));
  std::vector<char> piece(1 << 20);
  for (uint64_t at = 0; at < file.bytes(); at += piece.size()) {
    const size_t count = std::min<uint64_t>(piece.size(), file.bytes() - at);
    SS_RETURN_IF_ERROR(file.read(at, piece.data(), count));
    to.write(piece.data(), static_cast<std::streamsize>(count));
  }
  return to.status();
}

}  // namespace

std::vector<std::vector<uint32_t>> best_fit(std::span<const uint32_t> lengths, uint32_t room) {
  std::vector<uint32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, std::greater(), [&](uint32_t i) { return lengths[i]; });
  std::vector<std::vector<uint32_t>> bins;
  std::set<std::pair<uint32_t, uint32_t>> open;  // room that is left, bin
  for (const uint32_t i : order) {
    SS_ASSERT(lengths[i] > 0 && lengths[i] <= room);
    auto found = open.lower_bound({lengths[i], 0});
    std::pair<uint32_t, uint32_t> bin{room, static_cast<uint32_t>(bins.size())};
    if (found == open.end())
      bins.emplace_back();
    else
      bin = *found, open.erase(found);
    bins[bin.second].push_back(i);
    bin.first -= lengths[i];
    if (bin.first > 0) open.insert(bin);
  }
  for (std::vector<uint32_t>& bin : bins) std::ranges::sort(bin);
  std::ranges::sort(bins, {}, [](const std::vector<uint32_t>& bin) { return bin.front(); });
  return bins;
}

Packer::Packer(int64_t block_size, Use use, size_t window)
    : T_(static_cast<uint64_t>(block_size)), use_(std::move(use)), window_(window) {
  SS_ASSERT(block_size > 0 && block_size <= 1 << 20 && window > 0);
}

Status Packer::add(uint64_t first, uint64_t count) {
  bool begins = true;
  for (; count > T_; begins = false, first += T_, count -= T_) {
    const PackedPiece full{first, static_cast<uint32_t>(T_), begins, false};
    SS_RETURN_IF_ERROR(use_({&full, 1}));
  }
  waiting_.push_back({first, static_cast<uint32_t>(count), begins, true});
  return waiting_.size() < window_ ? Status() : finish();
}

Status Packer::finish() {
  std::vector<uint32_t> lengths;
  for (const PackedPiece& piece : waiting_) lengths.push_back(piece.count);
  std::vector<PackedPiece> sample;
  for (const std::vector<uint32_t>& bin : best_fit(lengths, static_cast<uint32_t>(T_))) {
    sample.clear();
    for (const uint32_t i : bin) sample.push_back(waiting_[i]);
    SS_RETURN_IF_ERROR(use_(sample));
  }
  waiting_.clear();
  return {};
}

Result<SamplePacking> SamplePacking::open_file(const std::string& path, const std::string& key,
                                               int64_t block_size, uint64_t tokens) {
  SS_ASSIGN(InputFile file, InputFile::open(path));
  SamplePacking packing(std::move(file));
  std::array<char, kPackHeadBytes> head{};
  SS_RETURN_IF_ERROR(packing.file_.read(0, head.data(), head.size()));
  std::array<uint64_t, 4> words{};
  std::memcpy(words.data(), head.data() + 8, sizeof words);
  packing.block_size_ = block_size;
  packing.tokens_ = words[1], packing.pieces_ = words[2], packing.samples_ = words[3];
  const bool whole =
      std::memcmp(head.data(), kPackMagic, 8) == 0 &&
      words[0] == static_cast<uint64_t>(block_size) && words[1] == tokens &&
      std::string(head.data() + 40, kPackKeyBytes) == key && words[3] > 0 && words[3] <= words[2] &&
      words[2] <= tokens &&
      packing.file_.bytes() == kPackHeadBytes + (words[2] + words[3] + 1) * sizeof(uint64_t);
  if (!whole) return bad_data(path, "is not the file of these samples");
  return packing;
}

Result<SamplePacking> SamplePacking::open(const std::string& folder, const std::string& key,
                                          int64_t block_size, uint64_t tokens,
                                          const Documents& documents) {
  SS_ASSERT(key.size() == kPackKeyBytes && tokens > 0 && tokens <= kTokensMax);
  const std::string path = folder + "/" + key + ".pack";
  if (auto there = open_file(path, key, block_size, tokens); there.ok()) return there;
  // Another process of the host may make the same file at the same time; either one may stay.
  const std::string made = path + ".new-" + std::to_string(::getpid()), ends = made + "-samples";
  struct Removed {
    const std::string &a, &b;
    ~Removed() { ::unlink(a.c_str()), ::unlink(b.c_str()); }
  } const removed{made, ends};
  OutputStream file(made, Output::replace), samples(ends, Output::replace);
  const std::array<char, kPackHeadBytes> empty{};
  file.write(empty.data(), empty.size());
  uint64_t pieces = 0, count = 0, inputs = 0;
  Packer packer(block_size, [&](std::span<const PackedPiece> sample) {
    put_word(samples, pieces);
    for (const PackedPiece& piece : sample) put_word(file, word_of(piece)), inputs += piece.count;
    pieces += sample.size(), ++count;
    return file.good() && samples.good() ? Status() : file.status();
  });
  SS_RETURN_IF_ERROR(
      documents([&](uint64_t first, uint64_t length) { return packer.add(first, length); }));
  SS_RETURN_IF_ERROR(packer.finish());
  SS_ASSERT(inputs == tokens);  // PACK-1
  put_word(samples, pieces);
  samples.close();
  SS_RETURN_IF_ERROR(samples.status());
  SS_RETURN_IF_ERROR(append_file(ends, file));
  const std::array<uint64_t, 4> words = {static_cast<uint64_t>(block_size), tokens, pieces, count};
  file.seekp(0);
  file.write(kPackMagic, 8).write(reinterpret_cast<const char*>(words.data()), sizeof words);
  file.write(key.data(), kPackKeyBytes);
  file.close();
  SS_RETURN_IF_ERROR(file.status());
  SS_RETURN_IF_ERROR(sync_path(made));
  if (::rename(made.c_str(), path.c_str()) != 0) return system_error("cannot write", path, errno);
  return open_file(path, key, block_size, tokens);
}

Result<std::vector<PackedPiece>> SamplePacking::sample(uint64_t position) const {
  SS_ASSERT(position < samples_);
  std::array<uint64_t, 2> at{};
  SS_RETURN_IF_ERROR(
      file_.read(kPackHeadBytes + (pieces_ + position) * sizeof(uint64_t), at.data(), sizeof at));
  const auto damaged = [&] {
    return bad_data(file_.path(), "is damaged at sample " + std::to_string(position) +
                                      "; remove it, and it is made again");
  };
  const auto T = static_cast<uint64_t>(block_size_);
  if (at[0] >= at[1] || at[1] > pieces_ || at[1] - at[0] > T) return damaged();
  std::vector<uint64_t> words(at[1] - at[0]);
  SS_RETURN_IF_ERROR(file_.read(kPackHeadBytes + at[0] * sizeof(uint64_t), words.data(),
                                words.size() * sizeof(uint64_t)));
  std::vector<PackedPiece> pieces;
  uint64_t inputs = 0;
  for (const uint64_t word : words) {
    pieces.push_back(unpacked(word));
    inputs += pieces.back().count;
    if (pieces.back().first + pieces.back().count > tokens_ || inputs > T) return damaged();
  }
  return pieces;
}

}  // namespace simplescale
