// Opens the engine's library as Python does: is every instruction set there, do threads and exceptions work in it?
//
//     open_library LIBRARY    writes the sets that this processor runs, best first
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <vector>

template <typename Function>
Function* find(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (!found) std::fprintf(stderr, "%s is not there\n", name);
  return reinterpret_cast<Function*>(found);
}

int main(int count, char** given) {
  void* library = count == 2 ? dlopen(given[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!library) {
    std::fprintf(stderr, "%s\n", count == 2 ? dlerror() : "which library?");
    return 1;
  }
  auto* set = find<const char*(int64_t)>(library, "clearhead_instruction_set");
  auto* kernels = find<const void*(const char*)>(library, "clearhead_kernels");
  auto* bytes_for = find<int64_t(const void*, int64_t, int64_t, int32_t)>(library, "clearhead_bytes_for_matrix");
  auto* matrix = find<void*(const void*, int64_t, int64_t, int32_t, char*)>(library, "clearhead_matrix");
  auto* pack = find<int32_t(void*, const float*, int64_t, int64_t, int32_t)>(library, "clearhead_matrix_pack");
  auto* free_matrix = find<void(void*)>(library, "clearhead_matrix_free");
  if (!set || !kernels || !bytes_for || !matrix || !pack || !free_matrix) return 1;
  constexpr int64_t OUTPUTS = 4096, INPUTS = 64;
  const std::vector<float> weights(OUTPUTS * INPUTS, 0.5f);
  for (int64_t i = 0; set(i); ++i) {
    const void* table = kernels(set(i));
    std::vector<char> memory(bytes_for(table, OUTPUTS, INPUTS, 0) + 64);
    char* aligned = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    void* one = matrix(table, OUTPUTS, INPUTS, 0, aligned);
    const bool packed = one && pack(one, weights.data(), 0, OUTPUTS, 4) == 1;  // by four threads
    free_matrix(one);
    if (!packed) return 1;
    std::puts(set(i));
  }
  return 0;
}
