#include "head_pass.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "errors.hpp"

namespace paradecode {

HeadRuns::HeadRuns(HeadNetworks given, int threads)
    : networks(std::move(given)),
      team(Team::of(threads)),
      scores(static_cast<std::size_t>(threads)) {
  networks.check();
  const auto run_of = [&](const std::shared_ptr<const Network>& network) {
    return std::make_unique<NetworkRun>(*network, threads);
  };
  enter = run_of(networks.enter);
  if (networks.back != nullptr) back = run_of(networks.back);
  for (const HeadBlock& block : networks.blocks) {
    before.push_back(run_of(block.before));
    after.push_back(run_of(block.after));
  }
  for (const auto& out : networks.outs) outs.push_back(run_of(out));
}

HeadPass::HeadPass(HeadRuns& runs, const std::vector<HeadInput>& inputs,
                   const std::vector<HeadRow>& rows, const std::vector<HeadSpan>& spans,
                   NetworkRun* first)
    : runs_(runs),
      nets_(runs.networks),
      kernels_(nets_.enter->kernels()),
      inputs_(inputs),
      rows_(rows),
      spans_(spans),
      first_(first) {
  std::vector<std::size_t> every(rows.size());
  std::iota(every.begin(), every.end(), std::size_t{0});
  std::vector<std::size_t> asked;
  std::size_t deepest = 0;
  for (const std::size_t k : every) {
    if (rows[k].level < 0) continue;
    asked.push_back(k);
    deepest = std::max(deepest, static_cast<std::size_t>(inputs[rows[k].input].limits.depth));
  }
  all_ = list(std::move(every));
  asked_ = list(std::move(asked));
  const auto listed = static_cast<int>(asked_.rows.size());
  if (first != nullptr) first->begin(static_cast<int>(rows.size()));
  for (std::size_t b = 0; b < nets_.blocks.size(); ++b) {
    runs.before[b]->begin(static_cast<int>(rows.size()));
    runs.after[b]->begin(static_cast<int>(queries(b).rows.size()));
  }
  std::size_t outs = listed == 0 ? 0 : nets_.outs.size();
  if (outs > 1) outs = std::min(outs, deepest);
  for (std::size_t o = 0; o < outs; ++o) {
    const int vocabulary = nets_.outs[o]->widths().back();
    logits_.push_back(
        std::make_shared<LogitRows>(runs.logit_store, kernels_, nullptr, listed, vocabulary));
    runs.outs[o]->begin(listed);
    runs.outs[o]->write_to(logits_[o]->writable(0), LogitRows::stride_for(vocabulary));
  }
  made_.resize(asked_.rows.size() * nets_.outs.size());
}

HeadPass::Queries HeadPass::list(std::vector<std::size_t> rows) const {
  Queries out;
  std::size_t at = 0;
  for (std::size_t s = 0; s < spans_.size(); ++s) {
    out.begins.push_back(at);
    const std::size_t begin = at;
    while (at < rows.size() && rows[at] < spans_[s].first + spans_[s].rows) ++at;
    if (nets_.blocks.empty()) continue;
    const HeadBlock& block = nets_.blocks[0];
    const int count = static_cast<int>(at - begin) * (block.heads / block.kv_heads);
    for (int kv = 0; kv < block.kv_heads; ++kv)
      for (int q = 0; q < count; q += kMaxQueries)
        out.tiles.push_back({s, kv, q, std::min(kMaxQueries, count - q)});
  }
  out.rows = std::move(rows);
  return out;
}

void HeadPass::run(HeadGuesses& out) {
  runs_.team->run(
      phases(), [](void* self, Member& member) { static_cast<HeadPass*>(self)->work(member); },
      this);
  const auto width = static_cast<std::size_t>(nets_.width);
  for (std::size_t i = 0; i < asked_.rows.size(); ++i) {
    const float* state = state_of(nets_.blocks.size(), i);
    out.states.insert(out.states.end(), state, state + width);
    for (std::size_t o = 0; o < nets_.outs.size(); ++o) {
      std::vector<Ranked>& made = made_[i * nets_.outs.size() + o];
      if (made.empty() && ranks(i, o))
        throw BackendError("the head returned logits that are NaN or infinite");
      out.ranked.push_back(std::move(made));
    }
  }
}

bool HeadPass::ranks(std::size_t i, std::size_t out) const {
  const HeadRow& row = rows_[asked_.rows[i]];
  return row.level + static_cast<int>(out) < inputs_[row.input].limits.depth;
}

const float* HeadPass::state_of(std::size_t block, std::size_t i) {
  if (block > 0) return runs_.after[block - 1]->result(static_cast<int>(i));
  const std::size_t row = nets_.blocks.empty() ? asked_.rows[i] : i;
  return first_ == nullptr ? rows_[row].from : first_->result(static_cast<int>(row));
}

int HeadPass::phases() const {
  int out = 1;
  for (const auto* runs : {&runs_.before, &runs_.after, &runs_.outs})
    for (const auto& run : *runs) out += run->phases() + 1;
  return out + (first_ == nullptr ? 0 : first_->phases());
}

void HeadPass::work(Member& member) {
  if (first_ != nullptr)
    first_->work(member, [&](int row) {
      const int width = first_ == runs_.enter.get() ? nets_.features() : nets_.width;
      std::copy_n(rows_[static_cast<std::size_t>(row)].from, width, first_->input(0, row));
    });
  for (std::size_t b = 0; b < nets_.blocks.size(); ++b) mix(member, b);
  for (std::size_t o = 0; o < logits_.size(); ++o)
    runs_.outs[o]->work(member, [&](int i) {
      std::copy_n(state_of(nets_.blocks.size(), static_cast<std::size_t>(i)), nets_.width,
                  runs_.outs[o]->input(0, i));
    });
  const std::size_t asked = asked_.rows.size();
  member.phase(static_cast<int>(asked * logits_.size()), [&](int chunk) {
    const auto at = static_cast<std::size_t>(chunk);
    rank(at / asked, at % asked);
  });
}

void HeadPass::mix(Member& member, std::size_t b) {
  const HeadBlock& block = nets_.blocks[b];
  NetworkRun& before = *runs_.before[b];
  NetworkRun& after = *runs_.after[b];
  before.work(member, [&](int row) {
    const auto k = static_cast<std::size_t>(row);
    std::copy_n(state_of(b, k), nets_.width, before.input(0, row));
    if (b == 0) before.ids(1)[k] = rows_[k].token;
  });
  member.phase(static_cast<int>(rows_.size()), [&](int row) { turn(b, row); });
  const Queries& asks = queries(b);
  member.phase(static_cast<int>(asks.tiles.size()), [&](int chunk) {
    attend(b, asks.tiles[static_cast<std::size_t>(chunk)],
           runs_.scores[static_cast<std::size_t>(member.index())]);
  });
  const int rest = (block.heads + 2 * block.kv_heads) * block.size;
  after.work(member, [&](int i) {
    const auto row = static_cast<int>(asks.rows[static_cast<std::size_t>(i)]);
    std::copy_n(before.result(row) + rest, nets_.after_rest(b), after.input(1, i));
  });
}

void HeadPass::rank(std::size_t out, std::size_t i) {
  LogitRows& logits = *logits_[out];
  const auto row = static_cast<int>(i);
  float* values = logits.writable(row);
  std::fill(values + logits.vocab_size(), values + LogitRows::stride_for(logits.vocab_size()),
            -INFINITY);
  const HeadRow& asks = rows_[asked_.rows[i]];
  if (ranks(i, out))
    made_[i * nets_.outs.size() + out] =
        ranked(logits, row, inputs_[asks.input].limits, static_cast<std::size_t>(asks.level) + out,
               nets_.to_target);
}

}  // namespace paradecode
