#include "data/corpus/parquet.h"

#include <fmt/ranges.h>
#include <parquet/api/reader.h>

#include <algorithm>
#include <array>

#include "core/error.h"

namespace carope {
namespace {

constexpr std::size_t kValues = 64;                          // read at a time
constexpr std::int64_t kFileBuffer = std::int64_t{1} << 20;  // bytes

class ParquetReader final : public DocumentReader {
 public:
  ParquetReader(const std::filesystem::path& path, const CorpusFormat& format) : path_(path) {
    or_file_error([&] {
      parquet::ReaderProperties properties;
      properties.enable_buffered_stream();  // a group of rows may be larger than memory
      properties.set_buffer_size(kFileBuffer);
      properties.set_page_checksum_verification(true);
      file_ = parquet::ParquetFileReader::OpenFile(path.string(), false, properties);
      bytes_ = static_cast<std::int64_t>(std::filesystem::file_size(path));
      column_ = find_column(format.text_field);
    });
  }

  void read(std::vector<RawDocument>& batch, std::size_t bytes) override {
    batch.clear();
    or_file_error([&] {
      for (std::size_t size = 0; size < bytes && next_values();) {
        size += hand_on(batch);
      }
    });
    if (batch.empty() && !any_) {
      fail_without_documents(path_);
    }
    any_ = true;
  }

  std::optional<std::string> text_of(RawDocument document) const override {
    return std::move(document.content);
  }

  std::int64_t position() const override {
    const auto rows = static_cast<double>(file_->metadata()->num_rows());
    const double done = rows > 0.0 ? std::min(static_cast<double>(row_) / rows, 1.0) : 1.0;
    return static_cast<std::int64_t>(done * static_cast<double>(bytes_));
  }

 private:
  /// Does something with the file and says, if that fails, in which file and where.
  template <class Body>
  void or_file_error(const Body& body) const {
    try {
      body();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      const std::string place = file_ == nullptr ? "its footer" : fmt::format("row {}", row_);
      throw FileError(fmt::format(
          "{} cannot be read as Parquet, at {}: {}; check that it is a Parquet file, and get it or "
          "write it again",
          path_.string(), place, error.what()));
    }
  }

  int find_column(const std::string& name) const {
    const parquet::SchemaDescriptor& schema = *file_->metadata()->schema();
    const parquet::schema::GroupNode& root = *schema.group_node();
    const int field = root.FieldIndex(name);
    if (field < 0) {
      std::vector<std::string> names;
      for (int i = 0; i < root.field_count(); ++i) {
        names.push_back(root.field(i)->name());
      }
      throw FileError(
          fmt::format("{} has no column \"{}\", only \"{}\"; name the one that holds the text with "
                      "--text-field",
                      path_.string(), name, fmt::join(names, "\", \"")));
    }
    const std::string type = type_of(*root.field(field));
    check<FileError>(type == "text",
                     "{}: the column \"{}\" is {}, not text; name the one that holds the text with "
                     "--text-field",
                     path_.string(), name, type);
    return schema.ColumnIndex(*root.field(field));
  }

  static std::string type_of(const parquet::schema::Node& node) {
    if (node.is_repeated() || !node.is_primitive()) {
      return "a list or a structure";
    }
    if (node.logical_type()->is_string()) {
      return "text";
    }
    const auto& primitive = static_cast<const parquet::schema::PrimitiveNode&>(node);
    return "of type " + parquet::TypeToString(primitive.physical_type());
  }

  /// Makes sure that the column's reader has values; false at the end of the file.
  bool next_values() {
    while (values_ == nullptr || !values_->HasNext()) {
      check<FileError>(row_ == group_end_,
                       "{}: rows {} to {} are missing; get it or write it again", path_.string(),
                       row_, group_end_ - 1);
      if (group_ == file_->metadata()->num_row_groups()) {
        return false;
      }
      const auto group = file_->RowGroup(group_++);
      group_end_ += group->metadata()->num_rows();
      values_ = std::static_pointer_cast<parquet::ByteArrayReader>(group->Column(column_));
    }
    return true;
  }

  /// Appends the next values and counts their bytes.
  std::size_t hand_on(std::vector<RawDocument>& batch) {
    std::array<std::int16_t, kValues> defined{};
    std::array<parquet::ByteArray, kValues> texts{};
    std::int64_t text_count = 0;
    const std::int64_t rows =
        values_->ReadBatch(kValues, defined.data(), nullptr, texts.data(), &text_count);
    check<FileError>(rows > 0, "{}: row {} is missing; get it or write it again", path_.string(),
                     row_);
    const bool optional = values_->descr()->max_definition_level() > 0;
    std::size_t bytes = 0;
    for (std::size_t i = 0, text = 0; i < static_cast<std::size_t>(rows); ++i, ++row_) {
      if (optional && defined[i] == 0) {
        continue;
      }
      const parquet::ByteArray& value = texts[text++];
      batch.push_back({std::string(reinterpret_cast<const char*>(value.ptr), value.len), row_});
      bytes += value.len + 1;
    }
    return bytes;
  }

  const std::filesystem::path path_;
  std::unique_ptr<parquet::ParquetFileReader> file_;
  std::int64_t bytes_ = 0;  // of the file
  int column_ = 0;
  int group_ = 0;  // of rows, the next
  std::int64_t row_ = 0, group_end_ = 0;
  std::shared_ptr<parquet::ByteArrayReader> values_;
  bool any_ = false;  // something has been read
};

}  // namespace

bool reads_parquet() { return true; }

std::unique_ptr<DocumentReader> open_parquet(const std::filesystem::path& path,
                                             const CorpusFormat& format) {
  return std::make_unique<ParquetReader>(path, format);
}

}  // namespace carope
