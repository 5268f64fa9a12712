// The Python module `pyspark_dledger._native`; format/native_engine.py is its only caller.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "crc32.hpp"
#include "json_lines.hpp"
#include "message_copies.hpp"
#include "puts.hpp"
#include "python_values.hpp"
#include "scan.hpp"
#include "survey.hpp"

namespace dledger {
namespace {

constexpr int64_t kMaxEnd = (int64_t{1} << 62) + (int64_t{1} << 61);  // no sum of positions overflows
constexpr int64_t kMaxBatchBytes = int64_t{1} << 29;                  // Arrow's text offsets have 31 bits

void release_schema_capsule(PyObject* capsule) {
  auto* const schema = static_cast<ArrowSchema*>(PyCapsule_GetPointer(capsule, "arrow_schema"));
  if (schema->release != nullptr) schema->release(schema);
  delete schema;
}

void release_array_capsule(PyObject* capsule) {
  auto* const array = static_cast<ArrowArray*>(PyCapsule_GetPointer(capsule, "arrow_array"));
  if (array->release != nullptr) array->release(array);
  delete array;
}

// The Arrow PyCapsule protocol. The batch gives its memory away, so this works once.
py::tuple to_arrow(Batch& batch, const py::object&) {
  auto schema = std::make_unique<ArrowSchema>();
  auto array = std::make_unique<ArrowArray>();
  export_schema(batch.columns, schema.get());
  export_array(batch.columns, batch.rows, array.get());
  batch.columns.clear();
  batch.rows = 0;
  return py::make_tuple(
      py::reinterpret_steal<py::object>(PyCapsule_New(schema.release(), "arrow_schema", release_schema_capsule)),
      py::reinterpret_steal<py::object>(PyCapsule_New(array.release(), "arrow_array", release_array_capsule)));
}

py::list compressed(const Batch& batch) {
  py::list bodies;
  for (const CompressedBody& body : batch.compressed) {
    bodies.append(py::make_tuple(body.row, body.pos, body.type, py::bytes(body.stored)));
  }
  return bodies;
}

// Arrays of a KnownEntries. They are used without the interpreter's lock, and freed with it.
struct HeldKnown {
  explicit HeldKnown(const py::object& known)
      : pos(known.attr("pos"), "pos"), end(known.attr("end"), "end"), is_whole(known.attr("is_whole"), "is_whole") {}

  HeldBytes pos, end, is_whole;
};

KnownEntries ask_witness(const py::object& segment) {
  const py::gil_scoped_acquire lock;
  const auto held = std::make_shared<const HeldKnown>(segment.attr("known_entries")());
  return {held, reinterpret_cast<const int64_t*>(held->pos.range().data),
          reinterpret_cast<const int64_t*>(held->end.range().data), held->is_whole.range().data,
          held->is_whole.range().size};
}

using Before = std::tuple<int64_t, int64_t, int64_t, std::optional<int64_t>>;

SegmentId segment_id(const py::object& segment) {
  SegmentId id;
  const py::object file = segment.attr("file");
  id.path = file.attr("path").cast<std::string>();
  id.name = segment.attr("name").cast<std::string>();
  id.base = segment.attr("base").cast<int64_t>();
  id.size = segment.attr("size").cast<int64_t>();
  id.is_dledger = segment.attr("source").cast<std::string>() == "dledger";
  id.check_pos = segment.attr("check_pos").cast<bool>();
  if (id.base < 0 || id.size < 0 || id.base > kMaxEnd - id.size) {
    throw StoreFault(id.path + ": expected positions from 0 to 2^62, found a segment at " + std::to_string(id.base));
  }
  const py::object extents = file.attr("extents");
  id.bytes = {id.path, file.attr("opened").cast<std::string>(), !extents.is_none()};
  if (id.bytes.is_partial) id.bytes.extents = extents.cast<Extents>();
  if (const auto before = segment.attr("before").cast<std::optional<Before>>()) {
    const auto [index, term, end, shift] = *before;
    id.before = PrecedingEntry{std::max<int64_t>(index, 0), term, std::clamp<int64_t>(end, 0, id.base), shift};
  }
  if (const auto after = segment.attr("after").cast<std::optional<std::pair<int64_t, int64_t>>>()) id.after = *after;
  if (!segment.attr("witness").is_none()) {
    id.witness = std::make_shared<Witness>([segment] { return ask_witness(segment); });
  }
  return id;
}

std::optional<IntCondition> int_condition(const py::object& filter) {
  if (filter.is_none()) return std::nullopt;
  IntCondition condition{filter.attr("low").cast<int64_t>(), filter.attr("high").cast<int64_t>(),
                         filter.attr("values").cast<std::optional<std::vector<int64_t>>>()};
  if (condition.values) std::sort(condition.values->begin(), condition.values->end());
  return condition;
}

std::optional<uint32_t> kind_condition(const py::object& kinds) {
  if (kinds.is_none()) return std::nullopt;
  uint32_t bits = 0;
  for (const std::string& kind : kinds.cast<std::vector<std::string>>()) {
    for (uint32_t i = 0; i <= static_cast<uint32_t>(Kind::Corrupt); i++) {
      if (kind == name_of(static_cast<Kind>(i))) bits |= 1u << i;
    }
  }
  return bits;
}

Conditions conditions(const py::object& filters) {
  Conditions where;
  where.index = int_condition(filters.attr("index"));
  where.term = int_condition(filters.attr("term"));
  where.pos = int_condition(filters.attr("pos"));
  where.queue_id = int_condition(filters.attr("queue_id"));
  where.store_timestamp = int_condition(filters.attr("store_timestamp"));
  where.topic = filters.attr("topic").cast<std::optional<TextCondition>>();
  where.tags = filters.attr("tags").cast<std::optional<TextCondition>>();
  where.kinds = kind_condition(filters.attr("kind"));
  where.committed = filters.attr("committed").cast<std::optional<bool>>();
  return where;
}

Mode mode_of(const std::string& name) {
  if (name == "FAILFAST") return Mode::FailFast;
  return name == "DROPMALFORMED" ? Mode::DropMalformed : Mode::Permissive;
}

int64_t checked_start(const SegmentId& segment, int64_t start) {
  if (start < segment.base) {
    throw StoreFault(segment.path + ": expected a start of at least " + std::to_string(segment.base) + ", found " +
                     std::to_string(start));
  }
  return start;
}

// `request` is a ScanRequest.
std::unique_ptr<Scan> open_scan(const py::object& request) {
  Request native;
  native.segment = segment_id(request.attr("segment"));
  native.start = checked_start(native.segment, request.attr("start").cast<int64_t>());
  native.end = request.attr("end").cast<int64_t>();
  native.columns = request.attr("columns").cast<std::vector<std::string>>();
  native.conditions = conditions(request.attr("filters"));
  native.mode = mode_of(request.attr("mode").cast<std::string>());
  native.verify_crc = request.attr("verify_crc").cast<bool>();
  native.committed_index = request.attr("committed_index").cast<std::optional<int64_t>>();
  native.max_rows = request.attr("max_batch_rows").cast<int64_t>();
  native.max_bytes = std::min(request.attr("max_batch_bytes").cast<int64_t>(), kMaxBatchBytes);
  native.end_is_boundary = request.attr("end_is_boundary").cast<bool>();
  return std::make_unique<Scan>(std::move(native));
}

// Calls `walk` on the segment's bytes, and again on fewer bytes if the file shrank meanwhile. The first `populated`
// bytes from `start` on are loaded before. Bytes that cannot be read are an error if the result `needs_all`.
template <typename Walk>
auto on_segment(const py::object& segment, int64_t start, Walk walk, bool needs_all, int64_t populated = 0) {
  const SegmentId id = segment_id(segment);
  checked_start(id, start);
  py::gil_scoped_release release;
  MappedFile file(id.bytes);
  if (populated > 0) file.populate(start - id.base, populated);
  const auto on_view = [&](int64_t readable) { return walk(SegmentView(id, readable, file)); };
  return on_readable(file, on_view, [&] {
    if (needs_all) file.check();
  });
}

const uint8_t* bytes_at(MappedFile& file, int64_t offset, int64_t size) {
  const Window window = file.window(offset, size);
  return window.data + (offset - window.begin);
}

// The records of `size` bytes at `offsets`, an array of int64, in a file; zeros where it cannot be read.
py::bytearray gather(const std::string& path, const py::object& offsets, int64_t size) {
  const HeldBytes held(offsets, "offsets");
  const int64_t count = held.range().size / 8;
  const auto* const at = reinterpret_cast<const int64_t*>(held.range().data);
  const auto [records, data] = make_bytearray(count * integer("size", py::int_(size), 1, kMaxBlockSize));
  uint8_t* const to = data;
  released(count * 4096, [&] {
    MappedFile file({path, path});
    const int64_t readable = file.readable();
    for (int64_t i = 0; i < count; i++) {
      const bool is_inside = at[i] >= 0 && at[i] <= readable - size;
      if (is_inside)
        std::memcpy(to + i * size, bytes_at(file, at[i], size), static_cast<size_t>(size));
      else
        std::memset(to + i * size, 0, static_cast<size_t>(size));
    }
  });
  return records;
}

using LogEndTuple = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;

LogEndTuple find_log_end(const py::object& segment, int64_t start, bool search_all) {
  const LogEnd end =
      on_segment(segment, start, [&](const SegmentView& view) { return log_end(view, start, search_all); }, true);
  return {end.pos,        end.entries,   end.first_index, end.first_term,
          end.last_index, end.last_term, end.last_pos,    end.last_store_timestamp};
}

py::list find_term_runs(const py::object& segment, int64_t start, int64_t end) {
  const auto walk = [&](const SegmentView& view) { return term_runs(view, start, end); };
  const auto runs = on_segment(segment, start, walk, true);
  py::list list;
  for (const TermRun& run : runs) list.append(py::make_tuple(run.term, run.index, run.pos, run.entries));
  return list;
}

// The fields of a CopiedMessages, outcomes as bytes. `starts` and `sizes` are arrays of int64.
py::tuple copy_from(const py::object& segment, const py::object& starts, const py::object& sizes,
                    const py::object& into, const py::object& position) {
  const HeldBytes from(starts, "starts"), lengths(sizes, "sizes"), memory(into, "memory", PyBUF_WRITABLE);
  const int64_t first = integer("position", position, 0, kMaxPosition);
  const int64_t count = lengths.range().size / 8;
  const auto* const positions = reinterpret_cast<const int64_t*>(from.range().data);
  const auto* const counts = reinterpret_cast<const int64_t*>(lengths.range().data);
  if (from.range().size != lengths.range().size || lengths.range().size % 8 != 0) {
    throw py::value_error("expected as many starts as sizes, found " + std::to_string(from.range().size / 8) + " and " +
                          std::to_string(count));
  }
  int64_t room = memory.range().size;
  for (int64_t i = 0; i < count; i++) {
    if (counts[i] < 0 || counts[i] > room) {
      throw py::value_error("the sizes do not fit a buffer of " + std::to_string(memory.range().size) + " bytes");
    }
    room -= counts[i];
  }
  auto* const to = const_cast<uint8_t*>(memory.range().data);
  if (count == 0) return py::make_tuple(0, py::bytearray());
  const auto walk = [&](const SegmentView& view) { return copy_messages(view, positions, counts, count, first, to); };
  const int64_t start = std::max(positions[0], segment.attr("base").cast<int64_t>());
  // The messages are about consecutive in the segment.
  const CopiedMessages copied = on_segment(segment, start, walk, false, memory.range().size);
  return py::make_tuple(copied.size, array_of(copied.outcomes));
}

// `request` is a SurveyRequest. Returns the fields of a Survey, with numbers for codes.
py::tuple take_survey(const py::object& request) {
  SurveyRequest native;
  native.segment = segment_id(request.attr("segment"));
  native.start = checked_start(native.segment, request.attr("start").cast<int64_t>());
  native.end = request.attr("end").cast<int64_t>();
  native.verify_crc = request.attr("verify_crc").cast<bool>();
  native.max_problems = request.attr("max_problems").cast<int64_t>();
  const Survey found = [&] {
    py::gil_scoped_release release;
    return survey(native);
  }();
  py::dict sizes, counts;
  for (int kind = 0; kind < kExtentKinds; kind++) sizes[kExtentNames[kind]] = found.sizes[kind];
  for (int finding = 0; finding < kProblemCodes; finding++) {
    if (found.counts[finding] > 0) counts[py::int_(finding)] = found.counts[finding];
  }
  py::list extents, problems;
  for (const SurveyExtent& extent : found.extents) {
    extents.append(py::make_tuple(kExtentNames[static_cast<int>(extent.kind)], extent.pos, extent.size));
  }
  for (const Problem& problem : found.problems) {
    const Fact& fact = problem.fact;
    problems.append(py::make_tuple(static_cast<int>(problem.finding), problem.pos, problem.size, problem.index,
                                   py::make_tuple(static_cast<int>(fact.code), fact.at, fact.expected, fact.found,
                                                  fact.also_expected, fact.also_found)));
  }
  return py::make_tuple(found.entries, found.messages, found.first_index, found.first_term, found.first_pos,
                        found.last_index, found.last_term, found.last_pos, found.first_store_timestamp,
                        found.last_store_timestamp, sizes, extents, problems, counts);
}

// The fields of a Bodies.
py::tuple pack_bodies(const py::object& bodies) {
  // Another thread could change a list, and its items could be freed.
  const auto items = py::reinterpret_steal<py::tuple>(PySequence_Tuple(bodies.ptr()));
  if (!items) throw py::error_already_set();
  std::vector<ByteRange> ranges;
  std::vector<std::unique_ptr<HeldBytes>> held;
  ranges.reserve(items.size());
  for (const py::handle body : items) {
    if (PyBytes_CheckExact(body.ptr())) {
      ranges.push_back({reinterpret_cast<const uint8_t*>(PyBytes_AS_STRING(body.ptr())), PyBytes_GET_SIZE(body.ptr())});
      continue;
    }
    held.push_back(std::make_unique<HeldBytes>(body, "body " + std::to_string(ranges.size())));
    ranges.push_back(held.back()->range());
  }
  const int64_t size = block_size(ranges);
  const auto [block, data] = make_bytes(size);
  uint8_t* const to = data;
  released(size, [&] { pack(ranges, to); });
  return py::make_tuple(ranges.size(), block);
}

py::list unpack_bodies(const py::object& count, const py::object& block) {
  const int64_t bodies = count_of(count);
  const HeldBytes held(block, "block");
  const std::vector<ByteRange> ranges = unpack({bodies, held.range()});
  py::list list(ranges.size());
  for (size_t i = 0; i < ranges.size(); i++) {
    list[i] = py::bytes(reinterpret_cast<const char*>(ranges[i].data), static_cast<size_t>(ranges[i].size));
  }
  return list;
}

// The fields of an EncodedEntries.
py::tuple encode_bodies(const py::object& count, const py::object& block, const py::object& first,
                        const py::object& index, const py::object& term, const py::object& pos,
                        const py::object& space) {
  PackedBodies bodies{count_of(count), {}};
  const int64_t from = integer("first", first, 0, bodies.count - 1);
  EntryPosition position;
  position.index = integer("index", index, 0, kMaxPosition);
  position.term = integer("term", term, -1, INT64_MAX);
  position.pos = integer("pos", pos, 0, kMaxPosition);
  const int64_t room = integer("space", space, 0, kMaxPosition);
  const HeldBytes held(block, "block");
  bodies.block = held.range();
  const Fitting fitting = released(bodies.block.size, [&] { return find_fitting(bodies, from, room); });
  const auto [data, data_bytes] = make_bytearray(fitting.size);
  const auto [units, unit_bytes] = make_bytearray(fitting.count * kIndexUnitSize);
  uint8_t* const entries_to = data_bytes;
  uint8_t* const units_to = unit_bytes;
  released(fitting.size, [&] { encode(bodies, fitting, position, entries_to, units_to); });
  return py::make_tuple(fitting.count, data, units);
}

// The fields of a CheckedEntries.
py::tuple check_bytes(const py::object& data, const py::object& index, const py::object& pos,
                      const py::object& min_term, const py::object& max_term) {
  EntryPosition expected;
  expected.index = integer("index", index, 0, kMaxPosition);
  expected.pos = integer("pos", pos, 0, kMaxPosition);
  expected.term = integer("min_term", min_term, INT64_MIN, INT64_MAX);
  const int64_t highest = integer("max_term", max_term, INT64_MIN, INT64_MAX);
  const HeldBytes held(data, "entries");
  const CheckedEntries checked =
      released(held.range().size, [&] { return check_entries(held.range(), expected, highest); });
  const auto [units, to] = make_bytearray(static_cast<int64_t>(checked.units.size()));
  std::copy_n(checked.units.data(), checked.units.size(), to);
  return py::make_tuple(checked.count, checked.last_term, units, checked.members_at);
}

std::optional<int64_t> find_torn_in(const py::object& data, const py::object& pos) {
  const int64_t start = integer("pos", pos, 0, kMaxPosition);
  const HeldBytes held(data, "entries");
  return released(held.range().size, [&] { return find_torn(held.range(), start); });
}

void write_crcs(const py::object& data) {
  const HeldBytes held(data, "entries", PyBUF_WRITABLE);
  released(held.range().size, [&] { write_body_crcs(const_cast<uint8_t*>(held.range().data), held.range().size); });
}

std::optional<int64_t> find_wrong_body_in(const py::object& data, bool needs_crc) {
  const HeldBytes held(data, "entries");
  return released(held.range().size, [&] { return find_wrong_body(held.range(), needs_crc); });
}

std::optional<int64_t> find_damaged_in(const py::object& data) {
  const HeldBytes held(data, "entries");
  return released(held.range().size, [&] { return find_damaged(held.range()); });
}

// The lines of a batch, with a reference to it.
class HeldLines {
 public:
  HeldLines(const py::object& batch, BytesForm form) : held_(batch), lines_(held_.schema(), held_.array(), form) {}

  // The next lines, of about `size` bytes; empty after the last one.
  py::bytes next(size_t size) {
    const std::string_view text = [&] {
      const py::gil_scoped_release release;
      return lines_.next(size);
    }();
    return {text.data(), text.size()};
  }

 private:
  HeldArrow held_;
  JsonLines lines_;
};

BytesForm bytes_form(const std::string& name) {
  if (name == "base64") return BytesForm::Base64;
  return name == "hex" ? BytesForm::Hex : BytesForm::Text;
}

py::dict layout() {
  using namespace py::literals;
  return py::dict("entryHeaderSize"_a = kEntryHeaderSize, "maxEntrySize"_a = kMaxEntrySize,
                  "minBlankSize"_a = kMinBlankSize, "minMessageSize"_a = kMinMessageSize,
                  "messageMagicV1"_a = kMessageMagicV1, "messageMagicV2"_a = kMessageMagicV2,
                  "messageMagicBlank"_a = kMessageMagicBlank, "propertyCrcSize"_a = kPropertyCrcSize);
}

py::list column_names() {
  py::list names;
  for (const std::string& name : Scan::column_names()) names.append(name);
  return names;
}

py::object error_class(const char* name) { return py::module_::import("pyspark_dledger.errors").attr(name); }

template <uint32_t (*Crc)(const uint8_t*, size_t, uint32_t)>
uint32_t crc_of(const py::object& data, uint32_t before) {
  const HeldBytes held(data, "bytes");
  return released(held.range().size,
                  [&] { return Crc(held.range().data, static_cast<size_t>(held.range().size), before); });
}

}  // namespace
}  // namespace dledger

PYBIND11_MODULE(_native, module) {
  using namespace dledger;
  module.doc() =
      "The native engine: scans segments into Arrow batches, encodes and checks entries. See format/native_engine.py.";

  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const StoreFault& fault) {
      PyErr_SetString(error_class("StoreError").ptr(), fault.what());
    } catch (const UnreadableFault& fault) {
      const py::object type = error_class("UnreadableError");
      PyErr_SetObject(type.ptr(), type(fault.path, fault.reason, fault.offset).ptr());
    } catch (const MissingFault& fault) {
      const py::object missing = py::module_::import("pyspark_dledger.format.scan.segment_file").attr("MissingBytes");
      PyErr_SetObject(missing.ptr(), py::int_(fault.offset).ptr());
    } catch (const MalformedFault& fault) {
      PyErr_SetString(error_class("MalformedError").ptr(), fault.what());
    } catch (const PutFault& fault) {
      PyErr_SetObject(PyExc_ValueError, py::str(fault.text).ptr());
    }
  });

  py::class_<Batch>(module, "Batch")
      .def("__arrow_c_array__", &to_arrow, py::arg("requested_schema") = py::none())
      .def_property_readonly("compressed", &compressed);
  py::class_<Scan>(module, "Scan")
      .def(py::init(&open_scan), py::arg("request"))
      .def("next", &Scan::next, py::call_guard<py::gil_scoped_release>());
  // Views stay valid as long as they live.
  py::class_<MappedFile>(module, "MappedBytes", py::buffer_protocol())
      .def(py::init(
          [](const std::string& path) { return std::make_unique<MappedFile>(SegmentBytes{path, path}, true); }))
      .def_buffer([](MappedFile& file) { return py::buffer_info(file.data(), file.size()); })
      .def("load", &MappedFile::load)
      .def("is_loaded", &MappedFile::is_loaded)
      .def("readable", &MappedFile::readable);
  module.def("log_end", &find_log_end);
  module.def("split", [](const py::object& segment, int64_t start, int64_t end, int64_t target_bytes) {
    const int64_t target = std::max<int64_t>(target_bytes, 1);
    return on_segment(segment, start, [&](const SegmentView& view) { return split(view, start, end, target); }, false);
  });
  module.def("seek", [](const py::object& segment, int64_t start, int64_t end, int64_t index) {
    return on_segment(segment, start, [&](const SegmentView& view) { return seek(view, start, end, index); }, true);
  });
  module.def("term_runs", &find_term_runs);
  module.def("copy_messages", &copy_from);
  module.def("survey", &take_survey);
  module.def("gather", &gather);
  module.def("pack_bodies", &pack_bodies);
  module.def("unpack_bodies", &unpack_bodies);
  module.def("encode_entries", &encode_bodies);
  module.def("check_entries", &check_bytes);
  module.def("find_torn", &find_torn_in);
  module.def("find_damaged", &find_damaged_in);
  module.def("find_wrong_body", &find_wrong_body_in, py::arg("data"), py::arg("needs_crc") = false);
  module.def("write_body_crcs", &write_crcs);
  add_puts(module);
  module.def("crc32", &crc_of<crc32>, py::arg("data"), py::arg("before") = 0);
  module.def("crc32_portable", &crc_of<crc32_portable>, py::arg("data"), py::arg("before") = 0);
  py::class_<HeldLines>(module, "JsonLines")
      .def(py::init([](const py::object& batch, const std::string& form) {
        return std::make_unique<HeldLines>(batch, bytes_form(form));
      }))
      .def("next", &HeldLines::next);
  module.def("layout", &layout);
  module.def("column_names", &column_names);
  module.def("problem_names", &problem_names);
  module.def("set_catalogue", &set_catalogue);
  module.def("chain_visits", [] { return WalkedChains::visits(); });
}
