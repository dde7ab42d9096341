#include "shape.hpp"

#include <algorithm>
#include <limits>

#include "errors.hpp"

namespace paradecode {
namespace {

// Far more than any model has.
constexpr int kMostTokens = 1 << 26;
constexpr int kMostWidth = 1 << 20;
constexpr int kMostLayers = 1 << 12;
constexpr int kMostHeads = 1 << 12;

void expect_number(const char* field, float number) {
  if (!(number >= 0) || !std::isfinite(number))
    throw InvalidInput(field, std::monostate(), "give a finite number of at least 0");
}

void expect_kind(const char* field, int kind, std::size_t kinds) {
  if (kind < -1 || kind >= static_cast<int>(kinds))
    throw InvalidInput(field, std::int64_t{kind},
                       "name one of the " + std::to_string(kinds) + " kinds, or -1");
}

void refuse(bool bad, const char* field, const std::string& value, const char* fix) {
  if (bad) throw InvalidInput(field, value, fix);
}

void check_layer(const ModelShape& shape, int index) {
  const LayerShape& layer = shape.layer(index);
  expect_kind("layers.attention", layer.attention, shape.attentions.size());
  expect_kind("layers.feed", layer.feed, shape.feeds.size());
  expect_range("layers.states", static_cast<std::int64_t>(layer.states.size()), 0, 2);
  for (const int kind : layer.states)
    expect_range("layers.states", kind, 0, static_cast<std::int64_t>(shape.states.size()) - 1);
  refuse(layer.attention < 0 && layer.states.empty() && layer.feed < 0 && !layer.reads_token,
         "layers", "no part", "give each layer a part");
  refuse(static_cast<int>(layer.groups.size()) != layer.parts(), "groups",
         std::to_string(layer.groups.size()) + " parts", "the groups have all parts of the layer");
  refuse(layer.ladder && layer.groups.back() + 1 != layer.parts(), "ladder", "true",
         "its parts run one after the other");
  refuse(layer.reads_token && shape.token_width == 0, "token_width", "0",
         "a layer reads second embeddings");
  const auto shares = [&](bool wanted, int part) {
    refuse(wanted && (layer.attention < 0 || !shape.attention(index).norm.before ||
                      layer.group(part) != 0),
           "norm", "shared", "only parts beside an attention with a norm before it share that");
  };
  for (int i = 0; i < static_cast<int>(layer.states.size()); ++i)
    shares(shape.state(index, i).shares_norm, (layer.attention >= 0 ? 1 : 0) + i);
  if (layer.feed >= 0) shares(shape.feed(index).shares_norm, layer.mixers());
  if (layer.keys_of < 0) return;
  const int of = layer.keys_of;
  refuse(layer.attention < 0, "keys_of", std::to_string(of), "the layer does not attend");
  bool alike = of < index && shape.attends(of) && shape.layer(of).keys_of < 0;
  if (alike) {
    const AttentionShape& own = shape.attention(index);
    const AttentionShape& other = shape.attention(of);
    alike = own.kv_heads == other.kv_heads && own.head_dim == other.head_dim &&
            own.window == other.window;
  }
  refuse(!alike, "keys_of", std::to_string(of),
         "name an earlier layer with keys of its own, of the same shape and window");
}

}  // namespace

void AttentionShape::check() const {
  expect_range("heads", heads, 1, kMostHeads);
  expect_range("kv_heads", kv_heads, 1, heads);
  expect_range("head_dim", head_dim, 1, kMostHeadDim);
  expect_range("sliding_window", window, 0, std::int64_t{1} << 24);
  expect_range("inverse_frequencies", pairs(), 0, head_dim / 2);
  expect_range("query_rank", query_rank, 0, kMostWidth);
  expect_number("scale", scale);
  expect_number("softcap", softcap);
  expect_number("rope_factor", rope_factor);
  expect_number("growth", growth);
  expect_number("out_factor", out_factor);
  expect_range("growth_every", growth_every, 1, std::int64_t{1} << 39);
  if (!slopes.empty())
    expect_range("slopes", static_cast<std::int64_t>(slopes.size()), heads, heads);
  for (const float slope : slopes) expect_number("slopes", slope);
  refuse(heads % kv_heads != 0, "kv_heads", std::to_string(kv_heads), "it must divide heads");
}

void StateShape::check() const {
  expect_range("hidden_size", hidden_size, 1, kMostWidth);
  expect_range("heads", heads, 0, kMostHeads);
  expect_range("width", width, heads == 0 ? 2 : 0, kPage);
  expect_number("out_factor", out_factor);
  for (const float factor : factors) expect_number("factors", factor);
  expect_number("out_eps", out_epsilon);
  if (heads == 0) return;
  expect_range("key_heads", key_heads, 1, heads);
  expect_range("key_dim", key_dim, 1, kMostHeadDim);
  expect_range("value_dim", value_dim, 1, kMostHeadDim);
  expect_range("state_numbers", tail_at(), 1, 1 << 28);
  expect_range("norm_groups", norm_groups, 1, heads * value_dim);
  expect_range("decay_rank", decay_rank, 0, kMostWidth);
  expect_number("decay_divisor", decay_divisor);
  expect_number("scale", scale);
  expect_number("least_step", least_step);
  expect_number("most_step", most_step);
  refuse(heads % key_heads != 0, "key_heads", std::to_string(key_heads), "it must divide heads");
  refuse(heads * value_dim % norm_groups != 0, "norm_groups", std::to_string(norm_groups),
         "it must divide the channels");
  refuse(width == 1, "width", "1", "give 0 or at least 2");
  refuse(strength == Strength::Step && (decay != Decay::Softplus || channels), "strength", "step",
         "it needs a softplus for each head");
}

void FeedShape::check() const {
  expect_range("intermediate_size", size, 0, kMostWidth);
  mixture.check();
  expect_number("gate_factor", gate_factor);
  expect_number("out_factor", out_factor);
  refuse(gate_factor != 1.0F && (mixed() || !gated), "gate_factor", std::to_string(gate_factor),
         "only an MLP with a gate has one");
  refuse(size == 0 && !mixed(), "intermediate_size", "0", "give 1 and more, or experts");
  refuse(!gated && activation == Activation::SwigluOai, "activation", "swiglu_oai",
         "it needs a gate");
}

void ModelShape::check() const {
  expect_range("vocab_size", vocab_size, 1, kMostTokens);
  expect_range("outputs", outputs, 1, vocab_size);
  expect_range("hidden_size", hidden_size, 1, kMostWidth);
  expect_range("layers", static_cast<std::int64_t>(stack.size()), 1, kMostLayers);
  expect_range("context_length", context_length, 1, std::numeric_limits<int>::max());
  expect_range("token_width", token_width, 0, 1 << 16);
  expect_range("token_rows", token_rows, token_width > 0 ? 1 : 0, kMostTokens);
  expect_range("token_width", std::int64_t{token_padded()} * layers(), 0, kMostTokens);
  expect_number("norm_epsilon", norm_epsilon);
  expect_number("embed_factor", embed_factor);
  expect_number("logit_factor", logit_factor);
  expect_number("softcap", softcap);
  if (positions != 0) expect_range("positions", positions, context_length, kMostTokens);
  for (const AttentionShape& attention : attentions) attention.check();
  for (const FeedShape& feed : feeds) feed.check();
  for (const StateShape& state : states) state.check();
  refuse(attentions.empty(), "attentions", "none", "give at least one kind of attention");
  for (int index = 0; index < layers(); ++index) {
    check_layer(*this, index);
    refuse(layer(index).ladder != stack.front().ladder, "ladder", "true",
           "give it to all layers or to none");
  }
  refuse(canvas && std::none_of(feeds.begin(), feeds.end(),
                                [](const FeedShape& feed) { return feed.size > 0; }),
         "canvas", "true", "a guess is read by an MLP");
}

const FeedShape& ModelShape::guess() const {
  return *std::find_if(feeds.begin(), feeds.end(),
                       [](const FeedShape& feed) { return feed.size > 0; });
}

}  // namespace paradecode
