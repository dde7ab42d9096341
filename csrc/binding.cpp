// The Python face of the core: its functions and classes, and C++ errors as the exceptions of
// paradecode.core.errors.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <tuple>

#include "errors.hpp"
#include "exact.hpp"
#include "machine.hpp"
#include "model.hpp"
#include "network.hpp"
#include "python_arrays.hpp"
#include "python_head.hpp"
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
                          std::int64_t heads, std::vector<float>* values) {
  nb::dict out;
  if (input.attention_count == 0) return out;
  const std::int64_t cached = input.visible == nullptr ? input.context : input.visible_count;
  const std::array<std::size_t, 3> shape = {
      static_cast<std::size_t>(input.attention_count), static_cast<std::size_t>(heads),
      static_cast<std::size_t>(cached + input.tail_count + input.rows)};
  for (const LayerPart& part : layers) {
    if (!part.attention) continue;
    auto* kept = new std::vector<float>(std::move(*values++));
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
    out[nb::int_(part.layer)] =
        nb::ndarray<nb::numpy, float, nb::ndim<3>>(kept->data(), 3, shape.data(), owner);
  }
  return out;
}

// Which spans are canvases, and the guess of each, or None. Returns what has to live meanwhile.
std::vector<std::shared_ptr<LogitRows>> read_canvases(nb::dict canvases, const ModelShape& shape,
                                                      std::vector<SpanInput>& inputs) {
  std::vector<std::shared_ptr<LogitRows>> guesses;
  for (const auto& [key, value] : canvases) {
    const auto index = nb::cast<std::size_t>(key);
    if (index >= inputs.size() || !shape.gemma())
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
  const std::vector<LayerPart> parts = read_layers(layers, model.shape().layers);
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
        hidden, attention_arrays(input, parts, model.shape().heads, weights)));
    if (input.attention_count > 0)
      weights += std::count_if(parts.begin(), parts.end(),
                               [](const LayerPart& part) { return part.attention; });
  }
  return out;
}

void copy_slots(Model& model, nb::handle source, nb::handle target) {
  const View<std::int64_t> from(source, "source", 1);
  const View<std::int64_t> to(target, "target", 1);
  to.expect("target", {from.size()});
  // Copied, so that no other thread changes them after they were checked.
  const std::vector<std::int64_t> sources(from.data(), from.data() + from.size());
  const std::vector<std::int64_t> targets(to.data(), to.data() + to.size());
  nb::gil_scoped_release release;
  model.copy(sources.data(), targets.data(), from.size());
}

void fill(Model& model, const std::string& tensor, std::int64_t first_row, int source,
          nb::handle rows) {
  const View<std::uint8_t> data(rows, tensor, 2);
  if (source < 0 || source >= kSources)
    throw InvalidInput("source", std::int64_t{source}, "use a kind of the Source enumeration");
  nb::gil_scoped_release release;
  model.fill(tensor, first_row, data.size(0), static_cast<Source>(source), data.data(),
             data.size(1));
}

void set_vector(Model& model, const std::string& tensor, nb::handle values) {
  const View<float> data(values, tensor, 1);
  model.set_vector(tensor, data.data(), data.size());
}

// steps: (kind, values, tensors, count, number) each; tensors: float32 matrices and vectors;
// dtype: of the matrices.
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

// inputs: for each of the network's an array of all rows; ends: where the items end.
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
  std::vector<std::vector<std::int64_t>> ids;  // copied, so that nobody changes checked ones
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

void check_ids(const View<std::int64_t>& ids, const LogitRows& logits) {
  ids.expect("ids", {logits.rows(), ids.size(1)});
  for (std::int64_t i = 0; i < ids.size(0) * ids.size(1); ++i)
    if (ids.data()[i] < 0 || ids.data()[i] >= logits.vocab_size())
      throw InvalidInput("ids", ids.data()[i],
                         "give token ids below " + std::to_string(logits.vocab_size()));
}

Array2<float> gather(const LogitRows& logits, nb::handle ids) {
  const View<std::int64_t> wanted(ids, "ids", 2);
  check_ids(wanted, logits);
  auto [array, out] = make_array<float>(logits.rows(), wanted.size(1));
  for (int r = 0; r < logits.rows(); ++r)
    for (std::int64_t i = 0; i < wanted.size(1); ++i)
      out[r * wanted.size(1) + i] =
          logits.value(r, static_cast<std::int32_t>(wanted.data()[r * wanted.size(1) + i]));
  return array;
}

// biases: for each row None or (int32 ids, float32 additions).
std::shared_ptr<LogitRows> with_bias(const LogitRows& logits, nb::sequence biases) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(logits.rows()));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  if (nb::len(biases) != all.size())
    throw InvalidInput("biases", static_cast<std::int64_t>(nb::len(biases)),
                       "give one entry for each of the " + std::to_string(all.size()) + " rows");
  auto out = logits.select(all.data(), logits.rows());
  int row = 0;
  for (nb::handle bias : biases) {
    if (!bias.is_none()) {
      const View<std::int32_t> ids(bias[0], "bias ids", 1);
      const View<float> added(bias[1], "bias values", 1);
      added.expect("bias values", {ids.size()});
      for (std::int64_t i = 0; i < ids.size(); ++i)
        if (ids.data()[i] < 0 || ids.data()[i] >= logits.vocab_size())
          throw InvalidInput("bias ids", std::int64_t{ids.data()[i]},
                             "give token ids below " + std::to_string(logits.vocab_size()));
      out->add(row, ids.data(), added.data(), ids.size());
    }
    ++row;
  }
  return out;
}

// Runs `each(row)` for every row without the GIL and returns the results as an array.
template <class T, class Each>
Array1<T> per_row(const LogitRows& logits, Each each) {
  auto [array, out] = make_array<T>(logits.rows());
  nb::gil_scoped_release release;
  logits.for_each([&, values = out](int r) { values[r] = each(r); });
  return array;
}

// experts, chosen, expert_size, shared_size, groups, chosen_groups, sigmoid, biased_weights,
// normalised; or nothing.
MixtureShape read_mixture(const std::vector<int>& fields, float scale) {
  if (fields.empty()) return {};
  if (fields.size() != 9)
    throw InvalidInput("mixture", static_cast<std::int64_t>(fields.size()), "give 9 numbers");
  return {fields[0], fields[1],      fields[2],      fields[3],      fields[4],
          fields[5], fields[6] != 0, fields[7] != 0, fields[8] != 0, scale};
}

// kv_heads, head_dim, window, scaled and inverse frequencies of each kind of attention.
std::vector<AttentionShape> read_attentions(nb::sequence kinds) {
  using Fields = std::tuple<int, int, int, bool, std::vector<float>>;
  std::vector<AttentionShape> out;
  for (nb::handle kind : kinds) {
    auto [kv_heads, head_dim, window, scaled, frequencies] = nb::cast<Fields>(kind);
    out.push_back({kv_heads, head_dim, window, scaled, std::move(frequencies)});
  }
  return out;
}

// Raise it, and INTERFACE in backends/native/__init__.py, whenever functions, classes, arguments or
// tuples change that Python meets here: another core beside the package is refused then.
constexpr int kInterface = 8;

void raise_as(const char* name, nb::object arguments) {
  const nb::object type = nb::module_::import_("paradecode.core.errors").attr(name);
  const nb::object error = type(*arguments);
  PyErr_SetObject(type.ptr(), error.ptr());
}

void translate(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const InvalidInput& e) {
    nb::object value = nb::none();
    if (const auto* number = std::get_if<std::int64_t>(&e.value)) value = nb::int_(*number);
    if (const auto* text = std::get_if<std::string>(&e.value)) value = nb::cast(*text);
    raise_as("InvalidInput", nb::make_tuple(e.field, value, e.fix));
  } catch (const BackendError& e) {
    raise_as("BackendError", nb::make_tuple(std::string(e.what())));
  }
}

}  // namespace

NB_MODULE(_core, m) {
  nb::register_exception_translator(translate);
  m.attr("INTERFACE") = kInterface;

  m.def("available_isas", available_isas);
  m.def("chosen_isa", [] {
    const IsaChoice choice = choose_isa();
    return std::make_pair(std::string(choice.kernels->name), choice.reason);
  });
  m.def("read_bandwidth", read_bandwidth, nb::arg("bytes"), nb::arg("threads"),
        nb::call_guard<nb::gil_scoped_release>());
  m.def("dot_peak", dot_peak, nb::arg("threads"), nb::call_guard<nb::gil_scoped_release>());
  m.def("float_peak", float_peak, nb::arg("threads"), nb::call_guard<nb::gil_scoped_release>());

  nb::class_<LogitRows>(m, "LogitRows")
      .def_prop_ro("shape",
                   [](const LogitRows& l) { return std::make_pair(l.rows(), l.vocab_size()); })
      .def("select",
           [](const LogitRows& l, const std::vector<std::int64_t>& rows) {
             return l.select(rows.data(), static_cast<std::int64_t>(rows.size()));
           })
      .def("with_bias", with_bias)
      .def("tempered",
           [](const LogitRows& l, float temperature) {
             nb::gil_scoped_release release;
             return l.tempered(temperature);
           })
      .def("argmax",
           [](const LogitRows& l) {
             return per_row<std::int32_t>(l, [&](int r) { return l.argmax(r); });
           })
      .def("top_k",
           [](const LogitRows& l, std::int64_t k) {
             if (k < 0) throw InvalidInput("k", k, "give a number of at least 0");
             k = std::min<std::int64_t>(k, l.vocab_size());
             auto [ids, id] = make_array<std::int32_t>(l.rows(), k);
             auto [values, value] = make_array<float>(l.rows(), k);
             if (k > 0) {
               nb::gil_scoped_release release;
               l.for_each([&, ids_out = id, values_out = value](int r) {
                 l.top_k(r, k, ids_out + r * k, values_out + r * k);
               });
             }
             return nb::make_tuple(ids, values);
           })
      .def("gather", gather)
      .def("log_normalizer",
           [](const LogitRows& l) {
             return per_row<double>(l, [&](int r) { return l.log_normalizer(r); });
           })
      .def("entropy",
           [](const LogitRows& l) {
             return per_row<double>(l, [&](int r) { return l.entropy(r); });
           })
      .def(
          "margin",
          [](const LogitRows& l) { return per_row<double>(l, [&](int r) { return l.margin(r); }); })
      .def("sample",
           [](const LogitRows& l, double temperature, std::int64_t top_k, double top_p,
              double min_p, const std::vector<std::uint64_t>& keys) {
             const Warp warp = make_warp(temperature, top_k, top_p, min_p);
             if (keys.size() != static_cast<std::size_t>(l.rows()))
               throw InvalidInput("keys", static_cast<std::int64_t>(keys.size()),
                                  "give one key a row");
             return per_row<std::int32_t>(
                 l, [&](int r) { return l.sample(r, warp, keys[static_cast<std::size_t>(r)]); });
           })
      .def("probabilities",
           [](const LogitRows& l, double temperature, std::int64_t top_k, double top_p,
              double min_p) {
             const Warp warp = make_warp(temperature, top_k, top_p, min_p);
             auto [array, out] = make_array<double>(l.rows(), l.vocab_size());
             nb::gil_scoped_release release;
             l.for_each([&, rows = out](int r) {
               l.probabilities(r, warp, rows + std::int64_t{r} * l.vocab_size());
             });
             return array;
           })
      .def("numpy", [](const LogitRows& l) {
        auto [array, out] = make_array<float>(l.rows(), l.vocab_size());
        for (int r = 0; r < l.rows(); ++r)
          std::memcpy(out + std::int64_t{r} * l.vocab_size(), l.read(r),
                      static_cast<std::size_t>(l.vocab_size()) * sizeof(float));
        return array;
      });
  m.def("in_own_state", [](nb::callable call) {
    const FloatState state;
    return nb::object(call());
  });
  m.def("logits_from", [](nb::handle values) {
    const View<float> rows(values, "values", 2);
    expect_range("rows of values", rows.size(0), 0, std::int64_t{1} << 24);
    expect_range("columns of values", rows.size(1), 1, std::int64_t{1} << 26);
    const auto count = static_cast<int>(rows.size(0));
    const auto vocab = static_cast<int>(rows.size(1));
    auto out = std::make_shared<LogitRows>(std::make_shared<LogitStore>(), *choose_isa().kernels,
                                           nullptr, count, vocab);
    for (int r = 0; r < count; ++r) {
      float* row = out->writable(r);
      std::memcpy(row, rows.data() + std::int64_t{r} * vocab,
                  static_cast<std::size_t>(vocab) * sizeof(float));
      std::fill(row + vocab, row + LogitRows::stride_for(vocab), -INFINITY);
    }
    return out;
  });

  nb::class_<Network>(m, "Network")
      .def("__init__", make_network, nb::arg("widths"), nb::arg("steps"), nb::arg("tensors"),
           nb::arg("dtype") = "f32")
      .def("run", run_network, nb::arg("inputs"), nb::arg("ends"));

  define_head(m);
  define_steps(m);

  nb::class_<Model>(m, "Model")
      .def(
          "__init__",
          [](Model* self, int vocab_size, int outputs, int hidden_size, int layers, int heads,
             int intermediate_size, int context_length, float norm_epsilon, float rope_attention,
             nb::sequence attentions, std::vector<int> kinds, const std::vector<int>& mixture,
             float mixture_scale, float softcap, bool half_cache, int threads, bool apart) {
            expect_range("threads", threads, 1, kMostThreads);
            const ModelShape shape{vocab_size,
                                   outputs,
                                   hidden_size,
                                   layers,
                                   heads,
                                   intermediate_size,
                                   context_length,
                                   norm_epsilon,
                                   rope_attention,
                                   read_attentions(attentions),
                                   std::move(kinds),
                                   read_mixture(mixture, mixture_scale),
                                   softcap};
            new (self) Model(shape, half_cache, threads, apart);
          },
          nb::kw_only(), nb::arg("vocab_size"), nb::arg("outputs"), nb::arg("hidden_size"),
          nb::arg("layers"), nb::arg("heads"), nb::arg("intermediate_size"),
          nb::arg("context_length"), nb::arg("norm_epsilon"), nb::arg("rope_attention"),
          nb::arg("attentions"), nb::arg("kinds"), nb::arg("mixture"), nb::arg("mixture_scale"),
          nb::arg("softcap"), nb::arg("half_cache"), nb::arg("threads"), nb::arg("apart"))
      .def("set_format",
           [](Model& model, const std::string& tensor, int format) {
             if (format < 0 || format >= kFormats)
               throw InvalidInput("format", std::int64_t{format}, "use a Format");
             model.set_format(tensor, static_cast<Format>(format));
           })
      .def("fill", fill)
      .def("set_vector", set_vector)
      .def("finish_loading", &Model::finish_loading, nb::arg("tied_head"),
           nb::call_guard<nb::gil_scoped_release>())
      .def("reserve", &Model::reserve, nb::call_guard<nb::gil_scoped_release>())
      .def("forward", forward, nb::arg("spans"), nb::arg("layers").none(),
           nb::arg("only_best") = false, nb::arg("canvases") = nb::dict())
      .def("steps", steps, nb::arg("sequences"), nb::kw_only(), nb::arg("curve").none(),
           nb::arg("overhead"), nb::arg("before"), nb::arg("spare"), nb::arg("groups"),
           nb::arg("limit"))
      .def("copy", copy_slots)
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
               out.append(nb::make_tuple(one.rows, one.context, one.bytes));
             return out;
           })
      .def_prop_ro("slot_bytes", &Model::slot_bytes)
      .def_prop_ro("cache_bytes", &Model::cache_bytes)
      .def_prop_ro("isa", [](const Model& model) {
        return std::make_pair(std::string(model.isa().kernels->name), model.isa().reason);
      });
}

}  // namespace paradecode
