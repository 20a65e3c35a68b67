#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/base/files.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/open_output.hpp"
#include "runtime/base/process.hpp"
#include "runtime/config/schema.hpp"
#include "runtime/config/wandb_names.hpp"
#include "tools/exports/protobuf.hpp"
#include "tools/exports/sinks.hpp"

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

struct RunInfo {
  std::string id, name, host, project, entity;  // entity: ""; the user's default
  std::vector<std::string> tags;
  double start_s = 0;
  std::vector<std::pair<std::string, std::string>> config;  // key, value as JSON
};

const std::string kFileHeader(":W&B\xe1\xbe\0", kHeader);

/// The fragments of a record. offset: where they are written in the file.
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
    uLong crc = crc32(0, reinterpret_cast<const Bytef*>(&type), 1);
    crc = crc32(crc, reinterpret_cast<const Bytef*>(part.data()), static_cast<uInt>(part.size()));
    const auto size = static_cast<uint16_t>(part.size());
    out.append(reinterpret_cast<const char*>(&crc), 4);
    out.append(reinterpret_cast<const char*>(&size), 2);
    out += type;
    out += part;
    begins = false;
  } while (!record.empty());
  return out;
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

class Wandb : public MetricsSink {
 public:
  Wandb(std::string path, double start_s)
      : path_(std::move(path)), start_s_(start_s), file_(path_ + ".new", Output::replace) {}
  Status begin(const RunInfo& info) {
    text_ = kFileHeader;
    add(run_record(info, ++records_));
    return flush();
  }
  Status write(std::span<const MetricsRow> rows) override {
    for (const MetricsRow& row : rows) add(history_record(row, start_s_, ++records_));
    if (!rows.empty()) newest_ = rows.back();
    return flush();
  }
  Status replace_older() override { return publish_file(path_ + ".new", path_); }
  Status finish(int exit_code) override {
    if (!newest_) return {};
    add(summary_record(*newest_, start_s_, ++records_));
    add(exit_record(exit_code, newest_->time_s - start_s_, ++records_));
    return flush();
  }

 private:
  void add(const std::string& record) { text_ += fragments(record, size_ + text_.size()); }
  Status flush() {
    file_ << text_ << std::flush;
    size_ += text_.size();
    text_.clear();
    return file_.status();
  }

  const std::string path_;
  const double start_s_;
  OutputStream file_;
  std::string text_;
  uint64_t size_ = 0, records_ = 0;
  std::optional<MetricsRow> newest_;
};

}  // namespace

Result<std::unique_ptr<MetricsSink>> open_wandb(const std::string& folder, const Config& config,
                                                double start_s) {
  RunInfo info;
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
  info.start_s = start_s;
  if (path.empty()) {
    const std::string text = unique_id();
    info.id = hash128(text.data(), text.size()).hex().substr(0, 8);
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    char time[32];
    std::strftime(time, sizeof time, "%Y%m%d_%H%M%S", &local);
    path = folder + "/offline-run-" + time + "-" + info.id;
  }
  error.clear();
  fs::create_directories(path, error);
  if (error) return Status(Code::io, "cannot create " + path + ": " + error.message());
  auto sink = std::make_unique<Wandb>(path + "/run-" + info.id + ".wandb", start_s);
  SS_RETURN_IF_ERROR(sink->begin(info));
  return std::unique_ptr<MetricsSink>(std::move(sink));
}

}  // namespace simplescale
