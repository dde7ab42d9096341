// The weights of a model, and where each of them goes.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "memory.hpp"
#include "pack.hpp"
#include "shape.hpp"
#include "types.hpp"

namespace paradecode {

// A norm of the residual stream; without a gain there is none.
struct Norm {
  float* gain = nullptr;
  float* bias = nullptr;
};

// An MLP or an expert. Without a gate the inner values are those of `up`.
struct MlpWeights {
  Matrix gate, up, down;
  float* gate_bias = nullptr;
  float* up_bias = nullptr;
  float* down_bias = nullptr;
};

// A part with a state. A convolution has B, C and X in place of q, k and v. A part with a cell has
// its gates or its input in place of q.
struct StateWeights {
  Matrix in[3], z, a_down, a, b, out;
  float* in_bias[3] = {};
  float* z_bias = nullptr;
  float* out_bias = nullptr;
  float* taps[3] = {};  // of q, k and v; a convolution has one
  float* tap_biases[3] = {};
  float* turned = nullptr;    // all taps, [width, channels]
  float* tap_bias = nullptr;  // of all channels
  float* dt_bias = nullptr;
  float* decay = nullptr;
  float* skip = nullptr;
  float* gain = nullptr;
  // Of a part with a cell: weights between units, [gates, blocks, in, out], or [gates, units] if
  // there are none in blocks; RG-LRU has each gate apart. Of Mamba-1 `turned_decay` is [N, units].
  float* inner[2] = {};
  float* inner_bias[2] = {};
  float* turned_decay = nullptr;
  float* inner_norms[3] = {};  // of its step, keys and queries
  Norm before, after;
};

// Null where the architecture has none.
struct LayerWeights {
  Matrix q_down, q, k, v, o, attn_gate;
  float* attn_gate_bias = nullptr;
  float* q_bias = nullptr;
  float* k_bias = nullptr;
  float* v_bias = nullptr;
  float* o_bias = nullptr;
  float* q_inner_norm = nullptr;
  float* q_norm = nullptr;
  float* k_norm = nullptr;
  float* v_norm = nullptr;
  float* sinks = nullptr;
  Norm attn_norm, after_attn, mlp_norm, after_mlp, after_input;
  MlpWeights mlp;
  Matrix router;
  float* router_bias = nullptr;  // for the choice alone
  float* router_logit_bias = nullptr;
  float* router_score_norm = nullptr;
  float* router_gain = nullptr;  // a factor of each expert
  Matrix shared_gain;
  Norm router_norm, experts_norm;
  std::vector<MlpWeights> experts;  // the shared one is the last
  // Behind experts that are beside an MLP, and behind that.
  Norm after_experts, after_dense;
  MlpWeights token;  // its gate, and `down`
  std::vector<StateWeights> states;
  // Factors of what the layer makes of rows of text and of a canvas.
  float* scale = nullptr;
  float* canvas_scale = nullptr;
};

// All weights of a model. Tensors are named as in ModelConfig.tensors.
class ModelWeights {
 public:
  explicit ModelWeights(const ModelShape& shape);
  ModelWeights(const ModelWeights&) = delete;
  ModelWeights& operator=(const ModelWeights&) = delete;

  // All of these throw InvalidInput for a tensor that the shape does not imply.
  void set_format(const std::string& tensor, Format format);
  void fill(const std::string& tensor, std::int64_t first_row, std::int64_t rows, Source source,
            const std::uint8_t* data, std::int64_t row_bytes);
  void set_vector(const std::string& tensor, const float* values, std::int64_t count);
  // Throws InvalidInput if a weight is missing.
  void finish(bool tied_head);
  const Matrix& matrix(const std::string& tensor) const;

  Matrix embed, head, positions, token_embed, token_project;
  float* head_bias = nullptr;
  float* token_norm = nullptr;
  Norm norm, embed_norm, guess_norm;
  MlpWeights guess;
  float* ones = nullptr;  // the gains of norms without gains
  std::vector<LayerWeights> layers;

 private:
  // Rows come in units, heads for instance, each padded to a whole number of `padded`.
  struct MatrixPlace {
    Matrix* matrix = nullptr;
    int rows = 0;
    int cols = 0;
    int unit = 0;  // 0: all rows are one
    int padded = 0;
    std::string partner = {};  // lies beside it, if they have one format
    bool has_format = false;
    int target(int row) const { return unit == 0 ? row : row / unit * padded + row % unit; }
    int padded_rows() const { return unit == 0 ? rows : rows / unit * padded; }
  };
  struct VectorPlace {
    float** values = nullptr;
    int size = 0;
    int unit = 0;
    int padded = 0;
    float factor = 1.0F;   // of all values
    bool squares = false;  // of `unit` rows each, which are stored by columns
    int target(int at) const {
      if (unit == 0) return at;
      if (squares) at = at / (unit * unit) * (unit * unit) + at % unit * unit + at / unit % unit;
      return at / unit * padded + at % unit;
    }
  };

  void add(const std::string& tensor, Matrix& matrix, int rows, int cols, int unit = 0,
           int padded = 0);
  void add(const std::string& tensor, float*& values, int size, int unit = 0, int padded = 0);
  void add(const std::string& tensor, Norm& norm);
  void add_mlp(const std::string& prefix, MlpWeights& mlp, int size, bool gated, bool bias);
  void add_attention(const std::string& prefix, int index);
  void add_state(const std::string& prefix, const StateShape& kind, StateWeights& w);
  void add_cell(const std::string& prefix, const StateShape& kind, StateWeights& w);
  void add_feed(const std::string& prefix, int index);
  void turn_taps(const StateShape& kind, StateWeights& w);
  MatrixPlace& place(const std::string& tensor);
  float* take(int count);
  void finish_layer(int index);

  const ModelShape& shape_;
  Arena arena_;
  std::unordered_map<std::string, MatrixPlace> matrices_;
  std::unordered_map<std::string, VectorPlace> vectors_;
};

}  // namespace paradecode
