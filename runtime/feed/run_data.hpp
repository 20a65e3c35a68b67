// The open tokens of a configuration, and which samples a trainer reads of them. Blocks on the disk;
// any thread.
#pragma once

#include <span>
#include <string>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/data/data_sources.hpp"
#include "runtime/data/token_file.hpp"
#include "runtime/feed/sample_order.hpp"
#include "runtime/feed/token_sources.hpp"

namespace simplescale {

/// tokenizer.path is the tokenizer of all sources that hold tokens. bad_config: a folder was
/// prepared with another one; bad_data: it has more tokens than the model, or it cannot be read.
/// Lists the sources in buckets.
Status check_tokenizer(const Config& config, const ModelShape& shape);

/// Each step's batch over `groups` groups of `shards` trainers: those of a generation, which may
/// differ from plan.topology. weights: of the generation, as of Shares::by_weight().
BatchLayout batch_layout(const Plan& plan, uint64_t groups, uint64_t shards,
                         std::span<const uint32_t> weights = {});
/// The samples that the trainer of `shard` in group `group` of the layout trains in `step` (from
/// 1), as runs of global sample indices: first, count, first, count, ...
std::vector<uint64_t> samples_of(const Plan& plan, const BatchLayout& layout, uint64_t group,
                                 uint64_t shard, uint64_t step);

/// The open tokens of a configuration.
struct RunData {
  struct Source {
    std::string name;  // "": data.source
    Dataset data;
  };
  std::vector<Source> sources;
  /// Path of the sources' tokenizer: that of prepared folders, or tokenizer.path. "": none.
  std::string tokenizer;
  DataFiles files;  // from which the sources are read
  TokenSources train() const;
};

/// Makes the tokens of data.source mark documents as the configuration wants it. bad_config: it does
/// not say, nor does the data, how documents are found.
Status use_documents(const Config& config, Dataset& data);

/// Opens the training and validation tokens of a configuration whose data is prepared. Errors as
/// open_dataset(), use_documents() and DataFiles::of(); bad_data: a source is shorter than a block,
/// or two sources were made with different tokenizers.
Result<RunData> open_tokens(const Config& config, const ModelShape& shape,
                            DataFiles::Listing listing = DataFiles::Listing::of_run);

/// Errors of open_tokens() and check_tokens() that can be found before texts are prepared, without
/// reading much: of more than 64 Mi tokens only their tables. prepared_texts: texts that need no
/// preparation are opened, too; else a damaged one is no error, since prepare() may make it again.
/// Returns the sources that were opened.
Result<RunData> check_token_sources(const Config& config, const ModelShape& shape,
                                    bool prepared_texts = true);

/// The order in which the training samples are trained. The seed of a source of data.blend depends
/// on data.seed and its name only.
MixedOrder sample_order(const Config& config, const Plan& plan, const RunData& data);

/// Where samples lie in the token files: "sample 80: FILE, byte 10240; sample 81: ...". runs: as of
/// samples_of(). Names `most` samples, and says how many more there are. "" without samples. Reads
/// nothing.
std::string places_text(const TokenSources& tokens, const MixedOrder& order, int64_t block_size,
                        const std::vector<uint64_t>& runs, uint64_t most = 4);

/// Reads what TokenSource::validate() reads. bad_data: its errors, or a file of a prepared folder
/// is not the one that its manifest.json records; in a bucket, files of up to 256 MiB are compared.
Status check_tokens(const Config& config, const RunData& data);

}  // namespace simplescale
