// Attention of the sequences that have one query token over block tables, with the context split over blocks.
//
// A block takes one KV head of one sequence and one stretch of its context; the query heads of the group are the rows
// of a matrix operand. Each warp streams tiles of 16 tokens of its own through STAGES stages of shared memory, so that
// warps meet once, at the end. A second kernel joins the stretches.
#include "common.cuh"

struct Args {
    const void *q, *pool;
    float* sums;                 // [splits, batch, heads, D], of weights times values
    float* tops;                 // [splits, batch, heads, 2]: the largest score, and the sum of weights under it
    const int32_t* tables;       // [batch, max_blocks]
    const uint32_t* kv_lens;     // [batch], 0 for padding
    const uint32_t* cu_seqlens;  // [batch + 1]
    int64_t q_stride, block_elems, layer_offset, kv_stride, head_stride, token_stride;
    int32_t max_blocks, block_shift, heads, group, split_tokens;
    int32_t window, chunked;     // 0 sees everything
    float scale, cap;            // times log2(e); a cap of 0 is none
};

constexpr int kTile = 16, kWarps = 4, kStages = 3;

template <typename T, int D> DEVICE void paged_decode(const Args& args) {
    constexpr int CHUNKS = D / 8;                    // 16-byte chunks of a row
    constexpr int ROWS_AT_ONCE = 32 / CHUNKS;
    constexpr int STAGE = 2 * kTile * D;             // elements of the keys and values of a tile
    extern __shared__ __align__(16) uint16_t shared[];
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
    const uint16_t* const pool = static_cast<const uint16_t*>(args.pool) + args.layer_offset + kv_head * args.head_stride;
    const int32_t* const table = args.tables + (int64_t)sequence * args.max_blocks;
    uint16_t* const mine = shared + warp * kStages * STAGE;
    const int first_tile = begin / kTile, tiles = (end - 1) / kTile - first_tile + 1;
    const int my_tiles = (tiles - warp + kWarps - 1) / kWarps;

    // Chunk c of row r lies at chunk c ^ (r % 8), so that 8 rows of a matrix lie in different banks. A tile lies in one
    // block of the pool, whose number is read one tile ahead.
    const int row0 = lane / CHUNKS, chunk0 = lane % CHUNKS;
    auto token_of = [&](int tile) { return (first_tile + warp + tile * kWarps) * kTile; };
    auto block_of = [&](int tile) { return tile < my_tiles ? table[token_of(tile) >> args.block_shift] : 0; };
    int next_block = block_of(0);
    auto fetch = [&](int tile) {
        const int block = next_block;
        next_block = block_of(tile + 1);
        if (tile < my_tiles) {
            const int token0 = token_of(tile), in_block = token0 & ((1 << args.block_shift) - 1);
            uint16_t* const stage = mine + tile % kStages * STAGE;
            const uint16_t* source = pool + block * args.block_elems + (in_block + row0) * args.token_stride + chunk0 * 8;
#pragma unroll
            for (int k = 0; k < kTile / ROWS_AT_ONCE; ++k) {
                const int row = k * ROWS_AT_ONCE + row0;
                const bool live = token0 + row >= begin && token0 + row < end;
                uint16_t* const to = stage + row * D + (chunk0 ^ (row & 7)) * 8;
                copy_async(to, source, live);
                copy_async(to + kTile * D, source + args.kv_stride, live);
                source += ROWS_AT_ONCE * args.token_stride;
            }
        }
        copy_commit();
    };
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fetch(i);

    // The queries of the group; rows beyond it are zero.
    uint32_t queries[D / 16][4];
    const uint16_t* const q = static_cast<const uint16_t*>(args.q) + query_row * args.q_stride + kv_head * args.group * D;
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int row = lane / 4 + part % 2 * 8, column = k * 16 + lane % 4 * 2 + part / 2 * 8;
            queries[k][part] = row < args.group ? *reinterpret_cast<const uint32_t*>(q + row * D + column) : 0u;
        }
    float out[D / 8][4] = {};
    float top[2] = {-INFINITY, -INFINITY}, total[2] = {0.f, 0.f};
    for (int tile = 0; tile < my_tiles; ++tile) {
        copy_wait<kStages - 2>();
        __syncwarp();   // what other lanes copied has landed, and all have left the stage that is filled next
        const uint16_t* const keys = mine + tile % kStages * STAGE;
        const uint16_t* const values = keys + kTile * D;
        float s[2][4] = {};
#pragma unroll
        for (int k = 0; k < D / 16; ++k) {
            const int row = lane % 8 + lane / 16 * 8, chunk = k * 2 + lane / 8 % 2;
            uint32_t b[4];
            load_matrices(b, keys + row * D + (chunk ^ (row & 7)) * 8);
            multiply<T>(s[0], queries[k], b[0], b[1]);
            multiply<T>(s[1], queries[k], b[2], b[3]);
        }
        const int token0 = token_of(tile) + lane % 4 * 2;
        float largest[2] = {top[0], top[1]};
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int token = token0 + n * 8 + (e & 1);
                float score = s[n][e] * args.scale;
                if (args.cap != 0.f) score = args.cap * tanhf(score / args.cap);
                s[n][e] = token >= begin && token < end ? score : -INFINITY;
                largest[e / 2] = fmaxf(largest[e / 2], s[n][e]);
            }
        float factor[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            largest[r] = fmaxf(largest[r], __shfl_xor_sync(kAllLanes, largest[r], 1));
            largest[r] = fmaxf(largest[r], __shfl_xor_sync(kAllLanes, largest[r], 2));
            factor[r] = exp2f(top[r] - largest[r]);   // every tile has a key, so that `largest` is finite
            top[r] = largest[r];
            total[r] *= factor[r];
        }
        uint32_t weights[4];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                s[n][e] = exp2f(s[n][e] - top[e / 2]);
                total[e / 2] += s[n][e];
            }
            weights[n * 2] = Format<T>::narrow(s[n]);
            weights[n * 2 + 1] = Format<T>::narrow(s[n] + 2);
        }
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) out[n][e] *= factor[e / 2];
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
            const int row = lane % 16, chunk = n * 2 + lane / 16;
            uint32_t b[4];
            load_matrices_transposed(b, values + row * D + (chunk ^ (row & 7)) * 8);
            multiply<T>(out[n * 2], weights, b[0], b[1]);
            multiply<T>(out[n * 2 + 1], weights, b[2], b[3]);
        }
        fetch(tile + kStages - 1);   // into the stage of the tile before, which all lanes have left
    }
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
#pragma unroll
            for (int n = 0; n < D / 8; ++n)
                *reinterpret_cast<float2*>(sums + (warp * args.group + row) * D + n * 8 + lane % 4 * 2) = make_float2(out[n][r * 2], out[n][r * 2 + 1]);
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
    const T value = from_float<T>(weight > 0.f ? sum / weight : 0.f);
    for (int token = first; token < beyond; ++token)
        static_cast<T*>(args.out)[((int64_t)token * args.heads + head) * D + column] = value;
}

#define JOIN(format, T, D)                                                                                          \
    extern "C" __global__ void __launch_bounds__(D) join_splits_##format##_##D(const __grid_constant__ JoinArgs args) { \
        join<T, D>(args);                                                                                           \
    }
#define KERNELS(format, T, D)                                                                                       \
    JOIN(format, T, D)                                                                                              \
    extern "C" __global__ void __launch_bounds__(32 * kWarps, 2) paged_decode_##format##_##D(const __grid_constant__ Args args) { \
        paged_decode<T, D>(args);                                                                                   \
    }

// prove paged_decode: 168 registers, LDGSTS.E.BYPASS.128, HMMA.16816, LDSM.16
// prove join_splits: 40 registers
KERNELS(bf16, __nv_bfloat16, 64)
KERNELS(bf16, __nv_bfloat16, 128)
KERNELS(f16, __half, 64)
KERNELS(f16, __half, 128)
// The stretches of mla_decode.
JOIN(bf16, __nv_bfloat16, 512)
JOIN(f16, __half, 512)
