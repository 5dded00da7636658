// A small team of threads that walk through one function together.
//
// Every member runs the same body; `share` deals out pieces of work and lets nobody on before all are done. A place
// is passed when its pieces are done, not when all members have come to it: a thread that the system has not let
// run yet holds nobody up, and skips what the others did meanwhile. A decoding step has a hundred such places, so
// waiting spins at first; where the cores are busy with something else it soon gives way, and between two runs the
// threads go to sleep.
//
// Where the system gives no more threads, a team goes on with those it has. Memory that runs out in one member's
// piece ends the run for all: the pieces that are left are passed over, and `run` throws when everybody is out.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>
#include <vector>

namespace clearhead {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // "yield" does nothing on most processors; this takes about as long as a pause on x86
#endif
}

class Team {
 public:
  explicit Team(int count) : count_(count < 1 ? 1 : count) { hire(); }

  ~Team() {
    if (getpid() != owner_) {  // after a fork the threads are the parent's: there is nothing to wait for
      for (auto& one : threads_) (void)one.release();
      (void)state_.release();
      return;
    }
    state_->ending.store(true);
    state_->epoch.fetch_add(1);
    {
      std::lock_guard<std::mutex> lock(state_->mutex);
      state_->wake.notify_all();
    }
    for (auto& one : threads_) one->join();
  }

  int count() const { return count_; }

  // Run body(number of the member) on all members and return when all is done. All members must come to the same
  // places with the same numbers of pieces. What they throw can only be want of memory: then std::bad_alloc comes
  // out, and everything that the pieces were to write is undefined.
  template <class Body>
  void run(Body&& body) {
    if (getpid() != owner_) hire();
    if (count_ == 1) return body(0);
    State& s = *state_;
    s.call = [](void* b, int self) { (*static_cast<std::remove_reference_t<Body>*>(b))(self); };
    s.body = &body;
    s.first = uint32_t(s.ticket.load() >> 32);
    s.failed.store(false, std::memory_order_relaxed);
    s.open.store(true);
    s.epoch.fetch_add(1);
    if (s.sleepers.load() > 0) {
      std::lock_guard<std::mutex> lock(s.mutex);
      s.wake.notify_all();
    }
    place() = s.first;
    s.attempt([&] { body(0); });  // who fails between two places leaves; the others need not wait for it
    s.open.store(false);  // who comes now stays outside; who is inside still reads the body
    for (int spins = 0; s.inside.load() > 0; ++spins) wait_a_little(spins);
    if (s.failed.load(std::memory_order_relaxed)) throw std::bad_alloc();
  }

  // As share, for many small pieces: several are taken at a time, since taking costs more than such a piece.
  template <class Piece>
  void each(int pieces, Piece&& piece) {
    const int run = std::max(1, pieces / (4 * count_));
    share((pieces + run - 1) / run, [&](int part) {
      const int end = std::min(pieces, (part + 1) * run);
      for (int i = part * run; i < end; ++i) piece(i);
    });
  }

  // Inside run: piece(i) for each i below `pieces`, each by whoever is free; returns when all are done.
  template <class Piece>
  void share(int pieces, Piece&& piece) {
    if (count_ == 1) {
      for (int i = 0; i < pieces; ++i) piece(i);
      return;
    }
    State& s = *state_;
    const uint32_t here = place()++;
    const uint32_t all = pieces < 1 ? 1 : uint32_t(pieces);
    uint64_t ticket = s.ticket.load(std::memory_order_acquire);
    for (int spins = 0; uint32_t(ticket >> 32) == here;) {
      if (uint32_t(ticket) >= all) {  // everything is taken: wait for the others to finish it
        wait_a_little(spins++);
        ticket = s.ticket.load(std::memory_order_acquire);
      } else if (s.ticket.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) {
        if (pieces > 0) s.attempt([&] { piece(int(uint32_t(ticket))); });
        if (s.done.fetch_add(1, std::memory_order_acq_rel) + 1 == all) {
          s.done.store(0, std::memory_order_relaxed);
          s.ticket.store(uint64_t(here + 1) << 32, std::memory_order_release);
          return;
        }
        ticket = s.ticket.load(std::memory_order_acquire);
      }
    }
  }

 private:
  struct State {
    alignas(64) std::atomic<uint64_t> ticket{0};  // upper half: the place all are at; lower: pieces taken there
    alignas(64) std::atomic<uint32_t> done{0};    // pieces done there
    alignas(64) std::atomic<unsigned> epoch{0};   // counts runs
    std::atomic<int> ready{0};                    // members but the caller that have begun
    std::atomic<int> sleepers{0};
    std::atomic<int> inside{0};                   // members but the caller that may read the body
    std::atomic<bool> open{false};                // a run is under way
    std::atomic<bool> ending{false};
    std::atomic<bool> failed{false};              // memory ran out somewhere in this run
    void (*call)(void*, int) = nullptr;
    void* body = nullptr;
    uint32_t first = 0;                           // the place at which the run begins
    std::mutex mutex;
    std::condition_variable wake;

    // Do some of the work, unless it has become useless. Nothing is thrown: others may still read what the work
    // refers to, and wait for this part of it.
    template <class Work>
    void attempt(Work&& work) {
      if (failed.load(std::memory_order_relaxed)) return;
      try {
        work();
      } catch (...) {
        failed.store(true, std::memory_order_relaxed);
      }
    }
  };

  static constexpr int SPINS = 1500;       // at a meeting point, before giving the core away
  static constexpr int IDLE_SPINS = 3000;  // between two runs, before going to sleep

  // Where the calling thread is in the run that it takes part in.
  static uint32_t& place() {
    static thread_local uint32_t value = 0;
    return value;
  }

  static void wait_a_little(int spins) {
    if (spins < SPINS)
      relax();
    else
      sched_yield();
  }

  // glibc makes a thread's variables of a loaded library when they are first used, and ends the process where there
  // is no memory for them then. So they are used early: the place, and what the C++ library needs for throwing.
  static void be_ready() {
    place() = 0;
    (void)std::current_exception();
  }

  // As many threads as are wanted, or as can be had. Throws, and changes nothing, where not even the state fits.
  void hire() {
    be_ready();
    auto state = std::make_unique<State>();
    std::vector<std::unique_ptr<std::thread>> threads;
    threads.reserve(count_ - 1);
    // From here on nothing is thrown. After a fork the old threads are the parent's, and their state may be locked
    // by one of them: both are left where they are.
    for (auto& one : threads_) (void)one.release();
    threads_.swap(threads);
    (void)state_.release();
    state_ = std::move(state);
    owner_ = getpid();
    try {
      while (int(threads_.size()) < count_ - 1) {
        const int number = int(threads_.size()) + 1;
        threads_.push_back(std::make_unique<std::thread>([this, number] { work(number); }));
      }
    } catch (const std::exception&) {  // no more threads, or no memory for one
    }
    count_ = int(threads_.size()) + 1;
    // A thread that found no memory for its thread-local storage would end the process: let them all have theirs now.
    for (int spins = 0; state_->ready.load() < count_ - 1; ++spins) wait_a_little(spins);
  }

  void work(int self) {
    be_ready();
    State& s = *state_;
    s.ready.fetch_add(1);
    for (unsigned seen = 0;;) {
      for (int spins = 0; s.epoch.load(std::memory_order_acquire) == seen && spins < IDLE_SPINS; ++spins) relax();
      if (s.epoch.load() == seen) {
        std::unique_lock<std::mutex> lock(s.mutex);
        s.sleepers.fetch_add(1);
        s.wake.wait(lock, [&] { return s.epoch.load() != seen; });
        s.sleepers.fetch_sub(1);
      }
      seen = s.epoch.load();
      if (s.ending.load()) return;
      s.inside.fetch_add(1);
      if (s.open.load()) {
        place() = s.first;
        s.attempt([&] { s.call(s.body, self); });
      }
      s.inside.fetch_sub(1);
    }
  }

  int count_;
  pid_t owner_ = 0;
  std::unique_ptr<State> state_;
  std::vector<std::unique_ptr<std::thread>> threads_;
};

}  // namespace clearhead
