// What a model consists of: the facts of ModelConfig that the arithmetic needs.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "experts.hpp"
#include "types.hpp"

namespace paradecode {

// Which of a part's norms there are: before it, and behind it.
struct NormPlaces {
  bool before = true;
  bool after = false;
};

enum class HeadNorm { None, Head, All };

// How layers of one kind attend; see Attention in models/parts.py.
struct AttentionShape {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int window = 0;     // positions that a row sees, its own included; 0: all
  float scale = 0;    // factor of scores; 0: the inverse root of head_dim
  float softcap = 0;  // 0: none
  NormPlaces norm;
  HeadNorm qk_norm = HeadNorm::None;
  bool norm_turned = false;
  bool value_norm = false;
  bool keys_as_values = false;
  bool sinks = false;
  bool bias = false;
  bool output_bias = false;
  bool gated = false;       // what the heads mixed is multiplied by a sigmoid before the output
  float out_factor = 1.0F;  // of what the part made, before it is added
  int query_rank = 0;
  // Queries at position p are multiplied by 1 + growth * log(1 + p / growth_every), in whole steps.
  float growth = 0;
  std::int64_t growth_every = 1;
  std::vector<float> slopes;               // ALiBi's, of each head; empty: none
  float rope_factor = 1.0F;                // of cosines and sines
  std::vector<float> inverse_frequencies;  // one for each rotated pair

  // Throws InvalidInput.
  void check() const;
  int padded_dim() const { return round_up(head_dim, kLanes); }
  int pairs() const { return static_cast<int>(inverse_frequencies.size()); }
  // Width of a row of attended values, as the output projection reads it.
  int width() const { return round_up(heads * head_dim, kGroup); }
  float factor() const {
    return scale > 0 ? scale : 1.0F / std::sqrt(static_cast<float>(head_dim));
  }
};

// MLPs and experts of one kind; see Feed in models/parts.py.
struct FeedShape {
  int size = 0;  // of the MLP; 0: only experts
  NormPlaces norm;
  bool shares_norm = false;  // with the attention beside it
  Activation activation = Activation::Silu;
  bool gated = true;
  bool bias = false;
  float gate_factor = 1.0F;  // of the gate, before its activation
  float out_factor = 1.0F;
  MixtureShape mixture;

  // Throws InvalidInput.
  void check() const;
  bool mixed() const { return mixture.experts > 0; }
  // An MLP and experts, each with norms of its own.
  bool both() const { return size > 0 && mixed(); }
};

enum class Decay { Softplus, LogSigmoid, Fixed };
enum class Strength { One, Step, Sigmoid };
enum class Gate { None, Before, After };
enum class OutNorm { None, Head, Groups };

// Parts that keep a state of one kind; see Convolution and Recurrence in models/recurrence.py. A
// convolution has no heads.
struct StateShape {
  int hidden_size = 0;
  int heads = 0;
  int key_heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  NormPlaces norm;
  bool shares_norm = false;  // with the attention beside it
  bool delta = false;
  Decay decay = Decay::Softplus;
  bool channels = false;
  int decay_rank = 0;
  float decay_divisor = 1.0F;
  Strength strength = Strength::One;
  int width = 0;  // taps of a convolution; 0: none
  bool tap_bias = false;
  bool unit = false;
  bool tiled = false;
  float scale = 1.0F;
  bool skip = false;
  Gate gate = Gate::None;
  OutNorm out_norm = OutNorm::None;
  int norm_groups = 1;
  float least_step = 0;
  float most_step = 0;
  bool bias = false;
  bool output_bias = false;
  std::array<float, 6> factors{1, 1, 1, 1, 1, 1};  // of what makes q, k, v, z and a, and of b
  float out_factor = 1.0F;
  float out_epsilon = 0;  // of the norm of heads or groups; 0: the model's

  // Throws InvalidInput.
  void check() const;
  bool scales() const {
    return std::any_of(factors.begin(), factors.end() - 1, [](float own) { return own != 1.0F; });
  }
  int padded_value() const { return round_up(value_dim, kLanes); }
  // Numbers of channels of q or k, and of v.
  int keys() const { return key_heads * key_dim; }
  int values() const { return heads * padded_value(); }
  int decays() const { return channels ? keys() : heads; }
  // What the convolution reads: q, k and v, or what is in between.
  int mixed() const {
    if (heads == 0) return round_up(hidden_size, kGroup);
    return width > 0 ? 2 * keys() + values() : 0;
  }
  // A record has k, u, the decay since the page's start, and inputs of the convolution.
  int inputs_at() const { return heads == 0 ? 0 : keys() + values() + decays(); }
  std::int64_t record_numbers() const { return round_up(inputs_at() + mixed(), kLanes); }
  // A state has a matrix for each head, then inputs of the convolution.
  std::int64_t tail_at() const { return std::int64_t{key_dim} * values(); }
  std::int64_t state_numbers() const {
    return round_up(static_cast<int>(tail_at()) + (width > 0 ? width - 1 : 0) * mixed(), kLanes);
  }
};

struct LayerShape {
  int attention = -1;  // which of the model's kinds; -1: none
  int keys_of = -1;    // the layer whose keys and values it reads; -1: its own
  // Kinds of its parts with a state: a convolution, then a recurrence.
  std::vector<int> states = {};
  int first_state = 0;  // number of such parts in the layers before
  int feed = -1;
  bool reads_token = false;  // whether there is a part that reads second embeddings
  Activation token_activation = Activation::GeluTanh;
  // The group of each part, in the order attention, states, feed, second embeddings: parts of one
  // group are side by side.
  std::vector<int> groups = {};
  bool ladder = false;
  bool scaled = false;

  // Number of parts that look at other rows.
  int mixers() const { return (attention >= 0 ? 1 : 0) + static_cast<int>(states.size()); }
  int parts() const { return mixers() + (feed >= 0 ? 1 : 0) + (reads_token ? 1 : 0); }
  int group(int part) const { return groups[static_cast<std::size_t>(part)]; }
};

struct ModelShape {
  int vocab_size = 0;
  int outputs = 0;  // rows of the LM head: all tokens, or those that a draft model may say
  int hidden_size = 0;
  int context_length = 0;
  float norm_epsilon = 1e-5F;
  bool layer_norm = false;  // in place of RMSNorm
  bool norm_bias = false;
  float embed_factor = 1.0F;
  bool embed_norm = false;
  int positions = 0;    // rows of a table of learned positions; 0: none
  int token_width = 0;  // of a token's second embeddings, one for each layer; 0: none
  int token_rows = 0;   // tokens that have them
  bool head_bias = false;
  float logit_factor = 1.0F;
  float softcap = 0;    // logits are softcap * tanh(logits / softcap); 0: no change
  bool canvas = false;  // it refines random tokens, and reads its last guess
  std::vector<AttentionShape> attentions;
  std::vector<StateShape> states;
  std::vector<FeedShape> feeds;
  std::vector<LayerShape> stack;

  // Throws InvalidInput.
  void check() const;
  int layers() const { return static_cast<int>(stack.size()); }
  const LayerShape& layer(int index) const { return stack[static_cast<std::size_t>(index)]; }
  bool attends(int index) const { return layer(index).attention >= 0; }
  // Of a layer that attends.
  const AttentionShape& attention(int index) const {
    return attentions[static_cast<std::size_t>(layer(index).attention)];
  }
  // Of the `number`-th part with a state of a layer.
  const StateShape& state(int index, int number) const {
    return states[static_cast<std::size_t>(layer(index).states[static_cast<std::size_t>(number)])];
  }
  // Of a layer that feeds.
  const FeedShape& feed(int index) const {
    return feeds[static_cast<std::size_t>(layer(index).feed)];
  }
  // The layer whose keys and values a layer that attends reads.
  int cached(int index) const { return layer(index).keys_of < 0 ? index : layer(index).keys_of; }
  // The MLP that the one for the last guess is like: the first.
  const FeedShape& guess() const;
  int token_padded() const { return round_up(token_width, kGroup); }
};

}  // namespace paradecode
