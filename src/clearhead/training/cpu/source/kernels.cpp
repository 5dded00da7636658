// What Python calls: kernels for training in bf16 on a CPU. All tensors are contiguous unless strides are told;
// the caller has checked shapes and formats. Results do not depend on how many threads there are, except for
// the last digits of sums over tokens.

#include <vector>

#include "activations.h"
#include "attention.h"
#include "loss.h"
#include "walks.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Sums over rows: each thread adds up its own, and all are added in the threads' order.
template <class Work>
void share_and_sum(int64_t rows, int64_t width, int64_t threads, bf16* sums, const Work& work) {
    threads = std::max<int64_t>(1, std::min(threads, rows / 16));
    const int64_t across = whole(width);
    Room room(threads * across);
    std::fill(room.get(), room.get() + threads * across, 0.0f);
    share(rows, threads, [&](int64_t begin, int64_t end, int64_t thread) {
        for (int64_t row = begin; row < end; ++row) work(row, room.get() + thread * across);
    });
    for (int64_t i = 0; i < width; i += LANES) {
        Vector total = _mm512_load_ps(room.get() + i);
        for (int64_t thread = 1; thread < threads; ++thread)
            total = _mm512_add_ps(total, _mm512_load_ps(room.get() + thread * across + i));
        store(sums + i, total, inside(width - i));
    }
}

}  // namespace

EXPORT void clearhead_attention(const Attention* told, bf16* out, int64_t threads) {
    share(told->sequences * told->groups, threads, [&](int64_t begin, int64_t end, int64_t) {
        Room room(room_of(*told));
        for (int64_t i = begin; i < end; ++i) attend(*told, i / told->groups, i % told->groups, out, room.get());
    });
}

EXPORT void clearhead_attention_backward(const Attention* told, const Gradients* slopes, int64_t threads) {
    share(told->sequences * told->groups, threads, [&](int64_t begin, int64_t end, int64_t) {
        Room room(room_of(*told));
        for (int64_t i = begin; i < end; ++i)
            attend_backward(*told, *slopes, i / told->groups, i % told->groups, room.get());
    });
}

// The sums of the objective and of the plain loss; the scores become the objective's gradient.
EXPORT void clearhead_loss(const Loss* told, double* sums, int64_t threads) {
    std::vector<double> found(2 * told->rows, 0.0);
    share(told->rows, threads, [&](int64_t begin, int64_t end, int64_t) {
        Room powers(whole(told->classes));
        for (int64_t row = begin; row < end; ++row)
            row_loss(*told, row, powers.get(), found[2 * row], found[2 * row + 1]);
    });
    for (int64_t i = 0; i < 2 * told->rows; ++i) sums[i % 2] += found[i];
}

EXPORT void clearhead_norm(const Norm* told, int64_t threads) {
    share(told->rows, threads, [&](int64_t begin, int64_t end, int64_t) {
        Room sums(whole(told->width));
        for (int64_t row = begin; row < end; ++row) norm_row(*told, row, sums.get());
    });
}

// `parameters` are the gradients of gain and shift, one after the other, each in whole vectors.
EXPORT void clearhead_norm_backward(const NormGradient* told, bf16* parameters, int64_t threads) {
    share_and_sum(told->rows, 2 * whole(told->width), threads, parameters,
                  [&](int64_t row, float* sums) { norm_row_backward(*told, row, sums); });
}

// y = x · (kept ? factor : 0), with the bits drawn here or, in the backward pass, given; to which `added` is
// added, if it is there.
EXPORT void clearhead_dropout(const bf16* x, const bf16* added, bf16* y, uint16_t* kept, int64_t rows, int64_t width,
                              uint64_t seed, uint32_t dropped, float factor, int32_t draw, int64_t threads) {
    const int64_t words = whole(width) / LANES;
    share(rows, threads, [&](int64_t begin, int64_t end, int64_t) {
        for (int64_t row = begin; row < end; ++row) {
            uint16_t* bits = kept + row * words;
            if (draw) draw_row(seed, (uint64_t)row, width, dropped, bits);
            for (int64_t i = 0; i < width; i += LANES) {
                const __mmask16 in = inside(width - i);
                Vector found = masked(load(x + row * width + i, in), bits, i, all(factor));
                if (added) found = _mm512_add_ps(found, load(added + row * width + i, in));
                store(y + row * width + i, found, in);
            }
        }
    });
}

// y += bias, where y stands; with `relu`, no less than 0.
EXPORT void clearhead_bias(bf16* y, const bf16* bias, int64_t rows, int64_t width, int32_t relu, int64_t threads) {
    const Vector least = all(relu ? 0.0f : -INFINITY);
    share(rows, threads, [&](int64_t begin, int64_t end, int64_t) {
        for (int64_t row = begin; row < end; ++row)
            for (int64_t i = 0; i < width; i += LANES) {
                const __mmask16 in = inside(width - i);
                Vector sum = _mm512_add_ps(load(y + row * width + i, in), load(bias + i, in));
                store(y + row * width + i, _mm512_max_ps(least, sum), in);
            }
    });
}

// The gradient of a bias, which is the sum of dy over tokens. With y, the relu's output, what it cut off is 0,
// and dx is the gradient before it.
EXPORT void clearhead_bias_backward(const bf16* dy, const bf16* y, bf16* dx, bf16* d_bias, int64_t rows,
                                    int64_t width, int64_t threads) {
    share_and_sum(rows, width, threads, d_bias, [&](int64_t row, float* sums) {
        for (int64_t i = 0; i < width; i += LANES) {
            const __mmask16 in = inside(width - i);
            Vector slope = load(dy + row * width + i, in);
            if (y) {
                __mmask16 alive = _mm512_cmp_ps_mask(load(y + row * width + i, in), _mm512_setzero_ps(), _CMP_GT_OQ);
                slope = _mm512_maskz_mov_ps(alive, slope);
                store(dx + row * width + i, slope, in);
            }
            _mm512_store_ps(sums + i, _mm512_add_ps(_mm512_load_ps(sums + i), slope));
        }
    });
}

// y = activation(x), times `factor` where there is one: the feed-forward net, plain or gated.
EXPORT void clearhead_activation(const bf16* x, const bf16* factor, bf16* y, int64_t rows, int64_t width,
                                 int32_t kind, int64_t threads) {
    share(rows, threads, [&](int64_t begin, int64_t end, int64_t) {
        for (int64_t i = begin * width; i < end * width; i += LANES) {
            const __mmask16 in = inside(end * width - i);
            Vector found = bend(load(x + i, in), kind).value;
            if (factor) found = _mm512_mul_ps(found, load(factor + i, in));
            store(y + i, found, in);
        }
    });
}

// Its gradients; d_factor only where there is a factor.
EXPORT void clearhead_activation_backward(const bf16* dy, const bf16* x, const bf16* factor, bf16* dx,
                                          bf16* d_factor, int64_t rows, int64_t width, int32_t kind,
                                          int64_t threads) {
    share(rows, threads, [&](int64_t begin, int64_t end, int64_t) {
        for (int64_t i = begin * width; i < end * width; i += LANES) {
            const __mmask16 in = inside(end * width - i);
            const Bend found = bend(load(x + i, in), kind);
            Vector slope = load(dy + i, in);
            if (factor) {
                store(d_factor + i, _mm512_mul_ps(slope, found.value), in);
                slope = _mm512_mul_ps(slope, load(factor + i, in));
            }
            store(dx + i, _mm512_mul_ps(slope, found.slope), in);
        }
    });
}
