// Second embeddings of tokens, which each layer has for itself (Gemma 4).
#include <algorithm>
#include <cmath>

#include "forward_products.hpp"

namespace paradecode {

bool Forward::reads_tokens() const {
  return std::any_of(layers_.begin(), layers_.end(), [&](const LayerPart& part) {
    return part.mlp && shape_.layer(part.layer).reads_token;
  });
}

// Makes those of all rows and layers, from tokens and the first states.
void Forward::read_tokens(Member& member) {
  const Matrix& weight = model_.weights_.token_project;
  const std::int64_t stride = std::int64_t{weight.panels} * kLanes;
  const int rows = plan_.rows;
  const int step = chunk_units(weight.panels, model_.team_->size());
  const int steps = (weight.panels + step - 1) / step;
  member.enter(Part::Embed);
  with_input(
      member, rows, width_, needs({weight.format}), [&](int row, float*) { return state(row); },
      steps * blocks_of(rows),
      [&](int chunk, const Activations& input) {
        const int panel = chunk % steps * step;
        const int row = chunk / steps * kRowBlock;
        kernels_.matmul(weight, panel, std::min(step, weight.panels - panel), input, row,
                        block_rows(chunk / steps), second_ + row * stride + panel * kLanes, stride,
                        nullptr, false);
      });
  member.phase(rows, [&](int row) { finish_token(row, own_of(member).row.data()); });
}

void Forward::finish_token(int row, float* scratch) {
  const ModelWeights& w = model_.weights_;
  const SpanInput& input = input_of(row);
  const std::int32_t token = input.tokens[row - plan_.span_of(row).first_row];
  unpack_row(w.token_embed, token, scratch);
  const int size = shape_.token_width;
  const int padded = shape_.token_padded();
  const float narrow = 1.0F / std::sqrt(static_cast<float>(shape_.hidden_size));
  const float root = std::sqrt(static_cast<float>(size));
  float* out = second_ + row * std::int64_t{w.token_project.panels} * kLanes;
  for (int layer = 0; layer < shape_.layers(); ++layer, out += padded, scratch += size) {
    for (int i = 0; i < size; ++i) out[i] *= narrow;
    kernels_.rms_norm(out, w.token_norm, size, padded, shape_.norm_epsilon, out);
    for (int i = 0; i < size; ++i) out[i] = (out[i] + scratch[i] * root) * 0.707106781F;
  }
}

void Forward::feed_token(Member& member, int layer, Turn turn) {
  const ModelWeights& all = model_.weights_;
  const LayerWeights& w = all.layers[static_cast<std::size_t>(layer)];
  const std::int64_t stride = std::int64_t{all.token_project.panels} * kLanes;
  const Inner inner{w.token, shape_.layer(layer).token_activation, 1.0F,
                    second_ + std::int64_t{layer} * shape_.token_padded(), stride};
  feed_dense(member, inner, {}, target(w.after_input, turn));
  close(member, layer, w.after_input, turn);
}

}  // namespace paradecode
