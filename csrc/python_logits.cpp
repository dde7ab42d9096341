#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "isa.hpp"
#include "logits.hpp"
#include "python_arrays.hpp"
#include "python_parts.hpp"
#include "python_steps.hpp"

namespace paradecode {
namespace {

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

// biases: for each row None or a pair (int32 ids, float32 additions).
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

// Runs `each(row)` for every row without the GIL, and returns the results as an array.
template <class T, class Each>
Array1<T> per_row(const LogitRows& logits, Each each) {
  auto [array, out] = make_array<T>(logits.rows());
  nb::gil_scoped_release release;
  logits.for_each([&, values = out](int r) { values[r] = each(r); });
  return array;
}

}  // namespace

void define_logits(nb::module_& m) {
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
}

}  // namespace paradecode
