#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "selftest.hpp"
#include "team.hpp"

namespace paradecode {
namespace {

constexpr int kChunks = 64;
constexpr int kPhases = 4;

// Each phase reads what the one before it made; the chunk `bad` of the second one throws.
struct Job {
  int bad = -1;
  bool in_prepare = false;
  std::vector<int> made = std::vector<int>(kChunks);
  std::atomic<int> behind{0};  // chunks of phases behind the one that fails
};

void work(void* context, Member& member) {
  auto& job = *static_cast<Job*>(context);
  for (int phase = 0; phase < kPhases; ++phase)
    member.phase(
        kChunks,
        [&] {
          if (phase == 1 && job.in_prepare) throw std::runtime_error("prepare");
        },
        [&](int chunk) {
          if (phase == 1 && chunk == job.bad) throw std::runtime_error("chunk");
          if (phase > 1) ++job.behind;
          ++job.made[static_cast<std::size_t>(chunk)];
        });
}

std::string thrown_by(Team& team, Job& job) {
  try {
    team.run(kPhases, work, &job);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

// What a member throws ends the job for all of them, and reaches the caller; the next one runs.
void check_team() {
  for (const int threads : {1, 2, 4}) {
    Team team(threads);
    for (int turn = 0; turn < 200; ++turn) {
      Job sound;
      require(thrown_by(team, sound).empty(), "a job without errors");
      for (const int made : sound.made) require(made == kPhases, "every chunk runs once a phase");
      Job failing;
      failing.bad = turn % kChunks;
      require(thrown_by(team, failing) == "chunk", "what a chunk threw");
      require(failing.behind == 0, "no phase follows one that failed");
      Job unprepared;
      unprepared.in_prepare = true;
      require(thrown_by(team, unprepared) == "prepare", "what a preparation threw");
    }
  }
}

}  // namespace paradecode
