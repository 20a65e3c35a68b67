// Loads libsimplescale_parquet.so on first use. The program itself does not link Arrow.
#include "runtime/base/library.hpp"
#include "runtime/data/parquet/library.hpp"

namespace simplescale {

Result<std::unique_ptr<ParquetTexts>> open_parquet(const std::string& path,
                                                   const std::string& column) {
  const auto symbol = load_symbol(kParquetLibrary, kParquetLibrarySymbol,
                                  "./simplescale build makes it once pip can install pyarrow");
  if (!symbol.ok()) return Status(symbol.status()).in(path);
  return reinterpret_cast<OpenParquet>(*symbol)(path, column);
}

}  // namespace simplescale
