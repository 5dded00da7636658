// A small team of threads that walk through one function together.
//
// Every member runs the same body; `share` deals out pieces of work and lets nobody on before all are done.
// A decoding step has a hundred such places, so waiting spins at first; where the cores are busy with something
// else it soon gives way, and between two runs the threads go to sleep.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace clearhead {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Team {
 public:
  explicit Team(int count) : count_(count < 1 ? 1 : count), owner_(getpid()) { hire(); }

  ~Team() {
    if (getpid() != owner_) {  // after a fork the threads are the parent's: there is nothing to wait for
      for (auto& one : threads_) one.release();
      (void)state_.release();
      return;
    }
    dismiss();
  }

  int count() const { return count_; }

  // Run body(team) on all members and return when all are done.
  template <class Body>
  void run(Body&& body) {
    if (getpid() != owner_) hire_again();
    State& s = *state_;
    auto call = [](void* b) { (*static_cast<std::remove_reference_t<Body>*>(b))(); };
    s.call = call;
    s.body = &body;
    s.epoch.fetch_add(1);
    if (s.sleepers.load() > 0) {
      std::lock_guard<std::mutex> lock(s.mutex);
      s.wake.notify_all();
    }
    body();
    barrier();
  }

  // Inside run: piece(i) for each i below `pieces`, each by whoever is free; returns when all are done.
  template <class Piece>
  void share(int pieces, Piece&& piece) {
    State& s = *state_;
    if (count_ == 1) {
      for (int i = 0; i < pieces; ++i) piece(i);
      return;
    }
    for (int i; (i = s.next.fetch_add(1, std::memory_order_relaxed)) < pieces;) piece(i);
    barrier();
  }

 private:
  struct State {
    alignas(64) std::atomic<int> next{0};
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<unsigned> generation{0};
    alignas(64) std::atomic<unsigned> epoch{0};
    std::atomic<int> sleepers{0};
    std::atomic<bool> ending{false};
    void (*call)(void*) = nullptr;
    void* body = nullptr;
    std::mutex mutex;
    std::condition_variable wake;
  };

  static constexpr int SPINS = 1500;       // at a meeting point, before giving the core away
  static constexpr int IDLE_SPINS = 3000;  // between two runs, before going to sleep

  void barrier() {
    if (count_ == 1) return;
    State& s = *state_;
    const unsigned now = s.generation.load(std::memory_order_acquire);
    if (s.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
      s.arrived.store(0, std::memory_order_relaxed);
      s.next.store(0, std::memory_order_relaxed);
      s.generation.store(now + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; s.generation.load(std::memory_order_acquire) == now; ++spins) {
      if (spins < SPINS)
        relax();
      else
        sched_yield();
    }
  }

  void hire() {
    state_ = std::make_unique<State>();
    for (int i = 1; i < count_; ++i) threads_.push_back(std::make_unique<std::thread>([this] { work(); }));
  }

  void hire_again() {
    for (auto& one : threads_) one.release();
    threads_.clear();
    (void)state_.release();
    owner_ = getpid();
    hire();
  }

  void dismiss() {
    state_->ending.store(true);
    state_->epoch.fetch_add(1);
    {
      std::lock_guard<std::mutex> lock(state_->mutex);
      state_->wake.notify_all();
    }
    for (auto& one : threads_) one->join();
  }

  void work() {
    State& s = *state_;
    for (unsigned seen = 0;; ++seen) {
      for (int spins = 0; s.epoch.load(std::memory_order_acquire) == seen && spins < IDLE_SPINS; ++spins) relax();
      if (s.epoch.load() == seen) {
        std::unique_lock<std::mutex> lock(s.mutex);
        s.sleepers.fetch_add(1);
        s.wake.wait(lock, [&] { return s.epoch.load() != seen; });
        s.sleepers.fetch_sub(1);
      }
      if (s.ending.load()) return;
      s.call(s.body);
      barrier();
    }
  }

  int count_;
  pid_t owner_;
  std::unique_ptr<State> state_;
  std::vector<std::unique_ptr<std::thread>> threads_;
};

}  // namespace clearhead
