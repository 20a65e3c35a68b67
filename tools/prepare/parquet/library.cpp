#include "tools/prepare/parquet/library.hpp"

#include <arrow/api.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/metadata.h>
#include <parquet/statistics.h>

#include <exception>
#include <utility>

#include "tools/prepare/parquet/arrow_file.hpp"

namespace simplescale {

namespace {

constexpr int64_t kBatchRows = 64;  // few: rows may be long
constexpr int64_t kReadBytes = 256 << 10;
// Of one file. A few KB can hold 64 rows that share a text of 1 GB.
constexpr int64_t kMemory = int64_t{2} << 30;
constexpr int64_t kUsual = int64_t{64} << 20;  // more needs a permit
using Permit = std::shared_ptr<void> (*)();

const std::string kTooLong = "the texts of " + std::to_string(kBatchRows) +
                             " rows, or a page, need more than 2 GiB of memory: cut them up";

Status bad(const std::string& path, const std::string& what) {
  return Status(Code::bad_data, path + ": " + what);
}

bool is_text(const parquet::ColumnDescriptor& column) {
  return column.physical_type() == parquet::Type::BYTE_ARRAY &&
         column.path()->ToDotVector().size() == 1;
}

/// A column of one value a row, none of which is there. Its type does not matter: where it writes no
/// text at all, a tool does not know that it would be one.
bool is_all_null(const parquet::FileMetaData& metadata, int column) {
  const parquet::ColumnDescriptor& of = *metadata.schema()->Column(column);
  if (of.path()->ToDotVector().size() != 1 || of.max_repetition_level() != 0) return false;
  if (of.logical_type() && of.logical_type()->is_null()) return true;
  for (int group = 0; group < metadata.num_row_groups(); ++group) {
    const auto chunk = metadata.RowGroup(group)->ColumnChunk(column);
    const auto facts = chunk->is_stats_set() ? chunk->statistics() : nullptr;
    if (!facts || !facts->HasNullCount() || facts->null_count() != chunk->num_values())
      return false;
  }
  return metadata.num_rows() > 0;
}

/// Names of the columns of texts, for messages.
std::string text_columns(const parquet::SchemaDescriptor& schema) {
  std::string names;
  for (int i = 0; i < schema.num_columns(); ++i)
    if (is_text(*schema.Column(i))) names += (names.empty() ? "" : ", ") + schema.Column(i)->name();
  return names.empty() ? "none" : names;
}

/// The leaves of the first column of that name.
std::vector<int> leaves_of(const parquet::SchemaDescriptor& schema, const std::string& name) {
  std::vector<int> leaves;
  for (int i = 0; i < schema.num_columns(); ++i)
    if (const auto* root = schema.GetColumnRoot(i);
        leaves.empty() ? root->name() == name : root == schema.GetColumnRoot(leaves[0]))
      leaves.push_back(i);
  return leaves;
}

/// Lists of lists of whole numbers. A column of empty lists may not know what they are of.
bool are_ranges(const arrow::DataType& type, int depth = 2) {
  if (type.id() == arrow::Type::NA) return true;
  if (depth == 0) return arrow::is_integer(type.id());
  return arrow::is_list_like(type.id()) &&
         are_ranges(*static_cast<const arrow::BaseListType&>(type).value_type(), depth - 1);
}

/// The value of a row of ranges in JSON.
arrow::Status append_json(const arrow::Scalar& value, std::string& out) {
  const auto* list = dynamic_cast<const arrow::BaseListScalar*>(&value);
  if (!value.is_valid || !list) {
    out += value.is_valid ? value.ToString() : "null";
    return {};
  }
  out += '[';
  for (int64_t i = 0; i < list->value->length(); ++i) {
    if (i > 0) out += ',';
    ARROW_ASSIGN_OR_RAISE(const auto element, list->value->GetScalar(i));
    ARROW_RETURN_NOT_OK(append_json(*element, out));
  }
  out += ']';
  return {};
}

/// A value as it is without a dictionary and a type of its own.
arrow::Result<std::shared_ptr<arrow::Scalar>> plain(std::shared_ptr<arrow::Scalar> value) {
  if (const auto* extension = dynamic_cast<const arrow::ExtensionScalar*>(value.get()))
    return plain(extension->value);
  if (const auto* dictionary = dynamic_cast<const arrow::DictionaryScalar*>(value.get()))
    return dictionary->GetEncodedValue();
  return value;
}

/// Asks for a permit before it gives a file more than kUsual. One thread.
class PatientPool : public arrow::CappedMemoryPool {
 public:
  PatientPool(arrow::MemoryPool* pool, Permit permit)
      : arrow::CappedMemoryPool(pool, kMemory), permit_(permit) {}
  using MemoryPool::Allocate;
  using MemoryPool::Reallocate;
  arrow::Status Allocate(int64_t size, int64_t alignment, uint8_t** out) override {
    ask(size);
    return CappedMemoryPool::Allocate(size, alignment, out);
  }
  arrow::Status Reallocate(int64_t old_size, int64_t new_size, int64_t alignment,
                           uint8_t** data) override {
    ask(new_size - old_size);
    return CappedMemoryPool::Reallocate(old_size, new_size, alignment, data);
  }
  void give_back() {
    if (bytes_allocated() <= kUsual) held_.reset();
  }

 private:
  void ask(int64_t more) {
    if (!held_ && bytes_allocated() + more > kUsual) held_ = permit_();
  }
  const Permit permit_;
  std::shared_ptr<void> held_;
};

class ArrowRows : public ParquetRows {
 public:
  ArrowRows(const std::shared_ptr<const DataFile>& file, Permit permit)
      : path_(file->path()), memory_(&own_, permit), bytes_(std::make_shared<ArrowFile>(file)) {}

  Status open(const std::string& text_key, const std::string& mask_key) {
    parquet::ReaderProperties properties(&memory_);
    properties.enable_buffered_stream();  // a page at a time, not a whole column of a row group
    properties.set_buffer_size(kReadBytes);
    properties.set_page_checksum_verification(true);
    parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
    arrow_properties.set_batch_size(kBatchRows);
    arrow_properties.set_pre_buffer(false);
    parquet::arrow::FileReaderBuilder builder;
    constexpr const char* no_parquet = "cannot read it as parquet: ";
    if (const auto opened = builder.Open(bytes_, properties); !opened.ok())
      return failed(no_parquet + opened.message());
    builder.properties(arrow_properties)->memory_pool(&memory_);
    if (const auto built = builder.Build(&file_); !built.ok())
      return failed(no_parquet + built.message());
    const auto metadata = file_->parquet_reader()->metadata();
    const parquet::SchemaDescriptor& schema = *metadata->schema();
    rows_ = static_cast<uint64_t>(metadata->num_rows());
    std::vector<int> columns = leaves_of(schema, text_key);
    if (columns.empty() ||
        (!is_text(*schema.Column(columns[0])) && !is_all_null(*metadata, columns[0])))
      return failed("it has no column of texts \"" + text_key + "\" (data.text_key)" +
                    other_type(text_key) + "; it has: " + text_columns(schema));
    if (!mask_key.empty())
      for (const int leaf : leaves_of(schema, mask_key)) columns.push_back(leaf);
    const auto& root = *schema.group_node();
    for (const auto& [key, name] :
         {std::pair(text_key, "data.text_key"), std::pair(mask_key, "data.loss_mask_key")})
      for (int i = 0, count = 0; i < root.field_count(); ++i)
        if ((count += !key.empty() && root.field(i)->name() == key) > 1)
          return failed("it has two columns \"" + key + "\" (" + name + "): rename one");
    std::vector<int> groups;
    std::vector<IndexRange> wanted;
    for (int group = 0; group < metadata->num_row_groups(); ++group) {
      groups.push_back(group);
      for (const int column : columns) {
        const auto chunk = metadata->RowGroup(group)->ColumnChunk(column);
        const auto begin =
            static_cast<uint64_t>(chunk->has_dictionary_page() ? chunk->dictionary_page_offset()
                                                               : chunk->data_page_offset());
        wanted.push_back({begin, begin + static_cast<uint64_t>(chunk->total_compressed_size())});
      }
    }
    bytes_->announce(union_of(std::move(wanted)));
    auto batches = file_->GetRecordBatchReader(groups, columns);
    if (!batches.ok()) return failed("cannot read it: " + batches.status().message());
    batches_ = std::move(*batches);
    text_at_ = batches_->schema()->GetFieldIndex(text_key);
    mask_at_ = mask_key.empty() ? -1 : batches_->schema()->GetFieldIndex(mask_key);
    if (mask_at_ >= 0 && !are_ranges(*batches_->schema()->field(mask_at_)->type()))
      return failed("its column \"" + mask_key + "\" (data.loss_mask_key) is no list of ranges, " +
                    "list<list<int64>>, but " +
                    batches_->schema()->field(mask_at_)->type()->ToString());
    return {};
  }

  Result<bool> next(ParquetRow& row) override try {
    while (!batch_ || at_ == batch_->num_rows()) {
      if (const auto read = batches_->ReadNext(&batch_); !read.ok())
        return cannot_read_on(read.IsOutOfMemory() ? kTooLong : read.message());
      if (!batch_) return false;
      memory_.give_back();
      at_ = 0;
    }
    if (const auto read = read_row(row); !read.ok()) return cannot_read_on(read.message());
    ++at_, ++number_;
    return true;
  } catch (const std::exception& error) {
    return cannot_read_on(error.what());
  }

  uint64_t number() const override { return number_; }
  uint64_t rows() const override { return rows_; }

 private:
  arrow::Status read_row(ParquetRow& row) {
    ARROW_ASSIGN_OR_RAISE(auto value, batch_->column(text_at_)->GetScalar(at_));
    ARROW_ASSIGN_OR_RAISE(text_, plain(std::move(value)));
    row.text.reset();
    if (const auto* text = dynamic_cast<const arrow::BaseBinaryScalar*>(text_.get())) {
      if (text->is_valid) row.text = text->view();
    } else if (text_->is_valid) {
      return arrow::Status::TypeError("the column has the type ", text_->type->ToString());
    }
    row.mask.clear();
    if (mask_at_ < 0 || batch_->column(mask_at_)->IsNull(at_)) return {};
    ARROW_ASSIGN_OR_RAISE(const auto mask, batch_->column(mask_at_)->GetScalar(at_));
    return append_json(*mask, row.mask);
  }

  /// Of a column that is there: the type that it has.
  std::string other_type(const std::string& name) const {
    std::shared_ptr<arrow::Schema> schema;
    if (!file_->GetSchema(&schema).ok() || schema->GetFieldIndex(name) < 0) return "";
    return ", but one of the type " + schema->GetFieldByName(name)->type()->ToString();
  }
  Status failed(const std::string& what) const {
    return bytes_->error().ok() ? bad(path_, what) : bytes_->error();
  }
  Status cannot_read_on(const std::string& what) const {
    return failed("behind row " + std::to_string(number_) + ": cannot read on: " + what);
  }

  const std::string path_;
  arrow::ProxyMemoryPool own_{arrow::default_memory_pool()};  // counts what this file takes
  PatientPool memory_;
  const std::shared_ptr<ArrowFile> bytes_;
  std::unique_ptr<parquet::arrow::FileReader> file_;
  std::shared_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::RecordBatch> batch_;
  int text_at_ = 0, mask_at_ = -1;       // columns of the batch; -1: none
  int64_t at_ = 0;                       // of the next row in the batch
  std::shared_ptr<arrow::Scalar> text_;  // of the row that was read last
  uint64_t number_ = 0, rows_ = 0;
};

}  // namespace

}  // namespace simplescale

/// OpenParquet.
extern "C" simplescale::Result<std::unique_ptr<simplescale::ParquetRows>> simplescale_open_parquet(
    std::shared_ptr<const simplescale::DataFile> file, const std::string& text_key,
    const std::string& mask_key, simplescale::Permit permit) try {
  auto rows = std::make_unique<simplescale::ArrowRows>(file, permit);
  SS_RETURN_IF_ERROR(rows->open(text_key, mask_key));
  return std::unique_ptr<simplescale::ParquetRows>(std::move(rows));
} catch (const std::exception& error) {
  return simplescale::Status(simplescale::Code::bad_data,
                             file->path() + ": cannot read it as parquet: " + error.what());
}
