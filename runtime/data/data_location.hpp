// Where a configuration's tokens lie, how to open them, and which samples a trainer reads. Blocks
// on the disk; any thread.
#pragma once

#include <string>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/data/sample_order.hpp"
#include "runtime/data/token_file.hpp"
#include "runtime/data/token_sources.hpp"

namespace simplescale {

/// A source of a configuration. config: the configuration as if data.source were this source.
struct ConfiguredSource {
  std::string name;  // "": data.source
  Config config;
};
/// The sources of data.blend, in its order, or data.source. Texts of a blend share one tokenizer:
/// tokenizer.path, or else that of the first source that prepare() wrote, or else the one that the
/// first text's folder gets. Sources in a bucket are not asked.
std::vector<ConfiguredSource> sources_of(const Config& config);

/// The file that tokenizer.path names: itself, or the tokenizer in that folder. "" without the key.
std::string tokenizer_file(const Config& config);
/// tokenizer.path is the tokenizer of all sources that hold tokens. bad_config: a folder was
/// prepared with another one; bad_data: it has more tokens than the model, or it cannot be read.
/// Lists the sources in buckets.
Status check_tokenizer(const Config& config, const ModelShape& shape);

// The next ones are about data.source: with data.blend, call them for each of sources_of().

/// True if data.source holds tokens (a .bin file, a folder of them, or the index or prefix of
/// Megatron tokens); false if it is text to prepare. README.txt, LICENSE.txt and the like are no
/// text to train on if token files lie beside them. Asks no server: a source in a bucket is text if
/// data.format or its name says so.
bool source_is_tokens(const Config& config);
/// bad_data: data.source is a folder of token files and of texts, and data.format does not say
/// which of them are meant; or it is of tokens, and missing.
Status check_source(const Config& config);

/// data.source if it holds tokens, else the prepared folder (data_folder()).
std::string token_path(const Config& config);

/// True if one of the sources is text whose prepared folder does not hold all its files yet, or any
/// more; prepare() makes them.
bool needs_preparation(const Config& config);

/// A step's batch over `groups` groups: those of a generation, which may be fewer than
/// plan.topology.groups.
BatchLayout batch_layout(const Plan& plan, uint64_t groups);
/// The samples that the trainer of `shard` in group `group` of `groups` trains in `step` (from 1),
/// as runs of global sample indices: first, count, first, count, ...
std::vector<uint64_t> samples_of(const Plan& plan, uint64_t groups, uint64_t group, uint64_t shard,
                                 uint64_t step);

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
