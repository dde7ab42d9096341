// The layers of a forward that have experts.
#include <algorithm>

#include "exact.hpp"
#include "forward_products.hpp"

namespace paradecode {

// How the rows are divided into lots that are sent to experts together. A row is copied for each of
// its experts. With all rows at once the copies would take much memory, and with fewer than a block
// for each expert the weights would pass by more often.
Forward::Lot Forward::lot_of(const FeedShape& feed) const {
  Lot out;
  out.rows = std::min(plan_.rows, feed.mixture.rows_for(kRowBlock));
  out.count = out.rows > 0 ? (plan_.rows + out.rows - 1) / out.rows : 0;
  return out;
}

// Takes memory for the experts of all kinds of layers; returns the places that a lot needs.
int Forward::plan_lots() {
  int places = 0;
  int experts = 0;
  int chosen = 0;
  for (const FeedShape& feed : shape_.feeds) {
    if (!feed.mixed()) continue;
    const Lot lot = lot_of(feed);
    lots_ = std::max(lots_, static_cast<std::size_t>(lot.count));
    if (lot.rows > 0) places = std::max(places, feed.mixture.most_places(lot.rows));
    experts = std::max(experts, feed.mixture.experts);
    chosen = std::max(chosen, feed.mixture.chosen);
  }
  if (experts == 0) return 0;
  const int rows = plan_.rows;
  sent_ = space_.sent.shape(places, width_);
  results_ = space_.results.need(count(places, width_));
  routed_ = space_.routed.need(count(rows, round_up(experts, 2 * kLanes)));
  if (std::any_of(shape_.feeds.begin(), shape_.feeds.end(),
                  [](const FeedShape& feed) { return feed.mixture.shared_gated; }))
    gains_ = space_.gains.need(count(rows, kGroup));
  expert_weights_ = space_.weights.need(count(rows, chosen));
  chosen_ = space_.chosen.need(count(rows, chosen));
  space_.routings.resize(layers_.size() * lots_);
  return places;
}

// The router's logits, and the experts of each row.
void Forward::route_rows(Member& member, const LayerWeights& w, const MixtureShape& mixture) {
  const int rows = plan_.rows;
  const std::int64_t stride = w.router.panels * kLanes;
  member.enter(Part::Inner);
  const bool gated = mixture.shared_gated;
  const Format second = gated ? w.shared_gain.format : w.router.format;
  with_input(member, rows, width_, needs({w.router.format, second}), normed(w.router_norm),
             blocks_of(rows), [&](int block, const Activations& input) {
               const int first = block * kRowBlock;
               if (gated)
                 kernels_.matmul(w.shared_gain, 0, 2, input, first, block_rows(block),
                                 gains_ + std::int64_t{first} * kGroup, kGroup, nullptr, false);
               kernels_.matmul(w.router, 0, w.router.panels, input, block * kRowBlock,
                               block_rows(block), routed_ + block * kRowBlock * stride, stride,
                               w.router_logit_bias, false);
             });
  const RouterVectors vectors{w.router_bias, w.router_score_norm, w.router_gain};
  member.phase(rows, [&](int row) {
    const std::int64_t first = std::int64_t{row} * mixture.chosen;
    route(routed_ + row * stride, vectors, mixture, shape_.norm_epsilon, chosen_ + first,
          expert_weights_ + first);
  });
}

// Brings the rows of each expert side by side.
void Forward::send_rows(Member& member, int layer, Routing& routing, int row, int rows) {
  auto& own = own_of(member);
  const LayerWeights& w = model_.weights_.layers[static_cast<std::size_t>(layer)];
  const FeedShape& feed = shape_.feed(layer);
  const int* chosen = chosen_ + std::int64_t{row} * feed.mixture.chosen;
  member.phase(1, [&](int) { routing.plan(feed.mixture, chosen, rows, kRowBlock); });
  Needs forms;
  for (const ExpertBlock& block : routing.blocks()) {
    const Inner inner{w.experts[static_cast<std::size_t>(block.expert)], feed.activation};
    forms.add(inner.needs());
  }
  const auto fill = normed(w.experts_norm);
  member.enter(Part::Prepare);
  member.phase(routing.places() / kRowGroup, [&](int chunk) {
    for (int place = chunk * kRowGroup; place < (chunk + 1) * kRowGroup; ++place) {
      if (routing.row_at(place) < 0) continue;
      const float* values = fill(row + routing.row_at(place), own.row.data());
      write_input(values, width_, forms, place, sent_);
    }
  });
}

void Forward::feed_experts(Member& member, int layer, std::size_t number, Target to) {
  const FeedShape& feed = shape_.feed(layer);
  route_rows(member, model_.weights_.layers[static_cast<std::size_t>(layer)], feed.mixture);
  const Lot lot = lot_of(feed);
  for (int i = 0; i < lot.count; ++i) {
    const std::size_t at = number * lots_ + static_cast<std::size_t>(i);
    feed_lot(member, layer, space_.routings[at], i * lot.rows,
             std::min(lot.rows, plan_.rows - i * lot.rows), to);
  }
}

void Forward::feed_lot(Member& member, int layer, Routing& routing, int row, int rows, Target to) {
  auto& own = own_of(member);
  const LayerWeights& w = model_.weights_.layers[static_cast<std::size_t>(layer)];
  const FeedShape& feed = shape_.feed(layer);
  send_rows(member, layer, routing, row, rows);
  // Chunks of each block of rows; those of a smaller expert that do not exist are empty.
  const std::vector<ExpertBlock>& blocks = routing.blocks();
  const auto block_count = static_cast<int>(blocks.size());
  const int steps = std::max(1, model_.team_->size() * kShare / std::max(1, block_count));
  const auto share = [&](int units, int whole, int chunk, int& first) {
    const int step = round_up((units + steps - 1) / steps, whole);
    first = std::min(units, chunk % steps * step);
    return std::min(step, units - first);
  };
  member.enter(Part::Inner);
  member.phase(block_count * steps, [&](int chunk) {
    const ExpertBlock& block = blocks[static_cast<std::size_t>(chunk / steps)];
    const Inner inner{w.experts[static_cast<std::size_t>(block.expert)], feed.activation};
    int first = 0;
    const int pairs = share(inner.first().panels / 2, inner.pairs_of_scale(), chunk, first);
    inner_chunk(member, inner, sent_, first, pairs, block.place, block.rows, own.tile.data());
  });
  member.enter(Part::Down);
  member.phase(block_count * steps, [&](int chunk) {
    const ExpertBlock& block = blocks[static_cast<std::size_t>(chunk / steps)];
    const MlpWeights& expert = w.experts[static_cast<std::size_t>(block.expert)];
    const Matrix& down = expert.down;
    int first = 0;
    const int panels = share(down.panels, 1, chunk, first);
    kernels_.matmul(down, first, panels, inner_, block.place, block.rows,
                    results_ + std::int64_t{block.place} * width_ + first * kLanes, width_,
                    expert.down_bias == nullptr ? nullptr : expert.down_bias + first * kLanes,
                    false);
  });
  member.phase(rows,
               [&](int number) { add_experts(routing, feed.mixture, row + number, number, to); });
}

// The number of experts to which rows were sent, added up over the layers; no shared ones.
std::int64_t Forward::reached() const {
  std::int64_t sum = 0;
  for (std::size_t number = 0; number < layers_.size(); ++number) {
    const int layer = layers_[number].layer;
    if (!layers_[number].mlp || shape_.layer(layer).feed < 0 || !shape_.feed(layer).mixed())
      continue;
    std::vector<bool> sent(static_cast<std::size_t>(shape_.feed(layer).mixture.all()));
    const auto lots = static_cast<std::size_t>(lot_of(shape_.feed(layer)).count);
    for (std::size_t lot = 0; lot < lots; ++lot)
      for (const ExpertBlock& block : space_.routings[number * lots_ + lot].blocks())
        sent[static_cast<std::size_t>(block.expert)] = true;
    sum += std::count(sent.begin(), sent.begin() + shape_.feed(layer).mixture.experts, true);
  }
  return sum;
}

// The factor of what the shared expert makes of a row.
float Forward::shared_gain(const MixtureShape& mixture, int row) const {
  if (!mixture.shared_gated) return 1.0F;
  const double asked = gains_[std::int64_t{row} * kGroup];
  return static_cast<float>(1.0 / (1.0 + exact_exp(-asked)));
}

// Adds what a row's experts made, the shared one, then the best first.
void Forward::add_experts(const Routing& routing, const MixtureShape& mixture, int row, int number,
                          Target to) {
  float* out = to.rows + std::int64_t{row} * width_;
  if (!to.add) std::fill_n(out, width_, 0.0F);
  const float* own = expert_weights_ + std::int64_t{row} * mixture.chosen;
  const auto made = [&](int k) {
    const int place = routing.place_of(number, k);
    return place < 0 ? nullptr : results_ + std::int64_t{place} * width_;
  };
  const float* shared = mixture.shared_size > 0 ? made(mixture.chosen) : nullptr;
  const float gain = shared_gain(mixture, row);
  for (int i = 0; i < shape_.hidden_size; ++i) {
    float sum = shared == nullptr ? 0.0F : gain * shared[i];
    for (int k = 0; k < mixture.chosen; ++k)
      if (const float* result = made(k); result != nullptr) sum += own[k] * result[i];
    out[i] += sum;
  }
}

}  // namespace paradecode
