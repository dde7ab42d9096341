#include "selftest.hpp"

#include <algorithm>
#include <thread>

#include "errors.hpp"
#include "exact.hpp"
#include "isa.hpp"

namespace paradecode {

namespace {

const std::vector<LayerPart> kHalves = {
    {0, true, false}, {0, false, true}, {1, true, false}, {1, false, true}};
const std::vector<LayerPart> kSome = {{0, false, true}, {1, true, false}};

// Logits of 40 tokens, fed in pieces of `step` rows.
std::vector<float> run(Model& model, int step, bool shuffled,
                       const std::vector<LayerPart>& layers = kAllLayers) {
  std::vector<std::int32_t> pages = {0, 1, 2, 3};
  if (shuffled) pages = {7, 2, 9, 4};
  std::vector<std::int32_t> tokens(40);
  std::vector<std::int32_t> places(40);
  for (int i = 0; i < 40; ++i) {
    tokens[static_cast<std::size_t>(i)] = (i * 37 + 5) % 131;
    places[static_cast<std::size_t>(i)] = i;
  }
  std::vector<float> out;
  for (int at = 0; at < 40; at += step) {
    const int count = std::min(step, 40 - at);
    SpanInput span;
    span.pages = pages.data();
    span.page_count = 4;
    span.tokens = tokens.data() + at;
    span.positions = places.data() + at;
    span.slots = places.data() + at;
    span.rows = count;
    span.context = at;
    span.logits = places.data();
    span.logit_count = count;
    span.hidden = {0};
    const ForwardResult result = model.forward({span}, layers);
    for (int r = 0; r < count; ++r)
      out.insert(out.end(), result.logits->read(r), result.logits->read(r) + 131);
    for (int r = 0; r < count; ++r) {
      const std::int32_t sampled = result.logits->sample(r, {0.8, 20, 0.9, 0.01}, 77);
      require(sampled >= 0 && sampled < 131, "a sampled token is in the vocabulary");
      require(result.logits->sample(r, {0.8, 0, 1, 0}, 77) < 131, "and so without filters");
    }
  }
  return out;
}

// A tree of unstored rows over a cached context with a tail.
void run_tree(Model& model) {
  const std::vector<std::int32_t> pages = {0, 1, 2, 3};
  const std::vector<std::int32_t> tokens = {4, 5, 6};
  const std::vector<std::int32_t> positions = {20, 20, 21};
  const std::vector<std::int32_t> slots = {-1, 50, -1};
  const std::vector<std::int32_t> tail = {33, 21};
  const std::vector<std::int32_t> tail_positions = {19, 18};
  const std::vector<std::uint8_t> mask = {1, 1, 1, 0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1};
  SpanInput span;
  span.pages = pages.data();
  span.page_count = 4;
  span.tokens = tokens.data();
  span.positions = positions.data();
  span.slots = slots.data();
  span.rows = 3;
  span.context = 18;
  span.tail = tail.data();
  span.tail_positions = tail_positions.data();
  span.tail_count = 2;
  span.mask = mask.data();
  span.logits = slots.data() + 1;
  span.logit_count = 0;
  model.forward({span}, kAllLayers);
  bool refused = false;
  span.context = 60;  // slot 50 would be both read and written
  try {
    model.forward({span}, kAllLayers);
  } catch (const InvalidInput& error) {
    refused = error.field == "spans[0].slots";
  }
  require(refused, "a slot that is read may not be written");
  span.context = 18;
  const std::vector<LayerPart> wrong[] = {
      {{0, true, false}, {2, false, true}}, {{-1, true, true}}, std::vector<LayerPart>(1 << 20)};
  for (const auto& layers : wrong) {
    refused = false;
    try {
      model.forward({span}, layers);
    } catch (const InvalidInput& error) {
      refused = error.field == "layers";
    }
    require(refused, "layers that the model does not have, or too many, are refused");
  }
  const std::int64_t from[] = {3, 4};
  const std::int64_t to[] = {4, 100};
  model.copy(from, to, 2);
}

#if defined(PARADECODE_X86)
// A host that rounds up and flushes subnormal numbers gets the same bits, and keeps its state.
void check_float_state() {
  const auto expected = run(*make_model(Format::F32, false, 2), 7, false);
  const auto model = make_model(Format::F32, false, 2);
  constexpr unsigned odd = 0xDFC0;
  _mm_setcsr(odd);
  const auto got = run(*model, 7, false);
  const unsigned after = _mm_getcsr() & ~0x3FU;  // without the flags of what happened
  _mm_setcsr(0x1F80);
  require(got == expected, "the caller's rounding does not matter");
  require(after == odd, "the caller's state is left as it was");
}
#endif

}  // namespace

void check_forward() {
#if defined(PARADECODE_X86)
  check_float_state();
#endif
  for (const Format format : {Format::Q4, Format::Q8, Format::BF16, Format::F16, Format::F32}) {
    std::vector<float> expected;
    const std::vector<std::string> isas = available_isas();
    for (const std::string& isa : isas) {
      use_isa(isa);
      // How threads share the work has nothing to do with the instructions.
      const bool first = isa == isas.front();
      for (const int threads : first ? std::vector{1, 2, 4} : std::vector{2}) {
        const auto model = make_model(format, format != Format::F32, threads);
        if (expected.empty()) expected = run(*model, 1, false);
        require(run(*model, 7, true) == expected, "chunks and pages do not change bits");
        require(run(*model, 40, false) == expected, "nor does one large forward");
        require(run(*model, 7, false, kHalves) == expected, "two halves are a layer");
        const auto some = run(*model, 40, false, kSome);
        require(some != expected, "what is left out is missing");
        require(run(*model, 9, true, kSome) == some, "chunks do not change bits of halves either");
        run_tree(*model);
      }
    }
    // Two models that share a team, each driven by a thread of its own.
    const auto one = make_model(format, format != Format::F32, 2);
    const auto second = make_model(format, format != Format::F32, 2);
    std::thread other([&] { require(run(*second, 3, true) == expected, "callers in parallel"); });
    require(run(*one, 5, false) == expected, "callers in parallel");
    other.join();
  }
  use_isa("");
}

}  // namespace paradecode
