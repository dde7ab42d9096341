// Threads that run one job together.
//
// A job is a function that every member runs from start to end. It consists of phases, and a phase
// has chunks. Each member starts with its own share of the chunks, and then takes chunks that
// others have not begun. A phase ends when all its chunks are done. No member waits for one that
// has not started, so a thread that the system keeps off its core costs only its share of the
// speed. If a member throws, all members leave the job at the end of that phase, and the caller
// gets the first error.
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

// The settings of a team.
inline constexpr int kMostThreads = 1024;

class Team;

// Thrown in the members of a job if another member failed.
struct Abandoned {};

// A member's view of the job in progress.
class Member {
 public:
  Member(Team& team, int index) : team_(team), index_(index) {}

  int index() const { return index_; }
  // Starts to measure the member's time.
  void watch(Stopwatch& watch) { watch_ = &watch; }
  // Names the part of the forward that follows, and returns the one before. Does nothing if no time
  // is measured.
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
  // Returns the team of this many threads in this process; it is made if nobody holds one. A team
  // that is `apart` is separate, so that its jobs run beside those of others.
  static std::shared_ptr<Team> of(int threads, bool apart = false);

  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return threads_; }
  bool in_own_process() const;
  // Throws BackendError in a process that was forked after the team was made.
  void check_process() const;
  // Runs job(context, member) in the caller and in all threads that start in time. One job runs at
  // a time, and callers queue. `phases` is an upper bound of the job's phases.
  void run(int phases, void (*job)(void*, Member&), void* context);
  // Does the same, or returns false at once if another job is running or the process was forked.
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
  // Runs a member's part of the job.
  void work(int index);
  // Records the error that a member threw; the first one counts.
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
    } catch (...) {  // The chunk counts as done, because the others would wait for it.
      team_.fail(std::current_exception());
    }
  }
  enter(Part::Waiting);
  finish(phase, chunks, done);
  if (team_.failed_.load(std::memory_order_acquire)) throw Abandoned();
}

}  // namespace paradecode
