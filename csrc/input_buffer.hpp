// Memory for the rows that enter a matrix product.
#pragma once

#include "memory.hpp"
#include "types.hpp"

namespace paradecode {

// Holds the rows that enter a matrix product, in the form or forms that its weights need.
class InputBuffer {
 public:
  // `width` is a multiple of 32.
  const Activations& shape(std::int64_t rows, int width) {
    const auto count = [rows = (rows + kRowGroup - 1) / kRowGroup * kRowGroup](int columns) {
      return static_cast<std::size_t>(rows * columns);
    };
    view_.width = width;
    view_.values = values_.need(count(width));
    view_.words = words_.need(count(width / 4));
    view_.scales = scales_.need(count(width / kGroup));
    view_.sums = sums_.need(count(width / kGroup));
    view_.corrections = corrections_.need(count(width / kGroup));
    view_.wide.words = wide_words_.need(count(width / 4));
    view_.wide.bases = bases_.need(count(width / kGroup));
    view_.wide.corrections = wide_corrections_.need(count(width / kGroup));
    view_.wide.starts = starts_.need(count(WideInputs::kStarts * width / kGroup));
    view_.wide.scales = wide_scales_.need(count(width / kSuperBlock));
    view_.wide.pairs = pairs_.need(count(WideInputs::kPairs * (width / kSuperBlock)));
    return view_;
  }
  const Activations& view() const { return view_; }

 private:
  Activations view_;
  Buffer<float> values_;
  Buffer<std::int32_t> words_;
  Buffer<float> scales_;
  Buffer<float> sums_;
  Buffer<std::int32_t> corrections_;
  Buffer<std::int32_t> wide_words_;
  Buffer<float> bases_;
  Buffer<std::int32_t> wide_corrections_;
  Buffer<std::int32_t> starts_;
  Buffer<float> wide_scales_;
  Buffer<std::int32_t> pairs_;
};

}  // namespace paradecode
