#include "tools/exports/tensorboard.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <vector>

#include "runtime/base/bounded_read.hpp"
#include "runtime/base/files.hpp"
#include "tools/exports/append_file.hpp"
#include "tools/exports/checksum.hpp"
#include "tools/exports/protobuf.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;
constexpr const char* kPrefix = "events.out.tfevents.";

// Field numbers of Event, Summary, Summary.Value and SessionLog.
constexpr int event_wall_time = 1, event_step = 2, event_file_version = 3, event_summary = 5,
              event_session_log = 7, summary_value = 1, value_tag = 1, value_simple = 2,
              session_status = 1, session_start = 1;

template <class T>
std::string little_endian(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

uint32_t masked(uint32_t crc) {
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

template <class T>
T read_at(std::string_view text, size_t at) {
  T value;
  std::memcpy(&value, text.data() + at, sizeof value);
  return value;
}

/// Position of the row in an event; nothing if the event has no row.
std::optional<Position> position_of(std::string_view event) {
  Position at;
  bool found = false;
  ProtobufField field, value;
  for (ProtobufReader fields(event); fields.next(field);) {
    if (field.number == event_step) at.step = field.value;
    if (field.number != event_summary) continue;
    for (ProtobufReader values(field.bytes); values.next(value);) {
      ProtobufField part;
      std::string_view tag;
      float number = 0;
      for (ProtobufReader parts(value.bytes); parts.next(part);) {
        if (part.number == value_tag) tag = part.bytes;
        if (part.number == value_simple) number = part.real32();
      }
      if (tag != "generation") continue;
      at.generation = static_cast<uint64_t>(std::max(0.0F, number));
      found = true;
    }
  }
  return found ? std::optional(at) : std::nullopt;
}

class TensorBoard : public MetricsSink {
 public:
  TensorBoard(AppendFile file, AppendFile by_tokens, std::optional<Position> position)
      : file_(std::move(file)), by_tokens_(std::move(by_tokens)), position_(position) {}
  std::optional<Position> position() const override { return position_; }
  Status write(std::span<const MetricsRow> rows) override {
    std::string text, over_tokens;
    std::optional<Position> last = position_;
    bool begins = first_;
    for (const MetricsRow& row : rows) {
      const bool starts = begins || (last && row.at.step <= last->step);
      text += events_of(row, starts);
      MetricsRow moved = row;
      moved.at.step = static_cast<uint64_t>(row.find("tokens").value_or(0));
      if (moved.at.step > 0) over_tokens += events_of(moved, starts);
      begins = false;
      last = row.at;
    }
    // First what position() does not follow: a row that both files lack is written again, and a
    // START removes the first copy.
    SS_RETURN_IF_ERROR(by_tokens_.append(over_tokens));
    SS_RETURN_IF_ERROR(file_.append(text));
    position_ = last;
    first_ = begins;
    return {};
  }
  Status finish(int) override { return {}; }

 private:
  static std::string events_of(const MetricsRow& row, bool starts) {
    std::string text;
    if (starts) text = tensorboard::record(tensorboard::start_event(row.time_s, row.at.step));
    return text + tensorboard::record(tensorboard::scalars_event(row));
  }

  AppendFile file_, by_tokens_;
  std::optional<Position> position_;
  bool first_ = true;
};

/// In the order of their numbers.
std::vector<std::string> event_files(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (const std::string name = entry.path().filename().string(); name.starts_with(kPrefix))
      names.push_back(name);
  std::ranges::sort(names);
  return names;
}

/// A file behind the others: readers read the files in the order of their names and never return to
/// an earlier one.
Result<AppendFile> new_file(const std::string& folder, const std::vector<std::string>& names) {
  const double now_s = static_cast<double>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                               std::chrono::system_clock::now().time_since_epoch())
                                               .count()) /
                       1e3;
  auto number = static_cast<int64_t>(now_s);
  if (!names.empty())
    number = std::max<int64_t>(number, std::atoll(names.back().c_str() + std::strlen(kPrefix)) + 1);
  char host[256] = "host";
  gethostname(host, sizeof host - 1);
  const std::string path =
      folder + "/" + kPrefix + fmt::format("{:010}.{}.{}.0", number, host, getpid());
  SS_ASSIGN(AppendFile file, AppendFile::create(path));
  SS_RETURN_IF_ERROR(file.append(tensorboard::record(tensorboard::version_event(now_s))));
  return file;
}

}  // namespace

namespace tensorboard {

std::string record(std::string_view data) {
  const std::string length = little_endian<uint64_t>(data.size());
  return length + little_endian(masked(crc32c(length))) + std::string(data) +
         little_endian(masked(crc32c(data)));
}

std::string version_event(double time_s) {
  return ProtobufWriter()
      .real64(event_wall_time, time_s)
      .bytes(event_file_version, "brain.Event:2")
      .text();
}

std::string start_event(double time_s, uint64_t step) {
  const std::string log = ProtobufWriter().number(session_status, session_start).text();
  return ProtobufWriter()
      .real64(event_wall_time, time_s)
      .number(event_step, step)
      .bytes(event_session_log, log)
      .text();
}

std::string scalars_event(const MetricsRow& row) {
  ProtobufWriter summary;
  for (const auto& [name, value] : row.scalars)
    summary.bytes(summary_value, ProtobufWriter()
                                     .bytes(value_tag, name)
                                     .real32(value_simple, static_cast<float>(value))
                                     .text());
  return ProtobufWriter()
      .real64(event_wall_time, row.time_s)
      .number(event_step, row.at.step)
      .bytes(event_summary, summary.text())
      .text();
}

std::optional<Position> last_position(std::string_view file) {
  constexpr size_t kFrame = 16;
  std::optional<Position> last;
  while (file.size() >= kFrame) {
    const auto length = read_at<uint64_t>(file, 0);
    if (read_at<uint32_t>(file, 8) != masked(crc32c(file.substr(0, 8))) ||
        length > file.size() - kFrame)
      break;
    const std::string_view data = file.substr(12, length);
    if (read_at<uint32_t>(file, 12 + length) != masked(crc32c(data))) break;
    if (const auto position = position_of(data)) last = position;
    file.remove_prefix(kFrame + length);
  }
  return last;
}

}  // namespace tensorboard

Result<std::unique_ptr<MetricsSink>> open_tensorboard(const std::string& folder) {
  const std::string by_tokens = folder + "/by_tokens";
  std::error_code error;
  fs::create_directories(by_tokens, error);
  if (error) return Status(Code::io, "cannot create " + by_tokens + ": " + error.message());
  const std::vector<std::string> names = event_files(folder);
  std::optional<Position> position;
  for (auto name = names.rbegin(); name != names.rend() && !position; ++name) {
    SS_ASSIGN(const std::string text, read_text(folder + "/" + *name, SIZE_MAX));
    position = tensorboard::last_position(text);
  }
  SS_ASSIGN(AppendFile file, new_file(folder, names));
  SS_ASSIGN(AppendFile over_tokens, new_file(by_tokens, event_files(by_tokens)));
  return std::unique_ptr<MetricsSink>(
      std::make_unique<TensorBoard>(std::move(file), std::move(over_tokens), position));
}

}  // namespace simplescale
