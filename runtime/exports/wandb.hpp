// A Weights & Biases offline run: FOLDER/offline-run-<time>-<id>/run-<id>.wandb, which `wandb sync`
// uploads. One file for the whole run: whoever becomes supervisor copies what is whole in it to a
// new file of the same name and goes on there, so that a deposed one, should it still write, has a
// file that nobody sees. A step that is made again replaces what came from it on.
//
//   file: ":W&B", u16 0xbee1, u8 0, then records cut into fragments that do not cross blocks of
//   32,768 bytes. fragment: u32 crc32 of type and data, u16 length, u8 type (1 whole, 2 first, 3
//   middle, 4 last), data; a block's last bytes, if fewer than 7, are 0. A record is a Record
//   message of wandb_internal.proto.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/config.hpp"
#include "runtime/exports/sink.hpp"

namespace simplescale {

namespace wandb {

/// What a file begins with.
std::string header();
/// A record's fragments at `offset` of the file.
std::string fragments(std::string_view record, uint64_t offset);
/// The whole records of a file's contents, in order; what is damaged ends them.
std::vector<std::string> records(std::string_view file);

struct RunInfo {
  std::string id, name, host;
  double start_s = 0;
  std::vector<std::pair<std::string, std::string>> config;  // key, value as JSON
};
/// number: of the record in the file, from 1.
std::string run_record(const RunInfo& info, uint64_t number);
std::string history_record(const MetricsRow& row, double start_s, uint64_t number);
std::string summary_record(const MetricsRow& row, double start_s, uint64_t number);
std::string exit_record(int exit_code, double runtime_s, uint64_t number);

}  // namespace wandb

/// Goes on with the run in the folder, or begins one.
Result<std::unique_ptr<MetricsSink>> open_wandb(const std::string& folder, const Config& config);

}  // namespace simplescale
