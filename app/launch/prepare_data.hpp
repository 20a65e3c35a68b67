// Converts the text of a configuration to tokens, with progress on the terminal.
#pragma once

#include <string>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"
#include "runtime/data/data_location.hpp"

namespace simplescale {

/// Errors in the texts, tokens and tokenizer of a configuration that can be found before texts are
/// prepared in its folders (set_token_folders()). Writes nothing. Returns the sources that need no
/// preparation.
Result<RunData> check_data(const Config& config);
/// Tells which files of the opened sources of tokens are left out, and which are taken for u16
/// tokens. Errors of token_notes().
Status check_token_files(const Config& config, const RunData& data);
/// Creates the files that are missing in the prepared folders. Does nothing for sources that hold
/// tokens already. jobs, of_run: as in PrepareOptions. Errors of check_data(), if there is something
/// to prepare, and of prepare().
Status prepare_data(const Config& config, int jobs = 0, bool of_run = false);
/// Encodes files of its texts while another process runs prepare_data() in the same folders, as far
/// as no process is encoding them. Returns at once if no process does.
void help_prepare_data(const Config& config);
/// Sets data.folder, or the folders of those sources of data.blend that are text, to where
/// prepare() puts their tokens: where they are set; else data/<run.name>, or a folder beside it if
/// that one holds the tokens of another text or tokenizer, which another run may be using. They are
/// the same before and after a tokenizer is trained. Before, sets tokenizer.kind = "auto" to that of
/// the run (bpe, if its config.toml does not name it), or else of the folder that holds the text's
/// tokens, or else to byte_bpe; with tokenizer.path it is "auto". Returns what users should know of
/// that; or "". Reads the disk.
std::string set_token_folders(Config& config);

}  // namespace simplescale
