// Attention of the sequences that have one query token over block tables, with the context split over blocks.
//
// A block takes one KV head of one sequence and one stretch of its context; the query heads of the group are the rows
// of a matrix operand. Each warp streams tiles of 16 tokens of its own through STAGES stages of shared memory, so that
// warps meet once, at the end. A second kernel joins the stretches.
//
// Pools of 8 bits have tiles of 32 tokens, which become half floats on their way into registers: those hold both formats
// exactly, and queries of either 16-bit type too, once the largest of a row lies between 1 and 2. In a word that a lane
// is given lie four columns of a key, or two of each of two values; bytes 0 and 2 are one operand, 1 and 3 another, so
// that columns change places, in queries alike and in what is left of values. Scales are factors of scores and results;
// those of single values are a part of their weights, as exponents, so that no weight is above 1.
#include "common.cuh"
#include <type_traits>

struct Args {
    const void *q, *pool;
    float* sums;                 // [splits, batch, heads, D], of weights times values
    float* tops;                 // [splits, batch, heads, 2]: the largest score, and the sum of weights under it
    const int32_t* tables;       // [batch, max_blocks]
    const uint32_t* kv_lens;     // [batch], 0 for padding
    const uint32_t* cu_seqlens;  // [batch + 1]
    const float* own_scales;     // [blocks, layer_rows], or null
    const float *k_scales, *v_scales;   // [kv_heads], or null
    int64_t q_stride, block_elems, layer_offset, kv_stride, head_stride, token_stride, layer_rows;
    int32_t max_blocks, block_shift, heads, group, split_tokens;
    int32_t window, chunked;     // 0 sees everything
    float scale, cap;            // times log2(e); a cap of 0 is none
    float k_scale, v_scale;      // where there are none for each head
    int32_t bf16;                // whether queries over a pool of 8 bits are
};

constexpr int kWarps = 4, kStages = 3;
constexpr int kRun = 16;         // tokens that surely lie in one block of the pool

template <typename P, int D> DEVICE void paged_decode(const Args& args) {
    constexpr bool BYTES = sizeof(P) == 1;
    using T = std::conditional_t<BYTES, __half, P>;
    constexpr int N = BYTES ? 32 : 16;               // tokens of a tile
    constexpr int ROW = D * sizeof(P), CHUNKS = ROW / 16, ROWS_AT_ONCE = 32 / CHUNKS;
    constexpr int STAGE = 2 * N * ROW + (BYTES ? 2 * N * 4 : 0);   // bytes of a tile's keys, values, and their scales
    extern __shared__ __align__(16) uint8_t shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int kv_head = blockIdx.x, sequence = blockIdx.y, split = blockIdx.z;
    const int kv_len = args.kv_lens[sequence], query_row = args.cu_seqlens[sequence];
    const bool single = args.cu_seqlens[sequence + 1] - query_row == 1;   // others are left to paged_prefill
    int visible = 0;
    if (args.window) visible = args.chunked ? (kv_len - 1) / args.window * args.window : max(kv_len - args.window, 0);
    const int begin = max(split * args.split_tokens, visible), end = min((split + 1) * args.split_tokens, kv_len);
    const int64_t out_row = (int64_t)(split * gridDim.y + sequence) * args.heads + kv_head * args.group;
    if (begin >= end || !single) {
        for (int i = threadIdx.x; i < args.group; i += kWarps * 32) {
            args.tops[(out_row + i) * 2] = -INFINITY;
            args.tops[(out_row + i) * 2 + 1] = 0.f;
        }
        return;
    }
    const int32_t* const table = args.tables + (int64_t)sequence * args.max_blocks;
    uint8_t* const mine = shared + warp * kStages * STAGE;
    const int first = begin / kRun * kRun, tiles = (end - first + N - 1) / N;
    const int my_tiles = (tiles - warp + kWarps - 1) / kWarps;

    // Chunks of a row change places with its number, so that 8 rows of a matrix lie in different banks: chunk c ^ p of
    // row r, or where two rows share the banks of one, c ^ p of rows 2 r and 2 r + 1. Blocks of the pool are looked up
    // one tile ahead.
    auto place = [&](int row, int chunk) { return row * ROW + (chunk ^ (CHUNKS < 8 ? row / 2 % CHUNKS : row % 8)) * 16; };
    const int row0 = lane / CHUNKS, chunk0 = lane % CHUNKS;
    const P* const pool = static_cast<const P*>(args.pool) + args.layer_offset + kv_head * args.head_stride + row0 * args.token_stride + chunk0 * kPerVec<P>;
    auto token_of = [&](int tile) { return first + (warp + tile * kWarps) * N; };
    int blocks[N / kRun];
    auto look_up = [&](int tile) {
#pragma unroll
        for (int run = 0; run < N / kRun; ++run) {
            const int token = token_of(tile) + run * kRun;
            blocks[run] = token < end ? table[token >> args.block_shift] : 0;
        }
    };
    look_up(0);
    auto fetch = [&](int tile) {
        if (tile < my_tiles) {
            const int token0 = token_of(tile), in_blocks = (1 << args.block_shift) - 1;
            uint8_t* const stage = mine + tile % kStages * STAGE;
#pragma unroll
            for (int run = 0; run < N / kRun; ++run) {
                const P* from = pool + blocks[run] * args.block_elems + (token0 + run * kRun & in_blocks) * args.token_stride;
#pragma unroll
                for (int k = 0; k < kRun / ROWS_AT_ONCE; ++k) {
                    const int row = run * kRun + k * ROWS_AT_ONCE + row0;
                    const bool live = token0 + row >= begin && token0 + row < end;
                    uint8_t* const to = stage + place(row, chunk0);
                    copy_async(to, from, live);
                    copy_async(to + N * ROW, from + args.kv_stride, live);
                    from += ROWS_AT_ONCE * args.token_stride;
                }
            }
            if (BYTES && args.own_scales) {
                const int token = token0 + lane;
                const int64_t in_block = kv_head * args.head_stride + (token & in_blocks) * args.token_stride;
                const float* const from = args.own_scales + (lane < kRun ? blocks[0] : blocks[N / kRun - 1]) * args.layer_rows + in_block / D;
                float* const to = reinterpret_cast<float*>(stage + 2 * N * ROW) + lane;
                copy_word_async(to, from, token >= begin && token < end);
                copy_word_async(to + N, from + args.kv_stride / D, token >= begin && token < end);
            }
            look_up(tile + 1);
        }
        copy_commit();
    };
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fetch(i);

    // The queries of the group; rows beyond it are zero. `scale` is that of the scores of two rows.
    uint32_t queries[D / 16][4];
    float scale[2] = {args.scale, args.scale}, v_scale = 1.f;
    const uint16_t* const q = static_cast<const uint16_t*>(args.q) + query_row * args.q_stride + kv_head * args.group * D;
    if constexpr (BYTES) {
        v_scale = Format<P>::kHalves * (args.v_scales ? args.v_scales[kv_head] : args.v_scale);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = lane / 4 + r * 8;
            float query[D / 16][4], largest = 0.f;
#pragma unroll
            for (int k = 0; k < D / 16; ++k) {
                const uint2 four = row < args.group ? *reinterpret_cast<const uint2*>(q + row * D + k * 16 + lane % 4 * 4) : uint2{};
                if (args.bf16) Format<__nv_bfloat16>::widen(four.x, query[k]), Format<__nv_bfloat16>::widen(four.y, query[k] + 2);
                else Format<__half>::widen(four.x, query[k]), Format<__half>::widen(four.y, query[k] + 2);
#pragma unroll
                for (int i = 0; i < 4; ++i) largest = fmaxf(largest, fabsf(query[k][i]));
            }
            largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
            const float power = power_below(largest), inverse = 1.f / power;
            scale[r] *= power * (Format<P>::kHalves * (args.k_scales ? args.k_scales[kv_head] : args.k_scale));
#pragma unroll
            for (int k = 0; k < D / 16; ++k) {
                const float even[2] = {query[k][0] * inverse, query[k][2] * inverse}, odd[2] = {query[k][1] * inverse, query[k][3] * inverse};
                queries[k][r] = Format<T>::narrow(even), queries[k][r + 2] = Format<T>::narrow(odd);
            }
        }
    } else {
#pragma unroll
        for (int k = 0; k < D / 16; ++k)
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                const int row = lane / 4 + part % 2 * 8, column = k * 16 + lane % 4 * 2 + part / 2 * 8;
                queries[k][part] = row < args.group ? *reinterpret_cast<const uint32_t*>(q + row * D + column) : 0u;
            }
    }
    // Where the lane reads of the first matrices; those of other chunks are another by xor.
    const int key_place = BYTES ? place(lane, 0) : place(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    const int value_place = BYTES ? place(lane, 0) : place(lane % 16, lane / 16);
    float out[D / 8][4] = {};
    float top[2] = {-INFINITY, -INFINITY}, total[2] = {0.f, 0.f};
    uint32_t not_numbers = 0;
    for (int tile = 0; tile < my_tiles; ++tile) {
        copy_wait<kStages - 2>();
        __syncwarp();   // what other lanes copied has landed, and all have left the stage that is filled next
        const uint8_t* const keys = mine + tile % kStages * STAGE;
        const uint8_t* const values = keys + N * ROW;
        const float* const own_scales = reinterpret_cast<const float*>(keys + 2 * N * ROW) + lane % 4 * 2;
        float s[N / 8][4] = {};
#pragma unroll
        for (int k = 0; k < D / 16; ++k) {
            uint32_t b[4];
            load_matrices(b, keys + (key_place ^ k * (BYTES ? 16 : 32)));
            if constexpr (BYTES) {
#pragma unroll
                for (int n = 0; n < 4; ++n) {
                    uint32_t even, odd;
                    Format<P>::halves(b[n], even, odd);
                    not_numbers |= Format<P>::not_numbers(b[n]);
                    multiply<T>(s[n], queries[k], even, odd);
                }
            } else {
                multiply<T>(s[0], queries[k], b[0], b[1]);
                multiply<T>(s[1], queries[k], b[2], b[3]);
            }
        }
#pragma unroll
        for (int n = 0; n < N / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[n][e] *= scale[e / 2];
        if (BYTES && args.own_scales) {
#pragma unroll
            for (int n = 0; n < N / 8; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) s[n][e] *= own_scales[n * 8 + e % 2];
        }
        if (args.cap != 0.f) {
#pragma unroll
            for (int n = 0; n < N / 8; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) s[n][e] = args.cap * tanhf(s[n][e] / args.cap);
        }
        // A value whose scale is 0 is 0; its weight counts all the same.
        auto own_scale = [&](int n, int e) { return fmaxf(own_scales[N + n * 8 + e % 2], 1e-30f); };
        if (BYTES && args.own_scales) {
#pragma unroll
            for (int n = 0; n < N / 8; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) s[n][e] += __log2f(own_scale(n, e));
        }
        const int token0 = token_of(tile);
        if (token0 < begin || token0 + N > end) {
#pragma unroll
            for (int n = 0; n < N / 8; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int token = token0 + n * 8 + lane % 4 * 2 + e % 2;
                    if (token < begin || token >= end) s[n][e] = -INFINITY;
                }
        }
        float largest[2] = {top[0], top[1]}, factor[2];
#pragma unroll
        for (int n = 0; n < N / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) largest[e / 2] = fmaxf(largest[e / 2], s[n][e]);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            largest[r] = fmaxf(largest[r], __shfl_xor_sync(kAllLanes, largest[r], 1));
            largest[r] = fmaxf(largest[r], __shfl_xor_sync(kAllLanes, largest[r], 2));
            factor[r] = exp2_flushed(top[r] - largest[r]);   // every tile has a key, so that `largest` is finite
            top[r] = largest[r];
            total[r] *= factor[r];
        }
        uint32_t weights[N / 16][4];
#pragma unroll
        for (int n = 0; n < N / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) s[n][e] = exp2_flushed(s[n][e] - top[e / 2]);
            weights[n / 2][n % 2 * 2] = Format<T>::narrow(s[n]), weights[n / 2][n % 2 * 2 + 1] = Format<T>::narrow(s[n] + 2);
#pragma unroll
            for (int e = 0; e < 4; ++e) total[e / 2] += BYTES && args.own_scales ? s[n][e] / own_scale(n, e) : s[n][e];
        }
        // Behind the first tiles the largest score of a row changes rarely.
        if (__any_sync(kAllLanes, factor[0] != 1.f || factor[1] != 1.f)) {
#pragma unroll
            for (int n = 0; n < D / 8; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) out[n][e] *= factor[e / 2];
        }
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
            uint32_t b[4];
            load_matrices_transposed(b, values + (value_place ^ n * (BYTES ? 16 : 32)));
            if constexpr (BYTES) {
                uint32_t even[4], odd[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) Format<P>::halves(b[i], even[i], odd[i]), not_numbers |= Format<P>::not_numbers(b[i]);
#pragma unroll
                for (int i = 0; i < N / 16; ++i) {
                    multiply<T>(out[n * 2], weights[i], even[2 * i], even[2 * i + 1]);
                    multiply<T>(out[n * 2 + 1], weights[i], odd[2 * i], odd[2 * i + 1]);
                }
            } else {
                multiply<T>(out[n * 2], weights[0], b[0], b[1]);
                multiply<T>(out[n * 2 + 1], weights[0], b[2], b[3]);
            }
        }
        fetch(tile + kStages - 1);   // into the stage of the tile before, which all lanes have left
    }
    // Where a key or a value is no number, nothing that is made of it is one.
    if constexpr (BYTES)
        if (__any_sync(kAllLanes, (not_numbers & Format<P>::kTops) != 0)) v_scale = NAN;
    // Each warp leaves its rows in shared memory, over stages that all warps have read.
    __syncthreads();
    float* const sums = reinterpret_cast<float*>(shared);   // [kWarps][group][D]
    float* const tops = sums + kWarps * args.group * D;      // [kWarps][group][2]
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        total[r] += __shfl_xor_sync(kAllLanes, total[r], 1);
        total[r] += __shfl_xor_sync(kAllLanes, total[r], 2);
        const int row = lane / 4 + r * 8;
        if (row < args.group) {
            if (lane % 4 == 0) {
                tops[(warp * args.group + row) * 2] = top[r];
                tops[(warp * args.group + row) * 2 + 1] = total[r];
            }
            float* const to = sums + (warp * args.group + row) * D + lane % 4 * (BYTES ? 4 : 2);
#pragma unroll
            for (int n = 0; n < D / 16; ++n) {
                const float *const a = out[n * 2] + r * 2, *const b = out[n * 2 + 1] + r * 2;
                if constexpr (BYTES) {
                    *reinterpret_cast<float4*>(to + n * 16) = make_float4(a[0] * v_scale, b[0] * v_scale, a[1] * v_scale, b[1] * v_scale);
                } else {
                    *reinterpret_cast<float2*>(to + n * 16) = make_float2(a[0], a[1]);
                    *reinterpret_cast<float2*>(to + n * 16 + 8) = make_float2(b[0], b[1]);
                }
            }
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < args.group * D; i += kWarps * 32) {
        const int row = i / D;
        float largest = -INFINITY, sum = 0.f, weight = 0.f;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, tops[(w * args.group + row) * 2]);
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
            const float f = exp2f(tops[(w * args.group + row) * 2] - largest);
            sum += f * sums[w * args.group * D + i];
            weight += f * tops[(w * args.group + row) * 2 + 1];
        }
        args.sums[out_row * D + i] = sum;
        if (i % D == 0) {
            args.tops[(out_row + row) * 2] = largest;
            args.tops[(out_row + row) * 2 + 1] = weight;
        }
    }
}

struct JoinArgs {
    const float *sums, *tops;    // as above
    const float* sinks;          // [heads] logits without a value, or null
    void* out;                   // [tokens, heads, D]
    const uint32_t *kv_lens, *cu_seqlens;
    int32_t heads, splits;
};

template <typename T, int D> DEVICE void join(const JoinArgs& args) {
    const int head = blockIdx.x, sequence = blockIdx.y, column = threadIdx.x;
    const int first = args.cu_seqlens[sequence], beyond = args.cu_seqlens[sequence + 1];
    if (beyond - first > 1 && args.kv_lens[sequence] > 0) return;   // another kernel's
    const int64_t row = (int64_t)sequence * args.heads + head, rows = (int64_t)gridDim.y * args.heads;
    float largest = args.sinks ? args.sinks[head] * 1.44269504f : -INFINITY;
    for (int split = 0; split < args.splits; ++split) largest = fmaxf(largest, args.tops[(split * rows + row) * 2]);
    float weight = args.sinks ? exp2f(args.sinks[head] * 1.44269504f - largest) : 0.f, sum = 0.f;
    for (int split = 0; split < args.splits; ++split) {
        const float top = args.tops[(split * rows + row) * 2];
        if (top == -INFINITY) continue;   // nothing was left there
        const float f = exp2f(top - largest);
        sum += f * args.sums[(split * rows + row) * D + column];
        weight += f * args.tops[(split * rows + row) * 2 + 1];
    }
    // A padding sequence may have several rows.
    const T value = from_float<T>(weight == 0.f ? 0.f : sum / weight);
    for (int token = first; token < beyond; ++token)
        static_cast<T*>(args.out)[((int64_t)token * args.heads + head) * D + column] = value;
}

#define JOIN(format, T, D)                                                                                          \
    extern "C" __global__ void __launch_bounds__(D) join_splits_##format##_##D(const __grid_constant__ JoinArgs args) { \
        join<T, D>(args);                                                                                           \
    }
#define KERNEL(pool, P, D)                                                                                          \
    extern "C" __global__ void __launch_bounds__(32 * kWarps, 2) paged_decode_##pool##_##D(const __grid_constant__ Args args) { \
        paged_decode<P, D>(args);                                                                                   \
    }

// prove paged_decode: 184 registers, LDGSTS.E.BYPASS.128, HMMA.16816, LDSM.16
// prove join_splits: 40 registers
KERNEL(bf16, __nv_bfloat16, 64)
KERNEL(bf16, __nv_bfloat16, 128)
KERNEL(f16, __half, 64)
KERNEL(f16, __half, 128)
KERNEL(f8, Fp8, 64)
KERNEL(f8, Fp8, 128)
KERNEL(i8, Int8, 64)
KERNEL(i8, Int8, 128)
JOIN(bf16, __nv_bfloat16, 64)
JOIN(bf16, __nv_bfloat16, 128)
JOIN(f16, __half, 64)
JOIN(f16, __half, 128)
// The stretches of mla_decode.
JOIN(bf16, __nv_bfloat16, 512)
JOIN(f16, __half, 512)
