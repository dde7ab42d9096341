// The table of a kernel set, and those of its kernels that compile quickly.
#include "kernels.hpp"
//
#include "cells.hpp"
#include "elementwise.hpp"
#include "limits.hpp"
#include "reductions.hpp"

#define PARADECODE_TEXT_OF(name) #name
#define PARADECODE_TEXT(name) PARADECODE_TEXT_OF(name)

namespace paradecode::PARADECODE_SET {

constinit const Kernels kernels = {.name = PARADECODE_TEXT(PARADECODE_SET),
#ifdef PARADECODE_TILES
                                   .matmul = matmul_by_tiles,
#else
                                   .matmul = matmul,
#endif
                                   .quantise = quantise,
                                   .quantise_wide = quantise_wide,
                                   .rms_norm = rms_norm,
                                   .layer_norm = layer_norm,
                                   .activate = {activate<Silu>, activate<Gelu>, activate<GeluTanh>,
                                                activate<Relu>, activate<Relu2>, swiglu_oai},
                                   .cap = cap,
                                   .add_rows = add_rows,
                                   .dots = dots,
                                   .cells = {gru, lstm, slstm, scan, linear_unit},
                                   .attention_f16 = attention_f16,
                                   .attention_f32 = attention_f32,
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

}  // namespace paradecode::PARADECODE_SET
