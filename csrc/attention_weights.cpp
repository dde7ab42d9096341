#include "attention_weights.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "forward.hpp"
#include "half.hpp"

namespace paradecode {
namespace {

float as_float(float value) { return value; }
float as_float(std::uint16_t half) { return half_to_float(half); }

// Scores of the tokens of a run, which are side by side in each of the page's rows.
template <class Element>
void score_run(const Run& run, const Element* page, const float* query, int head_dim, float* out) {
  std::fill(out, out + run.count, 0.0F);
  for (int d = 0; d < head_dim; ++d)
    for (int i = 0; i < run.count; ++i)
      out[i] += query[d] * as_float(page[d * kPage + run.first + i]);
}

template <class Element>
void score_runs(const Run* runs, int count, const Cache& cache, int layer, int kv_head,
                const float* query, int head_dim, float* out) {
  for (const Run* run = runs; run < runs + count; ++run) {
    const auto* keys = static_cast<const Element*>(cache.keys(run->scratch, layer, kv_head));
    const Element* page = keys + run->page / kStretch * cache.stretch(run->scratch, layer) +
                          run->page % kStretch * std::int64_t{head_dim} * kPage;
    score_run(*run, page, query, head_dim, out + run->ordinal);
  }
}

// What a row does not see of [0, count) gets the score -inf.
void hide(const RowView& row, std::int32_t prefix, std::int32_t count, float* scores) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  std::fill(scores, scores + row.start, kNothing);
  std::int32_t next = 0;
  for (std::int32_t i = 0; i < row.count; ++i) {
    const std::int32_t seen = row.list == nullptr ? i : row.list[i];
    std::fill(scores + prefix + next, scores + prefix + seen, kNothing);
    next = seen + 1;
  }
  std::fill(scores + prefix + next, scores + count, kNothing);
}

// Caps scores, and adds what falls with the distance of a key.
void change(const SpanView& span, const ScoreRule& rule, std::int32_t count, float* scores) {
  for (std::int32_t i = 0; rule.softcap > 0 && i < count; ++i)
    scores[i] = rule.softcap * std::tanh(scores[i] / rule.softcap);
  for (std::int32_t i = 0; rule.slope > 0 && i < count; ++i) {
    const std::int32_t at = i >= span.prefix_length ? span.extra_positions[i - span.prefix_length]
                            : span.prefix_positions == nullptr ? i
                                                               : span.prefix_positions[i];
    scores[i] += rule.slope * static_cast<float>(at - rule.position);
  }
}

}  // namespace

void attention_weights(const SpanView& span, int row, const float* query, int head_dim,
                       const Cache& cache, int layer, int kv_head, const ScoreRule& rule,
                       float* out) {
  const auto score = [&](const Run* runs, int count, float* to) {
    if (cache.half())
      score_runs<std::uint16_t>(runs, count, cache, layer, kv_head, query, head_dim, to);
    else
      score_runs<float>(runs, count, cache, layer, kv_head, query, head_dim, to);
  };
  const std::int32_t count = span.prefix_length + span.extra_length;
  score(span.prefix, span.prefix_runs, out);
  score(span.extra, span.extra_runs, out + span.prefix_length);
  change(span, rule, count, out);
  hide(span.rows[row], span.prefix_length, count, out);
  float top = *std::max_element(out, out + count);
  if (std::isinf(top)) return std::fill(out, out + count, 0.0F), void();  // It sees nothing.
  if (rule.sink != nullptr) top = std::max(top, *rule.sink);
  double mass = rule.sink == nullptr ? 0.0 : std::exp(*rule.sink - top);
  for (std::int32_t i = 0; i < count; ++i) mass += out[i] = std::exp(out[i] - top);
  for (std::int32_t i = 0; i < count; ++i) out[i] = static_cast<float>(out[i] / mass);
}

void Forward::plan_weights() {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const auto first = static_cast<int>(result_.attention.size());
    const SpanView& view = plan_.spans[i].view;
    const std::int64_t asked = inputs_[i].attention_count;
    for (std::int64_t k = 0; k < asked; ++k)
      weighed_.push_back({static_cast<int>(i), inputs_[i].attention[k], first, k});
    if (asked == 0) continue;
    for (const LayerPart& part : layers_)
      if (part.attention && shape_.attends(part.layer))
        result_.attention.emplace_back(
            static_cast<std::size_t>(asked * shape_.attention(part.layer).heads) *
            static_cast<std::size_t>(view.prefix_length + view.extra_length));
  }
}

void Forward::weigh(Member& member, int layer, int number) {
  if (weighed_.empty()) return;
  const Attention& kind = attention(layer);
  const int heads = kind.shape.heads;
  const int cached = shape_.cached(layer);
  const float* sinks = model_.weights_.layers[static_cast<std::size_t>(layer)].sinks;
  member.phase(static_cast<int>(weighed_.size()), [&](int chunk) {
    const Weighed& asked = weighed_[static_cast<std::size_t>(chunk)];
    const SpanPlan& span = kind.plan.spans[static_cast<std::size_t>(asked.span)];
    const std::int64_t tokens = span.view.prefix_length + span.view.extra_length;
    const std::int64_t row = span.first_row + asked.row;
    float* out = result_.attention[static_cast<std::size_t>(asked.first + number)].data() +
                 asked.place * heads * tokens;
    count_bytes(static_cast<std::size_t>(heads * tokens) * model_.cache_.head_slot_bytes(cached) /
                2);
    ScoreRule rule{kind.shape.softcap};
    rule.position = plan_.positions[static_cast<std::size_t>(row)];
    for (int head = 0; head < heads; ++head) {
      if (!kind.shape.slopes.empty())
        rule.slope = kind.shape.slopes[static_cast<std::size_t>(head)];
      rule.sink = sinks == nullptr ? nullptr : sinks + head;
      attention_weights(span.view, asked.row, queries_ + (row * heads + head) * kind.dim,
                        kind.shape.head_dim, model_.cache_, cached,
                        head / (heads / kind.shape.kv_heads), rule, out + head * tokens);
    }
  });
}

}  // namespace paradecode
