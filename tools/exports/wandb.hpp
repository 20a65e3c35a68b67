// A Weights & Biases offline run: FOLDER/offline-run-<time>-<id>/run-<id>.wandb, which `wandb sync`
// uploads. There is one file for the whole run. A new supervisor copies the valid records to a new
// file of the same name and continues there, with the configuration of its start; a deposed
// supervisor that still writes has only the old, unlinked file. A repeated step replaces the records
// from that step on.
//
//   file      ":W&B", u16 0xbee1, u8 0, then records cut into fragments that do not cross blocks of
//             32,768 bytes
//   fragment  u32 crc32 of type and data, u16 length, u8 type (1 whole, 2 first, 3 middle, 4 last),
//             data; the last bytes of a block are 0 if fewer than 7 are left
//   record    a Record message of wandb_internal.proto
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/config.hpp"
#include "tools/exports/sink.hpp"

namespace simplescale {

namespace wandb {

/// The first bytes of a file.
std::string header();
/// The fragments of a record. offset: where they are written in the file.
std::string fragments(std::string_view record, uint64_t offset);
/// The complete records in the contents of a file, in order, up to the first damaged one.
std::vector<std::string> records(std::string_view file);

struct RunInfo {
  std::string id, name, host, project, entity;  // entity: ""; the user's default
  std::vector<std::string> tags;
  double start_s = 0;
  std::vector<std::pair<std::string, std::string>> config;  // key, value as JSON
};
/// Records for the file. number: of the record, from 1. start_s: when the run began, since 1970.
std::string run_record(const RunInfo& info, uint64_t number);
std::string history_record(const MetricsRow& row, double start_s, uint64_t number);
std::string summary_record(const MetricsRow& row, double start_s, uint64_t number);
std::string exit_record(int exit_code, double runtime_s, uint64_t number);

}  // namespace wandb

/// Continues the run in the folder, or creates one.
Result<std::unique_ptr<MetricsSink>> open_wandb(const std::string& folder, const Config& config);

}  // namespace simplescale
