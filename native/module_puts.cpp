// The part of the Python module for puts.
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>

#include "dispatched_rows.hpp"
#include "identities.hpp"
#include "put_rows.hpp"
#include "python_values.hpp"
#include "text.hpp"

namespace dledger {
namespace {

// `settings` is a checked PutSettings.
PutSettings put_settings(const py::object& settings) {
  PutSettings native;
  native.producer = settings.attr("producer").cast<std::optional<std::string>>();
  native.born_timestamp = settings.attr("born_timestamp").cast<int64_t>();
  native.born_host = settings.attr("born_host").cast<std::string>();
  native.store_host = settings.attr("store_host").cast<std::string>();
  native.round_robin = settings.attr("round_robin").cast<int64_t>();
  native.has_trailing_separator = settings.attr("has_trailing_separator").cast<bool>();
  native.first_row = settings.attr("first_row").cast<int64_t>();
  for (const auto& [topic, queues] : py::dict(settings.attr("queue_counts"))) {
    native.queue_counts.emplace_back(topic.cast<std::string>(), queues.cast<int32_t>());
  }
  return native;
}

// The cost of encoding rows, as a number of bytes to read.
int64_t cost_of(const PutBatch& batch) {
  constexpr int64_t kCostOfRow = 2048, kCostOfByte = 4;  // bytes are hashed, summed and copied
  const int32_t* const ends = batch.body.offsets + batch.body.offset;
  const int64_t bytes = batch.body.is_present ? ends[batch.rows] - ends[0] : 0;
  return kCostOfRow * batch.rows + kCostOfByte * bytes;
}

// The fields of a Bodies.
py::tuple encode_messages(const py::object& batch, const py::object& settings, Ordinals& ordinals) {
  const PutSettings native = put_settings(settings);
  const HeldArrow held(batch);
  const PutBatch rows = view_batch(held.schema(), held.array());
  const int64_t cost = cost_of(rows);
  const auto encoder = released(cost, [&] { return std::make_unique<RowEncoder>(rows, native); });
  const auto [block, data] = make_bytes(encoder->block_size());
  uint8_t* const to = data;
  released(cost, [&] { encoder->encode(ordinals, to); });
  return py::make_tuple(rows.rows, block);
}

// The fields of a Puts, arrays as bytes.
py::tuple read_bodies(const py::object& count, const py::object& block) {
  PackedBodies bodies{count_of(count), {}};
  const HeldBytes held(block, "block");
  bodies.block = held.range();
  const ReadPuts puts = released(bodies.block.size, [&] { return read_puts(bodies); });
  return py::make_tuple(puts.queues, array_of(puts.queue), array_of(puts.sys_flag), bytes_of(puts.ids),
                        array_of(puts.has_id));
}

// A request that was received is a writable memoryview, whose bytes nobody else uses.
bool is_received(const py::object& block) {
  return PyMemoryView_Check(block.ptr()) && PyMemoryView_GET_BUFFER(block.ptr())->readonly == 0;
}

// The fields of a Bodies. `keep` is an array of bool and `queue_offsets` one of int64, with a value for each body.
py::tuple stamp_bodies(const py::object& count, const py::object& block, const py::object& keep,
                       const py::object& queue_offsets, int64_t store_timestamp, const py::bytes& store_host) {
  PackedBodies bodies{count_of(count), {}};
  const HeldBytes held(block, "block"), kept(keep, "keep"), offsets(queue_offsets, "queue_offsets");
  bodies.block = held.range();
  if (kept.range().size != bodies.count || offsets.range().size != 8 * bodies.count) {
    throw py::value_error("expected one value of keep and queue_offsets for each body, found another number");
  }
  const auto* const numbers = reinterpret_cast<const int64_t*>(offsets.range().data);
  const std::string host = store_host;
  const Stamp stamp{store_timestamp, host};
  const Stamped plan =
      released(bodies.block.size, [&] { return plan_stamps(bodies, kept.range().data, numbers, stamp); });
  if (is_received(block) && keeps_all(plan, bodies)) {
    released(plan.block_size, [&] { stamp_in_place(plan, stamp); });
    return py::make_tuple(bodies.count, block);
  }
  const auto [stamped, data] = make_bytes(plan.block_size);
  uint8_t* const to = data;
  released(plan.block_size, [&] { stamp_puts(plan, stamp, to); });
  return py::make_tuple(plan.sizes.size(), stamped);
}

// The fields of a NumberedPuts, the array as bytes. `queue`, `sys_flag` and `keep` have a value for each put.
py::tuple number_bodies(const py::object& queue, const py::object& sys_flag, const py::object& keep,
                        std::vector<int64_t> ends) {
  const HeldBytes queues(queue, "queue"), flags(sys_flag, "sys_flag"), kept(keep, "keep");
  const int64_t count = kept.range().size;
  if (queues.range().size != 4 * count || flags.range().size != 4 * count) {
    throw py::value_error("expected one value of queue, sys_flag and keep for each put, found another number");
  }
  std::vector<int64_t> queue_offsets(static_cast<size_t>(count));
  number_puts(queues.range(), flags.range(), kept.range().data, ends, queue_offsets.data());
  return py::make_tuple(array_of(queue_offsets), ends);
}

py::bytes locate_bodies(const py::object& count, const py::object& block, const py::object& first_index,
                        const std::vector<std::pair<int64_t, int64_t>>& runs, const py::object& queue_offsets) {
  const HeldBytes held(block, "block"), offsets(queue_offsets, "queue_offsets");
  const PackedBodies bodies{count_of(count), held.range()};
  const int64_t first = integer("first_index", first_index, 0, kMaxPosition);
  if (offsets.range().size != 8 * bodies.count) {
    throw py::value_error("expected one queue offset for each body, found another number");
  }
  const auto [locations, to] = make_bytes(kLocationSize * bodies.count);
  locate_puts(bodies, first, runs, offsets.range().data, to);
  return locations;
}

void patch_entries(const py::object& data, const py::object& units) {
  const HeldBytes entries(data, "entries", PyBUF_WRITABLE), held(units, "units");
  patch_physical_offsets(const_cast<uint8_t*>(entries.range().data), entries.range().size, held.range());
}

// An int32 for each string of an Arrow array; 0 for null.
py::bytearray java_hashes(const py::object& strings) {
  const HeldArrow held(strings);
  const TextColumn column = view_text(held.schema(), held.array(), 0);
  const int64_t count = held.array().length;
  const auto [made, data] = make_bytearray(4 * count);
  for (int64_t i = 0; i < count; i++) {
    const Text text = column.at(i);
    const auto size = static_cast<size_t>(std::max<int64_t>(text.size, 0));
    int32_t hash = 0;
    if (is_utf8(text.data, size)) {
      hash = java_hash(text.data, size);
    } else {
      const std::string decoded = sanitize_utf8(text.data, size);
      hash = java_hash(reinterpret_cast<const uint8_t*>(decoded.data()), decoded.size());
    }
    std::memcpy(data + 4 * i, &hash, sizeof hash);
  }
  return made;
}

// The fields of a DispatchedRows, arrays as bytes. Without `batch_topics`, batches are dispatched.
py::tuple dispatch_rows(const py::object& batch, int64_t header_size, bool has_tags,
                        const std::optional<std::vector<std::string>>& batch_topics) {
  DispatchSettings settings;
  settings.header_size = header_size;
  settings.has_tags = has_tags;
  settings.skips_batches = batch_topics.has_value();
  if (batch_topics) settings.batch_topics = *batch_topics;
  const HeldArrow held(batch);
  const DispatchedRows rows = [&] {
    const py::gil_scoped_release release;
    return dispatched_rows(held.schema(), held.array(), settings);
  }();
  return py::make_tuple(rows.queues, rows.counts, array_of(rows.queue_offset), array_of(rows.units),
                        py::make_tuple(array_of(rows.key_offset), array_of(rows.key_stored), array_of(rows.key_hash)),
                        py::make_tuple(array_of(rows.id_index), bytes_of(rows.ids), array_of(rows.id_stored)),
                        rows.first_index, rows.last_index, rows.last_term, rows.first_stored, rows.last_stored,
                        rows.messages, rows.batches, rows.skipped, rows.first_skipped);
}

void add_identities(IdentityTable& table, const py::object& ids, const py::object& index) {
  const HeldBytes held(ids, "identities"), numbers(index, "index");
  const Identities added(held.range());
  if (numbers.range().size != static_cast<int64_t>(8 * added.size())) {
    throw py::value_error("expected one index for each identity, found another number");
  }
  table.add(added, numbers.range().data);
}

py::dict find_identities(const IdentityTable& table, const py::object& ids) {
  const HeldBytes held(ids, "identities");
  py::dict found;
  for (const auto& [ordinal, index] : table.find(Identities(held.range()))) found[py::int_(ordinal)] = index;
  return found;
}

py::dict repeated_identities(const IdentityTable& table, const py::object& ids, const py::object& counts) {
  const HeldBytes held(ids, "identities"), counted(counts, "counts");
  const Identities found(held.range());
  if (counted.range().size != static_cast<int64_t>(found.size())) {
    throw py::value_error("expected one flag for each identity, found another number");
  }
  py::dict repeats;
  for (const auto& [ordinal, first] : table.repeats(found, counted.range().data)) repeats[py::int_(ordinal)] = first;
  return repeats;
}

py::tuple identities_of(const IdentityTable& table, uint64_t producer, int64_t covered) {
  const IdentityTable::Found found = table.of_producer(producer, covered);
  return py::make_tuple(bytes_of(found.ids), array_of(found.index));
}

}  // namespace

void add_puts(py::module_& module) {
  py::class_<Ordinals>(module, "Ordinals").def(py::init<>()).def("__len__", &Ordinals::size);
  module.def("encode_messages", &encode_messages);
  module.def("read_puts", &read_bodies);
  module.def("stamp_puts", &stamp_bodies);
  module.def("number_puts", &number_bodies);
  module.def("locate_puts", &locate_bodies);
  module.def("patch_physical_offsets", &patch_entries);
  py::class_<IdentityTable>(module, "IdentityTable")
      .def(py::init<>())
      .def("__len__", &IdentityTable::size)
      .def("add", &add_identities)
      .def("find", &find_identities)
      .def("repeats", &repeated_identities)
      .def("forget", &IdentityTable::forget)
      .def("of_producer", &identities_of);
  py::class_<IdentityFilter>(module, "IdentityFilter")
      .def(py::init<int64_t>())
      .def_property_readonly("capacity", &IdentityFilter::capacity)
      .def("add", [](IdentityFilter& filter,
                     const py::object& ids) { filter.add(Identities(HeldBytes(ids, "identities").range())); })
      .def("candidates", [](const IdentityFilter& filter, const py::object& ids) {
        return array_of(filter.candidates(Identities(HeldBytes(ids, "identities").range())));
      });
  module.def("java_hashes", &java_hashes);
  module.def("dispatched_rows", &dispatch_rows);
}

}  // namespace dledger
