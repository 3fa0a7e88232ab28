// The module that ReadColumnar() loads.

#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>
#include <arrow/util/thread_pool.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>

#include <exception>
#include <functional>

#include "common/data/columnar.h"
#include "common/data/columnar/value.h"

namespace sluice::columnar {
namespace {

// Rows are decoded so many at a time.
constexpr int64_t kBatchRows = 64;
// Most memory of the libraries. A small file can hold many rows that all refer to one large text.
constexpr int64_t kMostMemory = int64_t{2} << 30;

void TellNames(const arrow::Schema& schema, const ColumnarQuery& query) {
  if (query.names) query.names(schema.field_names());
}

// The places of the wanted columns among the fields of a file.
std::vector<int> WantedFields(const arrow::Schema& schema, const ColumnarQuery& query) {
  std::vector<int> wanted;
  for (const std::string& name : query.columns) {
    if (const int i = schema.GetFieldIndex(name); i >= 0) wanted.push_back(i);
  }
  return wanted;
}

// Passes the rows of a batch on. Sets *more to whether others are wanted. The batch is checked
// first: the decoders trust the indices and offsets of a file.
arrow::Status TakeRows(const arrow::RecordBatch& batch, const std::vector<int>& columns,
                       const ColumnarQuery& query, bool* more) {
  ARROW_RETURN_NOT_OK(batch.ValidateFull());
  for (int64_t row = 0; row < batch.num_rows(); ++row) {
    nlohmann::json object = nlohmann::json::object();
    for (const int column : columns) {
      const std::string& name = batch.schema()->field(column)->name();
      int64_t room = kMostRowBytes;
      const arrow::Result<nlohmann::json> value = ValueAt(*batch.column(column), row, &room);
      if (!value.ok()) {
        return arrow::Status::Invalid("column \"", name, "\": ", value.status().message());
      }
      object[name] = *value;
    }
    *more = query.take(object);
    if (!*more) break;
  }
  return arrow::Status::OK();
}

arrow::Status ReadParquet(const std::shared_ptr<arrow::io::RandomAccessFile>& file,
                          const ColumnarQuery& query, arrow::MemoryPool* pool) {
  parquet::arrow::FileReaderBuilder builder;
  ARROW_RETURN_NOT_OK(builder.Open(file, parquet::ReaderProperties(pool)));
  parquet::ArrowReaderProperties properties;
  properties.set_batch_size(kBatchRows);
  properties.set_pre_buffer(false);  // It would read whole row groups ahead.
  builder.properties(properties)->memory_pool(pool);
  std::unique_ptr<parquet::arrow::FileReader> reader;
  ARROW_RETURN_NOT_OK(builder.Build(&reader));
  std::shared_ptr<arrow::Schema> schema;
  ARROW_RETURN_NOT_OK(reader->GetSchema(&schema));
  TellNames(*schema, query);
  // A field of the schema may have several columns of the file.
  std::vector<int> leaves;
  const auto& fields = reader->manifest().schema_fields;
  const std::function<void(const parquet::arrow::SchemaField&)> add = [&](const auto& field) {
    if (field.is_leaf()) leaves.push_back(field.column_index);
    for (const auto& child : field.children) add(child);
  };
  for (const int i : WantedFields(*schema, query)) add(fields[i]);
  std::vector<int> groups(reader->num_row_groups());
  for (size_t i = 0; i < groups.size(); ++i) groups[i] = static_cast<int>(i);
  ARROW_ASSIGN_OR_RAISE(const auto batches, reader->GetRecordBatchReader(groups, leaves));
  const std::vector<int> columns = WantedFields(*batches->schema(), query);
  for (bool more = true; more;) {
    std::shared_ptr<arrow::RecordBatch> batch;
    ARROW_RETURN_NOT_OK(batches->ReadNext(&batch));
    if (batch == nullptr) break;
    ARROW_RETURN_NOT_OK(TakeRows(*batch, columns, query, &more));
  }
  return arrow::Status::OK();
}

// Hugging Face datasets write streams; other tools also write files, whose batches have an index.
arrow::Status ReadArrow(const std::shared_ptr<arrow::io::RandomAccessFile>& file,
                        const ColumnarQuery& query, arrow::MemoryPool* pool) {
  bool more = true;
  arrow::ipc::IpcReadOptions options;
  options.memory_pool = pool;
  const auto take = [&](const arrow::RecordBatch& batch) {
    return TakeRows(batch, WantedFields(*batch.schema(), query), query, &more);
  };
  if (const auto indexed = arrow::ipc::RecordBatchFileReader::Open(file, options); indexed.ok()) {
    TellNames(*(*indexed)->schema(), query);
    for (int i = 0; more && i < (*indexed)->num_record_batches(); ++i) {
      ARROW_ASSIGN_OR_RAISE(const auto batch, (*indexed)->ReadRecordBatch(i));
      ARROW_RETURN_NOT_OK(take(*batch));
    }
    return arrow::Status::OK();
  }
  ARROW_RETURN_NOT_OK(file->Seek(0));
  ARROW_ASSIGN_OR_RAISE(const auto stream,
                        arrow::ipc::RecordBatchStreamReader::Open(file, options));
  TellNames(*stream->schema(), query);
  while (more) {
    std::shared_ptr<arrow::RecordBatch> batch;
    ARROW_RETURN_NOT_OK(stream->ReadNext(&batch));
    if (batch == nullptr) break;
    ARROW_RETURN_NOT_OK(take(*batch));
  }
  return arrow::Status::OK();
}

// Waits at its end until Arrow's threads have let go of what they have read.
struct AwaitArrowThreads {
  ~AwaitArrowThreads() {
    auto* const threads =
        dynamic_cast<arrow::internal::ThreadPool*>(arrow::io::default_io_context().executor());
    if (threads != nullptr) threads->WaitForIdle();
  }
};

arrow::Status Read(const ColumnarQuery& query) {
  arrow::CappedMemoryPool pool(arrow::default_memory_pool(), kMostMemory);
  // The reader of files with an index reads on such a thread, which frees its buffer to `pool` some
  // time after the reader has it.
  const AwaitArrowThreads await;
  ARROW_ASSIGN_OR_RAISE(const std::shared_ptr<arrow::io::RandomAccessFile> file,
                        arrow::io::ReadableFile::Open(query.fd, &pool));
  return query.format == ColumnarFormat::kParquet ? ReadParquet(file, query, &pool)
                                                  : ReadArrow(file, query, &pool);
}

}  // namespace
}  // namespace sluice::columnar

extern "C" __attribute__((visibility("default"))) void SluiceReadColumnar(
    const sluice::ColumnarQuery& query, std::string* wrong) {
  try {
    const arrow::Status status = sluice::columnar::Read(query);
    if (!status.ok()) *wrong = status.message();
  } catch (const std::exception& error) {  // Of Parquet's decoders.
    *wrong = error.what();
  }
}
