// What the sources of a configuration are, and where their tokens lie. Blocks on the disk; any thread.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"

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

}  // namespace simplescale
