// Loads libsimplescale_parquet.so on first use. The program itself does not link Arrow.
#include <utility>

#include "runtime/base/library.hpp"
#include "tools/prepare/memory_permit.hpp"
#include "tools/prepare/parquet/library.hpp"

namespace simplescale {

Result<std::unique_ptr<ParquetRows>> open_parquet(std::shared_ptr<const DataFile> file,
                                                  const std::string& text_key,
                                                  const std::string& mask_key) {
  const auto symbol = load_symbol(kParquetLibrary, kParquetLibrarySymbol,
                                  "./simplescale build makes it once pip can install pyarrow");
  if (!symbol.ok()) return Status(symbol.status()).in(file->path());
  return reinterpret_cast<OpenParquet>(*symbol)(
      std::move(file), text_key, mask_key,
      []() -> std::shared_ptr<void> { return std::make_shared<MemoryPermit>(); });
}

}  // namespace simplescale
