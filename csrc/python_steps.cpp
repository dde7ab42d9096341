#include "python_steps.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "python_arrays.hpp"
#include "python_parts.hpp"
#include "python_spans.hpp"
#include "steps.hpp"

namespace paradecode {

namespace {

constexpr int kMostDraft = 64;  // MAX_DRAFT of methods/draft/loop.py

// Marks sequences, and the objects that they share, as used by this thread. Without the
// interpreter's lock two threads could use the same one. Throws if another thread uses one of them.
class InUse {
 public:
  explicit InUse(const std::vector<StepSequence*>& sequences) {
    std::vector<std::atomic_flag*> flags;
    for (StepSequence* sequence : sequences) {
      flags.push_back(&sequence->busy);
      if (sequence->lookup != nullptr) flags.push_back(&sequence->lookup->learned->busy);
    }
    std::sort(flags.begin(), flags.end());
    flags.erase(std::unique(flags.begin(), flags.end()), flags.end());
    for (std::atomic_flag* flag : flags) {
      if (flag->test_and_set()) {
        release();
        throw BackendError("a sequence makes steps in another thread");
      }
      taken_.push_back(flag);
    }
  }
  ~InUse() { release(); }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  void release() {
    for (std::atomic_flag* flag : taken_) flag->clear();
  }

  std::vector<std::atomic_flag*> taken_;
};

template <class List>
void expect_size(const char* field, const List& values, std::size_t size) {
  if (values.size() != size)
    throw InvalidInput(field, static_cast<std::int64_t>(values.size()),
                       "give " + std::to_string(size) + " entries");
}

// They are copied, so that other threads cannot change them after the check.
Tokens copied(nb::handle array, const char* field) {
  const View<std::int32_t> view(array, field, 1);
  return {view.data(), view.data() + view.size()};
}

void make_table(NgramTable* self, nb::handle keys, nb::handle values) {
  const View<std::uint32_t> given(keys, "keys", 1);
  const View<std::uint32_t> said(values, "values", 1);
  said.expect("values", {given.size()});
  std::vector<std::uint32_t> ascending(given.data(), given.data() + given.size());
  if (!std::is_sorted(ascending.begin(), ascending.end()))
    throw InvalidInput("keys", given.size(), "give them in ascending order");
  new (self) NgramTable(std::move(ascending), {said.data(), said.data() + said.size()});
}

// `lookup` is a tuple (shortest, longest, most, patience, table), or None for plain decoding.
using LookupSettings = std::tuple<int, int, int, std::int64_t, std::shared_ptr<NgramTable>>;

Odds read_odds(const char* field, const std::vector<Numbers>& given, int kinds) {
  expect_size(field, given, 5);
  for (const Numbers& numbers : given) expect_size(field, numbers, static_cast<std::size_t>(kinds));
  return {given[0], given[1], given[2], given[3], given[4]};
}

std::vector<Numbers> listed(const Odds& odds) {
  return {odds.prior, odds.accepted, odds.tried, odds.all_accepted, odds.all_tried};
}

// What a lookup has learned: its own part, and the part that it shares.
struct Learned {
  LookupState state;
  Calibration calibration;
  std::int64_t refused = 0;
};

Learned read_state(const PythonState& given, const Lookup& lookup) {
  const auto& [odds, table_odds, calibration, refusals] = given;
  LookupState out;
  out.odds = read_odds("odds", odds, LookupState::kKinds);
  const auto kinds = table_odds.empty() ? 0 : static_cast<int>(table_odds[0].size());
  out.table_odds = read_odds("table_odds", table_odds, kinds);
  if (lookup.table() != nullptr && kinds < lookup.table()->buckets())
    throw InvalidInput("table_odds", std::int64_t{kinds}, "give one for each bucket of the table");
  Calibration known;
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
  out.rest = refusals[2];
  return {std::move(out), known, refusals[1]};
}

PythonState state_of(const Lookup& lookup) {
  const Calibration& known = lookup.learned->calibration;
  Numbers calibration{known.weight, known.overall};
  calibration.insert(calibration.end(), known.promised.begin(), known.promised.end());
  calibration.insert(calibration.end(), known.accepted.begin(), known.accepted.end());
  return {listed(lookup.state.odds),
          listed(lookup.state.table_odds),
          std::move(calibration),
          {lookup.state.refused, lookup.learned->refused, lookup.state.rest}};
}

template <class T>
Array1<T> array_of(const std::vector<T>& values) {
  auto [array, data] = make_array<T>(static_cast<std::int64_t>(values.size()));
  std::copy(values.begin(), values.end(), data);
  return array;
}

void make_sequence(StepSequence* self, const std::optional<LookupSettings>& lookup,
                   nb::handle stops, const PythonWarp& warp, std::uint64_t seed, bool scored) {
  std::unique_ptr<Lookup> made;
  if (lookup) {
    const auto& [shortest, longest, most, patience, table] = *lookup;
    expect_range("shortest", shortest, 1, kMostNgram);
    expect_range("longest", longest, shortest, kMostNgram);
    expect_range("most", most, 0, kMostDraft);
    expect_range("patience", patience, 0, 1 << 20);
    made = std::make_unique<Lookup>(shortest, longest, most, patience, table);
  }
  Tokens ends = copied(stops, "stops");
  const Warp checked = std::apply(make_warp, warp);
  new (self) StepSequence;
  self->lookup = std::move(made);
  self->stops = std::move(ends);
  self->warp = checked;
  self->seed = seed;
  self->scored = scored;
}

void enter(StepSequence& self, nb::handle text, std::int64_t room, std::int64_t steps,
           std::int64_t rows, std::vector<int> hidden, const std::optional<PythonState>& state,
           std::shared_ptr<Experience> learned) {
  Tokens given = copied(text, "text");
  const auto length = static_cast<std::int64_t>(given.size());
  expect_range("length of text", length, 1, std::int64_t{1} << 31);
  expect_range("rows", rows, 0, std::int64_t{1} << 31);
  Lookup* lookup = self.lookup.get();
  if (lookup != nullptr) {
    if (!state || learned == nullptr)
      throw InvalidInput("state", std::monostate(), "give what the lookup has learned so far");
    Learned read = read_state(*state, *lookup);
    // It must outlive the flag that marks it as used.
    const std::shared_ptr<Experience> before = lookup->learned;
    {
      const InUse use({&self});
      if (given.size() < lookup->length())
        throw InvalidInput("text", length, "a text may only grow");
      lookup->learned = std::move(learned);
    }
    const InUse use({&self});  // This also marks what the sequence shares from now on.
    lookup->state = std::move(read.state);
    lookup->learned->calibration = read.calibration;
    lookup->learned->refused = read.refused;
  }
  const InUse use({&self});
  self.text = std::move(given);
  self.room = room;
  self.steps = steps;
  self.rows = rows;
  self.hidden = std::move(hidden);
}

void make_curve(CostCurve* self, std::vector<double> rows, std::vector<double> contexts,
                std::vector<Numbers> seconds) {
  const auto expect_finite = [](const char* field, const Numbers& values) {
    if (!std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); }))
      throw InvalidInput(field, std::monostate(), "give finite numbers");
  };
  const auto ascends = [&](const char* field, const Numbers& values) {
    expect_finite(field, values);
    if (values.empty() ||
        std::adjacent_find(values.begin(), values.end(), std::greater_equal<>()) != values.end())
      throw InvalidInput(field, std::monostate(), "give ascending numbers, at least one");
  };
  ascends("rows", rows);
  ascends("contexts", contexts);
  expect_size("seconds", seconds, contexts.size());
  for (const Numbers& column : seconds) {
    expect_size("seconds", column, rows.size());
    expect_finite("seconds", column);
  }
  new (self) CostCurve{std::move(rows), std::move(contexts), std::move(seconds)};
}

}  // namespace

Warp make_warp(double temperature, std::int64_t top_k, double top_p, double min_p) {
  if (!(temperature >= 0))
    throw InvalidInput("temperature", std::monostate(), "give a number of at least 0");
  return {temperature, top_k, top_p, min_p};
}

void define_steps(nb::module_& module) {
  nb::class_<NgramTable>(module, "NgramTable")
      .def("__init__", make_table, nb::arg("keys"), nb::arg("values"));
  nb::class_<Experience>(module, "Experience").def(nb::init<>());
  nb::class_<CostCurve>(module, "CostCurve")
      .def("__init__", make_curve, nb::arg("rows"), nb::arg("contexts"), nb::arg("seconds"));
  nb::class_<StepSequence>(module, "StepSequence")
      .def("__init__", make_sequence, nb::arg("lookup").none(), nb::arg("stops"), nb::arg("warp"),
           nb::arg("seed"), nb::arg("scored"))
      .def("enter", enter, nb::arg("text"), nb::arg("room"), nb::arg("steps"), nb::arg("rows"),
           nb::arg("hidden"), nb::arg("state").none(), nb::arg("experience").none())
      .def(
          "hold",
          [](StepSequence& self, nb::handle pages, nb::handle windows, nb::handle states,
             nb::sequence own) {
            Tokens held = copied(pages, "pages");
            WindowTables tables = read_windows(windows, "windows");
            StateInput read = read_states(states, "");
            std::vector<std::int64_t> slots;
            for (nb::handle slot : own) slots.push_back(read_number(slot, "own_states"));
            if (read.given)
              expect_range("own_states", static_cast<std::int64_t>(slots.size()), 2, 64);
            const InUse use({&self});
            self.pages = std::move(held);
            self.windows = std::move(tables);
            self.states = std::move(read);
            self.own_states = std::move(slots);
          },
          nb::arg("pages"), nb::arg("windows") = nb::dict(), nb::arg("states") = nb::none(),
          nb::arg("own_states") = nb::tuple())
      .def_prop_ro("state",
                   [](StepSequence& self) {
                     const InUse use({&self});
                     return std::pair(self.states.base, self.states.state);
                   })
      .def("learned", [](StepSequence& self) -> std::optional<PythonState> {
        const InUse use({&self});
        if (self.lookup == nullptr) return std::nullopt;
        return state_of(*self.lookup);
      });
}

nb::list steps(Model& model, nb::sequence sequences, const CostCurve* curve,
               const std::array<double, 3>& overhead, std::pair<std::int64_t, std::int64_t> before,
               std::vector<std::int64_t> spare, std::vector<std::size_t> groups, double limit) {
  StepsInput input;
  for (nb::handle sequence : sequences)
    input.sequences.push_back(nb::cast<StepSequence*>(sequence, false));
  const auto count = static_cast<std::int64_t>(input.sequences.size());
  if (count == 0) throw InvalidInput("sequences", count, "give at least one");
  const std::set<const StepSequence*> distinct(input.sequences.begin(), input.sequences.end());
  if (static_cast<std::int64_t>(distinct.size()) != count || distinct.count(nullptr) > 0)
    throw InvalidInput("sequences", count, "give each of them once");
  input.curve = curve;
  input.step_seconds = overhead[0];
  input.sequence_seconds = overhead[1];
  input.draft_seconds = overhead[2];
  expect_range("sequences before", before.first, 1, 1 << 20);
  expect_range("rows before", before.second, 0, std::int64_t{1} << 31);
  input.spans = before.first;
  input.rows = before.second;
  expect_size("groups", groups, input.sequences.size());
  for (const std::size_t group : groups)
    expect_range("groups", static_cast<std::int64_t>(group), 0,
                 static_cast<std::int64_t>(spare.size()) - 1);
  for (const std::int64_t rows : spare) expect_range("spare", rows, 0, std::int64_t{1} << 31);
  input.spare = std::move(spare);
  input.groups = std::move(groups);
  input.limit = limit;
  std::vector<CommittedStep> done;
  {
    const InUse use(input.sequences);
    for (const StepSequence* sequence : input.sequences)
      if (sequence->text.empty())
        throw InvalidInput("sequences", std::monostate(), "let each of them enter first");
    nb::gil_scoped_release release;
    done = run_steps(model, std::move(input));
  }
  nb::list out;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    nb::list mine;
    for (const CommittedStep& step : done) {
      const auto& [drafted, tokens, logprobs, states] = step.parts[i];
      nb::object ids = nb::none();
      nb::object estimates = nb::none();
      nb::object hidden = nb::none();
      if (!drafted.tokens.empty()) {
        ids = nb::cast(array_of(drafted.tokens));
        estimates = nb::cast(array_of(drafted.estimates));
      }
      if (!states.empty()) {
        const auto rows = static_cast<std::int64_t>(tokens.size());
        auto [array, data] =
            make_array<float>(rows, static_cast<std::int64_t>(states.size()) / rows);
        std::copy(states.begin(), states.end(), data);
        hidden = nb::cast(array);
      }
      mine.append(
          nb::make_tuple(ids, estimates, tokens, logprobs, step.ended, step.forward, hidden));
    }
    out.append(mine);
  }
  return out;
}

}  // namespace paradecode
