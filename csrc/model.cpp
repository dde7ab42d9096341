#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <new>
#include <numeric>
#include <utility>

#include "errors.hpp"
#include "exact.hpp"
#include "forward.hpp"

namespace paradecode {
namespace {

// Parts of layers that one forward may run, and sizes: far more than any model has.
constexpr std::size_t kMostParts = 1 << 14;
constexpr int kMostTokens = 1 << 26;
constexpr int kMostWidth = 1 << 20;
constexpr int kMostLayers = 1 << 12;
constexpr int kMostHeads = 1 << 12;

// "layers.12.q.bias" -> 12 and "q.bias"; other names -> -1 and themselves.
int split_layer(const std::string& tensor, std::string& rest) {
  rest = tensor;
  if (tensor.rfind("layers.", 0) != 0) return -1;
  const std::size_t dot = tensor.find('.', 7);
  if (dot == std::string::npos) return -1;
  rest = tensor.substr(dot + 1);
  return std::stoi(tensor.substr(7, dot - 7));
}

}  // namespace

// "experts.7.gate" -> 7 and "gate", "shared.gate" -> -1 and "gate"; other names -> -2.
int split_expert(const std::string& name, std::string& part) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string::npos) return -2;
  part = name.substr(dot + 1);
  if (name.rfind("shared.", 0) == 0) return -1;
  return name.rfind("experts.", 0) == 0 ? std::stoi(name.substr(8)) : -2;
}

void AttentionShape::check(int heads) const {
  expect_range("kv_heads", kv_heads, 1, heads);
  expect_range("head_dim", head_dim, 1, kMostHeadDim);
  expect_range("sliding_window", window, 0, std::int64_t{1} << 24);
  expect_range("inverse_frequencies", pairs(), 0, head_dim / 2);
  if (heads % kv_heads != 0)
    throw InvalidInput("kv_heads", std::int64_t{kv_heads},
                       "it must divide " + std::to_string(heads));
}

void ModelShape::check() const {
  expect_range("vocab_size", vocab_size, 1, kMostTokens);
  expect_range("outputs", outputs, 1, vocab_size);
  expect_range("hidden_size", hidden_size, 1, kMostWidth);
  expect_range("layers", layers, 1, kMostLayers);
  expect_range("heads", heads, 1, kMostHeads);
  expect_range("intermediate_size", intermediate_size, 0, kMostWidth);
  expect_range("context_length", context_length, 1, std::numeric_limits<int>::max());
  for (const float number : {norm_epsilon, rope_attention, softcap})
    if (!(number >= 0) || !std::isfinite(number))
      throw InvalidInput("norm_epsilon, rope_attention, softcap", std::monostate(),
                         "give finite numbers of at least 0");
  mixture.check();
  for (const AttentionShape& attention : attentions) attention.check(heads);
  const auto known = static_cast<int>(attentions.size());
  if (known == 0 || (!kinds.empty() && kinds.size() != static_cast<std::size_t>(layers)))
    throw InvalidInput("kinds", static_cast<std::int64_t>(kinds.size()),
                       "give the kind of each layer");
  for (const int kind : kinds)
    if (kind < 0 || kind >= known)
      throw InvalidInput("kinds", std::int64_t{kind},
                         "name kinds from 0 to " + std::to_string(known - 1));
}

namespace {

std::vector<CacheLayer> cached_layers(const ModelShape& shape) {
  std::vector<CacheLayer> out;
  shape.check();
  for (int layer = 0; layer < shape.layers; ++layer)
    out.push_back({shape.attention(layer).kv_heads, shape.attention(layer).head_dim,
                   shape.attention(layer).window});
  return out;
}

}  // namespace

Model::Model(ModelShape shape, bool half_cache, int threads, bool apart)
    : shape_(std::move(shape)),
      isa_(choose_isa()),
      team_(Team::of(threads, apart)),
      cache_(cached_layers(shape_), half_cache),
      layers_(static_cast<std::size_t>(shape_.layers)),
      workspace_(std::make_shared<Workspace>()),
      logit_store_(std::make_shared<LogitStore>()) {
  workspace_->members.resize(static_cast<std::size_t>(threads));
}

Matrix* Model::find_matrix(const std::string& tensor) {
  std::string name;
  const int index = split_layer(tensor, name);
  if (index < 0) {
    if (name == "embed") return &embed_;
    if (name == "guess.gate") return &guess_.gate;
    if (name == "guess.up") return &guess_.up;
    if (name == "guess.down") return &guess_.down;
    return name == "head" ? &head_ : nullptr;
  }
  LayerWeights& layer = layers_.at(static_cast<std::size_t>(index));
  if (name == "q") return &layer.q;
  if (name == "k") return &layer.k;
  if (name == "v") return &layer.v;
  if (name == "o") return &layer.o;
  if (name == "gate") return &layer.gate;
  if (name == "up") return &layer.up;
  if (name == "down") return &layer.down;
  const MixtureShape& mixture = shape_.mixture;
  if (mixture.experts == 0) return nullptr;
  if (name == "router") return &layer.router;
  std::string part;
  int expert = split_expert(name, part);
  if (expert == -1 && mixture.shared_size > 0) expert = mixture.experts;
  if (expert < 0 || expert >= mixture.all()) return nullptr;
  layer.experts.resize(static_cast<std::size_t>(mixture.all()));
  ExpertWeights& weights = layer.experts[static_cast<std::size_t>(expert)];
  if (part == "gate") return &weights.gate;
  if (part == "up") return &weights.up;
  return part == "down" ? &weights.down : nullptr;
}

// Of a tensor whose rows are heads, each padded to a multiple of 16; else null.
const AttentionShape* Model::headed(const std::string& tensor) const {
  std::string name;
  const int layer = split_layer(tensor, name);
  if (layer < 0 || layer >= shape_.layers) return nullptr;
  const bool heads = name[0] == 'q' || name[0] == 'k' || name[0] == 'v';
  return heads ? &shape_.attention(layer) : nullptr;
}

// Places one of the three matrices of an MLP; gate is placed together with up.
void Model::place_inner(const std::string& part, Format format, Matrix& matrix, Matrix& gate,
                        int inner) {
  const int hidden = shape_.hidden_size;
  if (part == "gate") {
    matrix.format = format;
  } else if (part == "down") {
    matrix = make_matrix(arena_, format, hidden, inner);
  } else if (gate.format == format) {
    make_interleaved(arena_, format, inner, hidden, gate, matrix);
  } else {
    gate = make_matrix(arena_, gate.format, inner, hidden);
    matrix = make_matrix(arena_, format, inner, hidden);
  }
}

void Model::set_format(const std::string& tensor, Format format) {
  Matrix* matrix = find_matrix(tensor);
  if (matrix == nullptr) throw InvalidInput("weights", tensor, "no matrix has this name");
  std::string name;
  const int index = split_layer(tensor, name);
  const int hidden = shape_.hidden_size;
  std::string part = name;
  const int expert = split_expert(name, part);
  const MixtureShape& mixture = shape_.mixture;
  const int inner = expert == -2   ? shape_.intermediate_size
                    : expert == -1 ? mixture.shared_size
                                   : mixture.expert_size;
  const int attended = index < 0 ? 0 : shape_.heads * shape_.attention(index).head_dim;
  const int inputs = part == "down" ? inner : name == "o" ? attended : hidden;
  if (!fits(format, inputs))
    throw InvalidInput("weights", tensor, "its rows are not whole blocks of 256 inputs");
  if (matrix == &embed_ || matrix == &head_) {
    const int tokens = matrix == &head_ ? shape_.outputs : shape_.vocab_size;
    *matrix = make_matrix(arena_, format, tokens, hidden);
  } else if (part == "gate" || part == "up" || part == "down") {
    const std::string gate = tensor.substr(0, tensor.size() - part.size()) + "gate";
    place_inner(part, format, *matrix, *find_matrix(gate), inner);
  } else if (name == "router") {
    *matrix = make_matrix(arena_, format, mixture.experts, hidden);
  } else if (name == "o") {
    *matrix = make_matrix(arena_, format, hidden, attended);
  } else {
    const AttentionShape& attention = shape_.attention(index);
    const int heads = name == "q" ? shape_.heads : attention.kv_heads;
    *matrix = make_matrix(arena_, format, heads * attention.padded_dim(), hidden);
  }
}

void Model::fill(const std::string& tensor, std::int64_t first_row, std::int64_t rows,
                 Source source, const std::uint8_t* data, std::int64_t row_bytes) {
  const FloatState state;
  Matrix* matrix = find_matrix(tensor);
  if (matrix == nullptr || matrix->data == nullptr)
    throw InvalidInput("weights", tensor, "give the matrix a format first");
  const AttentionShape* heads = headed(tensor);
  const std::int64_t limit =
      heads == nullptr ? matrix->rows : matrix->rows / heads->padded_dim() * heads->head_dim;
  const bool blocks_fit = matrix->cols % block_shape(source).size == 0;
  const Format format = matrix->format;
  if (own_format(source) != format && is_integer(format) && format != Format::Q4 &&
      format != Format::Q8)
    throw InvalidInput("weights", tensor, "give it the format of its blocks, or q4 or q8");
  if (first_row < 0 || rows < 0 || rows > limit || first_row > limit - rows || !blocks_fit ||
      row_bytes != static_cast<std::int64_t>(source_row_bytes(source, matrix->cols)))
    throw InvalidInput("weights", tensor, "give rows of the shape that the configuration implies");
  for (std::int64_t i = 0; i < rows; ++i) {
    const int row = static_cast<int>(first_row + i);
    const int target = heads == nullptr ? row : heads->padded(row);
    pack_row(*matrix, target, source, data + i * row_bytes);
  }
}

void Model::set_vector(const std::string& tensor, const float* values, std::int64_t count) {
  std::string name;
  const int index = split_layer(tensor, name);
  float** place = nullptr;
  std::int64_t size = shape_.hidden_size;
  if (index < 0) {
    if (name == "norm") place = &norm_;
    if (name == "guess.norm") place = &guess_.norm;
  } else {
    LayerWeights& layer = layers_.at(static_cast<std::size_t>(index));
    struct Entry {
      const char* name;
      float** place;
      std::int64_t size;
    };
    const AttentionShape& attention = shape_.attention(index);
    const std::int64_t queries = std::int64_t{shape_.heads} * attention.head_dim;
    const std::int64_t keys = std::int64_t{attention.kv_heads} * attention.head_dim;
    const Entry entries[] = {
        {"attn_norm", &layer.attn_norm, shape_.hidden_size},
        {"mlp_norm", &layer.mlp_norm, shape_.hidden_size},
        {"q.bias", &layer.q_bias, queries},
        {"k.bias", &layer.k_bias, keys},
        {"v.bias", &layer.v_bias, keys},
        {"o.bias", &layer.o_bias, shape_.hidden_size},
        {"gate.bias", &layer.gate_bias, shape_.intermediate_size},
        {"up.bias", &layer.up_bias, shape_.intermediate_size},
        {"down.bias", &layer.down_bias, shape_.hidden_size},
        {"router.bias", &layer.router_bias, shape_.mixture.experts},
        {"router.scale", &layer.router_norm, shape_.hidden_size},
        {"router.gain", &layer.router_gain, shape_.mixture.experts},
        {"experts_norm", &layer.experts_norm, shape_.hidden_size},
        {"after_attn", &layer.after_attn, shape_.hidden_size},
        {"after_mlp", &layer.after_mlp, shape_.hidden_size},
        {"after_experts", &layer.after_experts, shape_.hidden_size},
        {"after_feed", &layer.after_feed, shape_.hidden_size},
        {"scale", &layer.scale, 1},
        {"canvas_scale", &layer.canvas_scale, 1},
        {"q_norm", &layer.q_norm, attention.head_dim},
        {"k_norm", &layer.k_norm, attention.head_dim},
    };
    for (const Entry& entry : entries)
      if (name == entry.name) {
        place = entry.place;
        size = entry.size;
      }
  }
  if (place == nullptr || count != size)
    throw InvalidInput("weights", tensor, "give a vector that the configuration implies");
  const AttentionShape* heads = headed(tensor);
  const std::int64_t padded =
      heads == nullptr ? count : count / heads->head_dim * heads->padded_dim();
  *place = reinterpret_cast<float*>(
      arena_.take(static_cast<std::size_t>(round_up(static_cast<int>(padded), 2 * kLanes)) * 4));
  for (std::int64_t i = 0; i < count; ++i)
    (*place)[heads == nullptr ? i : heads->padded(static_cast<int>(i))] = values[i];
}

void Model::finish_loading(bool tied_head) {
  if (tied_head) head_ = embed_;
  if (shape_.gemma()) finish_gemma();
  for (LayerWeights& layer : layers_) {
    if (layer.router_norm == nullptr) layer.router_norm = layer.mlp_norm;
    if (layer.experts_norm == nullptr) layer.experts_norm = layer.mlp_norm;
  }
  check_loaded();
  make_screen();
  loaded_ = true;
}

// Throws InvalidInput if a weight is missing that every forward reads.
void Model::check_loaded() const {
  const auto need = [](bool given, const std::string& tensor) {
    if (!given) throw InvalidInput("weights", tensor, "give it before the loading is finished");
  };
  need(embed_.data != nullptr, "embed");
  need(head_.data != nullptr, "head");
  need(norm_ != nullptr, "norm");
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const LayerWeights& layer = layers_[i];
    const std::string name = "layers." + std::to_string(i) + ".";
    need(layer.attn_norm != nullptr, name + "attn_norm");
    need(layer.mlp_norm != nullptr, name + "mlp_norm");
    need(layer.q.data != nullptr, name + "q");
    need(layer.k.data != nullptr, name + "k");
    need(layer.v.data != nullptr, name + "v");
    need(layer.o.data != nullptr, name + "o");
    const bool mixed = !layer.experts.empty();
    if (mixed) need(layer.router.data != nullptr, name + "router");
    for (const ExpertWeights& expert : layer.experts)
      need(expert.gate.data && expert.up.data && expert.down.data, name + "experts");
    if (!mixed || shape_.gemma())
      need(layer.gate.data && layer.up.data && layer.down.data, name + "gate, up, down");
  }
}

// Values have a norm without a gain, and keys are values where there are no others.
void Model::finish_gemma() {
  const FloatState state;
  int widest = round_up(shape_.hidden_size, kGroup);
  for (const AttentionShape& kind : shape_.attentions) widest = std::max(widest, kind.padded_dim());
  ones_ = reinterpret_cast<float*>(arena_.take(static_cast<std::size_t>(widest) * sizeof(float)));
  std::fill(ones_, ones_ + widest, 1.0F);
  const float factor = 1.0F / std::sqrt(static_cast<float>(shape_.hidden_size));
  for (LayerWeights& layer : layers_) {
    layer.v_norm = ones_;
    if (layer.v.data == nullptr) layer.v = layer.k;
    if (layer.router_norm != nullptr)
      for (int i = 0; i < shape_.hidden_size; ++i) layer.router_norm[i] *= factor;
  }
}

std::pair<std::size_t, std::size_t> Model::work_of(const std::string& tensor) {
  const Matrix* matrix = find_matrix(tensor);
  if (matrix == nullptr) throw InvalidInput("weights", tensor, "no matrix has this name");
  const auto panels = static_cast<std::size_t>(matrix->panels);
  const auto products = panels * kLanes * static_cast<std::size_t>(matrix->groups) * kGroup;
  return {panels * matrix->panel_bytes, is_integer(matrix->format) ? products : 0};
}

PartSeconds Model::profile(bool on) {
  team_->check_process();  // A forked child may have the lock of a thread that it does not have.
  const std::lock_guard lock(busy_);
  const PartSeconds out = profile_;
  profile_.fill(0);
  profiling_ = on;
  return out;
}

std::vector<Traffic> Model::traffic(bool on) {
  team_->check_process();
  const std::lock_guard lock(busy_);
  counting_ = on;
  return std::exchange(traffic_, {});
}

void Model::add_traffic(const Plan& plan, std::uint64_t bytes) {
  Traffic& out = traffic_.emplace_back(Traffic{plan.rows, 0, bytes});
  for (const SpanPlan& span : plan.spans)
    out.context += span.view.prefix_length + span.view.extra_length - span.rows;
}

void Model::add_profile() {
  auto& members = workspace_->members;
  members[0].watch.enter(Part::Waiting);
  const PartSeconds& caller = members[0].watch.seconds();
  const auto sum = [](const PartSeconds& parts) {
    return std::accumulate(parts.begin(), parts.end(), 0.0);
  };
  const double plan = caller[static_cast<std::size_t>(Part::Plan)];
  const double threads = static_cast<double>(members.size());
  for (const auto& member : members) {
    PartSeconds own = member.watch.seconds();
    // The others have nothing to do while the caller plans, and may begin late.
    own[static_cast<std::size_t>(Part::Plan)] = plan;
    own[static_cast<std::size_t>(Part::Waiting)] += sum(caller) - sum(own);
    for (std::size_t i = 0; i < kParts; ++i) profile_[i] += own[i] / threads;
  }
}

void Model::make_screen() {
  try {
    screen_ = Screen::of(head_, *team_);
  } catch (const std::bad_alloc&) {  // The whole head is as good.
  }
}

void Model::reserve(std::int64_t pages) {
  team_->check_process();
  const std::lock_guard lock(busy_);
  if (pages < 1 || pages > (std::int64_t{1} << 26))
    throw InvalidInput("pages", pages, "reserve from 1 to 2^26 pages");
  cache_.reserve(pages);
}

void Model::copy(const std::int64_t* source, const std::int64_t* target, std::int64_t count,
                 int window) {
  team_->check_process();
  const std::lock_guard lock(busy_);
  const std::int64_t limit = cache_.pages() * kPage;
  for (std::int64_t i = 0; i < count; ++i) {
    if (source[i] < 0 || source[i] >= limit)
      throw InvalidInput("source", source[i], "name a slot of a reserved page");
    if (target[i] < 0 || target[i] >= limit)
      throw InvalidInput("target", target[i], "name a slot of a reserved page");
  }
  for (const int own : cache_.windows())
    if (window < 0 || window == own) cache_.copy(source, target, count, own);
}

ForwardResult Model::forward(const std::vector<SpanInput>& spans,
                             const std::vector<LayerPart>& layers, bool only_best) {
  team_->check_process();
  const std::lock_guard lock(busy_);
  if (!loaded_) throw BackendError("the model's weights are not loaded yet");
  if (layers.size() > kMostParts)
    throw InvalidInput("layers", static_cast<std::int64_t>(layers.size()),
                       "run at most " + std::to_string(kMostParts) + " layers or halves of layers");
  for (const LayerPart& part : layers)
    if (part.layer < 0 || part.layer >= shape_.layers)
      throw InvalidInput("layers", part.layer,
                         "name layers from 0 to " + std::to_string(shape_.layers - 1));
  const std::uint64_t moved = moved_bytes;
  if (profiling_)
    for (auto& member : workspace_->members) member.watch.restart(Part::Plan);
  std::deque<Plan> plans;
  for (const AttentionShape& attention : shape_.attentions)
    plans.emplace_back(spans, layers,
                       PlanLimits{shape_.vocab_size, shape_.context_length, shape_.layers,
                                  attention.window, cache_.pages()});
  Forward forward(*this, *workspace_, plans, spans, layers, only_best);
  ForwardResult out = forward.run();
  if (profiling_) add_profile();
  if (counting_) add_traffic(plans.front(), moved_bytes - moved);
  return out;
}

}  // namespace paradecode
