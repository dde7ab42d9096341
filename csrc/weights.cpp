#include "weights.hpp"

#include <algorithm>
#include <cmath>

#include "errors.hpp"
#include "exact.hpp"

namespace paradecode {

ModelWeights::ModelWeights(const ModelShape& shape)
    : layers(static_cast<std::size_t>(shape.layers())), shape_(shape) {
  const int hidden = shape.hidden_size;
  add("embed", embed, shape.vocab_size, hidden);
  add("head", head, shape.outputs, hidden);
  add("norm", norm);
  if (shape.embed_norm) add("embed_norm", embed_norm);
  if (shape.positions > 0) add("positions", positions, shape.positions, hidden);
  if (shape.head_bias) add("head.bias", head_bias, shape.outputs);
  if (shape.token_width > 0) {
    const int width = shape.token_width;
    const int all = shape.layers() * width;
    add("token_embed", token_embed, shape.token_rows, all);
    add("token_project", token_project, all, hidden, width, shape.token_padded());
    add("token_norm", token_norm, width);
  }
  if (shape.canvas) {
    add("guess.norm", guess_norm.gain, hidden);
    add_mlp("guess.", guess, shape.guess().size, true, false);
  }
  // The factor of logits is one of what the head reads.
  for (const char* name : {"norm", "norm.bias", "head.bias"})
    if (const auto found = vectors_.find(name); found != vectors_.end())
      found->second.factor = shape.logit_factor;
  for (int index = 0; index < shape.layers(); ++index) {
    const std::string prefix = "layers." + std::to_string(index) + ".";
    const LayerShape& layer = shape.layer(index);
    LayerWeights& w = layers[static_cast<std::size_t>(index)];
    if (layer.attention >= 0) add_attention(prefix, index);
    w.states.resize(layer.states.size());
    for (int i = 0; i < static_cast<int>(layer.states.size()); ++i)
      add_state(prefix, shape.state(index, i), w.states[static_cast<std::size_t>(i)]);
    if (layer.feed >= 0) add_feed(prefix, index);
    if (layer.reads_token) {
      add(prefix + "after_input", w.after_input);
      add(prefix + "input_gate", w.token.gate, shape.token_width, hidden);
      add(prefix + "input_out", w.token.down, hidden, shape.token_width);
    }
    if (layer.scaled) add(prefix + "scale", w.scale, 1);
    if (layer.scaled && shape.canvas) add(prefix + "canvas_scale", w.canvas_scale, 1);
  }
}

void ModelWeights::add(const std::string& tensor, Matrix& matrix, int rows, int cols, int unit,
                       int padded) {
  matrices_[tensor] = {&matrix, rows, cols, unit, padded};
}

void ModelWeights::add(const std::string& tensor, float*& values, int size, int unit, int padded) {
  vectors_[tensor] = {&values, size, unit, padded};
}

void ModelWeights::add(const std::string& tensor, Norm& norm_place) {
  add(tensor, norm_place.gain, shape_.hidden_size);
  if (shape_.norm_bias) add(tensor + ".bias", norm_place.bias, shape_.hidden_size);
}

void ModelWeights::add_mlp(const std::string& prefix, MlpWeights& mlp, int size, bool gated,
                           bool bias) {
  add(prefix + "up", mlp.up, size, shape_.hidden_size);
  add(prefix + "down", mlp.down, shape_.hidden_size, size);
  if (gated) {
    add(prefix + "gate", mlp.gate, size, shape_.hidden_size);
    matrices_[prefix + "gate"].partner = prefix + "up";
    matrices_[prefix + "up"].partner = prefix + "gate";
  }
  if (!bias) return;
  if (gated) add(prefix + "gate.bias", mlp.gate_bias, size);
  add(prefix + "up.bias", mlp.up_bias, size);
  add(prefix + "down.bias", mlp.down_bias, shape_.hidden_size);
}

void ModelWeights::add_attention(const std::string& prefix, int index) {
  const AttentionShape& a = shape_.attention(index);
  LayerWeights& w = layers[static_cast<std::size_t>(index)];
  const int hidden = shape_.hidden_size;
  const int size = a.head_dim;
  const int padded = a.padded_dim();
  const int queries = a.heads * size;
  const int keys = a.kv_heads * size;
  const bool own = shape_.layer(index).keys_of < 0;
  if (a.norm.before) add(prefix + "attn_norm", w.attn_norm);
  if (a.norm.after) add(prefix + "after_attn", w.after_attn);
  if (a.query_rank > 0) {
    add(prefix + "q_down", w.q_down, a.query_rank, hidden);
    add(prefix + "q_inner_norm", w.q_inner_norm, a.query_rank);
  }
  add(prefix + "q", w.q, queries, a.query_rank > 0 ? a.query_rank : hidden, size, padded);
  add(prefix + "o", w.o, hidden, queries);
  if (own) add(prefix + "k", w.k, keys, hidden, size, padded);
  if (own && !a.keys_as_values) add(prefix + "v", w.v, keys, hidden, size, padded);
  if (a.bias) add(prefix + "q.bias", w.q_bias, queries, size, padded);
  if (a.bias && own) add(prefix + "k.bias", w.k_bias, keys, size, padded);
  if (a.bias && own && !a.keys_as_values) add(prefix + "v.bias", w.v_bias, keys, size, padded);
  if (a.output_bias) add(prefix + "o.bias", w.o_bias, hidden);
  if (a.sinks) add(prefix + "sinks", w.sinks, a.heads);
  if (a.gated) add(prefix + "attn_gate", w.attn_gate, queries, hidden, size, padded);
  if (a.gated && a.bias) add(prefix + "attn_gate.bias", w.attn_gate_bias, queries, size, padded);
  if (a.qk_norm == HeadNorm::None) return;
  const bool all = a.qk_norm == HeadNorm::All;
  add(prefix + "q_norm", w.q_norm, all ? queries : size, size, padded);
  if (own) add(prefix + "k_norm", w.k_norm, all ? keys : size, size, padded);
}

void ModelWeights::add_state(const std::string& prefix, const StateShape& kind, StateWeights& w) {
  if (kind.cell != Cell::None) return add_cell(prefix, kind, w);
  const int hidden = shape_.hidden_size;
  const bool plain = kind.heads == 0;
  const std::string own = prefix + (plain ? "conv_" : "state_");
  if (kind.norm.before) add(own + "norm", w.before);
  if (kind.norm.after) add(prefix + (plain ? "after_conv" : "after_state"), w.after);
  const char* const names[] = {plain ? "b" : "q", plain ? "c" : "k", plain ? "x" : "v"};
  const int size = kind.value_dim;
  const int padded = kind.padded_value();
  for (int i = 0; i < 3; ++i) {
    const bool values = !plain && i == 2;
    const int rows = plain ? hidden : values ? kind.heads * size : kind.keys();
    const int unit = values ? size : 0;
    add(own + names[i], w.in[i], rows, hidden, unit, padded);
    if (kind.bias) add(own + names[i] + ".bias", w.in_bias[i], rows, unit, padded);
    if (plain || kind.width == 0) continue;
    add(own + names[i] + "_taps", w.taps[i], rows * kind.width, unit * kind.width,
        padded * kind.width);
    if (kind.tap_bias) add(own + names[i] + "_taps.bias", w.tap_biases[i], rows, unit, padded);
  }
  if (plain) {
    add(own + "taps", w.taps[0], hidden * kind.width);
    if (kind.tap_bias) add(own + "taps.bias", w.tap_biases[0], hidden);
    add(own + "out", w.out, hidden, hidden);
    if (kind.bias) add(own + "out.bias", w.out_bias, hidden);
    return;
  }
  if (kind.gate != Gate::None) {
    add(own + "z", w.z, kind.heads * size, hidden, size, padded);
    if (kind.bias) add(own + "z.bias", w.z_bias, kind.heads * size, size, padded);
  }
  if (kind.decay != Decay::Fixed) {
    if (kind.decay_rank > 0) add(own + "a_down", w.a_down, kind.decay_rank, hidden);
    add(own + "a", w.a, kind.decays(), kind.decay_rank > 0 ? kind.decay_rank : hidden);
    add(own + "dt_bias", w.dt_bias, kind.decays());
  }
  if (kind.decay != Decay::LogSigmoid) add(own + "decay", w.decay, kind.heads);
  if (kind.strength == Strength::Sigmoid) add(own + "b", w.b, kind.heads, hidden);
  if (kind.skip) add(own + "skip", w.skip, kind.heads);
  if (kind.out_norm != OutNorm::None)
    add(own + "gain", w.gain, kind.out_norm == OutNorm::Head ? size : kind.heads * size);
  add(own + "o", w.out, hidden, kind.heads * size);
  if (kind.output_bias) add(own + "o.bias", w.out_bias, hidden);
}

void ModelWeights::add_cell(const std::string& prefix, const StateShape& kind, StateWeights& w) {
  const bool scans = kind.cell == Cell::Scan;
  const bool mixes = kind.width > 0;
  const std::string name = scans ? "scan_" : mixes ? "unit_" : "cell_";
  const std::string own = prefix + name;
  const int hidden = shape_.hidden_size;
  const int unit = kind.block();
  const int padded = kind.padded_block();
  const int units = kind.heads * kind.value_dim;
  const int rows = mixes ? units : kind.gates() * units;
  if (kind.norm.before) add(own + "norm", w.before);
  if (kind.norm.after) add(prefix + "after_" + name.substr(0, 4), w.after);
  const std::string in = own + (mixes ? "x" : "in");
  add(in, w.in[0], rows, hidden, unit, padded);
  if (kind.bias) add(in + ".bias", w.in_bias[0], rows, unit, padded);
  add(own + "o", w.out, hidden, units);
  if (kind.output_bias) add(own + "o.bias", w.out_bias, hidden);
  if (mixes) {
    add(own + "z", w.z, units, hidden, unit, padded);
    if (kind.bias) add(own + "z.bias", w.z_bias, units, unit, padded);
    add(own + "taps", w.taps[0], units * kind.width, unit * kind.width, padded * kind.width);
    if (kind.tap_bias) add(own + "taps.bias", w.tap_biases[0], units, unit, padded);
    if (!scans) add(own + "decay", w.decay, units, unit, padded);
  }
  if (scans) {
    const char* const norms[] = {"dt_norm", "b_norm", "c_norm"};
    const int sizes[] = {kind.decay_rank, kind.key_dim, kind.key_dim};
    for (int i = 0; kind.inner_norm && i < 3; ++i) add(own + norms[i], w.inner_norms[i], sizes[i]);
    add(own + "inner", w.b, kind.decay_rank + 2 * kind.key_dim, units);
    add(own + "dt", w.a, units, kind.decay_rank);
    add(own + "dt.bias", w.dt_bias, units);
    add(own + "decay", w.decay, units * kind.key_dim);
    add(own + "skip", w.skip, units);
    return;
  }
  const char* const gates[] = {"input", "rate"};
  for (int i = 0; i < (mixes ? 2 : 1); ++i) {
    const std::string inner = own + (mixes ? gates[i] : "inner");
    add(inner, w.inner[i], rows * kind.value_dim, unit, padded);
    vectors_[inner].squares = !mixes && kind.dense();
    if (kind.bias) add(inner + ".bias", w.inner_bias[i], rows, unit, padded);
  }
}

// Brings the taps of all channels side by side, one tap of all after the other.
void ModelWeights::turn_taps(const StateShape& kind, StateWeights& w) {
  if (kind.cell == Cell::Scan) {
    w.turned_decay = take(kind.kept());
    for (int unit = 0; unit < kind.value_dim; ++unit)
      for (int n = 0; n < kind.key_dim; ++n)
        w.turned_decay[n * kind.units() + unit] = w.decay[unit * kind.key_dim + n];
  }
  if (kind.width == 0) return;
  const int all = kind.mixed();
  const int lists = kind.heads == 0 || kind.cell != Cell::None ? 1 : 3;
  const int counts[] = {kind.cell != Cell::None ? all
                        : kind.heads == 0       ? kind.hidden_size
                                                : kind.keys(),
                        kind.keys(), kind.values()};
  w.turned = take(all * kind.width);
  if (kind.tap_bias) w.tap_bias = take(all);
  for (int i = 0, at = 0; i < lists; at += counts[i++])
    for (int channel = 0; channel < counts[i]; ++channel) {
      for (int tap = 0; tap < kind.width; ++tap)
        w.turned[tap * all + at + channel] = w.taps[i][channel * kind.width + tap];
      if (kind.tap_bias) w.tap_bias[at + channel] = w.tap_biases[i][channel];
    }
}

void ModelWeights::add_feed(const std::string& prefix, int index) {
  const FeedShape& feed = shape_.feed(index);
  const MixtureShape& mixture = feed.mixture;
  LayerWeights& w = layers[static_cast<std::size_t>(index)];
  const int hidden = shape_.hidden_size;
  if (feed.norm.before) add(prefix + "mlp_norm", w.mlp_norm);
  if (feed.norm.after) add(prefix + "after_mlp", w.after_mlp);
  if (feed.size > 0) add_mlp(prefix, w.mlp, feed.size, feed.gated, feed.bias);
  if (!feed.mixed()) return;
  if (feed.both()) {
    add(prefix + "experts_norm", w.experts_norm.gain, hidden);
    add(prefix + "after_experts", w.after_experts.gain, hidden);
    add(prefix + "after_dense", w.after_dense.gain, hidden);
  }
  add(prefix + "router", w.router, mixture.experts, hidden);
  if (mixture.shared_gated) add(prefix + "shared.gain", w.shared_gain, 1, hidden);
  if (mixture.bias) add(prefix + "router.bias", w.router_bias, mixture.experts);
  if (mixture.logit_bias) add(prefix + "router.logit_bias", w.router_logit_bias, mixture.experts);
  if (mixture.score == Score::Relu)
    add(prefix + "router.norm", w.router_score_norm, mixture.experts);
  if (mixture.scaled) {
    add(prefix + "router.scale", w.router_norm.gain, hidden);
    add(prefix + "router.gain", w.router_gain, mixture.experts);
    vectors_[prefix + "router.scale"].factor = 1.0F / std::sqrt(static_cast<float>(hidden));
  }
  w.experts.resize(static_cast<std::size_t>(mixture.all()));
  for (int e = 0; e < mixture.all(); ++e) {
    const std::string name =
        e < mixture.experts ? "experts." + std::to_string(e) + "." : std::string("shared.");
    add_mlp(prefix + name, w.experts[static_cast<std::size_t>(e)], mixture.size(e), feed.gated,
            mixture.expert_bias);
  }
}

ModelWeights::MatrixPlace& ModelWeights::place(const std::string& tensor) {
  const auto found = matrices_.find(tensor);
  if (found == matrices_.end()) throw InvalidInput("weights", tensor, "no matrix has this name");
  return found->second;
}

const Matrix& ModelWeights::matrix(const std::string& tensor) const {
  const auto found = matrices_.find(tensor);
  if (found == matrices_.end()) throw InvalidInput("weights", tensor, "no matrix has this name");
  return *found->second.matrix;
}

float* ModelWeights::take(int count) {
  return reinterpret_cast<float*>(
      arena_.take(static_cast<std::size_t>(round_up(count, 2 * kLanes)) * sizeof(float)));
}

void ModelWeights::set_format(const std::string& tensor, Format format) {
  MatrixPlace& own = place(tensor);
  if (!fits(format, own.cols))
    throw InvalidInput("weights", tensor, "its rows are not whole blocks of 256 inputs");
  own.has_format = true;
  own.matrix->format = format;
  if (own.partner.empty()) {
    *own.matrix = make_matrix(arena_, format, own.padded_rows(), own.cols);
    return;
  }
  const MatrixPlace& other = place(own.partner);
  if (!other.has_format) return;  // Both are placed when the formats of both are known.
  const Format second = other.matrix->format;
  if (second == format) {
    const bool gate = own.partner.ends_with("up");
    make_interleaved(arena_, format, own.rows, own.cols, gate ? *own.matrix : *other.matrix,
                     gate ? *other.matrix : *own.matrix);
  } else {
    *own.matrix = make_matrix(arena_, format, own.rows, own.cols);
    *other.matrix = make_matrix(arena_, second, own.rows, own.cols);
  }
}

void ModelWeights::fill(const std::string& tensor, std::int64_t first_row, std::int64_t rows,
                        Source source, const std::uint8_t* data, std::int64_t row_bytes) {
  const FloatState state;
  const MatrixPlace& own = place(tensor);
  const Matrix& into = *own.matrix;
  if (into.data == nullptr) throw InvalidInput("weights", tensor, "give the matrix a format first");
  const bool blocks_fit = into.cols % block_shape(source).size == 0;
  const Format format = into.format;
  if (own_format(source) != format && is_integer(format) && format != Format::Q4 &&
      format != Format::Q8)
    throw InvalidInput("weights", tensor, "give it the format of its blocks, or q4 or q8");
  if (first_row < 0 || rows < 0 || rows > own.rows || first_row > own.rows - rows || !blocks_fit ||
      row_bytes != static_cast<std::int64_t>(source_row_bytes(source, into.cols)))
    throw InvalidInput("weights", tensor, "give rows of the shape that the configuration implies");
  for (std::int64_t i = 0; i < rows; ++i)
    pack_row(into, own.target(static_cast<int>(first_row + i)), source, data + i * row_bytes);
}

void ModelWeights::set_vector(const std::string& tensor, const float* values, std::int64_t count) {
  const FloatState state;
  const auto found = vectors_.find(tensor);
  if (found == vectors_.end() || count != found->second.size)
    throw InvalidInput("weights", tensor, "give a vector that the configuration implies");
  const VectorPlace& own = found->second;
  float* out = take(own.target(own.size - 1) + 1 + kLanes);
  for (int i = 0; i < own.size; ++i) out[own.target(i)] = values[i] * own.factor;
  *own.values = out;
}

void ModelWeights::finish(bool tied_head) {
  const FloatState state;
  if (tied_head) head = embed;
  const auto need = [](bool given, const std::string& tensor) {
    if (!given) throw InvalidInput("weights", tensor, "give it before the loading is finished");
  };
  std::vector<std::string> missing;
  for (const auto& [tensor, own] : matrices_)
    if (own.matrix->data == nullptr) missing.push_back(tensor);
  for (const auto& [tensor, own] : vectors_)
    if (*own.values == nullptr) missing.push_back(tensor);
  if (!missing.empty()) need(false, *std::min_element(missing.begin(), missing.end()));
  int widest = round_up(shape_.hidden_size, kGroup);
  for (const AttentionShape& kind : shape_.attentions) widest = std::max(widest, kind.padded_dim());
  ones = take(widest);
  std::fill(ones, ones + widest, 1.0F);
  for (int index = 0; index < shape_.layers(); ++index) finish_layer(index);
}

// Fills in what one part takes from another.
void ModelWeights::finish_layer(int index) {
  LayerWeights& w = layers[static_cast<std::size_t>(index)];
  for (int i = 0; i < static_cast<int>(w.states.size()); ++i)
    turn_taps(shape_.state(index, i), w.states[static_cast<std::size_t>(i)]);
  for (int i = 0; i < static_cast<int>(w.states.size()); ++i)
    if (shape_.state(index, i).shares_norm)
      w.states[static_cast<std::size_t>(i)].before = w.attn_norm;
  if (shape_.attends(index)) {
    const AttentionShape& a = shape_.attention(index);
    if (a.value_norm) w.v_norm = ones;
    if (a.keys_as_values) w.v = w.k, w.v_bias = w.k_bias;
  }
  if (shape_.layer(index).feed < 0) return;
  const FeedShape& feed = shape_.feed(index);
  if (feed.shares_norm) w.mlp_norm = w.attn_norm;
  if (!feed.mixed()) return;
  if (!feed.both()) w.experts_norm = w.mlp_norm;
  if (!feed.mixture.scaled) w.router_norm = w.mlp_norm;
}

}  // namespace paradecode
