// Token files without a header of tokens: bare ids, which nanoGPT writes, and NumPy's .npy. Nothing
// but the user says how wide bare ids are, so that everything that contradicts is looked at. Any
// thread; blocks on the disk.
#pragma once

#include "runtime/base/status.hpp"
#include "runtime/data/data_files.hpp"
#include "runtime/data/token_format.hpp"

namespace simplescale {

/// All bytes from `offset` are tokens. bad_data: their length is no multiple of token_bytes, or 0.
Result<TokenLayout> rest_of(const DataFile& file, uint64_t offset, int token_bytes);

/// Of bare ids. They have kind.token_bytes or, if that is 0, two bytes. bad_data, which says what to
/// set: the file is of another kind by its first bytes; two bytes were not said in token_bytes and
/// the vocabulary needs more, or the file begins like a damaged header of llm.c; or blocks all over
/// the file (of an object, at its beginning) show wider ids.
Result<TokenLayout> raw_layout(const DataFile& file, const TokenKind& kind, int64_t vocab);

/// Of a .npy file: u16, u32, i32, i64 or u64 ids in one dimension. bad_data: it holds something else,
/// or is cut off.
Result<TokenLayout> npy_layout(const DataFile& file);

}  // namespace simplescale
