// A loaded model and its forward pass.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cache.hpp"
#include "experts.hpp"
#include "isa.hpp"
#include "logits.hpp"
#include "memory.hpp"
#include "pack.hpp"
#include "plan.hpp"
#include "profile.hpp"
#include "screen.hpp"
#include "team.hpp"
#include "traffic.hpp"
#include "types.hpp"

namespace paradecode {

// How layers of one kind attend.
struct AttentionShape {
  int kv_heads = 0;
  int head_dim = 0;
  int window = 0;                          // positions that a row sees, its own included; 0: all
  bool scaled = true;                      // scores are divided by the root of head_dim
  std::vector<float> inverse_frequencies;  // one for each rotated pair

  // Throws InvalidInput. `heads`: of the queries.
  void check(int heads) const;
  int padded_dim() const { return round_up(head_dim, kLanes); }
  // Where a row of heads, one after the other, lies among padded ones.
  int padded(int row) const { return row / head_dim * padded_dim() + row % head_dim; }
  int pairs() const { return static_cast<int>(inverse_frequencies.size()); }
};

// The facts of ModelConfig that the arithmetic needs.
struct ModelShape {
  int vocab_size = 0;
  int outputs = 0;  // rows of the LM head: all tokens, or those that a draft model may say
  int hidden_size = 0;
  int layers = 0;
  int heads = 0;
  int intermediate_size = 0;
  int context_length = 0;
  float norm_epsilon = 1e-5F;
  float rope_attention = 1.0F;  // factor of cosines and sines
  std::vector<AttentionShape> attentions;
  std::vector<int> kinds;  // of each layer, which of them; empty: the first
  MixtureShape mixture;
  // Of Gemma 4's layers (forward_gemma.cpp): logits are softcap * tanh(logits / softcap). 0: of
  // another model.
  float softcap = 0;

  // Throws InvalidInput.
  void check() const;
  std::size_t kind(int layer) const {
    return kinds.empty() ? 0 : static_cast<std::size_t>(kinds[static_cast<std::size_t>(layer)]);
  }
  bool gemma() const { return softcap > 0; }
  const AttentionShape& attention(int layer) const { return attentions[kind(layer)]; }
};

struct ExpertWeights {
  Matrix gate, up, down;
};

struct LayerWeights {
  Matrix q, k, v, o, gate, up, down;
  // Null where the architecture has none.
  float* attn_norm = nullptr;
  float* mlp_norm = nullptr;
  float* q_bias = nullptr;
  float* k_bias = nullptr;
  float* v_bias = nullptr;
  float* o_bias = nullptr;
  float* gate_bias = nullptr;
  float* up_bias = nullptr;
  float* down_bias = nullptr;
  float* q_norm = nullptr;
  float* k_norm = nullptr;
  float* v_norm = nullptr;
  // Of a layer with experts, in place of gate, up and down (Gemma 4: beside them); the shared one
  // is the last.
  Matrix router;
  float* router_bias = nullptr;
  float* router_norm = nullptr;
  float* router_gain = nullptr;  // a factor of each expert
  float* experts_norm = nullptr;
  std::vector<ExpertWeights> experts;
  // Of Gemma 4: norms behind the attention, the MLP, the experts and the sum of these two, and the
  // factors of what the layer makes of rows of text and of a canvas.
  float* after_attn = nullptr;
  float* after_mlp = nullptr;
  float* after_experts = nullptr;
  float* after_feed = nullptr;
  float* scale = nullptr;
  float* canvas_scale = nullptr;
};

// What reads the last guess of a canvas.
struct GuessWeights {
  Matrix gate, up, down;
  float* norm = nullptr;
};

struct ForwardResult {
  std::shared_ptr<LogitRows> logits;       // of all spans, in their order
  std::vector<std::vector<float>> hidden;  // span after span, layer after layer: [rows, D]
  // Of spans that ask, attention after attention: [rows asked for, heads, tokens].
  std::vector<std::vector<float>> attention;
};

class Forward;

class Model {
 public:
  // `apart`: its forwards run beside those of other models.
  Model(ModelShape shape, bool half_cache, int threads, bool apart = false);

  // Loading. Tensors are named as in ModelConfig.tensors; vectors are always float32.
  void set_format(const std::string& tensor, Format format);
  void fill(const std::string& tensor, std::int64_t first_row, std::int64_t rows, Source source,
            const std::uint8_t* data, std::int64_t row_bytes);
  void set_vector(const std::string& tensor, const float* values, std::int64_t count);
  void finish_loading(bool tied_head);

  void reserve(std::int64_t pages);
  // Runs `layers` in their order. Throws InvalidInput when anything is out of range; nothing was
  // stored then. `only_best`: of the logits only the argmax will be asked.
  ForwardResult forward(const std::vector<SpanInput>& spans, const std::vector<LayerPart>& layers,
                        bool only_best = false);
  // In the layers with a window; -1: in all.
  void copy(const std::int64_t* source, const std::int64_t* target, std::int64_t count,
            int window = -1);

  const ModelShape& shape() const { return shape_; }
  const IsaChoice& isa() const { return isa_; }
  int threads() const { return team_->size(); }
  // Of keys and values: what the system has given so far.
  std::size_t cache_bytes() const { return cache_.taken(); }
  // What one row costs at a matrix: bytes read (by all rows of a forward together), and products
  // of bytes (0 where the matrix holds floats).
  std::pair<std::size_t, std::size_t> work_of(const std::string& tensor);
  // Of each window, the bytes of one token in its layers.
  std::vector<std::pair<int, std::size_t>> slot_bytes() const {
    std::vector<std::pair<int, std::size_t>> out;
    for (const int window : cache_.windows()) out.emplace_back(window, cache_.slot_bytes(window));
    return out;
  }

  // Takes the time of forwards from now on, or stops; returns the seconds of each part so far,
  // means of all threads, that add up to the duration of the forwards.
  PartSeconds profile(bool on);
  // Counts the bytes of forwards from now on, or stops; returns the forwards so far.
  std::vector<Traffic> traffic(bool on);

 private:
  friend class Forward;
  Matrix* find_matrix(const std::string& tensor);
  void place_inner(const std::string& part, Format format, Matrix& matrix, Matrix& gate, int inner);
  void finish_gemma();
  void check_loaded() const;
  void add_profile();
  void add_traffic(const Plan& plan, std::uint64_t bytes);
  void make_screen();
  const AttentionShape* headed(const std::string& tensor) const;

  ModelShape shape_;
  IsaChoice isa_;
  std::shared_ptr<Team> team_;
  Arena arena_;
  Cache cache_;
  std::vector<LayerWeights> layers_;
  Matrix embed_;
  Matrix head_;
  float* norm_ = nullptr;
  float* ones_ = nullptr;  // the gains of norms without gains
  GuessWeights guess_;
  std::unique_ptr<Screen> screen_;
  bool loaded_ = false;

  std::mutex busy_;  // one forward or copy at a time
  struct Workspace;
  std::shared_ptr<Workspace> workspace_;
  bool profiling_ = false;
  PartSeconds profile_{};
  bool counting_ = false;
  std::vector<Traffic> traffic_;
  std::shared_ptr<LogitStore> logit_store_;
};

}  // namespace paradecode
