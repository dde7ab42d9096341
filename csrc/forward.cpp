#include <algorithm>
#include <cstring>

#include "exact.hpp"
#include "forward_products.hpp"

namespace paradecode {
namespace {

// At most: preparation and product of queries/keys/values, output, gate/up or router; attention;
// down or the choice of experts; attention weights; and a layer's hidden states. Of each lot of
// rows that is sent to experts: sending, preparation, gate/up, down and sum. Besides: the first
// rows, preparation and product of the head. Gemma 4's layers have an MLP and a router, and norms
// behind attention and both; and a guess is read by preparation, gate/up and down.
constexpr int kLayerPhases = 10;
constexpr int kLotPhases = 5;
constexpr int kOtherPhases = 3;
constexpr int kGemmaLayerPhases = 5;
constexpr int kGuessPhases = 4;

}  // namespace

Forward::Needs Forward::needs(std::initializer_list<Format> formats) {
  Needs out;
  for (const Format format : formats) (is_integer(format) ? out.integers : out.floats) = true;
  return out;
}

Forward::Forward(Model& model, Model::Workspace& workspace, const std::deque<Plan>& plans,
                 const std::vector<SpanInput>& spans, const std::vector<LayerPart>& layers,
                 bool only_best)
    : model_(model),
      space_(workspace),
      plan_(plans.front()),
      inputs_(spans),
      layers_(layers),
      kernels_(*model.isa_.kernels),
      shape_(model.shape_),
      width_(round_up(shape_.hidden_size, kGroup)),
      inner_width_(round_up(std::max({shape_.intermediate_size, shape_.mixture.expert_size,
                                      shape_.mixture.shared_size}),
                            kGroup)),
      only_best_(only_best) {
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const AttentionShape& kind = shape_.attentions[i];
    const int width = round_up(shape_.heads * kind.head_dim, kGroup);
    attentions_.push_back({kind, plans[i], kind.padded_dim(), width, nullptr, nullptr, {}, 0});
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
  for (const Attention& kind : attentions_) {
    widest = std::max(widest, kind.width);
    dim = std::max(dim, kind.dim);
    made += kind.width;
    turns += 2 * kind.shape.pairs();
  }
  queries_ = space_.queries.need(count(rows, shape_.heads * dim));
  float* attended = space_.attended.need(count(rows, made));
  float* rotations = space_.rotations.need(count(rows, turns));
  for (Attention& kind : attentions_) {
    kind.made = attended;
    kind.rotations = rotations;
    attended += std::int64_t{rows} * kind.width;
    rotations += std::int64_t{rows} * 2 * kind.shape.pairs();
  }
  if (shape_.gemma()) plan_gemma();
  const int places = shape_.mixture.experts > 0 ? plan_lots() : 0;
  inner_ = space_.inner.shape(std::max(rows, places), inner_width_);
  const auto logit_rows = static_cast<int>(plan_.logit_rows.size());
  space_.input.shape(std::max(rows, logit_rows), widest);
  for (auto& member : space_.members) {
    member.input.shape(kPrivateRows, widest);
    member.row.need(count(1, widest));
    member.tile.need(count(2 * kRowBlock, std::max(dim, 2 * kLanes)));
    member.scores.need(count(kMaxQueries, score_stride_));
  }
  model_.cache_.need_scratch(plan_.scratch_pages);
  for (Attention& kind : attentions_) {
    for (const Slot& slot : kind.plan.slots)
      if (!slot.scratch) model_.cache_.advance(slot.page, kind.shape.window);
    plan_tiles(kind);
  }
  result_.logits = std::make_shared<LogitRows>(model_.logit_store_, kernels_, model_.team_,
                                               logit_rows, shape_.outputs);
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    for (std::size_t k = 0; k < inputs_[i].hidden.size(); ++k)
      result_.hidden.emplace_back(count(plan_.spans[i].rows, shape_.hidden_size));
  plan_weights();
  if (screened()) plan_screen();
  if (rows > 0) {
    const int layer = kLayerPhases + kLotPhases * lots_ + (shape_.gemma() ? kGemmaLayerPhases : 0);
    const int other = kOtherPhases + (guesses_.empty() ? 0 : kGuessPhases);
    const int phases = other + layer * static_cast<int>(layers_.size());
    model_.team_->run(
        phases, [](void* self, Member& member) { static_cast<Forward*>(self)->work(member); },
        this);
  }
  if (screened()) result_.logits->choose(best_tokens());
  return std::move(result_);
}

void Forward::begin_row(int row) {
  const SpanInput& input = input_of(row);
  const std::int64_t k = row - plan_.span_of(row).first_row;
  float* state = states_ + std::int64_t{row} * width_;
  const float* given = input.resume != nullptr ? input.resume : input.embeddings;
  const auto hidden = static_cast<std::size_t>(shape_.hidden_size);
  const std::int64_t looked_up = input.rows - input.given_rows;
  if (k >= looked_up)
    std::memcpy(state, given + (k - looked_up) * shape_.hidden_size, hidden * sizeof(float));
  else
    unpack_row(model_.embed_, input.tokens[k], state);
  std::fill(state + hidden, state + width_, 0.0F);
  if (shape_.gemma() && k < looked_up) begin_gemma(row);
  const auto position = static_cast<float>(input.positions[k]);
  for (Attention& kind : attentions_) {
    float* out = kind.made + std::int64_t{row} * kind.width;
    std::fill(out + shape_.heads * kind.shape.head_dim, out + kind.width, 0.0F);
    const int pairs = kind.shape.pairs();
    float* rotation = kind.rotations + std::int64_t{row} * 2 * pairs;
    for (int i = 0; i < pairs; ++i) {
      const float angle = position * kind.shape.inverse_frequencies[static_cast<std::size_t>(i)];
      float cosine = 0;
      float sine = 0;
      exact_turn(angle, cosine, sine);
      rotation[i] = cosine * shape_.rope_attention;
      rotation[pairs + i] = sine * shape_.rope_attention;
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
  member.phase(plan_.rows, [&](int row) { begin_row(row); });
  int attentions = 0;
  for (std::size_t number = 0; number < layers_.size(); ++number) {
    const LayerPart& part = layers_[number];
    if (part.attention) {
      mix(member, part.layer);
      weigh(member, part.layer, attentions++);
    }
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

// The MLP of a layer, or its experts, or both.
void Forward::feed(Member& member, int layer, std::size_t number) {
  const LayerWeights& w = model_.layers_[static_cast<std::size_t>(layer)];
  if (w.gate.data != nullptr)
    feed_dense(member, {w.gate, w.up, w.down, w.gate_bias, w.up_bias, w.down_bias}, w.mlp_norm);
  if (!w.experts.empty()) feed_experts(member, w, number);
  if (shape_.gemma()) close_feed(member, w);
}

void Forward::feed_dense(Member& member, const Mlp& w, const float* norm) {
  auto& own = own_of(member);
  const int rows = plan_.rows;
  const int blocks = blocks_of(rows);
  const int threads = model_.team_->size();
  const int pairs = w.gate.panels / 2;
  const int pair_step = chunk_units(pairs, threads);
  const int pair_steps = (pairs + pair_step - 1) / pair_step;
  member.enter(Part::Inner);
  with_input(member, rows, width_, needs({w.gate.format, w.up.format}), normed(norm),
             pair_steps * blocks, [&](int chunk, const Activations& input) {
               const int pair = chunk % pair_steps * pair_step;
               const int block = chunk / pair_steps;
               inner_chunk(member, w, input, pair, std::min(pair_step, pairs - pair),
                           block * kRowBlock, block_rows(block), own.tile.data());
             });

  member.enter(Part::Down);
  const int down_step = chunk_units(w.down.panels, threads);
  const auto down = product(w.down, w.down_bias, down_step);
  member.phase((w.down.panels + down_step - 1) / down_step * blocks,
               [&](int chunk) { down(chunk, inner_); });
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
    (shape_.gemma() ? kernels_.geglu : kernels_.swiglu)(gate, up, rows * kGroup);
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

}  // namespace paradecode
