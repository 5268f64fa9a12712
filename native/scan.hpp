// One pass over a range of a segment: walk, check, filter, build Arrow columns.
// Only requested columns are built.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "columns.hpp"
#include "properties.hpp"
#include "ranges.hpp"
#include "text.hpp"

namespace dledger {

enum class Kind : uint8_t { Message, Entry, Noop, Config, Corrupt };
const std::string& name_of(Kind kind);

enum class Mode { Permissive, DropMalformed, FailFast };

// A row with a problem under FAILFAST. Becomes errors.MalformedError in Python.
struct MalformedFault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct IntCondition {
  int64_t low, high;
  std::optional<std::vector<int64_t>> values;  // sorted

  bool allows(int64_t value) const;
};

using TextCondition = std::vector<std::string>;

// A row must meet all conditions that are present. A null value meets none.
struct Conditions {
  std::optional<IntCondition> index, term, pos, queue_id, store_timestamp;
  std::optional<TextCondition> topic, tags;
  std::optional<uint32_t> kinds;  // bit per Kind
  std::optional<bool> committed;
};

struct Request {
  SegmentId segment;
  int64_t start = 0, end = 0;
  std::vector<std::string> columns;
  Conditions conditions;
  Mode mode = Mode::Permissive;
  bool verify_crc = true;
  std::optional<int64_t> committed_index;
  int64_t max_rows = 0, max_bytes = 0;
  bool end_is_boundary = false;
};

struct CompressedBody {
  int64_t row, pos;
  int32_t type;
  std::string stored;
};

struct Batch {
  std::vector<Column> columns;
  int64_t rows = 0;
  std::vector<CompressedBody> compressed;
};

class Scan {
 public:
  // Throws StoreFault if the file cannot be mapped, std::invalid_argument for
  // an unknown column.
  explicit Scan(Request request);

  // The next batch, or null at the end of the range. Throws StoreFault and
  // MalformedFault.
  std::unique_ptr<Batch> next();

  // The names of all columns that can be requested.
  static std::vector<std::string> column_names();

 private:
  // What a scan reads only if a column or a condition needs it. `kStoredBody` is that of a compressed message.
  enum Needs { kNothing = 0, kMessage = 1, kProperties = 2, kProblem = 4, kBody = 8, kStoredBody = 16 };

  // The one declaration of a column in C++.
  struct ColumnSpec {
    const char* name;
    Type type;
    int needs;                    // of Needs
    void (Scan::*fill)(Column&);  // appends its values of the chunk's rows
  };
  static const ColumnSpec kColumns[];

  struct Row {
    Kind kind;
    const uint8_t* p;  // the entry's header or the message; null in a corrupt row
    int64_t pos, size;
    int32_t problem;  // in problems_; -1 without one
  };

  // A row's message.
  struct MessageInfo {
    Message message;
    TextBytes topic;
    const uint8_t* text;         // of the properties
    size_t padding;              // bytes after topic and properties that may be read
    const PropertyShape* shape;  // of the properties, or nullptr: then they are in properties_
    uint32_t first_property, properties;
    NamedProperties named;
  };

  void need(const std::string& name);
  bool needs(int what) const { return (needs_ & what) != 0; }
  std::unique_ptr<Batch> build(SegmentView& view);
  size_t expected_bytes(const ColumnSpec& column) const;
  bool step(const SegmentView& view, Row& row);
  bool step_corrupt(Row& row);
  void prefetch(const SegmentView& view, int64_t size);
  void put_back(const Row& row);
  bool passes_end(int64_t size) const { return request_.end_is_boundary && pos_ + size > end_; }
  [[noreturn, gnu::cold]] void fail_boundary(const char* what, int64_t size) const;
  [[gnu::noinline]] bool pass_gap(const SegmentView& view, int64_t size);
  void begin_corrupt(int64_t pos, int64_t end, const Fact& reason);
  bool accept(const SegmentView& view, Row& row, MessageInfo& info);
  bool keeps_entry(const Row& row) const;
  void read_message(const SegmentView& view, Row& row, MessageInfo& info);
  bool keeps_message(const Row& row, const MessageInfo& info) const;
  void read_texts(MessageInfo& info);
  void parse_properties(MessageInfo& info);
  TextBytes value(const MessageInfo& info, int32_t number) const;
  bool is_committed(const Row& row) const;
  void check(Row& row, const MessageInfo& info);
  [[gnu::cold]] void add_problem(Row& row, const Fact& problem);
  int64_t cost(const Row& row, const MessageInfo& info) const;
  bool lists_compressed(const Row& row, const MessageInfo& info) const;
  void append_bodies(const Row& row, const MessageInfo& info);
  static void append_rest(Column& column, const Row& row, int skip);
  void flush(Batch& batch);

  // Columns of the chunk's rows, see scan_columns.cpp.
  template <typename T, typename Get>
  void fill(Column& column, const uint8_t* valid, Get get);
  template <typename TextOf>
  void fill_text(Column& column, const uint8_t* valid, TextOf text_of);
  template <typename NameOf>
  void fill_names(Column& column, NameOf name_of);
  void fill_constant(Column& column, const std::string& value);
  template <auto field>
  void fill_entry(Column& column);
  template <auto field>
  void fill_message(Column& column);
  template <typename T, auto field, ProblemCode only = ProblemCode::None>
  void fill_fact(Column& column);
  template <auto host, auto length>
  void fill_host(Column& column);
  template <auto time>
  void fill_timestamp(Column& column);
  template <auto which>
  void fill_property(Column& column);
  void fill_kind(Column& column);
  void fill_source(Column& column);
  void fill_segment(Column& column);
  void fill_pos(Column& column);
  void fill_size(Column& column);
  void fill_committed(Column& column);
  void fill_problem(Column& column);
  void fill_topic(Column& column);
  void fill_transaction(Column& column);
  void fill_compression(Column& column);
  void fill_offset_msg_id(Column& column);
  void fill_properties(Column& column);
  void fill_put_id(Column& column);
  void fill_healed_from(Column& column);
  void fill_body(Column& column);
  void fill_entry_body(Column& column);

  static constexpr int kChunk = 128;
  static constexpr size_t kMaxCopy = 640;

  Request request_;
  std::vector<const ColumnSpec*> columns_;
  bool has_entry_conditions_ = false, has_message_conditions_ = false;
  bool is_selective_ = false;  // whether `accept` has something to do
  int needs_ = 0;              // of Needs
  MappedFile file_;
  Resync resync_;
  int64_t pos_, end_, populated_, streamed_ = 0;
  std::vector<Column::Sizes> column_sizes_;  // of the last batch

  // The corrupt extent whose rows are being returned.
  struct Extent {
    int64_t end = 0, piece = 0;  // a row has at most `piece` bytes
    Fact reason;
  } corrupt_;

  Column* body_ = nullptr;  // of the batch being built, if requested
  Column* entry_body_ = nullptr;

  // The chunk of rows being built.
  int count_ = 0;
  Row rows_[kChunk];
  MessageInfo infos_[kChunk];
  uint8_t entry_valid_[kChunk], message_valid_[kChunk], body_valid_[kChunk];
  std::vector<Fact> problems_;
  std::vector<Property> properties_;
  PropertyShapes shapes_;
  std::unique_ptr<uint8_t[]> copies_;  // topics and properties
  size_t copied_ = 0;
  std::deque<std::string> texts_;  // sanitised bytes that properties and topics point to
};

}  // namespace dledger
