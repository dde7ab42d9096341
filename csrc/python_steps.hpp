// The Python binding of costs.hpp, lookup.hpp and steps.hpp.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>

#include <array>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "costs.hpp"
#include "logits.hpp"
#include "lookup.hpp"
#include "model.hpp"

namespace paradecode {

namespace nb = nanobind;

// Throws InvalidInput for a temperature below 0.
Warp make_warp(double temperature, std::int64_t top_k, double top_p, double min_p);

// Converts core.multi_step.LookupState: the odds and the odds of the table (lists of priors,
// accepted, tried, all accepted and all tried), calibration, and refusals.
using Numbers = std::vector<double>;
using PythonState =
    std::tuple<std::vector<Numbers>, std::vector<Numbers>, Numbers, std::vector<std::int64_t>>;
using PythonWarp = std::tuple<double, std::int64_t, double, double>;

// Returns for Model.steps each sequence's part of the committed steps. A part has: drafted tokens
// and their estimates or None, tokens, their log-probabilities if wanted, when the step ended,
// seconds of its forward, and hidden states of the rows before the tokens or None.
nb::list steps(Model& model, nb::sequence sequences, const CostCurve* curve,
               const std::array<double, 3>& overhead, std::pair<std::int64_t, std::int64_t> before,
               std::vector<std::int64_t> spare, std::vector<std::size_t> groups, double limit);

}  // namespace paradecode
