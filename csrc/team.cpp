#include "team.hpp"

#if defined(_WIN32)
#include <process.h>
#else
#include <unistd.h>
#endif

#include <chrono>
#include <exception>
#include <map>
#include <string>
#include <utility>

#include "errors.hpp"
#include "exact.hpp"
#include "traffic.hpp"

namespace paradecode {
namespace {

void relax() {
#if defined(PARADECODE_X86)
  _mm_pause();
#elif defined(PARADECODE_NEON)
  asm volatile("yield");
#endif
}

int process_id() {
#if defined(_WIN32)
  return _getpid();
#else
  return getpid();
#endif
}

using Clock = std::chrono::steady_clock;
constexpr auto kSpin = std::chrono::microseconds(60);
// While a job runs, another member is a little behind, or another process uses its core.
constexpr auto kWithinJob = std::chrono::microseconds(1500);
// Between two jobs Python runs for up to some milliseconds. A core of a virtual machine that sleeps
// in that time may wake only milliseconds later.
constexpr auto kBetweenJobs = std::chrono::milliseconds(20);

// Spins, then yields the core, and after a while returns that the caller should sleep.
class Patience {
 public:
  explicit Patience(Clock::duration longest) : longest_(longest) {}

  bool exhausted() {
    if (++steps_ < 64) {
      relax();
      return false;
    }
    const auto now = Clock::now();
    if (steps_ == 64) begin_ = now;
    if (now - begin_ < kSpin) {
      for (int i = 0; i < 16; ++i) relax();
      return false;
    }
    if (now - begin_ < longest_) {
      std::this_thread::yield();
      return false;
    }
    return true;
  }

 private:
  const Clock::duration longest_;
  int steps_ = 0;
  Clock::time_point begin_;
};

void doze() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

int share_begin(int chunks, int threads, int member) { return chunks * member / threads; }

}  // namespace

int Member::claim(int phase, int chunks, int& victim) {
  if (phase >= team_.capacity_) std::terminate();  // the job announced too few phases
  const int threads = team_.threads_;
  for (; victim < threads; ++victim) {
    const int owner = (index_ + victim) % threads;
    const int begin = share_begin(chunks, threads, owner);
    const int size = share_begin(chunks, threads, owner + 1) - begin;
    auto& counter = team_.counter(phase, owner).value;
    if (counter.load(std::memory_order_relaxed) >= size) continue;
    const int taken = counter.fetch_add(1, std::memory_order_relaxed);
    if (taken < size) return begin + taken;
  }
  return -1;
}

void Member::finish(int phase, int chunks, int done) {
  auto& counter = team_.counter(phase, team_.threads_).value;
  int total = done == 0 ? counter.load(std::memory_order_acquire)
                        : counter.fetch_add(done, std::memory_order_acq_rel) + done;
  Patience patience(kWithinJob);
  while (total < chunks) {
    if (patience.exhausted()) doze();
    total = counter.load(std::memory_order_acquire);
  }
}

std::shared_ptr<Team> Team::of(int threads, bool apart) {
  // A forked child does not have the threads, and the condition variable would wait for them.
  const auto make = [threads] {
    return std::shared_ptr<Team>(new Team(threads), [](Team* old) {
      if (old->in_own_process()) delete old;
    });
  };
  if (apart) return make();
  static std::mutex mutex;
  static std::map<std::pair<int, int>, std::weak_ptr<Team>> teams;
  const std::lock_guard lock(mutex);
  auto& slot = teams[{process_id(), threads}];
  auto team = slot.lock();
  if (team == nullptr) slot = team = make();
  return team;
}

Team::Team(int threads) : threads_(threads), process_(process_id()) {
  try {
    for (int index = 1; index < threads; ++index)
      workers_.emplace_back([this, index] { serve(index); });
  } catch (const std::exception&) {  // The system has no more threads, or no memory for one.
    const auto begun = std::to_string(workers_.size() + 1);
    stop();
    throw BackendError("of " + std::to_string(threads) + " threads only " + begun +
                       " could be started; use fewer");
  }
}

Team::~Team() { stop(); }

void Team::stop() {
  {
    const std::lock_guard lock(sleep_mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

bool Team::in_own_process() const { return process_id() == process_; }

void Team::check_process() const {
  if (!in_own_process())
    throw BackendError(
        "this backend was made before the process forked, and its threads stayed in the parent; "
        "make a new backend in the child");
}

bool Team::enter() {
  std::uint32_t gate = gate_.load(std::memory_order_relaxed);
  while ((gate & kOpen) != 0)
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire)) return true;
  return false;
}

void Team::serve(int index) {
  const FloatState state;
  std::uint32_t seen = 0;
  while (true) {
    Patience patience(kBetweenJobs);
    while (ticket_.load(std::memory_order_acquire) == seen) {
      if (stop_.load(std::memory_order_relaxed)) return;
      if (!patience.exhausted()) continue;
      std::unique_lock lock(sleep_mutex_);
      sleeping_.fetch_add(1);
      wake_.wait(lock, [&] { return ticket_.load() != seen || stop_.load(); });
      sleeping_.fetch_sub(1);
    }
    seen = ticket_.load(std::memory_order_acquire);
    if (!enter()) continue;
    moved_bytes = 0;
    work(index);
    moved_.fetch_add(moved_bytes, std::memory_order_relaxed);
    gate_.fetch_sub(1, std::memory_order_release);
  }
}

void Team::work(int index) {
  Member member(*this, index);
  try {
    job_(context_, member);
  } catch (const Abandoned&) {  // Another member failed.
  } catch (...) {
    fail(std::current_exception());
  }
}

void Team::fail(std::exception_ptr error) {
  const std::lock_guard lock(error_mutex_);
  if (error_ == nullptr) error_ = std::move(error);
  failed_.store(true, std::memory_order_release);
}

void Team::run(int phases, void (*job)(void*, Member&), void* context) {
  check_process();
  const std::lock_guard lock(one_job_);
  run_locked(phases, job, context);
}

bool Team::run_if_free(int phases, void (*job)(void*, Member&), void* context) {
  if (!in_own_process()) return false;
  const std::unique_lock lock(one_job_, std::try_to_lock);
  if (lock.owns_lock()) run_locked(phases, job, context);
  return lock.owns_lock();
}

void Team::run_locked(int phases, void (*job)(void*, Member&), void* context) {
  const FloatState state;
  if (threads_ == 1) {
    Member alone(*this, 0);
    job(context, alone);
    return;
  }
  if (phases > capacity_) {
    counters_ = std::make_unique<Counter[]>(static_cast<std::size_t>(phases) *
                                            static_cast<std::size_t>(threads_ + 1));
    capacity_ = phases;
  }
  for (int i = 0; i < phases * (threads_ + 1); ++i)
    counters_[static_cast<std::size_t>(i)].value.store(0, std::memory_order_relaxed);
  job_ = job;
  context_ = context;
  failed_.store(false, std::memory_order_relaxed);
  gate_.store(kOpen, std::memory_order_release);
  ticket_.fetch_add(1);
  if (sleeping_.load() > 0) {
    const std::lock_guard sleep_lock(sleep_mutex_);
    wake_.notify_all();
  }
  work(0);
  gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
  Patience patience(kWithinJob);
  while (gate_.load(std::memory_order_acquire) != 0)
    if (patience.exhausted()) doze();
  count_bytes(moved_.exchange(0, std::memory_order_relaxed));
  if (failed_.load(std::memory_order_acquire))
    std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace paradecode
