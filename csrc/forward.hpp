// One forward pass over a plan.
#pragma once

#include <memory>
#include <vector>

#include "input_buffer.hpp"
#include "memory.hpp"
#include "model.hpp"
#include "plan.hpp"
#include "team.hpp"

namespace paradecode {

// Memory of a forward, kept for the next one.
struct Model::Workspace {
  struct Member {
    InputBuffer input;
    Buffer<float> row;
    Buffer<float> tile;
    Buffer<float> scores;
    Stopwatch watch;
  };
  Buffer<float> states;     // the residual stream [rows, padded hidden]
  Buffer<float> queries;    // [rows, heads * padded head_dim]
  Buffer<float> attended;   // [rows, padded heads * head_dim]
  Buffer<float> parts;      // [rows, heads, blocks, part] of attention that threads share
  Buffer<float> rotations;  // [rows, pairs cosines, pairs sines]
  InputBuffer input;
  InputBuffer inner;      // of the down projection
  InputBuffer sent;       // rows of experts, side by side
  Buffer<float> routed;   // logits of the router
  Buffer<float> made;     // what experts made [places, width]
  Buffer<float> weights;  // of the experts of each row
  Buffer<int> chosen;     // the experts of each row
  // Of each part of layers and each lot of rows: who comes late counts the chunks of all of them.
  std::vector<Routing> routings;
  std::vector<Member> members;
};

class Forward {
 public:
  Forward(Model& model, Model::Workspace& workspace, const Plan& plan,
          const std::vector<SpanInput>& spans, const std::vector<LayerPart>& layers,
          bool only_best);
  ForwardResult run();
  // Adds the length of each group of the head's inputs; returns of how many rows.
  int add_norms(std::vector<double>& norms) const;

 private:
  // Query heads [head, head + heads) of rows [row, row + rows) of a span, for the blocks
  // [first_block, end_block) of what these rows see.
  struct Tile {
    int span, row, rows, kv_head, head, heads, first_block, end_block;
  };

  Model::Workspace::Member& own_of(const Member& member) {
    return space_.members[static_cast<std::size_t>(member.index())];
  }
  // Attention (forward_attention.cpp).
  void plan_tiles();
  void divide_tiles();
  // Blocks of what a row sees.
  int first_block(const RowView& row) const;
  int end_block(const SpanPlan& span, const RowView& row) const;
  std::int64_t part_at(std::int64_t row, int head) const;
  const float* attended(int row, float* out) const;
  void mix(Member& member, int layer);
  void project_head(Member& member, int unit, int row, int rows, const Activations& input,
                    int layer, float* scratch);
  void rotate(float* head, int row, const float* norm) const;
  void attend(const Tile& tile, int layer, float* scores);
  // Experts (forward_experts.cpp).
  int plan_lots();
  void feed_experts(Member& member, const LayerWeights& weights, std::size_t number);
  void route_rows(Member& member, const LayerWeights& weights);
  // Of the rows [row, row + rows), which `routing` counts from 0.
  void feed_lot(Member& member, const LayerWeights& weights, Routing& routing, int row, int rows);
  void send_rows(Member& member, const LayerWeights& weights, Routing& routing, int row, int rows);
  void add_experts(const Routing& routing, int row, int number);
  // The logits, or the best tokens if nothing else is asked (forward_head.cpp).
  auto head_input();
  void head_product(const Matrix& weight, int panel, int panels, const Activations& input, int row,
                    int end);
  void head(Member& member);
  bool screened() const;
  void plan_screen();
  void screened_head(Member& member);
  std::vector<std::int32_t> best_tokens() const;
  // All layers (forward.cpp), and their products (forward_products.hpp).
  void work(Member& member);
  void begin_row(int row);
  void feed(Member& member, int layer, std::size_t number);
  float* state(int row) { return states_ + std::int64_t{row} * width_; }
  int block_rows(int block) const;
  auto normed(const float* weight);
  auto into_residual(const Matrix& weight, const float* bias, int step);
  // One MLP, and the biases of its first two matrices or null.
  struct Mlp {
    const Matrix& gate;
    const Matrix& up;
    const Matrix& down;
    const float* gate_bias = nullptr;
    const float* up_bias = nullptr;
  };
  void inner_chunk(Member& member, const Mlp& weights, const Activations& input, int pair,
                   int pairs, int row, int rows, float* scratch);
  void keep_hidden(int layer);
  // The attention weights that were asked for; of the `number`-th attention that runs.
  void plan_weights();
  void weigh(Member& member, int layer, int number);

  // Which forms of its input a product needs.
  struct Needs {
    bool integers = false;
    bool floats = false;
  };
  static Needs needs(std::initializer_list<Format> formats);

  // Runs work(chunk, input) over `chunks`, where `input` holds `rows` prepared rows: fill(row,
  // out) writes a row as float32 into out, or returns where it already is.
  template <class Fill, class Work>
  void with_input(Member& member, int rows, int width, Needs needs, Fill fill, int chunks,
                  Work work);

  Model& model_;
  Model::Workspace& space_;
  const Plan& plan_;
  const std::vector<SpanInput>& inputs_;
  const std::vector<LayerPart>& layers_;
  const Kernels& kernels_;
  const ModelShape& shape_;

  // A row whose attention weights are asked for, the `place`-th of its span; those of the first
  // attention that runs are in result_.attention[first].
  struct Weighed {
    int span, row, first;
    std::int64_t place;
  };
  std::vector<Weighed> weighed_;

  int width_;           // padded hidden size
  int attended_width_;  // padded heads * head_dim
  int inner_width_;     // padded intermediate size
  int dim_;             // padded head_dim
  int pairs_;           // rotated pairs of a head
  std::int64_t score_stride_;
  std::vector<Tile> tiles_;
  int part_blocks_ = 0;  // of a query, if threads share the blocks of a tile
  float* parts_ = nullptr;
  float* states_ = nullptr;
  float* queries_ = nullptr;
  float* attended_ = nullptr;
  float* rotations_ = nullptr;
  float* routed_ = nullptr;
  float* made_ = nullptr;
  float* expert_weights_ = nullptr;
  int* chosen_ = nullptr;
  int lot_ = 0;   // rows that are sent to experts together
  int lots_ = 0;  // of all rows
  Activations sent_;
  Activations inner_;
  bool only_best_;
  // For each chunk of the head and row of logits, the best token: first about, then exactly.
  struct Best {
    float value;
    std::int32_t token;
    bool nan;
  };
  std::vector<Best> about_;
  std::vector<Best> best_;
  ForwardResult result_;
};

}  // namespace paradecode
