// Whole documents as samples (data.pack = "best_fit").
#include "runtime/data/packing.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/splitmix64.hpp"
#include "runtime/data/token_file.hpp"
#include "tests/must.hpp"
#include "tests/runtime/data/token_bytes.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
using test::bytes_of;
using test::TempFolder;
using Bins = std::vector<std::vector<uint32_t>>;

namespace {

constexpr int32_t kBos = 1;

/// Lengths of documents, 1 to `most`.
std::vector<uint32_t> lengths_of(size_t count, uint32_t most, uint64_t seed) {
  std::vector<uint32_t> lengths;
  for (size_t i = 0; i < count; ++i)
    lengths.push_back(1 + static_cast<uint32_t>(splitmix64_at(seed, i) % most));
  return lengths;
}

/// Documents of these lengths: BOS, then ids that no other token has.
std::vector<uint32_t> tokens_of(const std::vector<uint32_t>& lengths) {
  std::vector<uint32_t> tokens;
  for (const uint32_t length : lengths)
    for (uint32_t i = 0; i < length; ++i)
      tokens.push_back(i == 0 ? uint32_t{kBos} : static_cast<uint32_t>(tokens.size()) + 10);
  return tokens;
}

TokenSource open(const std::string& path) {
  return must(TokenSource::open(path, "llmc", 1 << 20)).take();
}

}  // namespace

TEST_SUITE("packing") {
  TEST_CASE("packing: each length goes into the fullest bin that has room, long ones first") {
    const auto pack = [](std::vector<uint32_t> lengths, uint32_t room) {
      return best_fit(lengths, room);
    };
    // The last one fits both bins; 11 + 8 is fuller.
    CHECK(pack({13, 11, 8, 1}, 20) == Bins{{0}, {1, 2, 3}});
    CHECK(pack({2, 9, 3, 8, 10}, 10) == Bins{{0, 3}, {1}, {2}, {4}});
    CHECK(pack({}, 5).empty());
    CHECK(pack({5, 5}, 5) == Bins{{0}, {1}});
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const auto lengths = lengths_of(300, 50, seed);
      std::vector<uint32_t> sums;
      std::vector<int> seen(lengths.size());
      uint32_t before = 0;
      for (const auto& bin : best_fit(lengths, 64)) {
        CHECK((sums.empty() || bin.front() > before));  // in the order of their first ones
        CHECK(std::ranges::is_sorted(bin));
        before = bin.front();
        sums.push_back(0);
        for (const uint32_t i : bin) sums.back() += lengths[i], ++seen[i];
        CHECK(sums.back() <= 64);
      }
      CHECK(std::ranges::all_of(seen, [](int n) { return n == 1; }));
      for (size_t a = 0; a < sums.size(); ++a)  // no two bins could be one
        for (size_t b = a + 1; b < sums.size(); ++b) CHECK(sums[a] + sums[b] > 64);
    }
  }

  // PACK-1
  TEST_CASE("packing: PACK-1: each token once, no document cut that fits a sample") {
    constexpr int64_t T = 24;
    for (const size_t window : {size_t{1}, size_t{7}, size_t{1000}}) {
      const auto lengths = lengths_of(400, 3 * T, window);
      std::map<uint64_t, PackedPiece> pieces;  // by first token
      size_t samples = 0;
      Packer packer(
          T,
          [&](std::span<const PackedPiece> sample) {
            ++samples;
            uint64_t inputs = 0;
            for (const PackedPiece& piece : sample) {
              CHECK(pieces.emplace(piece.first, piece).second);
              inputs += piece.count;
            }
            CHECK(inputs <= T);
            return Status();
          },
          window);
      uint64_t first = 0;
      for (const uint32_t length : lengths) {
        must(packer.add(first, length));
        first += length;
      }
      must(packer.finish());
      auto piece = pieces.begin();
      first = 0;
      for (const uint32_t length : lengths) {
        for (uint32_t at = 0; at < length; at += T, ++piece) {
          REQUIRE(piece != pieces.end());
          CHECK(piece->second == PackedPiece{first + at, std::min<uint32_t>(T, length - at),
                                             at == 0, at + T >= length});
        }
        first += length;
      }
      CHECK(piece == pieces.end());
      CHECK((samples == pieces.size()) == (window == 1));  // only pieces of a window share one
    }
  }

  TEST_CASE(
      "packing: the samples of a source lie in a file that is made once, and again if damaged") {
    const TempFolder folder;
    const std::string key(32, 'a');
    int made = 0;
    const auto documents = [&](const auto& visit) -> Status {
      ++made;
      SS_RETURN_IF_ERROR(visit(0, 7));
      SS_RETURN_IF_ERROR(visit(7, 25));
      return visit(32, 3);
    };
    const std::vector<std::vector<PackedPiece>> want = {{{7, 10, true, false}},
                                                        {{17, 10, false, false}},
                                                        {{0, 7, true, true}, {32, 3, true, true}},
                                                        {{27, 5, false, true}}};
    const std::string file = folder.path + "/" + key + ".pack";
    const auto check = [&](int times) {
      const auto packing = must(SamplePacking::open(folder.path, key, 10, 35, documents));
      CHECK(made == times);
      REQUIRE(packing->samples() == want.size());
      CHECK(packing->padding() == 5);
      for (uint64_t i = 0; i < want.size(); ++i) {
        const auto sample = must(packing->sample(i));
        CHECK(*sample == want[i]);
      }
      size_t files = 0;
      for (const auto& entry : std::filesystem::directory_iterator(folder.path))
        files += entry.is_regular_file();
      CHECK(files == 1);  // nothing is left over
    };
    check(1);
    check(1);
    const std::string whole = test::contents(file);
    for (const std::string& damaged :
         {whole.substr(0, whole.size() - 8), whole + "12345678", std::string("x") + whole.substr(1),
          whole.substr(0, 20), std::string()}) {
      folder.write(key + ".pack", damaged);
      check(made + 1);
      CHECK(test::contents(file) == whole);
    }
    // A piece that reaches beyond the source, and samples out of order.
    for (const size_t at : {size_t{72}, size_t{72 + 5 * 8 + 8}}) {
      const auto packing = must(SamplePacking::open(folder.path, key, 10, 35, documents));
      std::string bytes = whole;
      bytes[at + 3] = '\x7f';
      { std::ofstream(file, std::ios::binary | std::ios::in).write(bytes.data(), bytes.size()); }
      CHECK(says(packing->sample(0).status(), Code::bad_data, "is damaged at sample 0"));
      folder.write(key + ".pack", whole);
    }
    const auto broken = [](const auto&) { return Status(Code::io, "the disk is gone"); };
    CHECK(says(SamplePacking::open(folder.path, std::string(32, 'b'), 10, 35, broken).status(),
               Code::io, "the disk is gone"));
  }

  TEST_CASE(
      "packing: a sample holds its pieces, what follows them, and padding that does not count") {
    constexpr int64_t T = 16;
    const TempFolder folder;
    const auto lengths = lengths_of(120, 40, 5);
    const auto tokens = tokens_of(lengths);
    TokenSource source =
        open(folder.write("t.bin", llmc::header(4, tokens.size()) + bytes_of(tokens)));
    for (const bool mask : {false, true})
      for (const bool boundary : {true, false}) {
        must(source.use_documents({.mask = mask,
                                   .pack = true,
                                   .boundary_loss = boundary,
                                   .first = kBos,
                                   .first_ends = true}));
        must(source.pack(T, folder.path));
        const SamplePacking& packing = *source.packing();
        std::vector<int> inputs(tokens.size());
        uint64_t padding = 0;
        for (uint64_t s = 0; s < source.samples(T); ++s) {
          std::vector<int32_t> row(T + 1, -1);
          must(source.read_sample(s, T, row.data()));
          CHECK(row[0] == token_id(row[0]));
          const auto pieces = *must(packing.sample(s));
          size_t at = 0;
          for (const PackedPiece& piece : pieces) {
            for (uint32_t i = 0; i < piece.count; ++i, ++at) {
              const uint64_t token = piece.first + i;
              ++inputs[token];
              CHECK(token_id(row[at]) == static_cast<int32_t>(tokens[token]));
              CHECK(((row[at] & kBeginsDocument) != 0) == (mask && i == 0 && at > 0));
              if (at == 0) continue;
              // A rest cannot be known from another document; a document's BOS ends the one before.
              const bool rest = i == 0 && !piece.begins;
              const bool behind_end = !boundary && token_id(row[at - 1]) == kBos;
              CHECK(((row[at] & kNotTrained) != 0) == (rest || behind_end));
            }
          }
          const uint64_t behind = pieces.back().first + pieces.back().count;
          if (behind < tokens.size())
            CHECK(row[at] == (static_cast<int32_t>(tokens[behind]) |
                              (mask && pieces.back().ends ? kBeginsDocument : 0) |
                              (!boundary && token_id(row[at - 1]) == kBos ? kNotTrained : 0)));
          else
            CHECK((row[at] & kNotTrained) != 0);
          for (size_t i = at + 1; i <= T; ++i) CHECK(row[i] == (kBos | kNotTrained));
          padding += T - at;
        }
        CHECK(std::ranges::all_of(inputs, [](int n) { return n == 1; }));
        CHECK(padding == packing.padding());
      }
  }

  TEST_CASE("packing: loss masks, a Megatron index and several files go with their tokens") {
    const TempFolder folder;
    folder.write("a.bin", bytes_of(test::counting<uint16_t>(40, 100)));
    folder.write("a.idx", test::megatron_index({7, 20, 13}, {0, 1, 2, 3}));
    folder.write("b.bin", bytes_of(test::counting<uint16_t>(30, 200)));
    folder.write("b.idx", test::megatron_index({30}, {0, 1}));
    LossMaskWriter writer(folder / "b.mask");
    must(writer.add({{0, 1}, {10, 20}}));
    must(writer.finish(30));
    TokenSource source =
        must(TokenSource::open({folder / "a.bin", folder / "b.bin"}, "megatron", 4096)).take();
    must(source.use_documents({.pack = true, .by_index = true}));
    must(source.pack(12, folder.path));
    std::set<int32_t> inputs, masked;
    uint64_t samples = source.samples(12);
    CHECK(samples * 12 == 70 + source.packing()->padding());
    for (uint64_t s = 0; s < samples; ++s) {
      std::vector<int32_t> row(13);
      must(source.read_sample(s, 12, row.data()));
      size_t at = 0;
      const auto pieces = must(source.packing()->sample(s));
      for (const PackedPiece& piece : *pieces)
        for (uint32_t i = 0; i < piece.count; ++i, ++at) {
          inputs.insert(token_id(row[at]));
          if ((row[at] & kNotTrained) != 0 && !(i == 0 && !piece.begins))
            masked.insert(token_id(row[at]));
          const uint64_t token = piece.first + i;
          CHECK(token_id(row[at]) == static_cast<int32_t>(token < 40 ? 100 + token : 160 + token));
        }
      if ((row[at] & kNotTrained) != 0 && at <= 12 && token_id(row[at]) > 0)
        masked.insert(token_id(row[at]));
      CHECK(source.place_of(s, 12).starts_with(folder.path));
    }
    CHECK(inputs.size() == 70);
    // 212 begins a sample: its target is in the one before.
    for (int32_t id = 210; id < 220; ++id) CHECK(masked.contains(id));
    for (const int32_t id : masked) CHECK((id == 200 || (id >= 210 && id < 220)));
  }

  TEST_CASE("packing: other tokens, documents or sample lengths are other samples") {
    const TempFolder folder;
    const auto tokens = tokens_of(lengths_of(50, 20, 1));
    const std::string path =
        folder.write("t.bin", llmc::header(4, tokens.size()) + bytes_of(tokens));
    const auto files = [&] {
      size_t count = 0;
      for (const auto& entry : std::filesystem::directory_iterator(folder.path))
        count += entry.path().extension() == ".pack";
      return count;
    };
    const auto pack = [&](TokenSource source, DocumentRule rule, int64_t T) {
      rule.pack = true;
      must(source.use_documents(rule));
      must(source.pack(T, folder.path));
      return source.samples(T);
    };
    const uint64_t samples = pack(open(path), {.first = kBos}, 16);
    CHECK(files() == 1);
    CHECK(pack(open(path), {.mask = true, .first = kBos}, 16) == samples);
    CHECK(files() == 1);
    pack(open(path), {.first = kBos}, 17);
    pack(open(path), {.last = kBos}, 16);
    pack(open(path), {.first = 2, .last = kBos}, 16);
    CHECK(files() == 4);
    pack(open(path).slice(0, tokens.size() / 2), {.first = kBos}, 16);
    CHECK(files() == 5);
    std::vector<uint32_t> others = tokens;
    std::ranges::replace(others, uint32_t{kBos}, 2U);
    folder.write("new.bin", llmc::header(4, others.size()) + bytes_of(others));
    std::filesystem::rename(folder / "new.bin", path);
    pack(open(path), {.first = kBos}, 16);
    CHECK(files() == 6);
  }
}
