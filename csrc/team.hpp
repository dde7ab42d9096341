// Threads that run one job together.
//
// A job is a function that every member runs from start to end. It consists of phases; a phase
// has chunks, each member starts with a share of its own and then takes what the others have not
// begun, and a phase ends when all its chunks are done. Nobody waits for a member that has not
// started, so a thread that the system keeps off its core (a busy neighbour) costs its share of
// the speed and no more. If a member throws, all leave the job at the end of that phase, and the
// caller gets what was thrown first.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "profile.hpp"

namespace paradecode {

// Of a team.
inline constexpr int kMostThreads = 1024;

class Team;

// Thrown in the members of a job of which another one failed.
struct Abandoned {};

// A member's view of the job in progress.
class Member {
 public:
  Member(Team& team, int index) : team_(team), index_(index) {}

  int index() const { return index_; }
  // From now on the member's time is taken.
  void watch(Stopwatch& watch) { watch_ = &watch; }
  // The part of the forward that follows; returns the one before. Nothing where no time is taken.
  Part enter(Part part) { return watch_ == nullptr ? part : watch_->enter(part); }

  // Runs work(chunk) for chunks 0 .. chunks - 1, shared with the other members, and returns when
  // all are done. `prepare` runs once in each member that gets a chunk, before its first. The time
  // at the end belongs to Part::Waiting.
  template <class Prepare, class Work>
  void phase(int chunks, Prepare prepare, Work work);
  template <class Work>
  void phase(int chunks, Work work) {
    phase(chunks, [] {}, work);
  }

 private:
  int claim(int phase, int chunks, int& victim);
  void finish(int phase, int chunks, int done);

  Team& team_;
  int index_;
  int next_phase_ = 0;
  Stopwatch* watch_ = nullptr;
};

class Team {
 public:
  // The team of this many threads in this process, created when nobody holds it; or one `apart`,
  // whose jobs run beside those of others.
  static std::shared_ptr<Team> of(int threads, bool apart = false);

  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return threads_; }
  bool in_own_process() const;
  // Throws BackendError in a process that was forked after the team was made.
  void check_process() const;
  // Runs job(context, member) in the caller and in whichever threads come in time. One job at a
  // time; callers queue. `phases` is an upper bound of the job's phases.
  void run(int phases, void (*job)(void*, Member&), void* context);
  // The same, or false at once if another job is running or the process was forked.
  bool run_if_free(int phases, void (*job)(void*, Member&), void* context);

 private:
  friend class Member;
  struct alignas(64) Counter {
    std::atomic<int> value{0};
  };
  static constexpr std::uint32_t kOpen = 1U << 31;

  Counter& counter(int phase, int member) {
    return counters_[static_cast<std::size_t>(phase) * static_cast<std::size_t>(threads_ + 1) +
                     static_cast<std::size_t>(member)];
  }
  void serve(int index);
  void stop();
  bool enter();
  // A member's part of the job.
  void work(int index);
  // Notes what a member threw; the first counts.
  void fail(std::exception_ptr error);
  void run_locked(int phases, void (*job)(void*, Member&), void* context);

  const int threads_;
  const int process_;
  std::mutex one_job_;
  std::vector<std::thread> workers_;

  std::unique_ptr<Counter[]> counters_;  // phases x (a share per member, then the chunks done)
  int capacity_ = 0;
  void (*job_)(void*, Member&) = nullptr;
  void* context_ = nullptr;
  std::atomic<bool> failed_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::atomic<std::uint64_t> moved_{0};  // bytes, by the workers in this job

  alignas(64) std::atomic<std::uint32_t> gate_{0};    // kOpen, and how many workers are inside
  alignas(64) std::atomic<std::uint32_t> ticket_{0};  // counts jobs
  std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
};

template <class Prepare, class Work>
void Member::phase(int chunks, Prepare prepare, Work work) {
  if (team_.size() == 1) {
    if (chunks > 0) prepare();
    for (int chunk = 0; chunk < chunks; ++chunk) work(chunk);
    return;
  }
  const int phase = next_phase_++;
  int victim = 0;
  int done = 0;
  for (int chunk; (chunk = claim(phase, chunks, victim)) >= 0; ++done) {
    if (team_.failed_.load(std::memory_order_relaxed)) continue;
    try {
      if (done == 0) prepare();
      work(chunk);
    } catch (...) {  // The chunk counts as done, or others would wait for it.
      team_.fail(std::current_exception());
    }
  }
  enter(Part::Waiting);
  finish(phase, chunks, done);
  if (team_.failed_.load(std::memory_order_acquire)) throw Abandoned();
}

}  // namespace paradecode
