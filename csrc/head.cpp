#include "head.hpp"

#include "errors.hpp"
#include "exact.hpp"
#include "head_levels.hpp"

namespace paradecode {

DraftHead::DraftHead(HeadNetworks networks, int threads) : runs_(std::move(networks), threads) {}

std::pair<std::size_t, std::size_t> DraftHead::bytes() const {
  const HeadNetworks& networks = runs_.networks;
  std::size_t level = networks.back == nullptr ? 0 : networks.back->matrix_bytes();
  for (const HeadBlock& block : networks.blocks)
    level += block.before->matrix_bytes() + block.after->matrix_bytes();
  for (const auto& out : networks.outs) level += out->matrix_bytes();
  return {level, networks.enter->matrix_bytes()};
}

std::pair<std::vector<DraftTree>, int> DraftHead::draft(const std::vector<HeadInput>& inputs) {
  const FloatState state;
  runs_.team->check_process();
  const std::lock_guard lock(busy_);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].memory == nullptr || inputs[i].memory->maker != runs_.logit_store)
      throw InvalidInput("memory", static_cast<std::int64_t>(i), "give one that this head made");
    inputs[i].check(runs_.networks);
    for (std::size_t j = 0; j < i; ++j)
      if (inputs[j].memory == inputs[i].memory)
        throw InvalidInput("memory", static_cast<std::int64_t>(i), "give each request its own");
  }
  return HeadLevels(runs_, inputs).draft();
}

}  // namespace paradecode
