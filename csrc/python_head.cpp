#include "python_parts.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "head.hpp"
#include "python_arrays.hpp"
#include "python_steps.hpp"

namespace paradecode {
namespace {

using PythonNetwork = std::shared_ptr<Network>;
using Gain = std::optional<std::vector<float>>;
// The tuple has: before, after, heads, kv_heads, size, frequencies, epsilon, q_norm, k_norm.
using PythonBlock =
    std::tuple<PythonNetwork, PythonNetwork, int, int, int, std::vector<double>, float, Gain, Gain>;

std::vector<float> padded(const Gain& gain) {
  if (!gain) return {};
  std::vector<float> out = *gain;
  out.resize((out.size() + kLanes - 1) / kLanes * kLanes);
  return out;
}

void make_head(DraftHead* self, int width, PythonNetwork enter, std::vector<PythonBlock> blocks,
               std::vector<PythonNetwork> outs, std::optional<PythonNetwork> back,
               std::vector<std::int32_t> to_target, std::vector<float> mask,
               std::int64_t mask_token, int threads) {
  expect_range("threads", threads, 1, kMostThreads);
  HeadNetworks networks;
  networks.width = width;
  networks.enter = std::move(enter);
  for (auto& [before, after, heads, kv_heads, size, frequencies, epsilon, q_norm, k_norm] : blocks)
    networks.blocks.push_back({before, after, heads, kv_heads, size, std::move(frequencies),
                               epsilon, padded(q_norm), padded(k_norm)});
  networks.outs.assign(outs.begin(), outs.end());
  if (back) networks.back = *back;
  networks.to_target = std::move(to_target);
  networks.mask = std::move(mask);
  networks.mask_token = mask_token;
  new (self) DraftHead(std::move(networks), threads);
}

// The tuple has: memory, its committed rows, features, tokens, start, count, width, depth, least,
// warp, keys.
using PythonDraft =
    std::tuple<std::shared_ptr<HeadMemory>, std::int64_t, nb::object, nb::object, std::int64_t,
               std::int64_t, int, int, double, PythonWarp, std::vector<std::uint64_t>>;

// Returns a tree (tokens, parents, estimates) for each draft, and how many levels were run.
nb::tuple draft(DraftHead& head, const std::vector<PythonDraft>& drafts) {
  std::vector<View<float>> features;  // kept alive while the core reads them
  std::vector<HeadInput> inputs;
  for (const auto& [memory, length, rows, tokens, start, count, width, depth, least, warp, keys] :
       drafts) {
    const View<std::int64_t> ids(tokens, "tokens", 1);
    features.emplace_back(rows, "features", 2).expect("features", {ids.size(), head.features()});
    HeadInput input;
    input.memory = memory.get();
    input.length = length;
    input.features = features.back().data();
    // They are copied, so that other threads cannot change them after the check.
    input.tokens.assign(ids.data(), ids.data() + ids.size());
    input.start = start;
    input.limits = {count, width, depth, least, std::apply(make_warp, warp), keys};
    inputs.push_back(std::move(input));
  }
  std::pair<std::vector<DraftTree>, int> made;
  {
    nb::gil_scoped_release release;
    made = head.draft(inputs);
  }
  const auto array = [](const auto& values) {
    using T = typename std::decay_t<decltype(values)>::value_type;
    auto [out, data] = make_array<T>(static_cast<std::int64_t>(values.size()));
    std::copy(values.begin(), values.end(), data);
    return out;
  };
  nb::list trees;
  for (const DraftTree& tree : made.first)
    trees.append(nb::make_tuple(array(tree.tokens), array(tree.parents), array(tree.chances)));
  return nb::make_tuple(trees, made.second);
}

}  // namespace

void define_head(nb::module_& module) {
  nb::class_<HeadMemory>(module, "HeadMemory").def_prop_ro("bytes", &HeadMemory::bytes);
  nb::class_<DraftHead>(module, "DraftHead")
      .def("__init__", make_head, nb::kw_only(), nb::arg("width"), nb::arg("enter"),
           nb::arg("blocks"), nb::arg("outs"), nb::arg("back").none(), nb::arg("to_target"),
           nb::arg("mask"), nb::arg("mask_token"), nb::arg("threads"))
      .def("memory", &DraftHead::memory)
      .def("draft", draft)
      .def_prop_ro("bytes", &DraftHead::bytes);
}

}  // namespace paradecode
