#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <vector>

#include "runtime/base/open_output.hpp"
#include "tools/exports/protobuf.hpp"
#include "tools/exports/sinks.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;
constexpr const char* kPrefix = "events.out.tfevents.";

// Field numbers of Event, Summary, Summary.Value and SessionLog.
constexpr int event_wall_time = 1, event_step = 2, event_file_version = 3, event_summary = 5,
              event_session_log = 7, summary_value = 1, value_tag = 1, value_simple = 2,
              session_status = 1, session_start = 1;

/// CRC-32C (Castagnoli), as in iSCSI, masked as TFRecords have it.
uint32_t masked_crc32c(std::string_view data) {
  static constexpr auto table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t i = 0; i < 256; ++i) {
      made[i] = i;
      for (int bit = 0; bit < 8; ++bit) made[i] = made[i] >> 1 ^ (made[i] & 1 ? 0x82F63B78 : 0);
    }
    return made;
  }();
  uint32_t crc = UINT32_MAX;
  for (const char c : data) crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return (~crc >> 15 | ~crc << 17) + 0xa282ead8;
}

template <class T>
std::string little_endian(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string record(const ProtobufWriter& event) {
  const std::string length = little_endian<uint64_t>(event.text().size());
  return length + little_endian(masked_crc32c(length)) + event.text() +
         little_endian(masked_crc32c(event.text()));
}

std::string start_event(double time_s, uint64_t step) {
  return record(
      ProtobufWriter()
          .real64(event_wall_time, time_s)
          .number(event_step, step)
          .bytes(event_session_log, ProtobufWriter().number(session_status, session_start).text()));
}

std::string scalars_event(const MetricsRow& row, uint64_t step) {
  ProtobufWriter summary;
  for (const auto& [name, value] : row.scalars)
    summary.bytes(summary_value, ProtobufWriter()
                                     .bytes(value_tag, name)
                                     .real32(value_simple, static_cast<float>(value))
                                     .text());
  return record(ProtobufWriter()
                    .real64(event_wall_time, row.time_s)
                    .number(event_step, step)
                    .bytes(event_summary, summary.text()));
}

/// A new event file in a folder, behind the others: readers read the files in the order of their
/// names and never return to an earlier one.
class EventFile {
 public:
  Status open(const std::string& folder) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) return Status(Code::io, "cannot create " + folder + ": " + error.message());
    auto number = static_cast<int64_t>(std::time(nullptr));
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with(kPrefix)) continue;
      older_.push_back(entry.path());
      number = std::max<int64_t>(number, std::atoll(name.c_str() + std::strlen(kPrefix)) + 1);
    }
    char host[256] = "host";
    gethostname(host, sizeof host - 1);
    file_.open(folder + "/" + kPrefix + fmt::format("{:010}.{}.{}.0", number, host, getpid()),
               Output::replace);
    text_ = record(ProtobufWriter()
                       .real64(event_wall_time, static_cast<double>(number))
                       .bytes(event_file_version, "brain.Event:2"));
    return flush();
  }
  void add(const MetricsRow& row, uint64_t step) {
    if (!started_) text_ += start_event(row.time_s, step);
    started_ = true;
    text_ += scalars_event(row, step);
  }
  Status flush() {
    file_ << text_ << std::flush;
    text_.clear();
    return file_.status();
  }
  void remove_older() {
    std::error_code gone;
    for (const fs::path& path : older_) fs::remove(path, gone);
    older_.clear();
  }

 private:
  OutputStream file_;
  std::string text_;
  bool started_ = false;
  std::vector<fs::path> older_;
};

class TensorBoard : public MetricsSink {
 public:
  Status open(const std::string& folder) {
    SS_RETURN_IF_ERROR(over_steps_.open(folder));
    return over_tokens_.open(folder + "/by_tokens");
  }
  Status write(std::span<const MetricsRow> rows) override {
    for (const MetricsRow& row : rows) {
      over_steps_.add(row, row.at.step);
      if (const double tokens = row.find("tokens").value_or(0); tokens > 0)
        over_tokens_.add(row, static_cast<uint64_t>(tokens));
    }
    SS_RETURN_IF_ERROR(over_tokens_.flush());
    return over_steps_.flush();
  }
  Status replace_older() override {
    over_steps_.remove_older();
    over_tokens_.remove_older();
    return {};
  }
  Status finish(int) override { return {}; }

 private:
  EventFile over_steps_, over_tokens_;
};

}  // namespace

Result<std::unique_ptr<MetricsSink>> open_tensorboard(const std::string& folder) {
  auto sink = std::make_unique<TensorBoard>();
  SS_RETURN_IF_ERROR(sink->open(folder));
  return std::unique_ptr<MetricsSink>(std::move(sink));
}

}  // namespace simplescale
