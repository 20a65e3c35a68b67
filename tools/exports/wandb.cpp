#include "tools/exports/wandb.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/base/bounded_read.hpp"
#include "runtime/base/files.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/process.hpp"
#include "runtime/config/schema.hpp"
#include "runtime/config/wandb_names.hpp"
#include "tools/exports/append_file.hpp"
#include "tools/exports/checksum.hpp"
#include "tools/exports/protobuf.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kBlock = 32'768, kHeader = 7;
enum Fragment : char { whole = 1, first = 2, middle = 3, last = 4 };

// Field numbers of Record and of the messages in it.
constexpr int record_number = 1, record_history = 2, record_summary = 3, record_run = 17,
              record_exit = 18;
constexpr int item_key = 1, item_nested_key = 2, item_json = 16;
constexpr int run_id = 1, run_entity = 2, run_project = 3, run_config = 4, run_name = 8,
              run_tag = 10, run_host = 13, run_start = 17;

std::string record(int kind, const std::string& message, uint64_t number) {
  return ProtobufWriter().number(record_number, number).bytes(kind, message).text();
}

std::string item(const std::string& key, const std::string& value) {
  return ProtobufWriter().bytes(item_key, key).bytes(item_json, value).text();
}

std::string json_number(double value) {
  return json(value).dump();
}

/// Adds the row's scalars and W&B's own keys as items in field `field`.
void add_items(ProtobufWriter& message, int field, const MetricsRow& row, double start_s) {
  for (const auto& [name, value] : row.scalars)
    message.bytes(field, item(name, json_number(value)));
  message.bytes(field, item("_step", std::to_string(row.at.step)))
      .bytes(field, item("_timestamp", json_number(row.time_s)))
      .bytes(field, item("_runtime", json_number(row.time_s - start_s)));
}

/// A TOML value as JSON. Values that are not valid JSON become strings.
std::string json_of_toml(const std::string& text) {
  return json::accept(text) ? text : json_text(text);
}

/// What a successor needs to know of a record.
struct ParsedRecord {
  int kind = 0;
  Position at;         // of a history record
  double start_s = 0;  // of a run record
};

ParsedRecord parse_record(std::string_view text) {
  ParsedRecord known;
  ProtobufField field, part, inner;
  for (ProtobufReader fields(text); fields.next(field);) {
    if (field.number == record_number || field.bytes.data() == nullptr) continue;
    known.kind = field.number;
    for (ProtobufReader parts(field.bytes); parts.next(part);) {
      if (known.kind == record_run && part.number == run_start)
        for (ProtobufReader times(part.bytes); times.next(inner);)
          known.start_s += static_cast<double>(inner.value) * (inner.number == 1 ? 1 : 1e-9);
      if (known.kind != record_history) continue;
      std::string_view key, value;
      for (ProtobufReader items(part.bytes); part.number == 1 && items.next(inner);) {
        if (inner.number == item_key) key = inner.bytes;
        if (inner.number == item_json) value = inner.bytes;
      }
      double number = 0;
      std::from_chars(value.data(), value.data() + value.size(), number);
      if (!(number >= 0)) continue;
      if (key == "_step") known.at.step = static_cast<uint64_t>(number);
      if (key == "generation") known.at.generation = static_cast<uint64_t>(number);
    }
  }
  return known;
}

class Wandb : public MetricsSink {
 public:
  Wandb(std::string path, wandb::RunInfo info) : path_(std::move(path)), info_(std::move(info)) {}

  /// Starts a new file with the old file's records before a step; nothing: with all of them.
  Status begin(std::optional<uint64_t> before) {
    std::string old;
    if (fs::exists(path_)) {
      SS_ASSIGN(old, read_text(path_, SIZE_MAX));
    }
    std::vector<std::string> kept;
    position_ = std::nullopt;
    for (std::string& text : wandb::records(old)) {
      const ParsedRecord known = parse_record(text);
      if (known.kind == record_run) info_.start_s = known.start_s;
      if (known.kind == record_history) {
        if (before && known.at.step >= *before) break;
        position_ = known.at;
      }
      if (known.kind == record_history) kept.push_back(std::move(text));
    }
    kept.insert(kept.begin(), wandb::run_record(info_, 1));  // a resume may have changed keys
    std::string contents = wandb::header();
    for (const std::string& text : kept) contents += wandb::fragments(text, contents.size());
    records_ = kept.size();
    const std::string temporary = path_ + ".new";
    SS_ASSIGN(file_, AppendFile::create(temporary));
    SS_RETURN_IF_ERROR(file_.append(contents));
    return publish_file(temporary, path_);
  }

  std::optional<Position> position() const override { return position_; }

  Status write(std::span<const MetricsRow> rows) override {
    size_t from = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const uint64_t step = rows[i].at.step;
      const auto before = i > from ? std::optional(rows[i - 1].at) : position_;
      if (!before || step > before->step) continue;
      SS_RETURN_IF_ERROR(add(rows.subspan(from, i - from)));
      SS_RETURN_IF_ERROR(begin(step));
      from = i;
    }
    return add(rows.subspan(from));
  }

  Status finish(int exit_code) override {
    if (!newest_) return {};
    std::string text;
    append(text, wandb::summary_record(*newest_, info_.start_s, records_ + 1));
    append(text, wandb::exit_record(exit_code, newest_->time_s - info_.start_s, records_ + 2));
    return file_.append(text);
  }

 private:
  void append(std::string& text, const std::string& added) {
    text += wandb::fragments(added, file_.size() + text.size());
  }
  Status add(std::span<const MetricsRow> rows) {
    std::string text;
    for (size_t i = 0; i < rows.size(); ++i)
      append(text, wandb::history_record(rows[i], info_.start_s, records_ + i + 1));
    SS_RETURN_IF_ERROR(file_.append(text));
    if (rows.empty()) return {};
    records_ += rows.size();
    newest_ = rows.back();
    position_ = newest_->at;
    return {};
  }

  const std::string path_;
  wandb::RunInfo info_;
  AppendFile file_;
  uint64_t records_ = 0;
  std::optional<Position> position_;
  std::optional<MetricsRow> newest_;
};

}  // namespace

namespace wandb {

std::string header() {
  return {":W&B\xe1\xbe\0", kHeader};
}

std::string fragments(std::string_view record, uint64_t offset) {
  std::string out;
  bool begins = true;
  do {
    size_t left = kBlock - (offset + out.size()) % kBlock;
    if (left < kHeader) {
      out.append(left, '\0');
      left = kBlock;
    }
    const std::string_view part = record.substr(0, left - kHeader);
    record.remove_prefix(part.size());
    const char type = record.empty() ? (begins ? whole : last) : (begins ? first : middle);
    const uint32_t crc = crc32(part, crc32({&type, 1}));
    const auto size = static_cast<uint16_t>(part.size());
    out.append(reinterpret_cast<const char*>(&crc), sizeof crc);
    out.append(reinterpret_cast<const char*>(&size), sizeof size);
    out += type;
    out += part;
    begins = false;
  } while (!record.empty());
  return out;
}

std::vector<std::string> records(std::string_view file) {
  std::vector<std::string> found;
  if (!file.starts_with(header())) return found;
  std::string record;
  bool open = false;
  for (size_t at = kHeader; at < file.size();) {
    if (const size_t left = kBlock - at % kBlock; left < kHeader) {
      at += left;
      continue;
    }
    if (file.size() - at < kHeader) break;
    uint32_t crc = 0;
    uint16_t size = 0;
    std::memcpy(&crc, file.data() + at, sizeof crc);
    std::memcpy(&size, file.data() + at + 4, sizeof size);
    const char type = file[at + 6];
    const std::string_view data = file.substr(at + kHeader, size);
    if (data.size() < size || crc != crc32(data, crc32({&type, 1}))) break;
    const bool begins = type == whole || type == first;
    if (type < whole || type > last || begins == open) break;
    if (begins) record.clear();
    record += data;
    open = type == first || type == middle;
    if (!open) found.push_back(record);
    at += kHeader + size;
  }
  return found;
}

std::string run_record(const RunInfo& info, uint64_t number) {
  ProtobufWriter config;
  for (const auto& [key, value] : info.config) {
    ProtobufWriter entry;
    for (size_t at = 0; at <= key.size();) {  // W&B shows nested keys as a tree
      const size_t end = std::min(key.find('.', at), key.size());
      entry.bytes(item_nested_key, std::string_view(key).substr(at, end - at));
      at = end + 1;
    }
    config.bytes(1, entry.bytes(item_json, value).text());
  }
  double seconds = 0;
  const double nanos = std::modf(info.start_s, &seconds) * 1e9;
  ProtobufWriter run;
  run.bytes(run_id, info.id);
  if (!info.entity.empty()) run.bytes(run_entity, info.entity);
  run.bytes(run_project, info.project).bytes(run_config, config.text()).bytes(run_name, info.name);
  for (const std::string& tag : info.tags) run.bytes(run_tag, tag);
  run.bytes(run_host, info.host)
      .bytes(run_start, ProtobufWriter()
                            .number(1, static_cast<uint64_t>(seconds))
                            .number(2, static_cast<uint64_t>(nanos))
                            .text());
  return record(record_run, run.text(), number);
}

std::string history_record(const MetricsRow& row, double start_s, uint64_t number) {
  ProtobufWriter message;
  add_items(message, 1, row, start_s);
  message.bytes(2, ProtobufWriter().number(1, row.at.step).text());
  return record(record_history, message.text(), number);
}

std::string summary_record(const MetricsRow& row, double start_s, uint64_t number) {
  ProtobufWriter message;
  add_items(message, 1, row, start_s);
  return record(record_summary, message.text(), number);
}

std::string exit_record(int exit_code, double runtime_s, uint64_t number) {
  return record(record_exit,
                ProtobufWriter()
                    .number(1, static_cast<uint64_t>(static_cast<int64_t>(exit_code)))
                    .number(2, static_cast<uint64_t>(std::max(0.0, runtime_s)))
                    .text(),
                number);
}

}  // namespace wandb

Result<std::unique_ptr<MetricsSink>> open_wandb(const std::string& folder, const Config& config) {
  wandb::RunInfo info;
  info.name = config.run.name;
  char host[256] = "host";
  gethostname(host, sizeof host - 1);
  info.host = host;
  info.project = config.metrics.wandb_project;
  info.entity = config.metrics.wandb_entity;
  info.tags = wandb_tags(config.metrics.wandb_tags);
  for (const schema::Key& key : schema::keys())
    info.config.emplace_back(key.full_name(), json_of_toml(schema::shown(key, config)));

  std::error_code error;
  std::string path;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const size_t dash = name.rfind('-');
    if (!name.starts_with("offline-run-") || dash + 1 >= name.size()) continue;
    info.id = name.substr(dash + 1);
    path = entry.path().string();
  }
  const auto now = std::chrono::system_clock::now();
  info.start_s =
      static_cast<double>(
          std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count()) /
      1e3;
  if (path.empty()) {
    const std::string text = unique_id();
    info.id = hash128(text.data(), text.size()).hex().substr(0, 8);
    const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
    std::tm local{};
    localtime_r(&seconds, &local);
    char time[32];
    std::strftime(time, sizeof time, "%Y%m%d_%H%M%S", &local);
    path = folder + "/offline-run-" + time + "-" + info.id;
  }
  error.clear();
  fs::create_directories(path, error);
  if (error) return Status(Code::io, "cannot create " + path + ": " + error.message());
  auto sink = std::make_unique<Wandb>(path + "/run-" + info.id + ".wandb", info);
  SS_RETURN_IF_ERROR(sink->begin(std::nullopt));
  return std::unique_ptr<MetricsSink>(std::move(sink));
}

}  // namespace simplescale
