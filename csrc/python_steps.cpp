#include "python_steps.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>

#include "python_arrays.hpp"
#include "steps.hpp"

namespace paradecode {

namespace {

constexpr int kMostDraft = 64;  // MAX_DRAFT of methods/draft/loop.py

void expect_range(const char* field, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most)
    throw InvalidInput(field, value,
                       "give " + std::to_string(least) + " to " + std::to_string(most));
}

template <class List>
void expect_size(const char* field, const List& values, std::size_t size) {
  if (values.size() != size)
    throw InvalidInput(field, static_cast<std::int64_t>(values.size()),
                       "give " + std::to_string(size) + " entries");
}

// Copied, so that nobody changes what was checked.
Tokens copied(nb::handle array, const char* field) {
  const View<std::int32_t> view(array, field, 1);
  return {view.data(), view.data() + view.size()};
}

void make_table(NgramTable* self, nb::sequence rows) {
  if (nb::len(rows) != NgramTable::kOrder)
    throw InvalidInput("rows", static_cast<std::int64_t>(nb::len(rows)),
                       "give an array for each size of a context, 1 to 4");
  NgramTable table;
  int size = 1;
  for (nb::handle array : rows) {
    const View<std::int32_t> view(array, "rows", 2);
    view.expect("rows", {view.size(0), size + 2});
    for (std::int64_t row = 0; row < view.size(0); ++row)
      expect_range("bucket", view.data()[row * (size + 2) + size + 1], 0, 1 << 16);
    table.fill(size, view.data(), view.size(0));
    ++size;
  }
  new (self) NgramTable(std::move(table));
}

void make_lookup(SharedLookup* self, int shortest, int longest, int most, std::int64_t patience,
                 std::shared_ptr<NgramTable> table) {
  expect_range("shortest", shortest, 1, kMostNgram);
  expect_range("longest", longest, shortest, kMostNgram);
  expect_range("most", most, 0, kMostDraft);
  expect_range("patience", patience, 0, 1 << 20);
  new (self) SharedLookup{{shortest, longest, most, patience, std::move(table)}, {}};
}

Odds read_odds(const char* field, const std::vector<Numbers>& given, int kinds) {
  expect_size(field, given, 5);
  for (const Numbers& numbers : given) expect_size(field, numbers, static_cast<std::size_t>(kinds));
  return {given[0], given[1], given[2], given[3], given[4]};
}

std::vector<Numbers> listed(const Odds& odds) {
  return {odds.prior, odds.accepted, odds.tried, odds.all_accepted, odds.all_tried};
}

LookupState read_state(const PythonState& given, const Lookup& lookup) {
  const auto& [odds, table_odds, calibration, refusals] = given;
  LookupState out;
  out.odds = read_odds("odds", odds, LookupState::kKinds);
  const auto kinds = table_odds.empty() ? 0 : static_cast<int>(table_odds[0].size());
  out.table_odds = read_odds("table_odds", table_odds, kinds);
  if (lookup.table() != nullptr && kinds < lookup.table()->buckets())
    throw InvalidInput("table_odds", std::int64_t{kinds}, "give one for each bucket of the table");
  Calibration& known = out.calibration;
  const std::size_t buckets = known.promised.size();
  expect_size("calibration", calibration, 2 + 2 * buckets);
  known.weight = calibration[0];
  known.overall = calibration[1];
  std::copy_n(calibration.begin() + 2, buckets, known.promised.begin());
  std::copy_n(calibration.begin() + 2 + static_cast<std::ptrdiff_t>(buckets), buckets,
              known.accepted.begin());
  expect_size("refusals", refusals, 3);
  for (const std::int64_t count : refusals)
    expect_range("refusals", count, 0, std::int64_t{1} << 62);
  out.refused = refusals[0];
  out.refused_by_all = refusals[1];
  out.rest = refusals[2];
  return out;
}

PythonState written(const LookupState& state) {
  const Calibration& known = state.calibration;
  Numbers calibration{known.weight, known.overall};
  calibration.insert(calibration.end(), known.promised.begin(), known.promised.end());
  calibration.insert(calibration.end(), known.accepted.begin(), known.accepted.end());
  return {listed(state.odds),
          listed(state.table_odds),
          std::move(calibration),
          {state.refused, state.refused_by_all, state.rest}};
}

template <class T>
Array1<T> array_of(const std::vector<T>& values) {
  auto [array, data] = make_array<T>(static_cast<std::int64_t>(values.size()));
  std::copy(values.begin(), values.end(), data);
  return array;
}

StepsInput read_input(const Lookup* lookup, nb::handle seconds) {
  StepsInput out;
  if (seconds.is_none()) return out;
  const View<double> view(seconds, "seconds", 2);
  view.expect("seconds", {view.size(0), 1 + (lookup == nullptr ? 0 : lookup->most())});
  out.seconds.assign(view.data(), view.data() + view.size(0) * view.size(1));
  return out;
}

}  // namespace

Warp make_warp(double temperature, std::int64_t top_k, double top_p, double min_p) {
  if (!(temperature >= 0))
    throw InvalidInput("temperature", std::monostate(), "give a number of at least 0");
  return {temperature, top_k, top_p, min_p};
}

void define_lookup(nb::module_& module) {
  nb::class_<NgramTable>(module, "NgramTable").def("__init__", make_table, nb::arg("rows"));
  nb::class_<SharedLookup>(module, "Lookup")
      .def("__init__", make_lookup, nb::arg("shortest"), nb::arg("longest"), nb::arg("most"),
           nb::arg("patience"), nb::arg("table").none());
}

nb::tuple steps(Model& model, SharedLookup* lookup, const std::optional<PythonState>& state,
                nb::handle text, nb::handle pages, std::int64_t room, nb::handle stops,
                const PythonWarp& warp, std::uint64_t seed, double limit, nb::handle seconds,
                std::int64_t first_context) {
  StepsInput input = read_input(lookup == nullptr ? nullptr : &lookup->lookup, seconds);
  input.text = copied(text, "text");
  input.pages = copied(pages, "pages");
  input.stops = copied(stops, "stops");
  const auto length = static_cast<std::int64_t>(input.text.size());
  expect_range("length of text", length, 1, std::int64_t{1} << 31);
  expect_range("first_context", first_context, 0, length / kContextStep);
  input.room = room;
  input.warp = std::apply(make_warp, warp);
  input.seed = seed;
  input.limit = limit;
  input.first_context = first_context;
  if (lookup != nullptr && !state)
    throw InvalidInput("state", std::monostate(), "give what the lookup has learned so far");
  std::vector<CommittedStep> done;
  std::optional<PythonState> learned;
  {
    nb::gil_scoped_release release;
    if (lookup == nullptr) {
      done = run_steps(model, nullptr, std::move(input));
    } else {
      const std::lock_guard lock(lookup->busy);
      if (input.text.size() < lookup->lookup.length())
        throw InvalidInput("text", length, "a text may only grow");
      lookup->lookup.state = read_state(*state, lookup->lookup);
      done = run_steps(model, &lookup->lookup, std::move(input));
      learned = written(lookup->lookup.state);
    }
  }
  nb::list out;
  for (const CommittedStep& step : done)
    out.append(nb::make_tuple(array_of(step.draft.tokens), array_of(step.draft.estimates),
                              step.tokens, step.ended, step.forward));
  return nb::make_tuple(out, learned);
}

}  // namespace paradecode
