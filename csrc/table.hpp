// The kernels of the including translation unit as one table.
#pragma once

#include "attention.hpp"
#include "elementwise.hpp"
#include "limits.hpp"
#include "matmul.hpp"
#include "reductions.hpp"
#include "types.hpp"

namespace paradecode {
namespace {

constexpr Kernels kernel_table(const char* name) {
  return {.name = name,
          .matmul = matmul,
          .quantise = quantise,
          .rms_norm = rms_norm,
          .swiglu = swiglu,
          .geglu = geglu,
          .cap = cap,
          .add_rows = add_rows,
          .attention_f16 = attention<std::uint16_t>,
          .attention_f32 = attention<float>,
          .merge_parts = merge_parts,
          .to_f16 = to_f16,
          .best = best,
          .block_best = block_best,
          .exp_sum = exp_sum,
          .softmax_sums = softmax_sums,
          .collect = collect,
          .noisy_candidates = noisy_candidates,
          .read_all = read_all,
          .multiply = multiply<>,
          .products_a_step = kDotProducts,
          .multiply_floats = multiply_floats,
          .float_products_a_step = kFloatProducts};
}

}  // namespace
}  // namespace paradecode
