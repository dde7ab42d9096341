#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>

#include "network.hpp"
#include "python_arrays.hpp"
#include "python_parts.hpp"

namespace paradecode {
namespace {

// steps: tuples (kind, values, tensors, count, number); tensors: float32 matrices and vectors;
// dtype: that of the matrices.
void make_network(Network* self, std::vector<int> widths, nb::sequence steps, nb::sequence tensors,
                  const std::string& dtype) {
  if (dtype != "q4" && dtype != "q8" && dtype != "f32")
    throw InvalidInput("dtype", dtype, "use q4, q8 or f32");
  using Fields = std::tuple<int, std::vector<int>, std::vector<int>, int, float>;
  std::vector<NetworkStep> read;
  for (nb::handle step : steps) {
    auto [kind, values, used, count, number] = nb::cast<Fields>(step);
    read.push_back(
        {static_cast<StepKind>(kind), std::move(values), std::move(used), count, number});
  }
  std::vector<View<float>> views;
  std::vector<NetworkTensor> data;
  for (nb::handle tensor : tensors) {
    const bool vector = nb::cast<int>(tensor.attr("ndim")) == 1;
    const View<float>& view = views.emplace_back(tensor, "tensor of a network", vector ? 1 : 2);
    data.push_back({vector ? 1 : view.size(0), view.size(vector ? 0 : 1), view.data()});
  }
  const Format format = dtype == "q4" ? Format::Q4 : dtype == "q8" ? Format::Q8 : Format::F32;
  new (self) Network(std::move(widths), std::move(read), data, format);
}

// inputs: for each input of the network an array of all rows; ends: where the items end.
Array2<float> run_network(const Network& network, nb::sequence inputs,
                          const std::vector<std::int64_t>& ends) {
  const std::string field = "inputs of a network";
  std::int64_t rows = 0;
  for (const std::int64_t end : ends) {
    if (end < rows) throw InvalidInput("ends", end, "give them in ascending order");
    rows = end;
  }
  if (nb::len(inputs) != static_cast<std::size_t>(network.inputs()))
    throw InvalidInput(field, static_cast<std::int64_t>(nb::len(inputs)),
                       "give " + std::to_string(network.inputs()));
  std::vector<View<float>> numbers;
  // copied, so that other threads cannot change checked ids
  std::vector<std::vector<std::int64_t>> ids;
  std::vector<NetworkInput> given;
  for (nb::handle input : inputs) {
    const int width = network.widths()[given.size()];
    if (width == 0) {
      const View<std::int64_t> view(input, field, 1);
      view.expect(field, {rows});
      ids.emplace_back(view.data(), view.data() + view.size());
      given.push_back({nullptr, ids.back().data()});
    } else {
      numbers.emplace_back(input, field, 2).expect(field, {rows, width});
      given.push_back({numbers.back().data(), nullptr});
    }
  }
  auto [array, out] = make_array<float>(rows, network.widths().back());
  nb::gil_scoped_release release;
  network.run(given, ends, out);
  return array;
}

}  // namespace

void define_network(nb::module_& m) {
  nb::class_<Network>(m, "Network")
      .def("__init__", make_network, nb::arg("widths"), nb::arg("steps"), nb::arg("tensors"),
           nb::arg("dtype") = "f32")
      .def("run", run_network, nb::arg("inputs"), nb::arg("ends"));
}

}  // namespace paradecode
