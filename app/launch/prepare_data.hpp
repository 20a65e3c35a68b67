// Converts the text of a configuration to tokens, with progress on the terminal.
#pragma once

#include <string>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"
#include "runtime/feed/run_data.hpp"

namespace simplescale {

/// Finds errors in the texts, tokens and tokenizer of a configuration before texts are prepared in
/// its folders (set_token_folders()). Writes nothing. Returns the sources that need no preparation.
Result<RunData> check_data(const Config& config);
/// Prints which files of the opened token sources are left out, and which are taken for u16 tokens.
/// Errors of token_notes().
Status check_token_files(const Config& config, const RunData& data);
/// Creates the missing files in the folders of prepared tokens. Does nothing for sources that are
/// tokens already. jobs, of_run: as in PrepareOptions. Errors of prepare(), and of check_data() if
/// there is something to prepare.
Status prepare_data(const Config& config, int jobs = 0, bool of_run = false);
/// Helps another process that runs prepare_data() in the same folders: encodes files of its texts
/// that no process is encoding. Returns at once if no process runs it.
void help_prepare_data(const Config& config);
/// Sets data.folder, or the folders of those sources of data.blend that are text, to the place
/// where prepare() puts their tokens. That is the folder that is set; else data/<run.name>, or a
/// folder beside it if that one has the tokens of another text or tokenizer, which another run may
/// be using. The folders do not depend on whether a tokenizer is already trained.
/// First it chooses the kind that tokenizer.kind = "auto" stands for: that of the run (bpe, if its
/// config.toml does not name it), else that of the folder with the text's tokens, else byte_bpe. With
/// tokenizer.path the kind becomes "auto". Returns a sentence for the user, or "". Reads the disk.
std::string set_token_folders(Config& config);

}  // namespace simplescale
