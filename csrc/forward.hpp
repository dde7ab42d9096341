// One forward pass over a plan.
#pragma once

#include <atomic>
#include <deque>
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
    Buffer<float> starts;           // states at the starts of pages, of one head
    Buffer<const float*> pointers;  // rows that are added up
    Buffer<float*> sums;            // what they are added to
    Buffer<float> factors;          // by what they are multiplied
    Stopwatch watch;
  };
  Buffer<float> states;     // the residual stream [rows, padded hidden]
  Buffer<float> made;       // what a part made, if that is not added as it is
  Buffer<float> mixed;      // what experts beside an MLP made
  Buffer<float> pending;    // what parts made that is added later
  Buffer<float> queries;    // [rows, heads * padded head_dim]
  Buffer<float> keys;       // the same, if all heads together are normed
  Buffer<float> ranked;     // what low-rank queries are made of
  Buffer<float> gates;      // of what heads mixed [rows, heads * padded head_dim]
  Buffer<float> inputs;     // second embeddings [rows, layers * padded width]
  Buffer<float> attended;   // of each kind of attention: [rows, padded heads * head_dim]
  Buffer<float> parts;      // [rows, heads, blocks, part] of attention that threads share
  Buffer<float> rotations;  // of each kind: [rows, pairs cosines, pairs sines]
  Buffer<float> recalled;   // what parts with a state make of rows
  Buffer<float> records;    // which these rows leave
  InputBuffer input;
  InputBuffer inner;  // of the down projection
  // Values of blocks of 256 that chunks share, and how many pairs of panels of them are made.
  Buffer<float> divided;
  std::vector<std::atomic<int>> divided_pairs;
  InputBuffer sent;       // rows of experts, side by side
  Buffer<float> routed;   // logits of the router
  Buffer<float> gains;    // of the shared expert [rows, 32]
  Buffer<float> results;  // of experts [places, width]
  Buffer<float> weights;  // of the experts of each row
  Buffer<int> chosen;     // the experts of each row
  // Of each part of layers and each lot of rows: who comes late counts the chunks of all of them.
  std::vector<Routing> routings;
  std::vector<Member> members;
};

class Forward {
 public:
  // plans: one for each kind of attention, which differ in what rows see.
  Forward(Model& model, Model::Workspace& workspace, const std::deque<Plan>& plans,
          const std::vector<SpanLineage>& lineage, const std::vector<SpanInput>& spans,
          const std::vector<LayerPart>& layers, bool only_best);
  ForwardResult run();
  std::int64_t reached() const;

 private:
  // Query heads [head, head + heads) of rows [row, row + rows) of a span, for the blocks
  // [first_block, end_block) of what these rows see.
  struct Tile {
    int span, row, rows, kv_head, head, heads, first_block, end_block;
  };

  // What the layers of one kind have in common in this forward.
  struct Attention {
    const AttentionShape& shape;
    const Plan& plan;
    int dim;                // padded head_dim
    int width;              // padded heads * head_dim
    float* made = nullptr;  // [rows, width]
    float* rotations = nullptr;
    std::vector<Tile> tiles;
    int part_blocks = 0;  // of a query, if threads share the blocks of a tile
  };

  // Where a part's result goes, and whether it is added to what is there.
  struct Target {
    float* rows;
    bool add;
  };
  // How a part joins the stream: whether it is the first or the last one of its group that runs,
  // whether it is the last one of its layer, and what is multiplied by what it made.
  struct Turn {
    bool first, last, ends;
    float factor = 1.0F;

    bool alone() const { return first && last; }
  };

  Model::Workspace::Member& own_of(const Member& member) {
    return space_.members[static_cast<std::size_t>(member.index())];
  }
  // Attention (forward_attention.cpp).
  void plan_tiles(Attention& kind);
  void divide_tiles(Attention& kind);
  // Blocks of what a row sees.
  int first_block(const RowView& row) const;
  int end_block(const SpanPlan& span, const RowView& row) const;
  std::int64_t part_at(const Attention& kind, std::int64_t row, int head) const;
  const float* attended(const Attention& kind, const float* sinks, int row, float* out) const;
  const float* gated(const Attention& kind, const float* values, int row, float* out) const;
  Attention& attention(int layer) {
    return attentions_[static_cast<std::size_t>(shape_.layer(layer).attention)];
  }
  void mix(Member& member, int layer, Turn turn);
  void attend(const Attention& kind, const Tile& tile, int layer, float* scores);
  // Queries, keys and values (forward_queries.cpp).
  void project(Member& member, int layer);
  void project_ranked(Member& member, int layer);
  void project_query(Member& member, int head, int row, int rows, const Activations& input,
                     int layer);
  void project_gate(int head, int row, int rows, const Activations& input, int layer);
  void project_kept(Member& member, int unit, int row, int rows, const Activations& input,
                    int layer, float* scratch);
  void norm_all_heads(int row, int layer);
  void finish_query(const Attention& kind, float* query, int row, const float* norm) const;
  void scale_query(const Attention& kind, float* query, int row) const;
  void finish_head(const Attention& kind, float* head, int row, const float* norm) const;
  void rotate(const Attention& kind, float* head, int row) const;
  // Parts with a state (forward_states.cpp).
  struct Piece {
    const Matrix* weight;
    const float* bias;
    int at;  // where its results begin in a row
  };
  struct Recalled;
  int plan_recall();
  const float* record_of(int part, const SpanLineage& span, std::int32_t column) const;
  const SpanLineage& lineage_of(int row) const;
  void project_pieces(Member& member, const Norm& norm, std::initializer_list<Piece> pieces);
  void project_ranked_decays(Member& member, const StateWeights& w, const StateShape& kind,
                             const Recalled& at);
  void scale_heads(const StateShape& kind, const Recalled& at, float* made) const;
  void convolve_row(int part, const StateShape& kind, const StateWeights& w, int row,
                    float* out) const;
  void keep_records(Member& member, int part, const StateShape& kind);
  void keep_tails(int part, const StateShape& kind, const SpanLineage& span) const;
  void convolve(Member& member, int layer, int number, Turn turn);
  void recall(Member& member, int layer, int number, Turn turn);
  void prepare_heads(Model::Workspace::Member& own, int part, const StateShape& kind,
                     const StateWeights& w, const Recalled& at, int row) const;
  void add_decays(int part, const StateShape& kind, const SpanLineage& span) const;
  void run_head(Model::Workspace::Member& own, int part, const StateShape& kind,
                const StateWeights& w, const Recalled& at, const SpanLineage& span, int head) const;
  void finish_heads(const StateShape& kind, const StateWeights& w, const Recalled& at, int row,
                    float* out) const;
  // What a part made, and the residual stream (forward_residual.cpp).
  // Whether what a part made goes where it is added as it is.
  bool direct(const Norm& after, Turn turn) const {
    return after.gain == nullptr && turn.factor == 1.0F && !shape_.stack.front().ladder;
  }
  void plan_residual();
  Target target(const Norm& after, Turn turn) const;
  void norm_row(const float* row, const Norm& norm, float* out) const;
  // `joined`: the part was an MLP and experts.
  void close(Member& member, int layer, const Norm& after, Turn turn, bool joined = false);
  void join(int row, const LayerWeights& weights);
  void add_pending(Member& member);
  float* made(int row) { return made_ + std::int64_t{row} * width_; }
  float* mixed(int row) { return mixed_ + std::int64_t{row} * width_; }
  float* pending(int row) { return pending_ + std::int64_t{row} * width_; }
  // Second embeddings (forward_tokens.cpp).
  bool reads_tokens() const;
  void read_tokens(Member& member);
  void finish_token(int row, float* scratch);
  void feed_token(Member& member, int layer, Turn turn);
  // Experts (forward_experts.cpp).
  int plan_lots();
  struct Lot {
    int rows = 0;  // that are sent to experts together
    int count = 0;
  };
  Lot lot_of(const FeedShape& feed) const;
  void feed_experts(Member& member, int layer, std::size_t number, Target to);
  void route_rows(Member& member, const LayerWeights& weights, const MixtureShape& mixture);
  // Of the rows [row, row + rows), which `routing` counts from 0.
  void feed_lot(Member& member, int layer, Routing& routing, int row, int rows, Target to);
  void send_rows(Member& member, int layer, Routing& routing, int row, int rows);
  void add_experts(const Routing& routing, const MixtureShape& mixture, int row, int number,
                   Target to);
  float shared_gain(const MixtureShape& mixture, int row) const;
  // How the guess of a canvas enters (forward_canvas.cpp).
  void plan_guesses();
  bool in_canvas(int row) const { return input_of(row).canvas; }
  void read_guesses(Member& member);
  void mean_embeddings(std::size_t first, std::size_t end);
  void begin_canvas(int row);
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
  int phases() const;
  void begin_row(Member& member, int row);
  void run_layer(Member& member, std::size_t number, int& attentions);
  // Of the `index`-th part of a layer.
  Turn turn(const LayerPart& part, int index, float factor) const;
  void feed(Member& member, int layer, std::size_t number, Turn turn);
  const SpanInput& input_of(int row) const {
    return inputs_[static_cast<std::size_t>(&plan_.span_of(row) - plan_.spans.data())];
  }
  float* state(int row) { return states_ + std::int64_t{row} * width_; }
  int block_rows(int block) const;
  auto normed(const Norm& norm);
  auto product(const Matrix& weight, const float* bias, int step, Target to);
  // Which forms of its input a product needs.
  struct Needs {
    bool integers = false;
    bool wide = false;
    bool floats = false;

    void add(Format format) {
      (!is_integer(format) ? floats : has_superblocks(format) ? wide : integers) = true;
    }
    void add(const Needs& other) {
      integers |= other.integers;
      wide |= other.wide;
      floats |= other.floats;
    }
  };
  static Needs needs(std::initializer_list<Format> formats);
  // Writes a row's values, `width` of them, in the forms that are needed.
  void write_input(const float* values, int width, Needs needs, int row, const Activations& out);

  // What the inner values of an MLP are made of. Those of second embeddings have no `up`: they are
  // `given`, [rows, stride].
  struct Inner {
    const MlpWeights& weights;
    Activation activation;
    float gate_factor = 1.0F;
    const float* given = nullptr;
    std::int64_t stride = 0;

    // What the activation is a function of.
    const Matrix& first() const { return weights.gate.data != nullptr ? weights.gate : weights.up; }
    Needs needs() const {
      return given != nullptr || weights.gate.data == nullptr
                 ? Forward::needs({first().format})
                 : Forward::needs({weights.gate.format, weights.up.format});
    }
    // The number of pairs of panels whose values the down projection takes with one scale.
    int pairs_of_scale() const {
      return has_superblocks(weights.down.format) ? kSuperBlock / kGroup : 1;
    }
  };
  void feed_dense(Member& member, const Inner& inner, const Norm& norm, Target to);
  void inner_chunk(Member& member, const Inner& inner, const Activations& input, int pair,
                   int pairs, int row, int rows, float* scratch);
  void write_inner(const float* values, Format format, int index, int row);
  void plan_divided();
  void keep_hidden(int layer);
  // The attention weights that were asked for; of the `number`-th attention that runs.
  void plan_weights();
  void weigh(Member& member, int layer, int number);

  // Runs work(chunk, input) over `chunks`, where `input` holds `rows` prepared rows: fill(row,
  // out) writes a row as float32 into out, or returns where it already is.
  template <class Fill, class Work>
  void with_input(Member& member, int rows, int width, Needs needs, Fill fill, int chunks,
                  Work work);

  Model& model_;
  Model::Workspace& space_;
  const Plan& plan_;
  const std::vector<SpanLineage>& lineage_;  // empty if no layer keeps a state
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

  int width_;        // padded hidden size
  int inner_width_;  // padded inner size of MLPs and experts
  std::int64_t score_stride_ = 0;
  std::vector<Attention> attentions_;
  float* parts_ = nullptr;
  float* states_ = nullptr;
  float* queries_ = nullptr;
  // Null if no layer needs them.
  float* made_ = nullptr;
  float* mixed_ = nullptr;
  float* pending_ = nullptr;
  float* keys_ = nullptr;
  float* gates_ = nullptr;
  float* gains_ = nullptr;
  float* ranked_ = nullptr;
  std::int64_t ranked_stride_ = 0;
  float* recalled_ = nullptr;
  std::int64_t recall_stride_ = 0;
  float* made_records_ = nullptr;
  std::int64_t record_stride_ = 0;
  float* second_ = nullptr;  // embeddings
  float* routed_ = nullptr;
  float* results_ = nullptr;
  float* expert_weights_ = nullptr;
  int* chosen_ = nullptr;
  std::size_t lots_ = 0;  // of all rows, at most
  Activations sent_;
  Activations inner_;
  float* divided_ = nullptr;  // [blocks, kRowBlock, 256]
  std::atomic<int>* divided_pairs_ = nullptr;
  // Rows of a canvas that read a guess, and which row of it.
  struct Guess {
    int row;
    const LogitRows* logits;
    int at;
  };
  std::vector<Guess> guesses_;
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
