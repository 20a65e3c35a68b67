// Which tokens begin and end documents, as a tokenizer.json and the files beside it say.
#pragma once

#include "runtime/base/status.hpp"
#include "tools/prepare/prepare.hpp"

namespace simplescale {

/// Warns if nothing will be between documents, or another token than users may expect: the files of
/// the folder name another one, or several could be meant. Of a tokenizer that is there; a trained one
/// has BOS. bad_config: tokenizer.append_eos = true, and a byte_bpe is trained, whose EOS is its BOS;
/// otherwise errors of Tokenizer::load() and eos_of(). Blocks on the disk.
Status check_ends(const PrepareOptions& options);

}  // namespace simplescale
