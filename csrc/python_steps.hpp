// Python's side of lookup.hpp and steps.hpp.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "logits.hpp"
#include "lookup.hpp"
#include "model.hpp"

namespace paradecode {

namespace nb = nanobind;

// Throws InvalidInput for a temperature below 0.
Warp make_warp(double temperature, std::int64_t top_k, double top_p, double min_p);

// core.multi_step.LookupState: odds and odds of the table (a list each of priors, accepted, tried,
// all accepted and all tried), calibration, refusals.
using Numbers = std::vector<double>;
using PythonState =
    std::tuple<std::vector<Numbers>, std::vector<Numbers>, Numbers, std::vector<std::int64_t>>;
using PythonWarp = std::tuple<double, std::int64_t, double, double>;

// The classes NgramTable and Lookup.
void define_lookup(nb::module_& module);

// Without the interpreter's lock two threads could run steps with one lookup.
struct SharedLookup {
  Lookup lookup;
  std::mutex busy;
};

// Model.steps: the steps that were committed, each (drafted tokens, their estimates, tokens, when
// it ended, seconds of its forward), and the state behind them.
nb::tuple steps(Model& model, SharedLookup* lookup, const std::optional<PythonState>& state,
                nb::handle text, nb::handle pages, std::int64_t room, nb::handle stops,
                const PythonWarp& warp, std::uint64_t seed, double limit, nb::handle seconds,
                std::int64_t first_context);

}  // namespace paradecode
