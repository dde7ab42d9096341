#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "model.hpp"
#include "python_arrays.hpp"
#include "python_parts.hpp"
#include "python_shape.hpp"
#include "python_spans.hpp"
#include "python_steps.hpp"

namespace paradecode {
namespace {

Array2<float> hidden_array(std::vector<float>&& values, std::int64_t columns) {
  auto* kept = new std::vector<float>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  const std::size_t rows = kept->size() / static_cast<std::size_t>(columns);
  return Array2<float>(kept->data(), {rows, static_cast<std::size_t>(columns)}, owner);
}

// {layer: weights [rows asked for, heads, tokens]} of a span.
nb::dict attention_arrays(const SpanInput& input, const std::vector<LayerPart>& layers,
                          const ModelShape& shape, std::vector<float>*& values) {
  nb::dict out;
  if (input.attention_count == 0) return out;
  const std::int64_t cached = input.visible == nullptr ? input.context : input.visible_count;
  for (const LayerPart& part : layers) {
    if (!part.attention || !shape.attends(part.layer)) continue;
    const std::array<std::size_t, 3> sizes = {
        static_cast<std::size_t>(input.attention_count),
        static_cast<std::size_t>(shape.attention(part.layer).heads),
        static_cast<std::size_t>(cached + input.tail_count + input.rows)};
    auto* kept = new std::vector<float>(std::move(*values++));
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
    out[nb::int_(part.layer)] =
        nb::ndarray<nb::numpy, float, nb::ndim<3>>(kept->data(), 3, sizes.data(), owner);
  }
  return out;
}

// Which spans are canvases, and the guess of each, or None. Returns what has to live meanwhile.
std::vector<std::shared_ptr<LogitRows>> read_canvases(nb::dict canvases, const ModelShape& shape,
                                                      std::vector<SpanInput>& inputs) {
  std::vector<std::shared_ptr<LogitRows>> guesses;
  for (const auto& [key, value] : canvases) {
    const auto index = nb::cast<std::size_t>(key);
    if (index >= inputs.size() || !shape.canvas)
      throw InvalidInput("canvases", static_cast<std::int64_t>(index),
                         "name spans of a model that refines canvases");
    SpanInput& input = inputs[index];
    input.canvas = true;
    if (value.is_none()) continue;
    guesses.push_back(nb::cast<std::shared_ptr<LogitRows>>(value));
    input.guess = guesses.back().get();
    if (input.guess->rows() != input.rows || input.guess->vocab_size() != shape.vocab_size ||
        input.guess->only_best() || input.given_rows > 0)
      throw InvalidInput("denoise", std::int64_t{input.guess->rows()},
                         "give all logits of the rows of the span, which have tokens");
  }
  return guesses;
}

// One (LogitRows, {layer: hidden}, {layer: attention weights}) for each span.
nb::list forward(Model& model, nb::sequence spans, nb::handle layers, bool only_best,
                 nb::dict canvases) {
  const std::vector<LayerPart> parts = read_layers(layers, model.shape().layers());
  std::vector<SpanArrays> arrays;
  std::vector<SpanInput> inputs;
  arrays.reserve(nb::len(spans));
  for (nb::handle span : spans) {
    arrays.emplace_back(span, arrays.size(), model.shape());
    inputs.push_back(arrays.back().input);
  }
  const auto guesses = read_canvases(canvases, model.shape(), inputs);
  ForwardResult result;
  {
    nb::gil_scoped_release release;
    result = model.forward(inputs, parts, only_best);
  }
  nb::list out;
  std::int64_t row = 0;
  std::size_t next_hidden = 0;
  std::vector<float>* weights = result.attention.data();
  for (const SpanInput& input : inputs) {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(input.logit_count));
    for (auto& index : rows) index = row++;
    nb::dict hidden;
    for (const int layer : input.hidden)
      hidden[nb::int_(layer)] =
          hidden_array(std::move(result.hidden[next_hidden++]), model.shape().hidden_size);
    out.append(nb::make_tuple(
        inputs.size() == 1 ? result.logits : result.logits->select(rows.data(), input.logit_count),
        hidden, attention_arrays(input, parts, model.shape(), weights)));
  }
  return out;
}

void copy_slots(Model& model, nb::handle source, nb::handle target, int window) {
  const View<std::int64_t> from(source, "source", 1);
  const View<std::int64_t> to(target, "target", 1);
  to.expect("target", {from.size()});
  // Copied, so that no other thread changes them after they were checked.
  const std::vector<std::int64_t> sources(from.data(), from.data() + from.size());
  const std::vector<std::int64_t> targets(to.data(), to.data() + to.size());
  nb::gil_scoped_release release;
  model.copy(sources.data(), targets.data(), from.size(), window);
}

void fill(Model& model, const std::string& tensor, std::int64_t first_row, int source,
          nb::handle rows) {
  const View<std::uint8_t> data(rows, tensor, 2);
  if (source < 0 || source >= kSources)
    throw InvalidInput("source", std::int64_t{source}, "use a kind of the Source enumeration");
  nb::gil_scoped_release release;
  model.weights().fill(tensor, first_row, data.size(0), static_cast<Source>(source), data.data(),
                       data.size(1));
}

void set_vector(Model& model, const std::string& tensor, nb::handle values) {
  const View<float> data(values, tensor, 1);
  model.weights().set_vector(tensor, data.data(), data.size());
}
}  // namespace

void define_model(nb::module_& m) {
  nb::class_<Model>(m, "Model")
      .def(
          "__init__",
          [](Model* self, nb::handle shape, bool half_cache, int threads, bool apart) {
            expect_range("threads", threads, 1, kMostThreads);
            new (self) Model(read_shape(shape), half_cache, threads, apart);
          },
          nb::arg("shape"), nb::kw_only(), nb::arg("half_cache"), nb::arg("threads"),
          nb::arg("apart"))
      .def("set_format",
           [](Model& model, const std::string& tensor, int format) {
             if (format < 0 || format >= kFormats)
               throw InvalidInput("format", std::int64_t{format}, "use a Format");
             model.weights().set_format(tensor, static_cast<Format>(format));
           })
      .def("fill", fill)
      .def("set_vector", set_vector)
      .def("finish_loading", &Model::finish_loading, nb::arg("tied_head"),
           nb::call_guard<nb::gil_scoped_release>())
      .def("reserve", &Model::reserve, nb::call_guard<nb::gil_scoped_release>())
      .def("reserve_states", &Model::reserve_states, nb::call_guard<nb::gil_scoped_release>())
      .def("forward", forward, nb::arg("spans"), nb::arg("layers").none(),
           nb::arg("only_best") = false, nb::arg("canvases") = nb::dict())
      .def("steps", steps, nb::arg("sequences"), nb::kw_only(), nb::arg("curve").none(),
           nb::arg("overhead"), nb::arg("before"), nb::arg("spare"), nb::arg("groups"),
           nb::arg("limit"))
      .def("copy", copy_slots, nb::arg("source"), nb::arg("target"), nb::arg("window") = -1)
      .def_prop_ro("threads", &Model::threads)
      .def("work_of", &Model::work_of)
      .def("profile",
           [](Model& model, bool on) {
             nb::dict out;
             const PartSeconds seconds = model.profile(on);
             for (std::size_t i = 0; i < kParts; ++i) out[kPartNames[i]] = seconds[i];
             return out;
           })
      .def("traffic",
           [](Model& model, bool on) {
             nb::list out;
             for (const Traffic& one : model.traffic(on))
               out.append(nb::make_tuple(one.rows, one.context, one.bytes, one.experts));
             return out;
           })
      .def_prop_ro("slot_bytes", &Model::slot_bytes)
      .def_prop_ro("cache_bytes", &Model::cache_bytes)
      .def_prop_ro("isa", [](const Model& model) {
        return std::make_pair(std::string(model.isa().kernels->name), model.isa().reason);
      });
}

}  // namespace paradecode
