#include "runtime/data/parquet/library.hpp"

#include <arrow/api.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>

#include <exception>
#include <utility>

#include "runtime/data/parquet/arrow_file.hpp"

namespace simplescale {

namespace {

constexpr int64_t kBatchRows = 64;  // few: rows may be long
constexpr int64_t kReadBytes = 256 << 10;
// Of one file. A few KB can hold 64 rows that share a text of 1 GB.
constexpr int64_t kMemory = int64_t{2} << 30;

const std::string kTooLong = "the texts of " + std::to_string(kBatchRows) +
                             " rows, or a page, need more than 2 GiB of memory: cut them up";

Status bad(const std::string& path, const std::string& what) {
  return Status(Code::bad_data, path + ": " + what);
}

bool is_text(const parquet::ColumnDescriptor& column) {
  return column.physical_type() == parquet::Type::BYTE_ARRAY &&
         column.path()->ToDotVector().size() == 1;
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

class ArrowRows : public ParquetRows {
 public:
  explicit ArrowRows(const std::shared_ptr<const DataFile>& file)
      : path_(file->path()), bytes_(std::make_shared<ArrowFile>(file)) {}

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
    if (columns.empty() || !is_text(*schema.Column(columns[0])))
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
    } else {
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
  arrow::CappedMemoryPool memory_{&own_, kMemory};
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
    const std::string& mask_key) try {
  auto rows = std::make_unique<simplescale::ArrowRows>(file);
  SS_RETURN_IF_ERROR(rows->open(text_key, mask_key));
  return std::unique_ptr<simplescale::ParquetRows>(std::move(rows));
} catch (const std::exception& error) {
  return simplescale::Status(simplescale::Code::bad_data,
                             file->path() + ": cannot read it as parquet: " + error.what());
}
