#include "steps.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>

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

std::int64_t length(const StepSequence& sequence) {
  return static_cast<std::int64_t>(sequence.text.size());
}

// Returns whether there is a next step, and whether the page table has room for the largest one.
bool goes_on(const StepSequence& sequence) {
  const std::int64_t most = sequence.lookup == nullptr ? 0 : sequence.lookup->most();
  return sequence.room > 0 && sequence.steps > 0 &&
         length(sequence) + std::min(most, sequence.room - 1) <= sequence.capacity();
}

// The state that drafting changes before a draft is verified.
struct Counters {
  explicit Counters(const StepSequence& sequence)
      : lookup(sequence.lookup.get()),
        refused(lookup == nullptr ? 0 : lookup->state.refused),
        rest(lookup == nullptr ? 0 : lookup->state.rest),
        refused_by_all(lookup == nullptr ? 0 : lookup->learned->refused) {}

  void restore() const {
    if (lookup == nullptr) return;
    lookup->state.refused = refused;
    lookup->state.rest = rest;
    lookup->learned->refused = refused_by_all;
  }

  Lookup* lookup;
  std::int64_t refused;
  std::int64_t rest;
  std::int64_t refused_by_all;
};

class Steps {
 public:
  Steps(Model& model, StepsInput input) : model_(model), in_(std::move(input)) {
    for (int layer = 0; layer < model.shape().layers(); ++layer) layers_.push_back({layer});
    argmax_ = std::all_of(in_.sequences.begin(), in_.sequences.end(), [](const auto* sequence) {
      return sequence->warp.temperature == 0.0 && !sequence->scored;
    });
    scored_ = std::any_of(in_.sequences.begin(), in_.sequences.end(),
                          [](const auto* sequence) { return sequence->scored; });
  }

  std::vector<CommittedStep> run() {
    std::vector<CommittedStep> done;
    const auto can = [](const StepSequence* sequence) { return goes_on(*sequence); };
    while (std::all_of(in_.sequences.begin(), in_.sequences.end(), can) &&
           (done.empty() || clock_.now() < in_.limit)) {
      const std::vector<Counters> before = counters();
      CommittedStep step;
      try {
        draft(step);
        const double begun = clock_.now();
        const ForwardResult result = forward(step);
        step.forward = clock_.now() - begun;
        verify(*result.logits, step);
        keep_hidden(result, step);
      } catch (const std::exception&) {
        for (const Counters& one : before) one.restore();
        break;
      }
      const bool ends = commit(step);
      step.ended = clock_.now();
      done.push_back(std::move(step));
      if (ends) break;
    }
    return done;
  }

 private:
  std::vector<Counters> counters() const {
    std::vector<Counters> out;
    for (const StepSequence* sequence : in_.sequences) out.emplace_back(*sequence);
    return out;
  }

  void draft(CommittedStep& step) {
    const double overhead =
        in_.step_seconds + in_.sequence_seconds * static_cast<double>(in_.spans);
    std::vector<std::int64_t> spare = in_.spare;
    for (std::size_t i = 0; i < in_.sequences.size(); ++i) {
      StepSequence* sequence = in_.sequences[i];
      std::int64_t& left = spare[in_.groups[i]];
      CommittedStep::Part& part = step.parts.emplace_back();
      if (sequence->lookup == nullptr) continue;
      sequence->lookup->read(sequence->text);
      std::optional<StepSeconds> seconds;
      if (in_.curve != nullptr)
        seconds.emplace(*in_.curve, std::max<std::int64_t>(0, in_.rows - sequence->rows),
                        length(*sequence), overhead, in_.draft_seconds);
      part.draft = sequence->lookup->draft(std::min(sequence->room - 1, left),
                                           seconds ? &*seconds : nullptr, in_.spans - 1);
      left -= static_cast<std::int64_t>(part.draft.tokens.size());
    }
  }

  // The rows of each sequence: its last token, and the draft behind it.
  ForwardResult forward(const CommittedStep& step) {
    std::vector<SpanInput> spans(in_.sequences.size());
    std::vector<Tokens> tokens(spans.size());
    std::vector<Tokens> positions(spans.size());
    owners_.clear();
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const StepSequence& sequence = *in_.sequences[i];
      const Tokens& draft = step.parts[i].draft.tokens;
      tokens[i].push_back(sequence.text.back());
      tokens[i].insert(tokens[i].end(), draft.begin(), draft.end());
      positions[i].resize(tokens[i].size());
      std::iota(positions[i].begin(), positions[i].end(),
                static_cast<std::int32_t>(length(sequence) - 1));
      owners_.insert(owners_.end(), tokens[i].size(), i);
      if (tokens[i].size() > rows_.size()) {
        rows_.resize(tokens[i].size());
        std::iota(rows_.begin(), rows_.end(), 0);
      }
    }
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const StepSequence& sequence = *in_.sequences[i];
      SpanInput& span = spans[i];
      span.pages = sequence.pages.data();
      span.page_count = static_cast<std::int64_t>(sequence.pages.size());
      span.windows = sequence.windows.tables();
      span.tokens = tokens[i].data();
      span.positions = span.slots = positions[i].data();
      span.rows = span.logit_count = static_cast<std::int64_t>(tokens[i].size());
      span.context = length(sequence) - 1;
      span.logits = rows_.data();
      span.hidden = sequence.hidden;
      span.states = sequence.states;
      span.states.writes.clear();
      if (next_base(sequence) > sequence.states.base)
        span.states.writes.emplace_back(next_base(sequence), free_state(sequence));
    }
    return model_.forward(spans, layers_, argmax_);
  }

  // The page that begins behind the row of the last token, which is kept in any case.
  static std::int64_t next_base(const StepSequence& sequence) {
    return sequence.states.given ? length(sequence) / kPage : 0;
  }

  static std::int64_t free_state(const StepSequence& sequence) {
    const auto& own = sequence.own_states;
    return *std::find_if(own.begin(), own.end(),
                         [&](std::int64_t slot) { return slot != sequence.states.state; });
  }

  // A row is kept if a token is committed behind it.
  void keep_hidden(const ForwardResult& result, CommittedStep& step) const {
    const auto size = static_cast<std::size_t>(model_.shape().hidden_size);
    auto layer = result.hidden.begin();
    for (std::size_t i = 0; i < step.parts.size(); ++i) {
      CommittedStep::Part& part = step.parts[i];
      const std::size_t width = in_.sequences[i]->hidden.size() * size;
      part.hidden.resize(part.tokens.size() * width);
      for (std::size_t at = 0; at < width; at += size, ++layer)
        for (std::size_t row = 0; row < part.tokens.size(); ++row)
          std::copy_n(layer->data() + row * size, size, part.hidden.data() + row * width + at);
    }
  }

  void verify(const LogitRows& logits, CommittedStep& step) const {
    std::vector<std::size_t> first(step.parts.size());
    for (std::size_t row = owners_.size(); row-- > 0;) first[owners_[row]] = row;
    Tokens best(owners_.size());
    // All greedy rows are checked, because a bad value in any of them ends the request.
    logits.for_each([&](int at) {
      const auto row = static_cast<std::size_t>(at);
      const std::size_t owner = owners_[row];
      const StepSequence& sequence = *in_.sequences[owner];
      if (sequence.warp.temperature == 0.0)
        best[row] = logits.argmax(at);
      else if (row == first[owner])
        accept(step.parts[owner], [&](std::size_t place) {
          const std::uint64_t key =
              noise_key(sequence.seed, static_cast<std::uint64_t>(length(sequence)) + place);
          return logits.sample(at + static_cast<int>(place), sequence.warp, key);
        });
    });
    for (std::size_t i = 0; i < step.parts.size(); ++i)
      if (in_.sequences[i]->warp.temperature == 0.0)
        accept(step.parts[i], [&](std::size_t place) { return best[first[i] + place]; });
    if (scored_) score(logits, first, step);
  }

  // Computes the model's log-probability of each accepted token, before the warp, as
  // NativeLogits.log_probability does.
  void score(const LogitRows& logits, const std::vector<std::size_t>& first,
             CommittedStep& step) const {
    for (std::size_t i = 0; i < step.parts.size(); ++i)
      if (in_.sequences[i]->scored) step.parts[i].logprobs.resize(step.parts[i].tokens.size());
    logits.for_each([&](int at) {
      const auto row = static_cast<std::size_t>(at);
      auto& [draft, tokens, logprobs, hidden] = step.parts[owners_[row]];
      const std::size_t place = row - first[owners_[row]];
      if (place < logprobs.size())
        logprobs[place] = double{logits.value(at, tokens[place])} - logits.log_normalizer(at);
    });
  }

  // Takes the target's tokens, up to the first one that the draft does not have.
  template <class Target>
  static void accept(CommittedStep::Part& part, Target target) {
    const Tokens& draft = part.draft.tokens;
    do {
      part.tokens.push_back(target(part.tokens.size()));
    } while (part.tokens.size() <= draft.size() &&
             draft[part.tokens.size() - 1] == part.tokens.back());
  }

  // Returns whether a sequence has ended.
  bool commit(const CommittedStep& step) {
    bool ends = false;
    for (std::size_t i = 0; i < step.parts.size(); ++i) {
      StepSequence& sequence = *in_.sequences[i];
      const auto& [drafted, tokens, logprobs, hidden] = step.parts[i];
      if (next_base(sequence) > sequence.states.base) {
        const std::int64_t slot = free_state(sequence);
        sequence.states.base = next_base(sequence);
        sequence.states.state = slot;
      }
      if (sequence.lookup != nullptr)
        sequence.lookup->learn(drafted, static_cast<int>(tokens.size()) - 1);
      sequence.text.insert(sequence.text.end(), tokens.begin(), tokens.end());
      sequence.room -= static_cast<std::int64_t>(tokens.size());
      --sequence.steps;
      sequence.rows = 1 + static_cast<std::int64_t>(drafted.tokens.size());
      const Tokens& stops = sequence.stops;
      ends = ends || sequence.room == 0 ||
             std::find_first_of(tokens.begin(), tokens.end(), stops.begin(), stops.end()) !=
                 tokens.end();
    }
    in_.spans = static_cast<std::int64_t>(in_.sequences.size());
    in_.rows = static_cast<std::int64_t>(owners_.size());
    return ends;
  }

  Clock clock_;
  Model& model_;
  StepsInput in_;
  std::vector<LayerPart> layers_;
  bool argmax_;                      // whether only the best token of each row is wanted
  bool scored_;                      // whether log-probabilities are wanted for some sequence
  std::vector<std::size_t> owners_;  // the sequence of each row of the forward
  Tokens rows_;                      // 0, 1, 2, ...
};

}  // namespace

std::int64_t StepSequence::capacity() const {
  std::int64_t out = std::numeric_limits<std::int64_t>::max();
  if (!pages.empty() || windows.held.empty()) out = static_cast<std::int64_t>(pages.size());
  for (const auto& table : windows.tables()) out = std::min(out, table.first + table.count);
  return out * kPage;
}

std::vector<CommittedStep> run_steps(Model& model, StepsInput input) {
  return Steps(model, std::move(input)).run();
}

}  // namespace paradecode
