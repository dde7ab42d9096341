#include "steps.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "exact.hpp"

namespace paradecode {
namespace {

// noise.mix and noise.key, of Purpose.TOKEN.
std::uint64_t mix(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15ULL;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

std::uint64_t noise_key(std::uint64_t seed, std::uint64_t position) {
  return mix(mix(mix(seed) ^ position));
}

class Clock {
 public:
  double now() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
  }

 private:
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

class Steps {
 public:
  Steps(Model& model, Lookup* lookup, StepsInput input)
      : model_(model), lookup_(lookup), input_(std::move(input)) {
    for (int layer = 0; layer < model.shape().layers; ++layer) layers_.push_back({layer});
  }

  std::vector<CommittedStep> run() {
    std::vector<CommittedStep> done;
    while (input_.room > 0 && fits() && (done.empty() || clock_.now() < input_.limit)) {
      const LookupState before = lookup_ == nullptr ? LookupState{} : lookup_->state;
      try {
        done.push_back(step());
      } catch (const std::exception&) {
        if (lookup_ != nullptr) lookup_->state = before;
        break;
      }
      const Tokens& tokens = done.back().tokens;
      input_.text.insert(input_.text.end(), tokens.begin(), tokens.end());
      input_.room -= static_cast<std::int64_t>(tokens.size());
      const auto& stops = input_.stops;
      if (std::find_first_of(tokens.begin(), tokens.end(), stops.begin(), stops.end()) !=
          tokens.end())
        break;
    }
    return done;
  }

 private:
  std::int64_t length() const { return static_cast<std::int64_t>(input_.text.size()); }
  std::int64_t most() const { return lookup_ == nullptr ? 0 : lookup_->most(); }

  // Whether the page table holds the largest next step, and its times are known.
  bool fits() const {
    const std::int64_t draft = std::min(most(), input_.room - 1);
    const auto capacity = static_cast<std::int64_t>(input_.pages.size()) * kPage;
    const auto lines = static_cast<std::int64_t>(input_.seconds.size()) / (1 + most());
    return length() + draft <= capacity &&
           (lines == 0 || length() / kContextStep - input_.first_context < lines);
  }

  StepSeconds seconds() const {
    if (input_.seconds.empty()) return nullptr;
    return input_.seconds.data() + (length() / kContextStep - input_.first_context) * (1 + most());
  }

  CommittedStep step() {
    CommittedStep out;
    if (lookup_ != nullptr) {
      lookup_->read(input_.text);
      out.draft = lookup_->draft(input_.room - 1, seconds());
    }
    const double begun = clock_.now();
    const auto logits = forward(out.draft.tokens);
    out.forward = clock_.now() - begun;
    verify(*logits, out);
    if (lookup_ != nullptr) lookup_->learn(out.draft, static_cast<int>(out.tokens.size()) - 1);
    out.ended = clock_.now();
    return out;
  }

  // The last token, and the draft behind it.
  std::shared_ptr<LogitRows> forward(const Tokens& draft) {
    Tokens tokens{input_.text.back()};
    tokens.insert(tokens.end(), draft.begin(), draft.end());
    Tokens positions(tokens.size());
    std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(length() - 1));
    Tokens rows(tokens.size());
    std::iota(rows.begin(), rows.end(), 0);
    const auto count = static_cast<std::int64_t>(tokens.size());
    std::vector<SpanInput> spans(1);
    SpanInput& span = spans.front();
    span.pages = input_.pages.data();
    span.page_count = static_cast<std::int64_t>(input_.pages.size());
    span.tokens = tokens.data();
    span.positions = span.slots = positions.data();
    span.rows = span.logit_count = count;
    span.context = length() - 1;
    span.logits = rows.data();
    return model_.forward(spans, layers_).logits;
  }

  void verify(const LogitRows& logits, CommittedStep& out) const {
    const FloatState state;  // sampling must not depend on the host's rounding
    const Tokens& draft = out.draft.tokens;
    const bool greedy = input_.warp.temperature == 0.0;
    Tokens best(draft.size() + 1);
    // Of all rows, because a bad value in any of them ends the request.
    if (greedy)
      logits.for_each([&](int row) { best[static_cast<std::size_t>(row)] = logits.argmax(row); });
    for (std::size_t row = 0; row <= draft.size(); ++row) {
      const auto position = static_cast<std::uint64_t>(length()) + row;
      const std::int32_t token = greedy ? best[row]
                                        : logits.sample(static_cast<int>(row), input_.warp,
                                                        noise_key(input_.seed, position));
      out.tokens.push_back(token);
      if (row == draft.size() || draft[row] != token) break;
    }
  }

  Clock clock_;
  Model& model_;
  Lookup* lookup_;
  StepsInput input_;
  std::vector<LayerPart> layers_;
};

}  // namespace

std::vector<CommittedStep> run_steps(Model& model, Lookup* lookup, StepsInput input) {
  return Steps(model, lookup, std::move(input)).run();
}

}  // namespace paradecode
