// Parquet files of other users, as `prepare` reads them, with and without masks. Apache Arrow, which
// is not instrumented, decodes them.
#include <arrow/api.h>
#include <arrow/io/memory.h>
#include <parquet/arrow/writer.h>

#include "tests/fuzz/driver.hpp"
#include "tests/temp_folder.hpp"
#include "tools/prepare/corpus.hpp"

using namespace simplescale;

namespace {

template <typename T>
T must(arrow::Result<T> result) {
  return result.ok() ? result.MoveValueUnsafe() : (abort(), T());
}

void must(const arrow::Status& status) {
  if (!status.ok()) abort();
}

/// Texts of which some are equal, and the ranges of each.
std::shared_ptr<arrow::Table> rows() {
  arrow::StringBuilder texts;
  const auto starts = std::make_shared<arrow::Int64Builder>();
  const auto range = std::make_shared<arrow::ListBuilder>(arrow::default_memory_pool(), starts);
  arrow::ListBuilder masks(arrow::default_memory_pool(), range);
  for (int64_t i = 0; i < 100; ++i) {
    must(texts.Append("a text of row " + std::to_string(i % 7)));
    must(masks.Append());
    must(range->Append());
    for (const int64_t at : {int64_t{0}, i % 9}) must(starts->Append(at));
  }
  const auto text = must(texts.Finish()), mask = must(masks.Finish());
  return arrow::Table::Make(
      arrow::schema({arrow::field("text", text->type()), arrow::field("mask", mask->type())}),
      {text, mask});
}

std::string file_of(const std::shared_ptr<parquet::WriterProperties>& properties) {
  const auto out = must(arrow::io::BufferOutputStream::Create());
  must(parquet::arrow::WriteTable(*rows(), arrow::default_memory_pool(), out, 60, properties));
  return must(out->Finish())->ToString();
}

}  // namespace

static void run(const uint8_t* data, size_t bytes) {
  static const test::TempFolder scratch("/dev/shm");
  const std::string path =
      scratch.write("rows.parquet", {reinterpret_cast<const char*>(data), bytes});
  for (const char* mask_key : {"", "mask"})
    if (const auto corpus = Corpus::open(path, {.mask_key = mask_key, .skip_bad = 3}); corpus.ok())
      if (corpus->read([](TextChunk, double) { return Status(); }).status().code() ==
          Code::unavailable)
        abort();  // the library is missing
}

static std::vector<std::string> seeds() {
  using Properties = parquet::WriterProperties;
  return {
      file_of(Properties::Builder().build()),
      file_of(Properties::Builder().disable_dictionary()->build()),
      file_of(Properties::Builder().compression(arrow::Compression::SNAPPY)->build()),
      file_of(Properties::Builder().compression(arrow::Compression::ZSTD)->build()),
      file_of(Properties::Builder()
                  .disable_dictionary()
                  ->encoding("text", parquet::Encoding::DELTA_BYTE_ARRAY)
                  ->data_page_version(parquet::ParquetDataPageVersion::V2)
                  ->build()),
  };
}

static const FuzzTarget target("parquet", run, seeds);
