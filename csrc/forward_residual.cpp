// How what the parts of a layer made reaches the residual stream.
#include <algorithm>

#include "forward_products.hpp"

namespace paradecode {
namespace {

void add(const float* row, float factor, int width, float* out) {
  for (int i = 0; i < width; ++i) out[i] += row[i] * factor;
}

}  // namespace

// Takes the memory that the model's layers need beside the stream.
void Forward::plan_residual() {
  const std::size_t numbers = count(plan_.rows, width_);
  bool makes = false;
  bool mixes = false;
  bool waits = false;
  const auto changes = [](const auto& part) { return part.norm.after || part.out_factor != 1.0F; };
  for (int index = 0; index < shape_.layers(); ++index) {
    const LayerShape& layer = shape_.layer(index);
    mixes |= layer.feed >= 0 && shape_.feed(index).both();
    waits |= layer.ladder || layer.groups.back() + 1 < layer.parts();
    makes |= layer.ladder || layer.reads_token ||
             (layer.attention >= 0 && changes(shape_.attention(index))) ||
             (layer.feed >= 0 && changes(shape_.feed(index)));
  }
  makes |= std::any_of(shape_.states.begin(), shape_.states.end(), changes);
  if (makes || mixes || shape_.canvas) made_ = space_.made.need(numbers);
  if (mixes) mixed_ = space_.mixed.need(numbers);
  if (waits) pending_ = space_.pending.need(numbers);
}

// Where a part's result goes: to the stream if it is added as it is, to what is added when all
// parts of the group are done, or where `close` finds it.
Forward::Target Forward::target(const Norm& after, Turn turn) const {
  if (!direct(after, turn)) return {made_, false};
  if (!turn.alone()) return {pending_, !turn.first};
  return {states_, true};
}

void Forward::norm_row(const float* row, const Norm& norm, float* out) const {
  const int size = shape_.hidden_size;
  if (shape_.layer_norm) {
    kernels_.layer_norm(row, norm.gain, norm.bias, size, width_, shape_.norm_epsilon, out);
    return;
  }
  kernels_.rms_norm(row, norm.gain, size, width_, shape_.norm_epsilon, out);
  for (int i = 0; norm.bias != nullptr && i < size; ++i) out[i] += norm.bias[i];
}

// Leaves in `made` the sum of what an MLP and the experts beside it made.
void Forward::join(int row, const LayerWeights& w) {
  float* out = made(row);
  norm_row(out, w.after_dense, out);
  norm_row(mixed(row), w.after_experts, mixed(row));
  add(mixed(row), 1.0F, width_, out);
}

// Adds what a part made to the residual stream, if it is not there, and ends its group or its
// layer.
void Forward::close(Member& member, int index, const Norm& after, Turn turn, bool joined) {
  const LayerShape& layer = shape_.layer(index);
  const LayerWeights& w = model_.weights_.layers[static_cast<std::size_t>(index)];
  const bool scaled = turn.ends && layer.scaled;
  const bool added = direct(after, turn) && !joined;
  const bool ends = turn.last && !turn.first;
  if (added && !scaled && !ends) return;
  member.enter(Part::Prepare);
  member.phase(plan_.rows, [&](int row) {
    float* out = state(row);
    float* fresh = added ? nullptr : made(row);
    if (joined) join(row, w);
    if (!added && after.gain != nullptr) norm_row(fresh, after, fresh);
    if (layer.ladder) add(pending(row), 1.0F, width_, out);
    if (!added && turn.alone() && !layer.ladder) {
      add(fresh, turn.factor, width_, out);
    } else if (!added) {
      if (turn.first) std::fill_n(pending(row), width_, 0.0F);
      add(fresh, turn.factor, width_, pending(row));
    }
    if (ends) add(pending(row), 1.0F, width_, out);
    if (!scaled) return;
    const float scale = in_canvas(row) ? *w.canvas_scale : *w.scale;
    for (int i = 0; i < width_; ++i) out[i] *= scale;
  });
}

// The last parts of a ladder.
void Forward::add_pending(Member& member) {
  if (!shape_.stack.front().ladder) return;
  member.phase(plan_.rows, [&](int row) { add(pending(row), 1.0F, width_, state(row)); });
}

}  // namespace paradecode
