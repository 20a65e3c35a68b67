#include "tools/convert/upcycle.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/bare_path.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/printable.hpp"
#include "runtime/checkpoint/checkpoint_format.hpp"
#include "runtime/checkpoint/imported_facts.hpp"
#include "runtime/checkpoint/shard_writer.hpp"
#include "runtime/training/initial_values.hpp"

namespace simplescale {

namespace {

template <class Number>
bool read_number(std::string_view text, Number& to) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
  return error == std::errc() && end == text.data() + text.size();
}

bool read_part(std::string_view key, std::string_view value, Upcycle& to) {
  if (key == "experts") return read_number(value, to.experts) && to.experts > 0;
  if (key == "top_k") return read_number(value, to.per_token) && to.per_token > 0;
  if (key == "shared") return read_number(value, to.shared) && (to.shared == 0 || to.shared == 1);
  if (key == "noise")
    return read_number(value, to.noise) && to.noise >= 0 && std::isfinite(to.noise);
  if (key == "seed") return read_number(value, to.seed);
  if (key != "score") return false;
  to.score = value == "sigmoid" ? RouterScore::sigmoid : RouterScore::softmax;
  return value == to_string(to.score);
}

/// The dense model's parameter that a parameter begins with. Null: it is the router's.
const Parameter* origin_of(const Parameter& parameter, const Unit& dense) {
  const size_t mlp = parameter.name.find(".mlp.");
  for (const Parameter& p : dense.parameters) {
    if (p.name == parameter.name) return &p;
    const size_t at =
        p.name.find(".mlp.");  // "...mlp.up_proj.weight" of "...experts.3.up_proj.weight"
    if (mlp != std::string::npos && at != std::string::npos &&
        parameter.name.ends_with(p.name.substr(at + 4)))
      return &p;
  }
  return nullptr;
}

double deviation_of(std::span<const float> values) {
  double sum = 0, squares = 0;
  for (const float value : values) sum += double{value};
  const double mean = sum / static_cast<double>(values.size());
  for (const float value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / static_cast<double>(values.size()));
}

/// The values of the new model. Reads whole units of the dense one, since only a whole tensor can be
/// verified.
class UpcycleSource {
 public:
  UpcycleSource(Checkpoint& dense, const std::vector<Unit>& units, const Upcycle& upcycle)
      : dense_(dense), units_(units), upcycle_(upcycle) {}

  Result<std::span<const std::byte>> read(StateKind kind, size_t unit, size_t begin, size_t end) {
    out_.assign(end - begin, 0.0f);
    if (kind == StateKind::params) SS_RETURN_IF_ERROR(fill(units_[unit], begin, end));
    return std::as_bytes(std::span(out_));
  }

 private:
  Status fill(const Unit& unit, size_t begin, size_t end) {
    const bool of_block = unit.layer >= 0;
    SS_RETURN_IF_ERROR(load(of_block                         ? static_cast<size_t>(unit.layer) + 1
                            : unit.kind == Unit::Kind::embed ? 0
                                                             : dense_.units().size() - 1));
    for (const Parameter& parameter : unit.parameters) {
      const size_t first = std::max(begin, parameter.offset),
                   last = std::min(end, parameter.offset + parameter.count);
      if (first >= last) continue;
      const auto out = std::span(out_).subspan(first - begin, last - first);
      const Parameter* const origin = origin_of(parameter, dense_.units()[loaded_]);
      if (!origin) {
        initial_values(unit, upcycle_.seed, first, out);
        continue;
      }
      std::ranges::copy(
          std::span(values_).subspan(origin->offset + first - parameter.offset, out.size()),
          out.begin());
      if (unit.kind == Unit::Kind::experts && upcycle_.noise > 0) {
        noise_.resize(out.size());
        initial_values(unit, upcycle_.seed, first, noise_);
        const auto p = static_cast<size_t>(origin - dense_.units()[loaded_].parameters.data());
        const auto factor = static_cast<float>(upcycle_.noise * deviations_[p] / kInitialDeviation);
        for (size_t i = 0; i < out.size(); ++i) out[i] += factor * noise_[i];
      }
      if (upcycle_.shared > 0 && parameter.name != origin->name &&
          parameter.name.ends_with(".down_proj.weight"))
        for (float& value : out) value *= 0.5f;
    }
    return {};
  }

  Status load(size_t unit) {
    if (!values_.empty() && unit == loaded_) return {};
    const Unit& of = dense_.units()[unit];
    loaded_ = unit;
    values_.assign(of.count, 0.0f);
    SS_RETURN_IF_ERROR(dense_.stream_unit(
        StateKind::params, unit, [this](size_t offset, std::span<const float> piece) {
          std::ranges::copy(piece, values_.begin() + static_cast<ptrdiff_t>(offset));
          return Status();
        }));
    deviations_.clear();
    for (const Parameter& p : of.parameters) {
      const auto values = std::span(values_).subspan(p.offset, p.count);
      SS_RETURN_IF_ERROR(checkpoint_format::check_finite(values, 0, dense_.folder(), p.name));
      deviations_.push_back(upcycle_.noise > 0 ? deviation_of(values) : 0);
    }
    return {};
  }

  Checkpoint& dense_;
  const std::vector<Unit>& units_;
  const Upcycle upcycle_;
  size_t loaded_ = 0;               // a unit of the dense model
  std::vector<float> values_;       // all of it; empty: none is loaded
  std::vector<double> deviations_;  // of each of its parameters
  std::vector<float> noise_, out_;
};

}  // namespace

Result<Upcycle> parse_upcycle(const std::string& text) {
  Upcycle upcycle;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    const size_t equals = std::min(part.find('='), part.size());
    if (!read_part(part.substr(0, equals), part.substr(std::min(equals + 1, part.size())), upcycle))
      return Status(Code::usage,
                    "--upcycle: \"" + shown_name(std::string(part)) +
                        "\" is none of experts=COUNT, top_k=COUNT, shared=0 or 1, "
                        "score=softmax or sigmoid, noise=DEVIATIONS, seed=NUMBER; they are "
                        "separated by commas");
  }
  if (upcycle.experts == 0)
    return Status(Code::usage, "--upcycle: set experts, as in --upcycle experts=8,top_k=2");
  return upcycle;
}

Result<ModelShape> upcycled_shape(const ModelShape& dense, const Upcycle& upcycle) {
  if (dense.experts.count > 0)
    return Status(Code::bad_config, "the model has experts already: " + options_text(dense));
  ModelShape shape = dense;
  shape.experts = {.count = upcycle.experts,
                   .per_token = upcycle.per_token,
                   .hidden = dense.hidden,
                   .shared = upcycle.shared,
                   .score = upcycle.score,
                   .bias = upcycle.score == RouterScore::sigmoid};
  const Status status = checkpoint_format::validate_stored_shape(shape);
  if (!status.ok()) return Status(Code::bad_config, status.message());
  return canonical(shape);
}

Status upcycle_checkpoint(Checkpoint& dense, const Upcycle& upcycle, const std::string& to,
                          FileOps& ops) {
  CheckpointInfo info;
  SS_ASSIGN(info.shape, upcycled_shape(dense.info().shape, upcycle));
  info.seed = upcycle.seed;
  info.tokenizer = dense.info().tokenizer;
  auto facts = nlohmann::json::parse(imported_facts(dense.info()));
  facts["upcycled_from"] = dense.folder();
  info.resume = json_text(facts);
  const std::string target = bare_path(to), partial = target + ".partial";
  std::error_code error;
  if (std::filesystem::exists(target, error))
    return {Code::bad_data, target + ": exists already; name another folder or remove it"};
  SS_RETURN_IF_ERROR(make_folders(ops, parent_folder(target)));
  SS_RETURN_IF_ERROR(remove_folder(ops, partial));
  const std::vector<Unit> units = units_of(info.shape);
  UpcycleSource source(dense, units, upcycle);
  auto record = write_shard_from(
      partial, units, 1, 0, info.state,
      [&](StateKind kind, size_t unit, size_t begin, size_t end) {
        return source.read(kind, unit, begin, end);
      },
      {}, ops);
  if (!record.ok()) {
    (void)remove_folder(ops, partial);
    return record.status();
  }
  return publish_checkpoint_as(target, partial, info, {*record}, ops);
}

}  // namespace simplescale
