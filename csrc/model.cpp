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

// Parts of layers that one forward may run: far more than any model has.
constexpr std::size_t kMostParts = 1 << 14;

// What a layer keeps: keys and values, or nothing.
std::vector<CacheLayer> cached_layers(const ModelShape& shape) {
  std::vector<CacheLayer> out;
  shape.check();
  for (int layer = 0; layer < shape.layers(); ++layer) {
    CacheLayer& kept = out.emplace_back();
    if (!shape.attends(layer) || shape.layer(layer).keys_of >= 0) continue;
    kept.window = shape.attention(layer).window;
    kept.heads = shape.attention(layer).kv_heads;
    kept.head_dim = shape.attention(layer).head_dim;
  }
  // Rows that are not stored live until the last layer that reads them.
  for (const LayerShape& layer : shape.stack)
    if (layer.keys_of >= 0) out[static_cast<std::size_t>(layer.keys_of)].shared = true;
  return out;
}

}  // namespace

Model::Model(ModelShape shape, bool half_cache, int threads, bool apart)
    : shape_(std::move(shape)),
      isa_(choose_isa()),
      team_(Team::of(threads, apart)),
      cache_(cached_layers(shape_), half_cache),
      states_(shape_),
      weights_(shape_),
      workspace_(std::make_shared<Workspace>()),
      logit_store_(std::make_shared<LogitStore>()) {
  workspace_->members.resize(static_cast<std::size_t>(threads));
}

void Model::finish_loading(bool tied_head) {
  weights_.finish(tied_head);
  make_screen();
  loaded_ = true;
}

std::pair<std::size_t, std::size_t> Model::work_of(const std::string& tensor) const {
  const Matrix& matrix = weights_.matrix(tensor);
  const auto panels = static_cast<std::size_t>(matrix.panels);
  const auto products = panels * kLanes * static_cast<std::size_t>(matrix.groups) * kGroup;
  return {panels * matrix.panel_bytes, is_integer(matrix.format) ? products : 0};
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

void Model::add_traffic(const Plan& plan, std::uint64_t bytes, std::int64_t experts) {
  Traffic& out = traffic_.emplace_back(Traffic{plan.rows, 0, bytes, experts});
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
  if (shape_.head_bias) return;  // Its bounds are those of products alone.
  try {
    screen_ = Screen::of(weights_.head, *team_);
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

void Model::reserve_states(std::int64_t records, std::int64_t slots) {
  team_->check_process();
  const std::lock_guard lock(busy_);
  for (const std::int64_t number : {records, slots})
    if (number < 1 || number > (std::int64_t{1} << 26))
      throw InvalidInput("states", number, "reserve from 1 to 2^26 pages and slots");
  states_.reserve(records, slots);
}

void Model::copy(const std::int64_t* source, const std::int64_t* target, std::int64_t count,
                 int window) {
  team_->check_process();
  const std::lock_guard lock(busy_);
  const std::int64_t limit = window == kStates ? states_.record_rows() : cache_.pages() * kPage;
  for (std::int64_t i = 0; i < count; ++i) {
    if (source[i] < 0 || source[i] >= limit)
      throw InvalidInput("source", source[i], "name a slot of a reserved page");
    if (target[i] < 0 || target[i] >= limit)
      throw InvalidInput("target", target[i], "name a slot of a reserved page");
  }
  if (window == kStates) states_.copy(source, target, count);
  for (const int own : cache_.windows())
    if (window == -1 || window == own) cache_.copy(source, target, count, own);
}

// Throws InvalidInput for parts of layers that do not mean anything by themselves.
void Model::check_parts(const std::vector<SpanInput>& spans,
                        const std::vector<LayerPart>& layers) const {
  const auto refuse = [](int layer, const std::string& fix) {
    throw InvalidInput("layers", std::int64_t{layer}, fix);
  };
  const bool unstored = std::any_of(spans.begin(), spans.end(), [](const SpanInput& span) {
    return std::find(span.slots, span.slots + span.rows, -1) != span.slots + span.rows;
  });
  const auto unknown = [&](const SpanInput& span) {
    const std::int64_t read = span.rows - span.given_rows;
    return span.given_rows > 0 ||
           std::any_of(span.tokens, span.tokens + read,
                       [&](std::int32_t token) { return token >= shape_.token_rows; });
  };
  std::vector<bool> attended(shape_.stack.size());
  for (const LayerPart& part : layers) {
    if (part.layer < 0 || part.layer >= shape_.layers())
      refuse(part.layer, "name layers from 0 to " + std::to_string(shape_.layers() - 1));
    const LayerShape& layer = shape_.layer(part.layer);
    if (part.mlp && layer.reads_token && std::any_of(spans.begin(), spans.end(), unknown))
      refuse(part.layer, "it reads second embeddings: give tokens below " +
                             std::to_string(shape_.token_rows) + ", and no states");
    if (!part.attention || !shape_.attends(part.layer)) continue;
    if (unstored && layer.keys_of >= 0 && !attended[static_cast<std::size_t>(layer.keys_of)])
      refuse(part.layer, "it reads keys of layer " + std::to_string(layer.keys_of) +
                             ": run that before, or store all rows");
    attended[static_cast<std::size_t>(part.layer)] = true;
  }
}

ForwardResult Model::forward(const std::vector<SpanInput>& spans,
                             const std::vector<LayerPart>& layers, bool only_best) {
  team_->check_process();
  const std::lock_guard lock(busy_);
  if (!loaded_) throw BackendError("the model's weights are not loaded yet");
  if (layers.size() > kMostParts)
    throw InvalidInput("layers", static_cast<std::int64_t>(layers.size()),
                       "run at most " + std::to_string(kMostParts) + " layers or halves of layers");
  check_parts(spans, layers);
  const std::uint64_t moved = moved_bytes;
  if (profiling_)
    for (auto& member : workspace_->members) member.watch.restart(Part::Plan);
  std::deque<Plan> plans;
  for (const AttentionShape& attention : shape_.attentions)
    plans.emplace_back(spans, layers,
                       PlanLimits{shape_.vocab_size, shape_.context_length, shape_.layers(),
                                  attention.window, cache_.pages()});
  std::vector<SpanLineage> lineage;
  if (states_.empty() &&
      std::any_of(spans.begin(), spans.end(), [](const auto& span) { return span.states.given; }))
    throw InvalidInput("states", std::monostate(), "no layer of the model keeps a state");
  if (!states_.empty()) lineage = plan_states(spans, states_);
  Forward forward(*this, *workspace_, plans, lineage, spans, layers, only_best);
  ForwardResult out = forward.run();
  if (profiling_) add_profile();
  if (counting_) add_traffic(plans.front(), moved_bytes - moved, forward.reached());
  return out;
}

}  // namespace paradecode
