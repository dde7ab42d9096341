#include <algorithm>
#include <cstring>

#include "exact.hpp"
#include "forward_products.hpp"

namespace paradecode {
namespace {

// At most: preparation and product of queries/keys/values, output, gate/up or router, and low-rank
// queries; attention; down or the choice of experts; norms of all heads; attention weights; what
// closes a part; and a layer's hidden states. Of each lot of rows that is sent to experts: sending,
// preparation, gate/up, down and sum. Besides: the first rows, preparation and product of the head,
// and of second embeddings, what a ladder left, and a guess: preparation, gate/up and down.
constexpr int kLayerPhases = 10;
constexpr int kRankPhases = 2;
constexpr int kStatePhases = 14;  // of each part with a state
constexpr int kRouterPhases = 3;
constexpr int kTokenPhases = 4;
constexpr int kLotPhases = 5;
constexpr int kOtherPhases = 3;
constexpr int kMorePhases = 3;
constexpr int kGuessPhases = 4;

}  // namespace

Forward::Needs Forward::needs(std::initializer_list<Format> formats) {
  Needs out;
  for (const Format format : formats) out.add(format);
  return out;
}

void Forward::write_input(const float* values, int width, Needs needs, int row,
                          const Activations& out) {
  if (needs.integers) kernels_.quantise(values, 0, width / kGroup, row, out);
  if (needs.wide) kernels_.quantise_wide(values, 0, width / kSuperBlock, row, out);
  if (needs.floats)
    for (int k = 0; k < width; ++k) out.values[out.value(row, k)] = values[k];
}

Forward::Forward(Model& model, Model::Workspace& workspace, const std::deque<Plan>& plans,
                 const std::vector<SpanLineage>& lineage, const std::vector<SpanInput>& spans,
                 const std::vector<LayerPart>& layers, bool only_best)
    : model_(model),
      space_(workspace),
      plan_(plans.front()),
      lineage_(lineage),
      inputs_(spans),
      layers_(layers),
      kernels_(*model.isa_.kernels),
      shape_(model.shape_),
      width_(round_up(shape_.hidden_size, kGroup)),
      inner_width_(shape_.token_padded()),
      only_best_(only_best) {
  for (const FeedShape& feed : shape_.feeds)
    inner_width_ = std::max({inner_width_, round_up(feed.size, kGroup),
                             round_up(feed.mixture.expert_size, kGroup),
                             round_up(feed.mixture.shared_size, kGroup)});
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const AttentionShape& kind = shape_.attentions[i];
    attentions_.push_back(
        {kind, plans[i], kind.padded_dim(), kind.width(), nullptr, nullptr, {}, 0});
    score_stride_ =
        std::max<std::int64_t>(score_stride_, round_up(plans[i].most_extra + 2 * kLanes, kLanes));
  }
}

ForwardResult Forward::run() {
  const int rows = plan_.rows;
  states_ = space_.states.need(count(rows, width_));
  int widest = width_;
  int dim = 0;
  int made = 0;
  int turns = 0;
  int heads = 0;
  int keys = 0;
  int rank = 0;
  int gates = 0;
  for (const Attention& kind : attentions_) {
    const AttentionShape& shape = kind.shape;
    widest = std::max(widest, kind.width);
    dim = std::max(dim, kind.dim);
    made += kind.width;
    turns += 2 * shape.pairs();
    heads = std::max(heads, shape.heads * kind.dim);
    if (shape.qk_norm == HeadNorm::All) keys = std::max(keys, shape.kv_heads * kind.dim);
    rank = std::max(rank, round_up(shape.query_rank, kGroup));
    if (shape.gated) gates = std::max(gates, shape.heads * kind.dim);
  }
  widest = std::max({widest, rank, plan_recall()});
  queries_ = space_.queries.need(count(rows, heads));
  if (gates > 0) gates_ = space_.gates.need(count(rows, gates));
  if (keys > 0) keys_ = space_.keys.need(count(rows, keys));
  if (rank > 0) ranked_ = space_.ranked.need(count(rows, rank));
  ranked_stride_ = rank;
  float* attended = space_.attended.need(count(rows, made));
  float* rotations = space_.rotations.need(count(rows, turns));
  for (Attention& kind : attentions_) {
    kind.made = attended;
    kind.rotations = rotations;
    attended += std::int64_t{rows} * kind.width;
    rotations += std::int64_t{rows} * 2 * kind.shape.pairs();
  }
  plan_residual();
  plan_guesses();
  const int places = plan_lots();
  inner_ = space_.inner.shape(std::max(rows, places), inner_width_);
  const auto logit_rows = static_cast<int>(plan_.logit_rows.size());
  space_.input.shape(std::max(rows, logit_rows), widest);
  plan_divided();
  std::int64_t row_floats = widest;
  if (reads_tokens()) {
    const Matrix& project = model_.weights_.token_project;
    second_ = space_.inputs.need(count(rows, project.panels * kLanes));
    row_floats = std::max<std::int64_t>(row_floats, project.panels * kLanes);
  }
  for (auto& member : space_.members) {
    member.input.shape(kPrivateRows, widest);
    member.row.need(count(1, row_floats));
    member.tile.need(count(2 * kRowBlock, std::max(dim, kSuperBlock)));
    member.scores.need(count(kMaxQueries, score_stride_));
  }
  model_.cache_.need_scratch(plan_.scratch_pages);
  for (Attention& kind : attentions_) {
    for (const Slot& slot : kind.plan.slots)
      if (!slot.scratch && model_.cache_.keeps(kind.shape.window))
        model_.cache_.advance(slot.page, kind.shape.window);
    plan_tiles(kind);
  }
  result_.logits = std::make_shared<LogitRows>(model_.logit_store_, kernels_, model_.team_,
                                               logit_rows, shape_.outputs);
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    for (std::size_t k = 0; k < inputs_[i].hidden.size(); ++k)
      result_.hidden.emplace_back(count(plan_.spans[i].rows, shape_.hidden_size));
  plan_weights();
  if (screened()) plan_screen();
  if (rows > 0)
    model_.team_->run(
        phases(), [](void* self, Member& member) { static_cast<Forward*>(self)->work(member); },
        this);
  if (screened()) result_.logits->choose(best_tokens());
  return std::move(result_);
}

// At most so many.
int Forward::phases() const {
  int out = kOtherPhases + kMorePhases + (guesses_.empty() ? 0 : kGuessPhases);
  for (const LayerPart& part : layers_) {
    const LayerShape& layer = shape_.layer(part.layer);
    out += kLayerPhases + (layer.reads_token ? kTokenPhases : 0);
    out += kStatePhases * static_cast<int>(layer.states.size());
    if (layer.attention >= 0) {
      const AttentionShape& kind = shape_.attention(part.layer);
      out += (kind.query_rank > 0 ? kRankPhases : 0) + (kind.norm.after ? 1 : 0);
    }
    if (layer.feed < 0 || !shape_.feed(part.layer).mixed()) continue;
    out += kRouterPhases + kLotPhases * lot_of(shape_.feed(part.layer)).count;
  }
  return out;
}

void Forward::begin_row(Member& member, int row) {
  const SpanInput& input = input_of(row);
  const ModelWeights& w = model_.weights_;
  const std::int64_t k = row - plan_.span_of(row).first_row;
  float* state = states_ + std::int64_t{row} * width_;
  const float* given = input.resume != nullptr ? input.resume : input.embeddings;
  const auto hidden = static_cast<std::size_t>(shape_.hidden_size);
  const std::int64_t looked_up = input.rows - input.given_rows;
  if (k >= looked_up) {
    std::memcpy(state, given + (k - looked_up) * shape_.hidden_size, hidden * sizeof(float));
  } else {
    unpack_row(w.embed, input.tokens[k], state);
    if (shape_.embed_factor != 1.0F)
      for (std::size_t i = 0; i < hidden; ++i) state[i] *= shape_.embed_factor;
  }
  std::fill(state + hidden, state + width_, 0.0F);
  if (k < looked_up && input.canvas) begin_canvas(row);
  if (shape_.positions > 0 && input.resume == nullptr) {
    float* learned = own_of(member).row.data();
    unpack_row(w.positions, input.positions[k], learned);
    for (std::size_t i = 0; i < hidden; ++i) state[i] += learned[i];
  }
  if (shape_.embed_norm && input.resume == nullptr) norm_row(state, w.embed_norm, state);
  if (shape_.stack.front().ladder) std::fill_n(pending(row), width_, 0.0F);
  const auto position = static_cast<float>(input.positions[k]);
  for (Attention& kind : attentions_) {
    float* out = kind.made + std::int64_t{row} * kind.width;
    std::fill(out + kind.shape.heads * kind.shape.head_dim, out + kind.width, 0.0F);
    const int pairs = kind.shape.pairs();
    float* rotation = kind.rotations + std::int64_t{row} * 2 * pairs;
    for (int i = 0; i < pairs; ++i) {
      const float angle = position * kind.shape.inverse_frequencies[static_cast<std::size_t>(i)];
      float cosine = 0;
      float sine = 0;
      exact_turn(angle, cosine, sine);
      rotation[i] = cosine * kind.shape.rope_factor;
      rotation[pairs + i] = sine * kind.shape.rope_factor;
    }
  }
}

void Forward::work(Member& member) {
  if (model_.profiling_) {
    Stopwatch& watch = own_of(member).watch;
    if (member.index() > 0) watch.restart(Part::Waiting);  // The caller's runs since the plan.
    member.watch(watch);
  }
  if (!guesses_.empty()) read_guesses(member);
  member.enter(Part::Embed);
  member.phase(plan_.rows, [&](int row) { begin_row(member, row); });
  if (second_ != nullptr) read_tokens(member);
  int attentions = 0;
  for (std::size_t number = 0; number < layers_.size(); ++number)
    run_layer(member, number, attentions);
  add_pending(member);
  if (screened())
    screened_head(member);
  else if (!plan_.logit_rows.empty())
    head(member);
  member.enter(Part::Waiting);
}

int Forward::block_rows(int block) const {
  return std::min(kRowBlock, plan_.rows - block * kRowBlock);
}

// Where the `index`-th part of a layer stands among those that run.
Forward::Turn Forward::turn(const LayerPart& part, int index, float factor) const {
  const LayerShape& layer = shape_.layer(part.layer);
  const int begin = part.attention ? 0 : layer.mixers();
  const int end = part.mlp ? layer.parts() : layer.mixers();
  const bool ends = index + 1 == end;
  return {index == begin || layer.group(index - 1) != layer.group(index),
          ends || layer.group(index + 1) != layer.group(index), ends, factor};
}

// The parts of a layer that run, group by group; those of one group read the same stream.
void Forward::run_layer(Member& member, std::size_t number, int& attentions) {
  const LayerPart& part = layers_[number];
  const LayerShape& layer = shape_.layer(part.layer);
  int index = part.attention ? 0 : layer.mixers();
  if (part.attention && layer.attention >= 0) {
    mix(member, part.layer, turn(part, index++, shape_.attention(part.layer).out_factor));
    weigh(member, part.layer, attentions++);
  }
  for (int i = 0; part.attention && i < static_cast<int>(layer.states.size()); ++i) {
    const StateShape& kind = shape_.state(part.layer, i);
    const Turn own = turn(part, index++, kind.out_factor);
    if (kind.heads == 0)
      convolve(member, part.layer, i, own);
    else
      recall(member, part.layer, i, own);
  }
  if (part.mlp && layer.feed >= 0)
    feed(member, part.layer, number, turn(part, index++, shape_.feed(part.layer).out_factor));
  if (part.mlp && layer.reads_token) feed_token(member, part.layer, turn(part, index, 1.0F));
  bool wanted = false;
  for (const SpanInput& input : inputs_)
    wanted |= std::find(input.hidden.begin(), input.hidden.end(), part.layer) != input.hidden.end();
  if (wanted) member.phase(1, [&](int) { keep_hidden(part.layer); });
}

// The MLP of a layer, or its experts, or both.
void Forward::feed(Member& member, int layer, std::size_t number, Turn turn) {
  const LayerWeights& w = model_.weights_.layers[static_cast<std::size_t>(layer)];
  const FeedShape& shape = shape_.feed(layer);
  const Target to = shape.both() ? Target{made_, false} : target(w.after_mlp, turn);
  if (shape.size > 0)
    feed_dense(member, {w.mlp, shape.activation, shape.gate_factor}, w.mlp_norm, to);
  if (shape.mixed()) feed_experts(member, layer, number, shape.both() ? Target{mixed_, false} : to);
  close(member, layer, w.after_mlp, turn, shape.both());
}

void Forward::feed_dense(Member& member, const Inner& inner, const Norm& norm, Target to) {
  auto& own = own_of(member);
  const MlpWeights& w = inner.weights;
  const int rows = plan_.rows;
  const int blocks = blocks_of(rows);
  const int threads = model_.team_->size();
  const int pairs = inner.first().panels / 2;
  const int some = chunk_units(pairs, threads);
  const int pair_step = blocks > 1 ? round_up(some, inner.pairs_of_scale()) : some;
  const int pair_steps = (pairs + pair_step - 1) / pair_step;
  member.enter(Part::Inner);
  with_input(member, rows, width_, inner.needs(), normed(norm), pair_steps * blocks,
             [&](int chunk, const Activations& input) {
               const int pair = chunk % pair_steps * pair_step;
               const int block = chunk / pair_steps;
               inner_chunk(member, inner, input, pair, std::min(pair_step, pairs - pair),
                           block * kRowBlock, block_rows(block), own.tile.data());
             });

  member.enter(Part::Down);
  const int down_step = chunk_units(w.down.panels, threads);
  const auto down = product(w.down, w.down_bias, down_step, to);
  member.phase((w.down.panels + down_step - 1) / down_step * blocks,
               [&](int chunk) { down(chunk, inner_); });
}

void Forward::plan_divided() {
  const auto blocks = static_cast<std::size_t>(inner_width_ / kSuperBlock);
  divided_ = space_.divided.need(blocks * kRowBlock * kSuperBlock);
  if (space_.divided_pairs.size() < blocks)
    space_.divided_pairs = std::vector<std::atomic<int>>(blocks);
  divided_pairs_ = space_.divided_pairs.data();
  for (auto& pairs : space_.divided_pairs) pairs = 0;
}

// Gate and up for groups of 32 outputs, and their product as the input of the down projection. If
// that takes 256 values with one scale, and a chunk has only some of them, the values wait for
// those of other chunks; the member that makes the last ones rounds them all.
void Forward::inner_chunk(Member& member, const Inner& inner, const Activations& input, int pair,
                          int pairs, int row, int rows, float* scratch) {
  const MlpWeights& w = inner.weights;
  const auto activate = kernels_.activate[static_cast<int>(inner.activation)];
  const float* first_bias = w.gate.data != nullptr ? w.gate_bias : w.up_bias;
  const int unit = inner.pairs_of_scale();
  const int width = unit * kGroup;
  float* second = scratch + std::int64_t{kRowBlock} * width;
  const auto bias_of = [](const float* bias, int at) {
    return bias == nullptr ? nullptr : bias + at * kGroup;
  };
  for (int at = pair; at < pair + pairs;) {
    const int index = at / unit;
    const int first = at % unit;
    const int end = std::min(unit, first + pair + pairs - at);
    const bool whole = end - first == unit;
    float* gate = whole ? scratch : divided_ + std::int64_t{index} * kRowBlock * kSuperBlock;
    const float* up = inner.given != nullptr || w.gate.data != nullptr ? second : nullptr;
    for (int i = first; i < end; ++i, ++at) {
      kernels_.matmul(inner.first(), 2 * at, 2, input, row, rows, gate + i * kGroup, width,
                      bias_of(first_bias, at), false);
      for (int r = 0; inner.gate_factor != 1.0F && r < rows; ++r)
        for (int k = 0; k < kGroup; ++k) gate[r * width + i * kGroup + k] *= inner.gate_factor;
      if (inner.given != nullptr)
        for (int r = 0; r < rows; ++r)
          std::copy_n(inner.given + (row + r) * inner.stride + at * kGroup, kGroup,
                      second + r * width + i * kGroup);
      else if (up != nullptr)
        kernels_.matmul(w.up, 2 * at, 2, input, row, rows, second + i * kGroup, width,
                        bias_of(w.up_bias, at), false);
    }
    member.enter(Part::Activate);
    if (whole)
      activate(gate, up, rows * width);
    else
      for (int r = 0; r < rows; ++r) {
        const int from = r * width + first * kGroup;
        activate(gate + from, up == nullptr ? nullptr : up + from, (end - first) * kGroup);
      }
    if (whole || divided_pairs_[index].fetch_add(end - first) + end - first == unit) {
      if (!whole) divided_pairs_[index] = 0;
      for (int r = 0; r < rows; ++r) write_inner(gate + r * width, w.down.format, index, row + r);
    }
    member.enter(Part::Inner);
  }
}

// Writes the values that share a scale.
void Forward::write_inner(const float* values, Format format, int index, int row) {
  if (!is_integer(format))
    for (int k = 0; k < kGroup; ++k)
      inner_.values[inner_.value(row, index * kGroup + k)] = values[k];
  else if (has_superblocks(format))
    kernels_.quantise_wide(values, index, 1, row, inner_);
  else
    kernels_.quantise(values, index, 1, row, inner_);
}

void Forward::keep_hidden(int layer) {
  const bool ladder = shape_.stack.front().ladder;
  std::size_t out = 0;
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    for (const int wanted : inputs_[i].hidden) {
      float* to = result_.hidden[out++].data();
      if (wanted != layer) continue;
      for (int r = 0; r < plan_.spans[i].rows; ++r) {
        const int row = plan_.spans[i].first_row + r;
        float* kept = to + std::int64_t{r} * shape_.hidden_size;
        std::copy_n(state(row), shape_.hidden_size, kept);
        for (int k = 0; ladder && k < shape_.hidden_size; ++k) kept[k] += pending(row)[k];
      }
    }
}

}  // namespace paradecode
