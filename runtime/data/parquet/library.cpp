#include "runtime/data/parquet/library.hpp"

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>

#include <exception>
#include <utility>

namespace simplescale {

namespace {

constexpr int64_t kBatchRows = 1024;

Status bad(const std::string& path, const std::string& what) {
  return Status(Code::bad_data, path + ": " + what);
}

/// Names of the columns of texts, for messages.
std::string text_columns(const parquet::SchemaDescriptor& schema) {
  std::string names;
  for (int i = 0; i < schema.num_columns(); ++i)
    if (schema.Column(i)->physical_type() == parquet::Type::BYTE_ARRAY &&
        schema.Column(i)->path()->ToDotVector().size() == 1)
      names += (names.empty() ? "" : ", ") + schema.Column(i)->name();
  return names.empty() ? "none" : names;
}

class ArrowTexts : public ParquetTexts {
 public:
  static Result<std::unique_ptr<ParquetTexts>> open(const std::string& path,
                                                    const std::string& column) {
    auto made = std::make_unique<ArrowTexts>();
    made->path_ = path;
    auto file = arrow::io::ReadableFile::Open(path);
    if (!file.ok()) return bad(path, "cannot read it: " + file.status().message());
    parquet::ReaderProperties properties;
    properties.enable_buffered_stream();  // a page at a time, not a whole column of a row group
    parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
    arrow_properties.set_batch_size(kBatchRows);
    arrow_properties.set_pre_buffer(false);
    parquet::arrow::FileReaderBuilder builder;
    if (const auto opened = builder.Open(*file, properties); !opened.ok())
      return bad(path, "cannot read it as parquet: " + opened.message());
    builder.properties(arrow_properties);
    if (const auto built = builder.Build(&made->file_); !built.ok())
      return bad(path, "cannot read it as parquet: " + built.message());
    const auto metadata = made->file_->parquet_reader()->metadata();
    made->rows_ = static_cast<uint64_t>(metadata->num_rows());
    const int index = metadata->schema()->ColumnIndex(column);
    if (index < 0 ||
        metadata->schema()->Column(index)->physical_type() != parquet::Type::BYTE_ARRAY)
      return bad(path, "it has no column of texts \"" + column +
                           "\" (data.text_key); it has: " + text_columns(*metadata->schema()));
    std::vector<int> groups;
    for (int group = 0; group < metadata->num_row_groups(); ++group) groups.push_back(group);
    auto batches = made->file_->GetRecordBatchReader(groups, {index});
    if (!batches.ok()) return bad(path, "cannot read it: " + batches.status().message());
    made->batches_ = std::move(*batches);
    return std::unique_ptr<ParquetTexts>(std::move(made));
  }

  Result<bool> next(std::optional<std::string_view>& text) override try {
    while (!column_ || at_ == column_->length()) {
      std::shared_ptr<arrow::RecordBatch> batch;
      if (const auto read = batches_->ReadNext(&batch); !read.ok()) return failed(read.message());
      if (!batch) return false;
      column_ = batch->column(0);
      at_ = 0;
    }
    text.reset();
    if (!column_->IsNull(at_)) {
      if (const auto* texts = dynamic_cast<const arrow::BinaryArray*>(column_.get()))
        text = texts->GetView(at_);
      else if (const auto* large = dynamic_cast<const arrow::LargeBinaryArray*>(column_.get()))
        text = large->GetView(at_);
      else
        return failed("the column has the type " + column_->type()->ToString());
    }
    ++at_, ++row_;
    return true;
  } catch (const std::exception& error) {
    return failed(error.what());
  }

  uint64_t row() const override { return row_; }
  uint64_t rows() const override { return rows_; }

 private:
  Status failed(const std::string& what) const {
    return bad(path_, "behind row " + std::to_string(row_) + ": cannot read on: " + what);
  }

  std::string path_;
  std::unique_ptr<parquet::arrow::FileReader> file_;
  std::shared_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::Array> column_;  // of the batch
  int64_t at_ = 0;                        // of the next row in it
  uint64_t row_ = 0, rows_ = 0;
};

}  // namespace

}  // namespace simplescale

/// OpenParquet.
extern "C" simplescale::Result<std::unique_ptr<simplescale::ParquetTexts>> simplescale_open_parquet(
    const std::string& path, const std::string& column) try {
  return simplescale::ArrowTexts::open(path, column);
} catch (const std::exception& error) {
  return simplescale::Status(simplescale::Code::bad_data,
                             path + ": cannot read it as parquet: " + error.what());
}
