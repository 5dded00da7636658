// Attention of short sequences, forward and backward: bf16 in memory, float32 within.
//
// One piece of work is a sequence and a head of keys with the heads of queries that share it, all of which
// fits into the first caches: the matrix of weights is made whole and made again in the backward pass. Rows
// have no padding here: each sequence is told by where its queries and keys begin and how many they are.
//
//     S = scale · Q Kᵀ     P = softmax(S)     O = P V
//     dV = Pᵀ dO     dP = dO Vᵀ     dS = P ∘ (dP − Σ P ∘ dP)     dQ = scale · dS K     dK = scale · dSᵀ Q
//
// Shapes: T queries, S keys, D size of a head; in buffers S and D are rounded up to whole vectors.

#pragma once

#include "vectors.h"

// C (rows × columns) = A B, or C + A B. A is read by strides, so that it may be a transposed matrix.
struct Product {
    const float* a;
    int64_t a_row, a_column;
    const float* b;
    int64_t b_row;
    float* c;
    int64_t c_row;
    int64_t depth;
    bool add;
};

template <int ROWS, int COLUMNS>
inline void tile(const Product& p, int64_t row, int64_t column) {
    Vector sum[ROWS][COLUMNS];
    float* c = p.c + row * p.c_row + column;
    for (int i = 0; i < ROWS; ++i)
        for (int j = 0; j < COLUMNS; ++j)
            sum[i][j] = p.add ? _mm512_loadu_ps(c + i * p.c_row + j * LANES) : _mm512_setzero_ps();
    const float* a = p.a + row * p.a_row;
    const float* b = p.b + column;
    for (int64_t k = 0; k < p.depth; ++k, a += p.a_column, b += p.b_row) {
        Vector right[COLUMNS];
        for (int j = 0; j < COLUMNS; ++j) right[j] = _mm512_loadu_ps(b + j * LANES);
        for (int i = 0; i < ROWS; ++i) {
            Vector left = all(a[i * p.a_row]);
            for (int j = 0; j < COLUMNS; ++j) sum[i][j] = _mm512_fmadd_ps(left, right[j], sum[i][j]);
        }
    }
    for (int i = 0; i < ROWS; ++i)
        for (int j = 0; j < COLUMNS; ++j) _mm512_storeu_ps(c + i * p.c_row + j * LANES, sum[i][j]);
}

template <int ROWS>
inline void tiles(const Product& p, int64_t row, int64_t columns) {
    int64_t column = 0;
    for (; column + 4 * LANES <= columns; column += 4 * LANES) tile<ROWS, 4>(p, row, column);
    switch ((columns - column) / LANES) {
        case 3: return tile<ROWS, 3>(p, row, column);
        case 2: return tile<ROWS, 2>(p, row, column);
        case 1: return tile<ROWS, 1>(p, row, column);
    }
}

constexpr int64_t BLOCK = 6;  // rows of a tile

inline void multiply_rows(const Product& p, int64_t row, int64_t rows, int64_t columns) {
    switch (rows) {
        case 6: return tiles<6>(p, row, columns);
        case 5: return tiles<5>(p, row, columns);
        case 4: return tiles<4>(p, row, columns);
        case 3: return tiles<3>(p, row, columns);
        case 2: return tiles<2>(p, row, columns);
        case 1: return tiles<1>(p, row, columns);
    }
}

inline void multiply(const Product& p, int64_t rows, int64_t columns) {
    for (int64_t row = 0; row < rows; row += BLOCK)
        multiply_rows(p, row, std::min(BLOCK, rows - row), columns);
}

// (rows × size) of bf16, each row so far from the last, as float32 with whole vectors to a row.
inline void read_rows(const bf16* from, int64_t stride, int64_t rows, int64_t size, float factor, float* to) {
    for (int64_t row = 0; row < rows; ++row, from += stride, to += whole(size))
        for (int64_t i = 0; i < size; i += LANES)
            _mm512_store_ps(to + i, _mm512_mul_ps(load(from + i, inside(size - i)), all(factor)));
}

inline void write_rows(bf16* to, int64_t stride, int64_t rows, int64_t size, float factor, const float* from) {
    for (int64_t row = 0; row < rows; ++row, to += stride, from += whole(size))
        for (int64_t i = 0; i < size; i += LANES)
            store(to + i, _mm512_mul_ps(_mm512_load_ps(from + i), all(factor)), inside(size - i));
}

// (rows × columns), whole vectors to a row, as (columns × rows); rows beyond the last become 0.
inline void transpose(const float* from, int64_t rows, int64_t columns, float* to) {
    const int64_t across = whole(rows), along = whole(columns);
    for (int64_t row = 0; row < rows; row += LANES)
        for (int64_t column = 0; column < columns; column += LANES) {
            Vector x[16], y[16];
            for (int64_t i = 0; i < 16; ++i)
                x[i] = row + i < rows ? _mm512_load_ps(from + (row + i) * along + column) : _mm512_setzero_ps();
            for (int i = 0; i < 16; i += 2) {
                y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
                y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
            }
            for (int i = 0; i < 16; i += 4)
                for (int j = 0; j < 2; ++j) {
                    __m512d low = _mm512_castps_pd(y[i + j]), high = _mm512_castps_pd(y[i + j + 2]);
                    x[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
                    x[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
                }
            for (int i = 0; i < 16; i += 8)
                for (int j = 0; j < 4; ++j) {
                    y[i + j] = _mm512_shuffle_f32x4(x[i + j], x[i + j + 4], 0x88);
                    y[i + j + 4] = _mm512_shuffle_f32x4(x[i + j], x[i + j + 4], 0xdd);
                }
            for (int j = 0; j < 8; ++j) {
                x[j] = _mm512_shuffle_f32x4(y[j], y[j + 8], 0x88);
                x[j + 8] = _mm512_shuffle_f32x4(y[j], y[j + 8], 0xdd);
            }
            for (int64_t i = 0; i < 16 && column + i < columns; ++i)
                _mm512_store_ps(to + (column + i) * across + row, x[i]);
        }
}

// What both passes are told: all tensors are tokens × heads × size, the heads of a token side by side.
struct Attention {
    const bf16 *q, *k, *v;
    int64_t q_stride, k_stride, v_stride;  // numbers from one token to the next
    int64_t heads, groups, size;           // of queries, of keys; a head's
    const int32_t* bounds;                 // for each sequence: first query, queries, first key, keys
    int64_t sequences;
    float scale;
    int32_t causal;
    float* logsum;  // tokens × heads: log Σ exp of a query's scores
};

struct Sequence {
    int64_t query, queries, key, keys;
};

inline Sequence sequence(const Attention& told, int64_t number) {
    const int32_t* four = told.bounds + 4 * number;
    return {four[0], four[1], four[2], four[3]};
}

// How many keys a query sees: those of its own position and before it, or all of them.
inline int64_t seen(const Attention& told, int64_t query, int64_t keys) {
    return told.causal ? std::min(query + 1, keys) : keys;
}

// Scores of all queries in blocks: beyond what a block's last query sees nothing is computed.
inline void scores(const Attention& told, const float* q, const float* k_across, float* into, Sequence one) {
    const int64_t across = whole(one.keys), along = whole(told.size);
    Product p{q, along, 1, k_across, across, into, across, told.size, false};
    for (int64_t row = 0; row < one.queries; row += BLOCK) {
        int64_t rows = std::min(BLOCK, one.queries - row);
        multiply_rows(p, row, rows, whole(seen(told, row + rows - 1, one.keys)));
    }
}

// Mix (queries × keys) times what each key has, again no further than a block sees.
inline void mix(const Attention& told, const float* weights, const float* what, float* into, Sequence one) {
    const int64_t across = whole(one.keys), along = whole(told.size);
    for (int64_t row = 0; row < one.queries; row += BLOCK) {
        int64_t rows = std::min(BLOCK, one.queries - row), depth = seen(told, row + rows - 1, one.keys);
        multiply_rows({weights, across, 1, what, along, into, along, depth, false}, row, rows, along);
    }
}

inline void attend(const Attention& told, int64_t number, int64_t group, bf16* out, float* room) {
    const Sequence one = sequence(told, number);
    const int64_t along = whole(told.size), across = whole(one.keys), each = told.heads / told.groups;
    float *q = room, *k = q + one.queries * along, *k_across = k + one.keys * along;
    float *v = k_across + along * across, *weights = v + one.keys * along;
    read_rows(told.k + one.key * told.k_stride + group * told.size, told.k_stride, one.keys, told.size, 1, k);
    read_rows(told.v + one.key * told.v_stride + group * told.size, told.v_stride, one.keys, told.size, 1, v);
    transpose(k, one.keys, told.size, k_across);
    for (int64_t head = group * each; head < (group + 1) * each; ++head) {
        const bf16* from = told.q + one.query * told.q_stride + head * told.size;
        read_rows(from, told.q_stride, one.queries, told.size, told.scale, q);
        scores(told, q, k_across, weights, one);
        for (int64_t t = 0; t < one.queries; ++t) {
            float* row = weights + t * across;
            const int64_t count = seen(told, t, one.keys);
            Vector top = all(-INFINITY), total = _mm512_setzero_ps();
            for (int64_t s = 0; s < count; s += LANES)
                top = _mm512_mask_max_ps(top, inside(count - s), top, _mm512_load_ps(row + s));
            const float highest = _mm512_reduce_max_ps(top);
            for (int64_t s = 0; s < across; s += LANES) {
                Vector e = exponential(_mm512_sub_ps(_mm512_load_ps(row + s), all(highest)));
                e = _mm512_maskz_mov_ps(s < count ? inside(count - s) : 0, e);
                total = _mm512_add_ps(total, e);
                _mm512_store_ps(row + s, e);
            }
            const float sum = _mm512_reduce_add_ps(total);
            told.logsum[(one.query + t) * told.heads + head] = highest + std::log(sum);
            for (int64_t s = 0; s < across; s += LANES)
                _mm512_store_ps(row + s, _mm512_div_ps(_mm512_load_ps(row + s), all(sum)));
        }
        mix(told, weights, v, q, one);  // the queries are done with
        const int64_t width = told.heads * told.size;
        write_rows(out + one.query * width + head * told.size, width, one.queries, told.size, 1, q);
    }
}

struct Gradients {
    const bf16* out;  // tokens × heads × size
    bf16 *q, *k, *v;  // tokens × heads × size each, with strides of their own
    int64_t out_stride, q_stride, k_stride, v_stride;
};

inline void attend_backward(const Attention& told, const Gradients& d, int64_t number, int64_t group, float* room) {
    const Sequence one = sequence(told, number);
    const int64_t along = whole(told.size), across = whole(one.keys), each = told.heads / told.groups;
    const int64_t queries = one.queries * along, keys = one.keys * along, pairs = one.queries * across;
    float *q = room, *d_out = q + queries, *d_q = d_out + queries, *k = d_q + queries, *v = k + keys;
    float *d_k = v + keys, *d_v = d_k + keys, *k_across = d_v + keys, *v_across = k_across + along * across;
    float *weights = v_across + along * across, *d_weights = weights + pairs;
    read_rows(told.k + one.key * told.k_stride + group * told.size, told.k_stride, one.keys, told.size, 1, k);
    read_rows(told.v + one.key * told.v_stride + group * told.size, told.v_stride, one.keys, told.size, 1, v);
    transpose(k, one.keys, told.size, k_across);
    transpose(v, one.keys, told.size, v_across);
    for (int64_t head = group * each; head < (group + 1) * each; ++head) {
        const bf16* from = told.q + one.query * told.q_stride + head * told.size;
        read_rows(from, told.q_stride, one.queries, told.size, told.scale, q);
        const bf16* slopes = d.out + one.query * d.out_stride + head * told.size;
        read_rows(slopes, d.out_stride, one.queries, told.size, 1, d_out);
        scores(told, q, k_across, weights, one);
        scores(told, d_out, v_across, d_weights, one);
        for (int64_t t = 0; t < one.queries; ++t) {
            float *row = weights + t * across, *d_row = d_weights + t * across;
            const int64_t count = seen(told, t, one.keys);
            const Vector logsum = all(told.logsum[(one.query + t) * told.heads + head]);
            Vector sum = _mm512_setzero_ps();
            for (int64_t s = 0; s < across; s += LANES) {
                const __mmask16 in = s < count ? inside(count - s) : 0;
                Vector p = exponential(_mm512_sub_ps(_mm512_maskz_mov_ps(in, _mm512_load_ps(row + s)), logsum));
                p = _mm512_maskz_mov_ps(in, p);
                Vector slope = _mm512_maskz_mov_ps(in, _mm512_load_ps(d_row + s));
                sum = _mm512_fmadd_ps(p, slope, sum);
                _mm512_store_ps(row + s, p);
                _mm512_store_ps(d_row + s, slope);
            }
            const Vector mean = all(_mm512_reduce_add_ps(sum));
            for (int64_t s = 0; s < across; s += LANES) {
                Vector slope = _mm512_sub_ps(_mm512_load_ps(d_row + s), mean);
                _mm512_store_ps(d_row + s, _mm512_mul_ps(slope, _mm512_load_ps(row + s)));
            }
        }
        const bool add = head > group * each;
        multiply({weights, 1, across, d_out, along, d_v, along, one.queries, add}, one.keys, along);
        multiply({d_weights, 1, across, q, along, d_k, along, one.queries, add}, one.keys, along);
        mix(told, d_weights, k, d_q, one);
        bf16* to = d.q + one.query * d.q_stride + head * told.size;
        write_rows(to, d.q_stride, one.queries, told.size, told.scale, d_q);
    }
    write_rows(d.k + one.key * d.k_stride + group * told.size, d.k_stride, one.keys, told.size, 1, d_k);
    write_rows(d.v + one.key * d.v_stride + group * told.size, d.v_stride, one.keys, told.size, 1, d_v);
}

// The room that the largest of the sequences needs, in floats.
inline int64_t room_of(const Attention& told) {
    int64_t queries = 0, keys = 0;
    for (int64_t i = 0; i < told.sequences; ++i) {
        queries = std::max(queries, sequence(told, i).queries);
        keys = std::max(keys, sequence(told, i).keys);
    }
    const int64_t along = whole(told.size), across = whole(keys);
    return 3 * queries * along + 4 * keys * along + 2 * along * across + 2 * queries * across;
}
