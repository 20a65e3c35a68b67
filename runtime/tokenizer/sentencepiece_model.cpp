#include "runtime/tokenizer/sentencepiece_model.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/base/utf8.hpp"
#include "runtime/tokenizer/protobuf_reader.hpp"

namespace simplescale {

namespace {

// The numbers of sentencepiece_model.proto.
enum ModelField { pieces = 1, trainer = 2, normalizer = 3, self_test = 4, denormalizer = 5 };
enum PieceField { piece_text = 1, piece_score = 2, piece_type = 3 };
enum PieceType { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
enum TrainerField { model_type = 3, space_as_suffix = 24, byte_fallback = 35 };
enum NormalizerField { charsmap = 2, dummy_prefix = 3, extra_spaces = 4, escape_spaces = 5 };
enum ModelType { unigram = 1, bpe = 2 };

constexpr size_t model_bytes_max = 64 << 20;
constexpr size_t pieces_max = 1 << 21;
// The library builds its tables by recursion over the bytes of a piece.
constexpr size_t piece_bytes_max = 1024;
constexpr size_t byte_growth_max = 64;  // of a byte, by the normalizer; NFKC needs 11

struct Trainer {
  uint64_t type = unigram;  // the default of the format
  bool byte_fallback = false;
};

Result<Trainer> read_trainer(std::string_view message) {
  Trainer out;
  ProtobufReader reader(message);
  for (ProtobufReader::Field field; reader.next(field);) {
    const bool ours = field.number == model_type || field.number == byte_fallback;
    if (ours && field.wire != ProtobufReader::varint)
      return bad_data("its trainer_spec is damaged");
    if (field.number == model_type) out.type = field.value;
    if (field.number == byte_fallback) out.byte_fallback = field.value != 0;
  }
  if (reader.broken()) return bad_data("its trainer_spec is damaged");
  if (out.type != unigram && out.type != bpe)
    return bad_data("its kind is " + std::to_string(out.type) +
                    "; only byte-pair (2) and unigram (1) models are supported");
  return out;
}

/// A precompiled_charsmap: the size of a double array in bytes, the array, and texts that end with
/// 0. A unit of the array leads from its own index to the index XOR its offset XOR a byte of the
/// text. So if all offsets of whole blocks of 256 units stay inside, no text leads outside.
Status check_charsmap(std::string_view map) {
  const Status damaged = bad_data("its normalizer's precompiled_charsmap is damaged");
  uint32_t array_bytes = 0;
  if (map.size() < sizeof array_bytes) return damaged;
  std::memcpy(&array_bytes, map.data(), sizeof array_bytes);
  map.remove_prefix(sizeof array_bytes);
  constexpr size_t block_bytes = 256 * sizeof(uint32_t);
  if (array_bytes == 0 || array_bytes % block_bytes != 0 || array_bytes >= map.size())
    return damaged;
  const std::string_view texts = map.substr(array_bytes);
  if (texts.back() != '\0' || first_invalid_utf8(texts) != texts.size()) return damaged;
  std::vector<uint32_t> units(array_bytes / sizeof(uint32_t));
  std::memcpy(units.data(), map.data(), array_bytes);
  for (size_t i = 0; i < units.size(); ++i) {
    const uint32_t unit = units[i];
    // A leaf: only its value is used, which is checked at its parent. The root is never a leaf.
    if (unit >> 31 && i > 0) continue;
    const size_t offset = size_t{unit >> 10} << ((unit & (1u << 9)) >> 6);
    const size_t child = i ^ offset;
    if (child >= units.size()) return damaged;
    const bool has_leaf = unit >> 8 & 1;
    const size_t value = units[child] & 0x7FFFFFFF;
    if (!has_leaf) continue;
    if (value >= texts.size() || (value > 0 && texts[value - 1] != '\0')) return damaged;
    const std::string_view part = texts.substr(value, byte_growth_max + 1);
    const std::string_view text = part.substr(0, part.find('\0'));
    // A blank is escaped: it becomes the three bytes of U+2581.
    const auto blanks = static_cast<size_t>(std::ranges::count(text, ' '));
    if (text.size() + 2 * blanks > byte_growth_max)
      return bad_data("its normalizer may make a text more than " +
                      std::to_string(byte_growth_max) + " times as long");
  }
  return {};
}

Status check_normalizer(std::string_view message) {
  ProtobufReader reader(message);
  std::optional<std::string_view> map;
  for (ProtobufReader::Field field; reader.next(field);) {
    if (field.number != charsmap) continue;
    if (field.wire != ProtobufReader::bytes || map)
      return bad_data("its normalizer_spec is damaged");
    map = field.data;
  }
  if (reader.broken()) return bad_data("its normalizer_spec is damaged");
  return map && !map->empty() ? check_charsmap(*map) : Status();
}

struct Piece {
  std::string_view text;
  float score = 0;
  uint64_t type = normal;
};

Result<Piece> read_piece(std::string_view message, const std::string& where) {
  Piece piece;
  ProtobufReader reader(message);
  for (ProtobufReader::Field field; reader.next(field);) {
    const auto wanted = field.number == piece_text    ? ProtobufReader::bytes
                        : field.number == piece_score ? ProtobufReader::fixed32
                        : field.number == piece_type  ? ProtobufReader::varint
                                                      : field.wire;
    if (field.wire != wanted) return bad_data(where + " is damaged");
    if (field.number == piece_text) piece.text = field.data;
    if (field.number == piece_score) piece.score = field.real();
    if (field.number == piece_type) piece.type = field.value;
  }
  if (reader.broken()) return bad_data(where + " is damaged");
  return piece;
}

/// The library keeps pieces in a table with this hash, which a stranger can choose: a table whose
/// pieces are all in one bucket is as slow as a list.
using Table = std::unordered_set<std::string_view>;
constexpr size_t bucket_max = 64;  // as good as never reached by chance

/// What the pieces that have been read so far are; add() checks one more.
class Pieces {
 public:
  explicit Pieces(const Trainer& trainer) : trainer_(trainer), byte_seen_(256, false) {}

  Status add(std::string_view message) {
    const std::string where = "piece " + std::to_string(count_);
    if (++count_ > pieces_max) return bad_data("it has too many pieces");
    SS_ASSIGN(const Piece piece, read_piece(message, where));
    if (piece.text.empty()) return bad_data(where + " is empty");
    if (piece.text.size() > piece_bytes_max)
      return bad_data(where + " has " + std::to_string(piece.text.size()) + " bytes, more than " +
                      std::to_string(piece_bytes_max));
    if (first_invalid_utf8(piece.text) != piece.text.size())
      return bad_data(where + " is not UTF-8");
    if (!std::isfinite(piece.score)) return bad_data(where + " has no finite score");
    SS_RETURN_IF_ERROR(add_to_table(piece, where));
    const bool in_hash_map_only = trainer_.type == bpe && piece.type == normal;
    if (piece.text.find('\0') != piece.text.npos && !in_hash_map_only)
      return bad_data(where + " contains a zero byte");
    return add_type(piece, where);
  }

  Status finish() const {
    if (unknown_ != 1)
      return bad_data("it has " + std::to_string(unknown_) + " unknown pieces, not 1");
    if (trainer_.type == unigram && matched_ == 0) return bad_data("it has no normal piece");
    for (const bool seen : byte_seen_)
      if (trainer_.byte_fallback && !seen)
        return bad_data("a piece for one of the 256 bytes is missing");
    return {};
  }

 private:
  Status add_to_table(const Piece& piece, const std::string& where) {
    const bool reserved = piece.type == unknown || piece.type == control || piece.type == byte;
    if (tables_[!reserved].contains(piece.text)) return bad_data(where + " occurs twice");
    Table& table = tables_[reserved];
    const size_t before = table.bucket_count();
    if (!table.insert(piece.text).second) return bad_data(where + " occurs twice");
    const bool has_grown = table.bucket_count() != before;  // then every bucket is a new one
    const size_t first = has_grown ? 0 : table.bucket(piece.text);
    const size_t end = has_grown ? table.bucket_count() : first + 1;
    for (size_t i = first; i < end; ++i)
      if (table.bucket_size(i) > bucket_max)
        return bad_data(where + ": more than " + std::to_string(bucket_max) +
                        " pieces have alike hashes, which makes the tokenizer slow");
    return {};
  }

  Status add_type(const Piece& piece, const std::string& where) {
    switch (piece.type) {
      case unknown:
        ++unknown_;
        return {};
      case normal:
      case user_defined:
      case unused:
        ++matched_;
        return {};
      case control:
        // The library takes the character for the control piece, and then fails to encode the text.
        if (code_point_at(piece.text, 0).bytes == piece.text.size())
          return bad_data(where + " is a control piece of one character");
        return {};
      case byte: {
        unsigned value = 0;
        char exact[8];
        const std::string text(piece.text);
        if (!trainer_.byte_fallback || std::sscanf(text.c_str(), "<0x%2X>", &value) != 1 ||
            (std::snprintf(exact, sizeof exact, "<0x%02X>", value), text != exact))
          return bad_data(where + " is no byte piece");
        byte_seen_[value] = true;
        return {};
      }
      default:
        return bad_data(where + " has the unknown type " + std::to_string(piece.type));
    }
  }

  const Trainer trainer_;
  std::array<Table, 2> tables_;  // of pieces that stand for text, and of others, as in the library
  std::vector<bool> byte_seen_;
  size_t count_ = 0, unknown_ = 0, matched_ = 0;
};

}  // namespace

Status check_sentencepiece_model(std::string_view model) {
  if (model.size() > model_bytes_max) return bad_data("it has more than 64 MiB");
  std::optional<Trainer> trainer_spec;
  bool seen[8] = {};
  // First the specs: what a piece may be depends on them.
  ProtobufReader specs(model);
  for (ProtobufReader::Field field; specs.next(field);) {
    if (field.number > denormalizer) continue;
    if (field.wire != ProtobufReader::bytes) return bad_data("a field has the wrong type");
    if (field.number == pieces) continue;
    if (std::exchange(seen[field.number], true)) return bad_data("a part occurs twice");
    if (field.number == trainer) {
      SS_ASSIGN(trainer_spec, read_trainer(field.data));
    }
    if (field.number == normalizer || field.number == denormalizer)
      SS_RETURN_IF_ERROR(check_normalizer(field.data));
  }
  if (specs.broken()) return bad_data("it is damaged");
  Pieces all(trainer_spec.value_or(Trainer{}));
  ProtobufReader reader(model);
  for (ProtobufReader::Field field; reader.next(field);)
    if (field.number == pieces) SS_RETURN_IF_ERROR(all.add(field.data));
  return all.finish();
}

namespace {

/// The value of field `number` of a checked message; `otherwise` if it has none.
uint64_t value_of(std::string_view message, uint32_t number, uint64_t otherwise) {
  ProtobufReader reader(message);
  for (ProtobufReader::Field field; reader.next(field);)
    if (field.number == number && field.wire == ProtobufReader::varint) otherwise = field.value;
  return otherwise;
}

bool has_charsmap(std::string_view message) {
  ProtobufReader reader(message);
  for (ProtobufReader::Field field; reader.next(field);)
    if (field.number == charsmap) return !field.data.empty();
  return false;
}

}  // namespace

SentencePieceSettings sentencepiece_settings(std::string_view model) {
  std::string_view trainer_spec, normalizer_spec;
  bool user_pieces = false;
  ProtobufReader reader(model);
  for (ProtobufReader::Field field; reader.next(field);) {
    if (field.number == trainer) trainer_spec = field.data;
    if (field.number == normalizer) normalizer_spec = field.data;
    if (field.number != pieces) continue;
    const uint64_t type = value_of(field.data, piece_type, normal);
    user_pieces |= type == user_defined || type == unused;
  }
  SentencePieceSettings out;
  out.byte_fallback = value_of(trainer_spec, byte_fallback, 0) != 0;
  out.dummy_prefix = value_of(normalizer_spec, dummy_prefix, 1) != 0;
  const auto is = [&](const char* what, bool so) {
    if (so && out.beyond_merges.empty()) out.beyond_merges = what;
  };
  is("it is a unigram model", value_of(trainer_spec, model_type, unigram) != bpe);
  is("its normalizer changes characters", has_charsmap(normalizer_spec));
  is("it removes extra spaces", value_of(normalizer_spec, extra_spaces, 1) != 0);
  is("it does not escape spaces", value_of(normalizer_spec, escape_spaces, 1) == 0);
  is("it puts spaces behind words", value_of(trainer_spec, space_as_suffix, 0) != 0);
  is("it has user-defined or unused pieces", user_pieces);
  return out;
}

}  // namespace simplescale
