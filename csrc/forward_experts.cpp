// The layers of a forward that have experts.
#include <algorithm>

#include "forward_products.hpp"

namespace paradecode {

// Divides the rows into lots that are sent to experts together; returns the places that one needs.
int Forward::plan_lots() {
  const MixtureShape& mixture = shape_.mixture;
  const int rows = plan_.rows;
  // A row is copied for each of its experts. With all rows at once the copies would take much
  // memory, and with fewer than a block for each expert the weights would pass by more often.
  lot_ = std::min(rows, mixture.rows_for(kRowBlock));
  lots_ = lot_ > 0 ? (rows + lot_ - 1) / lot_ : 0;
  const int places = lot_ > 0 ? mixture.most_places(lot_) : 0;
  sent_ = space_.sent.shape(places, width_);
  made_ = space_.made.need(count(places, width_));
  routed_ = space_.routed.need(count(rows, round_up(mixture.experts, 2 * kLanes)));
  expert_weights_ = space_.weights.need(count(rows, mixture.chosen));
  chosen_ = space_.chosen.need(count(rows, mixture.chosen));
  space_.routings.resize(layers_.size() * static_cast<std::size_t>(lots_));
  return places;
}

// The router's logits, and the experts of each row.
void Forward::route_rows(Member& member, const LayerWeights& w) {
  const MixtureShape& mixture = shape_.mixture;
  const int rows = plan_.rows;
  const std::int64_t stride = w.router.panels * kLanes;
  member.enter(Part::Inner);
  with_input(member, rows, width_, needs({w.router.format}), normed(w.router_norm), blocks_of(rows),
             [&](int block, const Activations& input) {
               kernels_.matmul(w.router, 0, w.router.panels, input, block * kRowBlock,
                               block_rows(block), routed_ + block * kRowBlock * stride, stride,
                               nullptr, false);
             });
  member.phase(rows, [&](int row) {
    const std::int64_t first = std::int64_t{row} * mixture.chosen;
    route(routed_ + row * stride, w.router_bias, mixture, chosen_ + first, expert_weights_ + first);
    if (w.router_gain != nullptr)
      for (std::int64_t k = first; k < first + mixture.chosen; ++k)
        expert_weights_[k] *= w.router_gain[chosen_[k]];
  });
}

// Brings the rows of each expert side by side.
void Forward::send_rows(Member& member, const LayerWeights& w, Routing& routing, int row,
                        int rows) {
  auto& own = own_of(member);
  const int* chosen = chosen_ + std::int64_t{row} * shape_.mixture.chosen;
  member.phase(1, [&](int) { routing.plan(shape_.mixture, chosen, rows, kRowBlock); });
  Needs forms;
  for (const ExpertBlock& block : routing.blocks()) {
    const ExpertWeights& expert = w.experts[static_cast<std::size_t>(block.expert)];
    const Needs more = needs({expert.gate.format, expert.up.format});
    forms.integers |= more.integers;
    forms.floats |= more.floats;
  }
  const auto fill = normed(w.experts_norm);
  member.enter(Part::Prepare);
  member.phase(routing.places() / kRowGroup, [&](int chunk) {
    for (int place = chunk * kRowGroup; place < (chunk + 1) * kRowGroup; ++place) {
      if (routing.row_at(place) < 0) continue;
      const float* values = fill(row + routing.row_at(place), own.row.data());
      if (forms.integers) kernels_.quantise(values, 0, width_ / kGroup, place, sent_);
      if (forms.floats)
        for (int k = 0; k < width_; ++k) sent_.values[sent_.value(place, k)] = values[k];
    }
  });
}

void Forward::feed_experts(Member& member, const LayerWeights& w, std::size_t number) {
  route_rows(member, w);
  for (int lot = 0; lot < lots_; ++lot) {
    const std::size_t at = number * static_cast<std::size_t>(lots_) + static_cast<std::size_t>(lot);
    feed_lot(member, w, space_.routings[at], lot * lot_, std::min(lot_, plan_.rows - lot * lot_));
  }
}

void Forward::feed_lot(Member& member, const LayerWeights& w, Routing& routing, int row, int rows) {
  auto& own = own_of(member);
  send_rows(member, w, routing, row, rows);
  // Chunks of each block of rows; those of a smaller expert that do not exist are empty.
  const std::vector<ExpertBlock>& blocks = routing.blocks();
  const auto block_count = static_cast<int>(blocks.size());
  const int steps = std::max(1, model_.team_->size() * kShare / std::max(1, block_count));
  const auto share = [&](int units, int chunk, int& first) {
    const int step = (units + steps - 1) / steps;
    first = std::min(units, chunk % steps * step);
    return std::min(step, units - first);
  };
  member.enter(Part::Inner);
  member.phase(block_count * steps, [&](int chunk) {
    const ExpertBlock& block = blocks[static_cast<std::size_t>(chunk / steps)];
    const ExpertWeights& e = w.experts[static_cast<std::size_t>(block.expert)];
    int first = 0;
    const int pairs = share(e.gate.panels / 2, chunk, first);
    inner_chunk(member, {e.gate, e.up, e.down}, sent_, first, pairs, block.place, block.rows,
                own.tile.data());
  });
  member.enter(Part::Down);
  member.phase(block_count * steps, [&](int chunk) {
    const ExpertBlock& block = blocks[static_cast<std::size_t>(chunk / steps)];
    const Matrix& down = w.experts[static_cast<std::size_t>(block.expert)].down;
    int first = 0;
    const int panels = share(down.panels, chunk, first);
    kernels_.matmul(down, first, panels, inner_, block.place, block.rows,
                    made_ + std::int64_t{block.place} * width_ + first * kLanes, width_, nullptr,
                    false);
  });
  member.phase(rows, [&](int number) { add_experts(routing, row + number, number); });
}

// Adds what a row's experts made, the shared one, then the best first.
void Forward::add_experts(const Routing& routing, int row, int number) {
  const MixtureShape& mixture = shape_.mixture;
  float* out = experts_made(row);
  if (mixed_ != nullptr) std::fill(out, out + width_, 0.0F);
  const float* own = expert_weights_ + std::int64_t{row} * mixture.chosen;
  const auto made = [&](int k) {
    return made_ + std::int64_t{routing.place_of(number, k)} * width_;
  };
  const float* shared = mixture.shared_size > 0 ? made(mixture.chosen) : nullptr;
  for (int i = 0; i < shape_.hidden_size; ++i) {
    float sum = shared == nullptr ? 0.0F : shared[i];
    for (int k = 0; k < mixture.chosen; ++k) sum += own[k] * made(k)[i];
    out[i] += sum;
  }
}

}  // namespace paradecode
