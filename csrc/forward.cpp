#include "forward.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "exact.hpp"

namespace paradecode {
namespace {

// Rows that a chunk of a matrix product covers: their inputs stay in the first-level cache while
// the weights pass by.
constexpr int kRowBlock = 64;
// Up to this many rows, every member prepares its own inputs: cheaper than one more phase, and than
// fetching what others wrote, of which a cache line holds the scales of sixteen rows.
constexpr int kPrivateRows = 16;
// Chunks of a matrix product that each member starts with.
constexpr int kShare = 4;
// At most: preparation and product of queries/keys/values, output, gate/up or router; attention;
// down or the choice of experts; and a layer's hidden states. Of each lot of rows that is sent to
// experts: sending, preparation, gate/up, down and sum. Besides: the first rows, preparation and
// product of the head.
constexpr int kLayerPhases = 9;
constexpr int kLotPhases = 5;
constexpr int kOtherPhases = 3;

int blocks_of(int rows) { return (rows + kRowBlock - 1) / kRowBlock; }
std::size_t count(std::int64_t a, std::int64_t b) { return static_cast<std::size_t>(a * b); }

// How many panels (or other units) a chunk takes.
int chunk_units(int units, int threads) { return std::max(1, units / (threads * kShare)); }

// Panels of a chunk of a screened head, which are whole vectors of 64 logits, and the chunks.
int screen_step(int panels, int threads) {
  return round_up(panels / (threads * 4 * kShare), 4) + 4;
}
int screen_steps(int panels, int threads) {
  const int step = screen_step(panels, threads);
  return (panels + step - 1) / step;
}

}  // namespace

const Activations& InputBuffer::shape(std::int64_t rows, int width) {
  rows = (rows + kRowGroup - 1) / kRowGroup * kRowGroup;
  view_.width = width;
  view_.values = values_.need(count(rows, width));
  view_.words = words_.need(count(rows, width / 4));
  view_.scales = scales_.need(count(rows, width / kGroup));
  view_.sums = sums_.need(count(rows, width / kGroup));
  view_.corrections = corrections_.need(count(rows, width / kGroup));
  view_.halves = halves_.need(count(rows, 2 * width / kGroup));
  return view_;
}

Forward::Needs Forward::needs(std::initializer_list<Format> formats) {
  Needs out;
  for (const Format format : formats) (is_integer(format) ? out.integers : out.floats) = true;
  return out;
}

Forward::Forward(Model& model, Model::Workspace& workspace, const Plan& plan,
                 const std::vector<SpanInput>& spans, const std::vector<LayerPart>& layers,
                 bool only_best)
    : model_(model),
      space_(workspace),
      plan_(plan),
      inputs_(spans),
      layers_(layers),
      kernels_(*model.isa_.kernels),
      shape_(model.shape_),
      width_(round_up(shape_.hidden_size, kGroup)),
      attended_width_(round_up(shape_.heads * shape_.head_dim, kGroup)),
      inner_width_(round_up(std::max({shape_.intermediate_size, shape_.mixture.expert_size,
                                      shape_.mixture.shared_size}),
                            kGroup)),
      dim_(model.cache_.padded_dim()),
      pairs_(static_cast<int>(shape_.inverse_frequencies.size())),
      score_stride_(round_up(plan.most_extra + 2 * kLanes, kLanes)),
      only_best_(only_best) {}

ForwardResult Forward::run() {
  const int rows = plan_.rows;
  states_ = space_.states.need(count(rows, width_));
  queries_ = space_.queries.need(count(rows, shape_.heads * dim_));
  attended_ = space_.attended.need(count(rows, attended_width_));
  rotations_ = space_.rotations.need(count(rows, 2 * pairs_));
  const MixtureShape& mixture = shape_.mixture;
  // A row is copied for each of its experts. With all rows at once the copies would take much
  // memory, and with fewer than a block for each expert the weights would pass by more often.
  lot_ = mixture.experts > 0 ? std::min(rows, mixture.rows_for(kRowBlock)) : 0;
  lots_ = lot_ > 0 ? (rows + lot_ - 1) / lot_ : 0;
  const int places = lot_ > 0 ? mixture.most_places(lot_) : 0;
  inner_ = space_.inner.shape(std::max(rows, places), inner_width_);
  if (mixture.experts > 0) {
    sent_ = space_.sent.shape(places, width_);
    made_ = space_.made.need(count(places, width_));
    routed_ = space_.routed.need(count(rows, round_up(mixture.experts, 2 * kLanes)));
    expert_weights_ = space_.weights.need(count(rows, mixture.chosen));
    chosen_ = space_.chosen.need(count(rows, mixture.chosen));
    space_.routings.resize(layers_.size() * static_cast<std::size_t>(lots_));
  }
  const auto logit_rows = static_cast<int>(plan_.logit_rows.size());
  const int widest = std::max(width_, attended_width_);
  space_.input.shape(std::max(rows, logit_rows), widest);
  for (auto& member : space_.members) {
    member.input.shape(kPrivateRows, widest);
    member.row.need(count(1, widest));
    member.tile.need(count(2 * kRowBlock, std::max(dim_, 2 * kLanes)));
    member.scores.need(count(kMaxQueries, score_stride_));
  }
  model_.cache_.need_scratch(plan_.scratch_pages);
  plan_tiles();
  result_.logits = std::make_shared<LogitRows>(model_.logit_store_, kernels_, model_.team_,
                                               logit_rows, shape_.vocab_size);
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    for (std::size_t k = 0; k < inputs_[i].hidden.size(); ++k)
      result_.hidden.emplace_back(count(plan_.spans[i].rows, shape_.hidden_size));
  if (screened()) {
    const int steps = screen_steps(model_.head_.panels, model_.team_->size());
    about_.resize(count(steps, logit_rows));
    best_.resize(about_.size());
  }
  if (rows > 0) {
    const int phases =
        kOtherPhases + (kLayerPhases + kLotPhases * lots_) * static_cast<int>(layers_.size());
    model_.team_->run(
        phases, [](void* self, Member& member) { static_cast<Forward*>(self)->work(member); },
        this);
  }
  if (screened()) {
    std::vector<std::int32_t> tokens;
    for (int r = 0; r < logit_rows; ++r) {
      Best best{-INFINITY, -1, false};
      for (std::size_t i = static_cast<std::size_t>(r); i < best_.size();
           i += plan_.logit_rows.size()) {
        best.nan |= best_[i].nan;
        if (best_[i].value > best.value) best.value = best_[i].value, best.token = best_[i].token;
      }
      tokens.push_back(best.nan || !std::isfinite(best.value) ? -1 : best.token);
    }
    result_.logits->choose(std::move(tokens));
  }
  return std::move(result_);
}

void Forward::plan_tiles() {
  const int group = shape_.heads / shape_.kv_heads;
  const int splits = (group + kMaxQueries - 1) / kMaxQueries;
  const int most_heads = (group + splits - 1) / splits;
  const int most_rows = kMaxQueries / most_heads;
  for (std::size_t i = 0; i < plan_.spans.size(); ++i)
    for (int kv = 0; kv < shape_.kv_heads; ++kv)
      for (int row = 0; row < plan_.spans[i].rows; row += most_rows)
        for (int head = 0; head < group; head += most_heads) {
          const SpanPlan& span = plan_.spans[i];
          const int rows = std::min(most_rows, span.rows - row);
          int first = first_block(span.row_views[static_cast<std::size_t>(row)]);
          int end = first;
          for (int r = row; r < row + rows; ++r) {
            const RowView& view = span.row_views[static_cast<std::size_t>(r)];
            first = std::min(first, first_block(view));
            end = std::max(end, end_block(span, view));
          }
          tiles_.push_back({static_cast<int>(i), row, rows, kv, kv * group + head,
                            std::min(most_heads, group - head), first, end});
        }
  divide_tiles();
}

// A few tiles that the threads cannot share evenly are divided into ranges of blocks.
void Forward::divide_tiles() {
  const int threads = model_.team_->size();
  const auto tiles = static_cast<int>(tiles_.size());
  if (tiles == 0 || tiles % threads == 0 || tiles >= kShare * threads) return;
  const int ranges = (kShare * threads + tiles - 1) / tiles;
  std::vector<Tile> divided;
  for (const Tile& tile : tiles_) {
    const int blocks = tile.end_block - tile.first_block;
    part_blocks_ = std::max(part_blocks_, tile.end_block);
    for (int i = 0; i < ranges; ++i) {
      Tile range = tile;
      range.first_block = tile.first_block + blocks * i / ranges;
      range.end_block = tile.first_block + blocks * (i + 1) / ranges;
      if (range.first_block < range.end_block) divided.push_back(range);
    }
  }
  if (divided.size() == tiles_.size()) {
    part_blocks_ = 0;
    return;
  }
  tiles_ = std::move(divided);
  parts_ = space_.parts.need(part_at(plan_.rows, 0));
}

int Forward::first_block(const RowView& row) const { return row.start / kAttentionBlock; }

int Forward::end_block(const SpanPlan& span, const RowView& row) const {
  return (span.view.prefix_length + row.count + kAttentionBlock - 1) / kAttentionBlock;
}

std::int64_t Forward::part_at(std::int64_t row, int head) const {
  return (row * shape_.heads + head) * part_blocks_ * part_floats(dim_);
}

// What the heads of a row made, as the input of the output projection.
const float* Forward::attended(int row, float* out) const {
  if (part_blocks_ == 0) return attended_ + std::int64_t{row} * attended_width_;
  const SpanPlan& span = plan_.span_of(row);
  const RowView& view = span.row_views[static_cast<std::size_t>(row - span.first_row)];
  for (int head = 0; head < shape_.heads; ++head)
    kernels_.merge_parts(parts_ + part_at(row, head), first_block(view), end_block(span, view),
                         dim_, shape_.head_dim, out + head * shape_.head_dim);
  const int width = shape_.heads * shape_.head_dim;
  std::fill(out + width, out + attended_width_, 0.0F);
  return out;
}

template <class Fill, class Work>
void Forward::with_input(Member& member, int rows, int width, Needs needs, Fill fill, int chunks,
                         Work work) {
  auto& own = space_.members[static_cast<std::size_t>(member.index())];
  const Part part = member.enter(Part::Prepare);
  const auto prepare = [&](const Activations& input, int row) {
    const float* values = fill(row, own.row.data());
    if (needs.integers) kernels_.quantise(values, 0, width / kGroup, row, input);
    if (needs.floats)
      for (int k = 0; k < width; ++k) input.values[input.value(row, k)] = values[k];
  };
  if (rows <= kPrivateRows) {
    const Activations input = own.input.shape(rows, width);
    member.phase(
        chunks,
        [&] {
          for (int row = 0; row < rows; ++row) prepare(input, row);
          member.enter(part);
        },
        [&](int chunk) { work(chunk, input); });
    return;
  }
  Activations input = space_.input.view();
  input.width = width;
  member.phase((rows + kRowGroup - 1) / kRowGroup, [&](int chunk) {
    for (int row = chunk * kRowGroup; row < std::min(rows, (chunk + 1) * kRowGroup); ++row)
      prepare(input, row);
  });
  member.enter(part);
  member.phase(chunks, [&](int chunk) { work(chunk, input); });
}

void Forward::begin_row(int row) {
  const SpanPlan& span = plan_.span_of(row);
  const SpanInput& input = inputs_[static_cast<std::size_t>(&span - plan_.spans.data())];
  const std::int64_t k = row - span.first_row;
  float* state = states_ + std::int64_t{row} * width_;
  const float* given = input.resume != nullptr ? input.resume : input.embeddings;
  const auto hidden = static_cast<std::size_t>(shape_.hidden_size);
  if (given != nullptr)
    std::memcpy(state, given + k * shape_.hidden_size, hidden * sizeof(float));
  else
    unpack_row(model_.embed_, input.tokens[k], state);
  std::fill(state + hidden, state + width_, 0.0F);
  const int attended = shape_.heads * shape_.head_dim;
  float* out = attended_ + std::int64_t{row} * attended_width_;
  std::fill(out + attended, out + attended_width_, 0.0F);
  float* rotation = rotations_ + std::int64_t{row} * 2 * pairs_;
  const auto position = static_cast<float>(input.positions[k]);
  for (int i = 0; i < pairs_; ++i) {
    const float angle = position * shape_.inverse_frequencies[static_cast<std::size_t>(i)];
    float cosine = 0;
    float sine = 0;
    exact_turn(angle, cosine, sine);
    rotation[i] = cosine * shape_.rope_attention;
    rotation[pairs_ + i] = sine * shape_.rope_attention;
  }
}

void Forward::work(Member& member) {
  if (model_.profiling_) {
    auto& watch = space_.members[static_cast<std::size_t>(member.index())].watch;
    if (member.index() > 0) watch.restart(Part::Waiting);  // The caller's runs since the plan.
    member.watch(watch);
  }
  member.enter(Part::Embed);
  member.phase(plan_.rows, [&](int row) { begin_row(row); });
  for (std::size_t number = 0; number < layers_.size(); ++number) {
    const LayerPart& part = layers_[number];
    if (part.attention) mix(member, part.layer);
    if (part.mlp) feed(member, part.layer, number);
    bool wanted = false;
    for (const SpanInput& input : inputs_)
      wanted |=
          std::find(input.hidden.begin(), input.hidden.end(), part.layer) != input.hidden.end();
    if (wanted) member.phase(1, [&](int) { keep_hidden(part.layer); });
  }
  if (screened())
    screened_head(member);
  else if (!plan_.logit_rows.empty())
    head(member);
  member.enter(Part::Waiting);
}

int Forward::block_rows(int block) const {
  return std::min(kRowBlock, plan_.rows - block * kRowBlock);
}

// Fills a row of a product's input with the normed residual stream.
auto Forward::normed(const float* weight) {
  return [this, weight](int row, float* out) {
    kernels_.rms_norm(state(row), weight, shape_.hidden_size, width_, shape_.norm_epsilon, out);
    return out;
  };
}

// A chunk of a product that is added to the residual stream, `step` panels wide.
auto Forward::into_residual(const Matrix& weight, const float* bias, int step) {
  return [this, &weight, bias, step](int chunk, const Activations& input) {
    const int steps = (weight.panels + step - 1) / step;
    const int panel = chunk % steps * step;
    const int block = chunk / steps;
    kernels_.matmul(weight, panel, std::min(step, weight.panels - panel), input, block * kRowBlock,
                    block_rows(block), state(block * kRowBlock) + panel * kLanes, width_,
                    bias == nullptr ? nullptr : bias + panel * kLanes, true);
  };
}

// The attention of a layer.
void Forward::mix(Member& member, int layer) {
  const LayerWeights& w = model_.layers_[static_cast<std::size_t>(layer)];
  auto& own = space_.members[static_cast<std::size_t>(member.index())];
  const int rows = plan_.rows;
  const int blocks = blocks_of(rows);
  const int units = shape_.heads + 2 * shape_.kv_heads;
  member.enter(Part::Queries);
  with_input(member, rows, width_, needs({w.q.format, w.k.format, w.v.format}), normed(w.attn_norm),
             units * blocks, [&](int chunk, const Activations& input) {
               const int block = chunk / units;
               project_head(member, chunk % units, block * kRowBlock, block_rows(block), input,
                            layer, own.tile.data());
             });

  member.enter(Part::Attend);
  member.phase(static_cast<int>(tiles_.size()), [&](int chunk) {
    attend(tiles_[static_cast<std::size_t>(chunk)], layer, own.scores.data());
  });

  member.enter(Part::Output);
  const int o_step = chunk_units(w.o.panels, model_.team_->size());
  with_input(
      member, rows, attended_width_, needs({w.o.format}),
      [&](int row, float* out) { return attended(row, out); },
      (w.o.panels + o_step - 1) / o_step * blocks, into_residual(w.o, w.o_bias, o_step));
}

// The MLP of a layer.
void Forward::feed(Member& member, int layer, std::size_t number) {
  const LayerWeights& w = model_.layers_[static_cast<std::size_t>(layer)];
  if (!w.experts.empty()) return feed_experts(member, w, number);
  auto& own = space_.members[static_cast<std::size_t>(member.index())];
  const int rows = plan_.rows;
  const int blocks = blocks_of(rows);
  const int threads = model_.team_->size();
  const int pairs = w.gate.panels / 2;
  const Mlp mlp{w.gate, w.up, w.down, w.gate_bias, w.up_bias};
  const int pair_step = chunk_units(pairs, threads);
  const int pair_steps = (pairs + pair_step - 1) / pair_step;
  member.enter(Part::Inner);
  with_input(member, rows, width_, needs({w.gate.format, w.up.format}), normed(w.mlp_norm),
             pair_steps * blocks, [&](int chunk, const Activations& input) {
               const int pair = chunk % pair_steps * pair_step;
               const int block = chunk / pair_steps;
               inner_chunk(member, mlp, input, pair, std::min(pair_step, pairs - pair),
                           block * kRowBlock, block_rows(block), own.tile.data());
             });

  member.enter(Part::Down);
  const int down_step = chunk_units(w.down.panels, threads);
  const auto down = into_residual(w.down, w.down_bias, down_step);
  member.phase((w.down.panels + down_step - 1) / down_step * blocks,
               [&](int chunk) { down(chunk, inner_); });
}

// The router's logits, and the experts of each row.
void Forward::route_rows(Member& member, const LayerWeights& w) {
  const MixtureShape& mixture = shape_.mixture;
  const int rows = plan_.rows;
  const std::int64_t stride = w.router.panels * kLanes;
  member.enter(Part::Inner);
  with_input(member, rows, width_, needs({w.router.format}), normed(w.mlp_norm), blocks_of(rows),
             [&](int block, const Activations& input) {
               kernels_.matmul(w.router, 0, w.router.panels, input, block * kRowBlock,
                               block_rows(block), routed_ + block * kRowBlock * stride, stride,
                               nullptr, false);
             });
  member.phase(rows, [&](int row) {
    const std::int64_t first = std::int64_t{row} * mixture.chosen;
    route(routed_ + row * stride, w.router_bias, mixture, chosen_ + first, expert_weights_ + first);
  });
}

// Brings the rows of each expert side by side.
void Forward::send_rows(Member& member, const LayerWeights& w, Routing& routing, int row,
                        int rows) {
  auto& own = space_.members[static_cast<std::size_t>(member.index())];
  const int* chosen = chosen_ + std::int64_t{row} * shape_.mixture.chosen;
  member.phase(1, [&](int) { routing.plan(shape_.mixture, chosen, rows, kRowBlock); });
  Needs forms;
  for (const ExpertBlock& block : routing.blocks()) {
    const ExpertWeights& expert = w.experts[static_cast<std::size_t>(block.expert)];
    const Needs more = needs({expert.gate.format, expert.up.format});
    forms.integers |= more.integers;
    forms.floats |= more.floats;
  }
  const auto fill = normed(w.mlp_norm);
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
  auto& own = space_.members[static_cast<std::size_t>(member.index())];
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

// Adds what a row's experts made to the residual stream: the shared one, then the best first.
void Forward::add_experts(const Routing& routing, int row, int number) {
  const MixtureShape& mixture = shape_.mixture;
  float* out = state(row);
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

// Projects one head of queries, keys or values, and brings it where attention reads it.
void Forward::project_head(Member& member, int unit, int row, int rows, const Activations& input,
                           int layer, float* scratch) {
  const LayerWeights& w = model_.layers_[static_cast<std::size_t>(layer)];
  const int panels = dim_ / kLanes;
  const auto bias_of = [&](const float* bias, int head) {
    return bias == nullptr ? nullptr : bias + head * dim_;
  };
  if (unit < shape_.heads) {
    const std::int64_t stride = std::int64_t{shape_.heads} * dim_;
    float* out = queries_ + row * stride + unit * dim_;
    kernels_.matmul(w.q, unit * panels, panels, input, row, rows, out, stride,
                    bias_of(w.q_bias, unit), false);
    member.enter(Part::Rotate);
    const float scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim));
    for (int r = 0; r < rows; ++r) {
      float* query = out + r * stride;
      rotate(query, row + r, w.q_norm);
      for (int d = 0; d < dim_; ++d) query[d] *= scale;
    }
    member.enter(Part::Queries);
    return;
  }
  const bool is_key = unit < shape_.heads + shape_.kv_heads;
  const int head = (unit - shape_.heads) % shape_.kv_heads;
  const Matrix& weight = is_key ? w.k : w.v;
  kernels_.matmul(weight, head * panels, panels, input, row, rows, scratch, dim_,
                  bias_of(is_key ? w.k_bias : w.v_bias, head), false);
  member.enter(Part::Rotate);
  for (int r = 0; r < rows; ++r) {
    float* values = scratch + std::int64_t{r} * dim_;
    const Slot& slot = plan_.slots[static_cast<std::size_t>(row + r)];
    if (is_key) {
      rotate(values, row + r, w.k_norm);
      model_.cache_.put_key(slot, layer, head, values, kernels_);
    } else {
      model_.cache_.put_value(slot, layer, head, values, kernels_);
    }
  }
  member.enter(Part::Queries);
}

void Forward::rotate(float* head, int row, const float* norm) const {
  if (norm != nullptr)
    kernels_.rms_norm(head, norm, shape_.head_dim, dim_, shape_.norm_epsilon, head);
  const float* cosines = rotations_ + std::int64_t{row} * 2 * pairs_;
  const float* sines = cosines + pairs_;
  for (int i = 0; i < pairs_; ++i) {
    const float low = head[i];
    const float high = head[i + pairs_];
    head[i] = low * cosines[i] - high * sines[i];
    head[i + pairs_] = high * cosines[i] + low * sines[i];
  }
}

void Forward::attend(const Tile& tile, int layer, float* scores) {
  const SpanPlan& span = plan_.spans[static_cast<std::size_t>(tile.span)];
  AttentionTile out;
  out.span = &span.view;
  out.head_dim = shape_.head_dim;
  out.padded_dim = dim_;
  out.first_block = tile.first_block;
  out.end_block = tile.end_block;
  out.fetches = tile.row == 0;
  out.scores = scores;
  out.score_stride = score_stride_;
  for (int scratch = 0; scratch < 2; ++scratch) {
    out.keys[scratch] = model_.cache_.keys(scratch == 1, layer, tile.kv_head);
    out.values[scratch] = model_.cache_.values(scratch == 1, layer, tile.kv_head);
    out.stretch[scratch] = model_.cache_.stretch(scratch == 1);
  }
  for (int r = 0; r < tile.rows; ++r)
    for (int h = 0; h < tile.heads; ++h) {
      const std::int64_t row = span.first_row + tile.row + r;
      const int head = tile.head + h;
      out.row[out.count] = tile.row + r;
      out.query[out.count] = queries_ + row * shape_.heads * dim_ + head * dim_;
      out.out[out.count] = attended_ + row * attended_width_ + head * shape_.head_dim;
      out.parts[out.count] = part_blocks_ == 0 ? nullptr : parts_ + part_at(row, head);
      ++out.count;
    }
  if (model_.cache_.half())
    kernels_.attention_f16(out);
  else
    kernels_.attention_f32(out);
}

// Gate and up for groups of 32 outputs, and their product as the input of the down projection.
void Forward::inner_chunk(Member& member, const Mlp& w, const Activations& input, int pair,
                          int pairs, int row, int rows, float* scratch) {
  float* gate = scratch;
  float* up = scratch + std::int64_t{kRowBlock} * kGroup;
  const auto bias_of = [](const float* bias, int at) {
    return bias == nullptr ? nullptr : bias + at * kGroup;
  };
  for (int at = pair; at < pair + pairs; ++at) {
    kernels_.matmul(w.gate, 2 * at, 2, input, row, rows, gate, kGroup, bias_of(w.gate_bias, at),
                    false);
    kernels_.matmul(w.up, 2 * at, 2, input, row, rows, up, kGroup, bias_of(w.up_bias, at), false);
    member.enter(Part::Activate);
    kernels_.swiglu(gate, up, rows * kGroup);
    for (int r = 0; r < rows; ++r) {
      const float* values = gate + r * kGroup;
      if (is_integer(w.down.format))
        kernels_.quantise(values, at, 1, row + r, inner_);
      else
        for (int k = 0; k < kGroup; ++k)
          inner_.values[inner_.value(row + r, at * kGroup + k)] = values[k];
    }
    member.enter(Part::Inner);
  }
}

void Forward::keep_hidden(int layer) {
  std::size_t out = 0;
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    for (const int wanted : inputs_[i].hidden) {
      float* to = result_.hidden[out++].data();
      if (wanted != layer) continue;
      for (int r = 0; r < plan_.spans[i].rows; ++r)
        std::memcpy(to + std::int64_t{r} * shape_.hidden_size,
                    states_ + std::int64_t{plan_.spans[i].first_row + r} * width_,
                    static_cast<std::size_t>(shape_.hidden_size) * sizeof(float));
    }
}

// A row of the head's input.
auto Forward::head_input() {
  return [this](int row, float* out) {
    const std::int64_t from = plan_.logit_rows[static_cast<std::size_t>(row)];
    kernels_.rms_norm(states_ + from * width_, model_.norm_, shape_.hidden_size, width_,
                      shape_.norm_epsilon, out);
    return out;
  };
}

// Logits [row, end) of some panels of the head, or of what stands for it.
void Forward::head_product(const Matrix& weight, int panel, int panels, const Activations& input,
                           int row, int end) {
  const std::int64_t stride = LogitRows::stride_for(shape_.vocab_size);
  kernels_.matmul(weight, panel, panels, input, row, end - row,
                  result_.logits->writable(row) + panel * kLanes, stride, nullptr, false);
  // What lies beyond the vocabulary is the padding of these panels, or of the row.
  const int last = panel + panels;
  const std::int64_t until = last < weight.panels ? std::int64_t{last} * kLanes : stride;
  const std::int64_t begin = std::max<std::int64_t>(shape_.vocab_size, panel * kLanes);
  if (begin < until)
    for (int r = row; r < end; ++r)
      std::fill(result_.logits->writable(r) + begin, result_.logits->writable(r) + until,
                -INFINITY);
}

void Forward::head(Member& member) {
  const Matrix& weight = model_.head_;
  const auto rows = static_cast<int>(plan_.logit_rows.size());
  const int step = std::max(1, weight.panels / (model_.team_->size() * 4 * kShare));
  const int steps = (weight.panels + step - 1) / step;
  member.enter(Part::Head);
  with_input(member, rows, width_, needs({weight.format}), head_input(), steps * blocks_of(rows),
             [&](int chunk, const Activations& input) {
               const int panel = chunk % steps * step;
               const int row = chunk / steps * kRowBlock;
               head_product(weight, panel, std::min(step, weight.panels - panel), input, row,
                            std::min(rows, row + kRowBlock));
             });
}

bool Forward::screened() const {
  const std::size_t rows = plan_.logit_rows.size();
  return only_best_ && model_.screen_ != nullptr && rows > 0 && rows <= kScreenedRows;
}

void Forward::screened_head(Member& member) {
  const Screen& screen = *model_.screen_;
  const Matrix& weight = model_.head_;
  const auto rows = static_cast<int>(plan_.logit_rows.size());
  const int steps = screen_steps(weight.panels, model_.team_->size());
  const int step = screen_step(weight.panels, model_.team_->size());
  const auto panels_of = [&](int chunk) { return std::min(step, weight.panels - chunk * step); };
  member.enter(Part::Head);
  with_input(member, rows, width_, needs({weight.format}), head_input(), steps,
             [&](int chunk, const Activations& input) {
               head_product(screen.about(), chunk * step, panels_of(chunk), input, 0, rows);
               const std::int64_t first = std::int64_t{chunk} * step * kLanes;
               const std::int64_t end = chunk + 1 < steps
                                            ? first + step * kLanes
                                            : LogitRows::stride_for(shape_.vocab_size);
               for (int r = 0; r < rows; ++r) {
                 Best& top = about_[static_cast<std::size_t>(chunk * rows + r)];
                 std::int64_t index = 0;
                 kernels_.best(result_.logits->writable(r) + first, end - first, &top.value, &index,
                               &top.nan);
                 top.token = static_cast<std::int32_t>(first + index);
               }
             });

  // A logit that the best one must reach, and how far the others may be from what they are about.
  float floors[kScreenedRows];
  float reaches[kScreenedRows];
  bool known = false;
  const auto know = [&](const Activations& input) {
    for (int r = 0; r < rows; ++r) {
      reaches[r] = screen.reach(input, r);
      Best top{-INFINITY, 0, false};
      for (int chunk = 0; chunk < steps; ++chunk) {
        const Best& other = about_[static_cast<std::size_t>(chunk * rows + r)];
        if (other.value > top.value) top = other;
      }
      const int panel = top.token / kLanes;
      float exact[kScreenedRows * kLanes];
      kernels_.matmul(weight, panel, 1, input, 0, rows, exact, kLanes, nullptr, false);
      floors[r] = -INFINITY;
      for (int i = 0; i < kLanes && panel * kLanes + i < shape_.vocab_size; ++i)
        if (exact[r * kLanes + i] > floors[r]) floors[r] = exact[r * kLanes + i];
    }
    known = true;
  };
  // What is no number survives.
  const auto survives = [&](int panel) {
    const float* errors = screen.errors() + panel * kLanes;
    for (int r = 0; r < rows; ++r) {
      const float* about = result_.logits->writable(r) + panel * kLanes;
      int left = 0;
      for (int i = 0; i < kLanes; ++i)
        left += about[i] + errors[i] * reaches[r] < floors[r] ? 0 : 1;
      if (left > 0) return true;
    }
    return false;
  };
  with_input(member, rows, width_, needs({weight.format}), head_input(), steps,
             [&](int chunk, const Activations& input) {
               if (!known) know(input);
               Best* best = best_.data() + chunk * rows;
               std::fill(best, best + rows, Best{-INFINITY, -1, false});
               for (int panel = chunk * step; panel < chunk * step + panels_of(chunk); ++panel) {
                 if (!survives(panel)) continue;
                 head_product(weight, panel, 1, input, 0, rows);
                 for (int r = 0; r < rows; ++r)
                   for (int id = panel * kLanes;
                        id < std::min(shape_.vocab_size, (panel + 1) * kLanes); ++id) {
                     const float value = result_.logits->writable(r)[id];
                     best[r].nan |= std::isnan(value);
                     if (value > best[r].value) best[r].value = value, best[r].token = id;
                   }
               }
             });
}

int Forward::add_norms(std::vector<double>& norms) const {
  std::vector<float> row(static_cast<std::size_t>(width_));
  norms.resize(static_cast<std::size_t>(width_ / kGroup));
  for (const std::int32_t from : plan_.logit_rows) {
    kernels_.rms_norm(states_ + std::int64_t{from} * width_, model_.norm_, shape_.hidden_size,
                      width_, shape_.norm_epsilon, row.data());
    for (std::size_t g = 0; g < norms.size(); ++g) {
      double sum = 0;
      for (std::size_t i = g * kGroup; i < (g + 1) * kGroup; ++i) sum += double{row[i]} * row[i];
      norms[g] += std::sqrt(sum);
    }
  }
  return static_cast<int>(plan_.logit_rows.size());
}

}  // namespace paradecode
