#include "machine.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "errors.hpp"
#include "isa.hpp"
#include "memory.hpp"
#include "team.hpp"

namespace paradecode {
namespace {

constexpr int kRounds = 6;
constexpr int kPasses = 4;
constexpr std::int64_t kPiece = std::int64_t{512} << 10;
constexpr std::int64_t kSteps = 200'000;

struct Job {
  const Kernels& kernels;
  const std::uint8_t* data;
  int pieces;
  std::atomic<std::int32_t> sink{0};
};

// Returns the seconds of a pass over all pieces, in the best of some rounds.
double best_pass(Job& job, int threads, void (*work)(void*, Member&)) {
  double best = 1e9;
  const auto team = Team::of(threads);
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    team->run(kPasses, work, &job);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    best = std::min(best, time.count() / kPasses);
  }
  return best;
}

template <class Piece>
void passes(Job& job, Member& member, Piece piece) {
  for (int pass = 0; pass < kPasses; ++pass)
    member.phase(job.pieces,
                 [&](int index) { job.sink.fetch_add(piece(index), std::memory_order_relaxed); });
}

}  // namespace

double read_bandwidth(std::int64_t bytes, int threads) {
  expect_range("bytes", bytes, 1, std::int64_t{1} << 40);
  expect_range("threads", threads, 1, kMostThreads);
  const std::int64_t pieces = std::max<std::int64_t>(1, bytes / kPiece);
  const Mapping memory(static_cast<std::size_t>(pieces * kPiece));
  std::memset(memory.data(), 1, static_cast<std::size_t>(pieces * kPiece));
  Job job{*choose_isa().kernels, memory.data(), static_cast<int>(pieces)};
  const double seconds = best_pass(job, threads, [](void* context, Member& member) {
    auto& read = *static_cast<Job*>(context);
    passes(read, member,
           [&](int index) { return read.kernels.read_all(read.data + index * kPiece, kPiece); });
  });
  return static_cast<double>(pieces * kPiece) / seconds;
}

double dot_peak(int threads) {
  expect_range("threads", threads, 1, kMostThreads);
  Job job{*choose_isa().kernels, nullptr, 8 * threads};
  const double seconds = best_pass(job, threads, [](void* context, Member& member) {
    auto& dots = *static_cast<Job*>(context);
    passes(dots, member, [&](int) { return dots.kernels.multiply(kSteps); });
  });
  return static_cast<double>(job.pieces * kSteps * job.kernels.products_a_step) / seconds;
}

double float_peak(int threads) {
  expect_range("threads", threads, 1, kMostThreads);
  Job job{*choose_isa().kernels, nullptr, 8 * threads};
  const double seconds = best_pass(job, threads, [](void* context, Member& member) {
    auto& floats = *static_cast<Job*>(context);
    passes(floats, member, [&](int) { return floats.kernels.multiply_floats(kSteps); });
  });
  return static_cast<double>(job.pieces * kSteps * job.kernels.float_products_a_step) / seconds;
}

}  // namespace paradecode
