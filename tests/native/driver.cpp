// Replays recorded calls of the engine's functions and compares what they give with what was recorded.
//
//   driver [--set NAME] [--threads N] [--copies N] RECORDING…
//
// Without a set, the best that runs here; `--threads` in place of the recorded number; `--copies` replays each
// recording so many times at once, every copy in a thread of its own with engines of its own over shared weights.
// The engine is compiled in, so that the program runs where Python does not: under an emulator or a sanitizer.
#include "engine.cpp"

#include <cstdio>
#include <fstream>

#include "replay.h"

namespace {

using namespace recording;

std::vector<char> contents(const char* path) {
  std::ifstream file(path, std::ios::binary);
  demand(bool(file), "the recording cannot be opened");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

struct Options {
  const char* set = "";
  int threads = 0, copies = 1;
};

void replay(const char* path, const Options& options, const Kernels* kernels) {
  const std::vector<char> data = contents(path);
  Shared shared(kernels, options.threads);
  Reader weights(data);
  const int64_t first = weights.number();
  for (int64_t i = 0; i < first; ++i) weights.number() == MATRIX ? shared.matrix(weights) : shared.model(weights);
  std::vector<std::string> wrong(options.copies);
  std::vector<Differences> differences(options.copies);
  auto copy = [&](int number, Reader from) {
    int64_t at = first, kind = 0;
    try {
      Replay mine(shared, options.threads);
      for (; from.more(); ++at) {
        kind = from.number();
        mine.record(kind, from);
      }
      differences[number] = mine.differences();
    } catch (const Wrong& one) {
      wrong[number] = "record " + std::to_string(at) + " (" + name_of(kind) + "): " + one.what;
    } catch (const std::exception& one) {
      wrong[number] = "record " + std::to_string(at) + " (" + name_of(kind) + "): " + one.what();
    }
  };
  std::vector<std::thread> others;
  for (int number = 1; number < options.copies; ++number) others.emplace_back(copy, number, weights);
  copy(0, weights);
  for (std::thread& one : others) one.join();
  for (const std::string& one : wrong)
    if (!one.empty()) throw Wrong{one};
  std::printf("%s: largest difference %.2g, mean %.2g\n", path, differences[0].largest, differences[0].mean());
}

}  // namespace

int main(int count, char** arguments) {
  Options options;
  int at = 1;
  for (; at + 1 < count && !std::strncmp(arguments[at], "--", 2); at += 2) {
    const std::string name = arguments[at];
    if (name == "--set") options.set = arguments[at + 1];
    if (name == "--threads") options.threads = std::atoi(arguments[at + 1]);
    if (name == "--copies") options.copies = std::atoi(arguments[at + 1]);
  }
  const Kernels* kernels = clearhead_kernels(options.set);
  if (!kernels) {
    std::fprintf(stderr, "the instruction set '%s' does not run here\n", options.set);
    return 2;
  }
  int failures = 0;
  for (; at < count; ++at) {
    try {
      replay(arguments[at], options, kernels);
    } catch (const Wrong& one) {
      std::fprintf(stderr, "%s: %s\n", arguments[at], one.what.c_str());
      ++failures;
    }
  }
  std::printf("instruction set %s, %d failures\n", clearhead_kernels_name(kernels), failures);
  return failures ? 1 : 0;
}
