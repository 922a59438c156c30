// Absorbed multi-head latent attention of several query tokens of each sequence: scores over latents of 512 and 64
// elements, of which the first 512 are the values as well.
//
// A block takes 64 rows, each a head of a query token, of one sequence and one stretch of its context, so that a latent
// is read once for them. The rows stay in shared memory; tiles of 32 latents come beside them, one of them under way.
// Eight warps share out the scores by 16 rows and 16 tokens, then the softmax by 8 rows, which leaves weights and what
// earlier sums are multiplied by; then each warp owns 64 columns of the values. The tiles that see most begin first.
// Where there are few, the context is split over blocks, and join_rows joins it.
#include "common.cuh"

struct Args {
    const void *q, *pool;
    void* out;                   // [tokens, heads, 512], where the context is not split
    float* sums;                 // [splits, tokens, heads, 512], where it is: of weights times values
    float* tops;                 // [splits, tokens, heads, 2]: the largest score, and the sum of weights under it
    const int32_t* tables;       // [batch, max_blocks]
    const uint32_t* kv_lens;     // [batch], 0 for padding
    const uint32_t* cu_seqlens;  // [batch + 1]
    const float* sinks;          // [heads] logits without a value, or null
    int64_t q_stride, block_elems, layer_offset;
    int32_t batch, max_blocks, block_shift, heads, splits, split_tokens;
    int32_t fewest;              // sequences of fewer tokens are left to mla_decode
    float scale;                 // times log2(e)
};

constexpr int kKeys = 576, kValues = 512, kRows = 64, kTile = 32, kWarps = 8, kThreads = 32 * kWarps;
constexpr int kScoreRow = kTile + 8;   // so that rows lie in different banks
constexpr float kLog2e = 1.44269504f, kNothing = -1e30f;   // less than any score that counts

// Chunk c of row r lies at chunk c ^ (r % 8), so that 8 rows of a matrix lie in different banks.
DEVICE int place(int row, int chunk) { return row * kKeys + (chunk ^ (row & 7)) * 8; }
// From the place of a chunk among the first two to that `k` pairs on.
DEVICE int pairs_on(int place, int k) { return (place ^ k % 4 * 16) + k / 4 * 64; }

template <typename T> DEVICE void mla_prefill(const Args& args) {
    extern __shared__ __align__(16) uint16_t shared[];
    uint16_t* const queries = shared + 2 * kTile * kKeys;
    float* const scores = reinterpret_cast<float*>(queries + kRows * kKeys);            // [kRows][kScoreRow]
    uint16_t* const weights = reinterpret_cast<uint16_t*>(scores + kRows * kScoreRow);  // [kRows][kScoreRow]
    float* const factors = reinterpret_cast<float*>(weights + kRows * kScoreRow);       // [kRows]
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, split = blockIdx.z, heads = args.heads;

    // Tiles of a sequence begin in the grid where those of all before it have surely ended.
    const int grid_tile = gridDim.x - 1 - blockIdx.x;
    auto first_tile = [&](int sequence) { return (int)(args.cu_seqlens[sequence] * heads / kRows) + sequence; };
    int sequence = 0;   // the last that begins at or before the tile
    for (int beyond = args.batch; beyond - sequence > 1;) {
        const int middle = (sequence + beyond) / 2;
        if (first_tile(middle) <= grid_tile) sequence = middle; else beyond = middle;
    }
    const int kv_len = args.kv_lens[sequence], query_row = args.cu_seqlens[sequence];
    const int tokens = args.cu_seqlens[sequence + 1] - query_row, row0 = (grid_tile - first_tile(sequence)) * kRows;
    const int live_rows = min(kRows, tokens * heads - row0);
    if (live_rows <= 0 || tokens < args.fewest) return;
    auto position_of = [&](int row) { return kv_len - tokens + (row0 + min(row, live_rows - 1)) / heads; };
    const int begin = split * args.split_tokens;
    const int end = kv_len == 0 ? 0 : min(begin + args.split_tokens, position_of(live_rows - 1) + 1);

    // Eight threads copy a row; the number of its block is read one tile ahead.
    const int copied = threadIdx.x / 8, chunk0 = threadIdx.x % 8;
    const uint16_t* const pool = static_cast<const uint16_t*>(args.pool) + args.layer_offset + chunk0 * 8;
    const int32_t* const table = args.tables + (int64_t)sequence * args.max_blocks;
    auto block_of = [&](int token) { return token < end ? table[token >> args.block_shift] : 0; };
    int next_block = block_of(begin + copied);
    auto fetch = [&](int tile0) {
        const int token = tile0 + copied, in_block = token & ((1 << args.block_shift) - 1);
        const bool live = token < end;
        const uint16_t* const from = pool + next_block * args.block_elems + (int64_t)in_block * kKeys;
        next_block = block_of(token + kTile);
        uint16_t* const to = shared + (tile0 / kTile & 1) * kTile * kKeys + place(copied, chunk0);
        if (tile0 < end) {
#pragma unroll
            for (int i = 0; i < kKeys / 64; ++i) copy_async(to + i * 64, live ? from + i * 64 : pool, live);
        }
        copy_commit();
    };
    if (begin < end) {
#pragma unroll
        for (int row = copied; row < kRows; row += kThreads / 8) {
            const bool live = row < live_rows;
            const int at = row0 + (live ? row : 0);
            const uint16_t* const from = static_cast<const uint16_t*>(args.q) + (query_row + at / heads) * args.q_stride + at % heads * kKeys + chunk0 * 8;
#pragma unroll
            for (int i = 0; i < kKeys / 64; ++i) copy_async(queries + place(row, chunk0) + i * 64, from + i * 64, live);
        }
    }
    fetch(begin);

    // The rows and tokens of the warp's scores, the row of the lane's softmax, and where its matrices begin.
    const int score_row = warp % 4 * 16, score_token = warp / 4 * 16, own = warp * 8 + lane / 4, position = position_of(own);
    const int query_place = place(score_row + lane % 16, lane / 16);
    const int key_place = place(score_token + lane % 8 + lane / 16 * 8, lane / 8 % 2), value_place = place(lane % 16, warp * 8 + lane / 16);
    float out[4][8][4] = {}, top = kNothing, total = 0.f;
    for (int tile0 = begin; tile0 < end; tile0 += kTile) {
        copy_wait<0>();
        __syncthreads();   // the tile has landed, and all have left the one before, its scores and weights
        fetch(tile0 + kTile);
        const uint16_t* const stage = shared + (tile0 / kTile & 1) * kTile * kKeys;
        float s[2][4] = {};
#pragma unroll
        for (int k = 0; k < kKeys / 16; ++k) {
            uint32_t a[4], b[4];
            load_matrices(a, queries + pairs_on(query_place, k));
            load_matrices(b, stage + pairs_on(key_place, k));
            multiply<T>(s[0], a, b[0], b[1]);
            multiply<T>(s[1], a, b[2], b[3]);
        }
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int r = 0; r < 2; ++r)
                *reinterpret_cast<float2*>(scores + (score_row + lane / 4 + r * 8) * kScoreRow + score_token + n * 8 + lane % 4 * 2) =
                    make_float2(s[n][r * 2], s[n][r * 2 + 1]);
        __syncthreads();
        float w[kTile / 4], largest = top;
#pragma unroll
        for (int i = 0; i < kTile / 4; i += 2) {
            const int column = i * 4 + lane % 4 * 2, token = tile0 + column, beyond = min(position + 1, end);
            const float2 pair = *reinterpret_cast<const float2*>(scores + own * kScoreRow + column);
            w[i] = token < beyond ? pair.x * args.scale : -INFINITY;
            w[i + 1] = token + 1 < beyond ? pair.y * args.scale : -INFINITY;
            largest = fmaxf(largest, fmaxf(w[i], w[i + 1]));
        }
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
        const float factor = exp2_flushed(top - largest);
        top = largest;
        total *= factor;
        if (lane % 4 == 0) factors[own] = factor;
#pragma unroll
        for (int i = 0; i < kTile / 4; i += 2) {
            w[i] = exp2_flushed(w[i] - top), w[i + 1] = exp2_flushed(w[i + 1] - top);
            total += w[i] + w[i + 1];
            *reinterpret_cast<uint32_t*>(weights + own * kScoreRow + i * 4 + lane % 4 * 2) = Format<T>::narrow(w + i);
        }
        __syncthreads();
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            const float of_rows[2] = {factors[m * 16 + lane / 4], factors[m * 16 + 8 + lane / 4]};
            // Behind the first tiles the largest score of a row changes rarely.
            if (__any_sync(kAllLanes, of_rows[0] != 1.f || of_rows[1] != 1.f)) {
#pragma unroll
                for (int n = 0; n < 8; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) out[m][n][e] *= of_rows[e / 2];
            }
        }
#pragma unroll
        for (int k = 0; k < kTile / 16; ++k) {
            uint32_t a[4][4];
#pragma unroll
            for (int m = 0; m < 4; ++m) load_matrices(a[m], weights + (m * 16 + lane % 16) * kScoreRow + k * 16 + lane / 16 * 8);
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                uint32_t b[4];
                load_matrices_transposed(b, stage + (value_place ^ n * 16) + k * 16 * kKeys);
#pragma unroll
                for (int m = 0; m < 4; ++m) multiply<T>(out[m][n * 2], a[m], b[0], b[1]), multiply<T>(out[m][n * 2 + 1], a[m], b[2], b[3]);
            }
        }
    }

    // What the lanes of a row know of it is left to those that have its values.
    total += __shfl_xor_sync(kAllLanes, total, 1);
    total += __shfl_xor_sync(kAllLanes, total, 2);
    const int64_t out_row = (int64_t)query_row * heads + row0, split_row = split * ((int64_t)args.cu_seqlens[args.batch] * heads) + out_row;
    if (args.splits > 1) {
        if (lane % 4 == 0 && own < live_rows) args.tops[(split_row + own) * 2] = top, args.tops[(split_row + own) * 2 + 1] = total;
#pragma unroll
        for (int m = 0; m < 4; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int row = m * 16 + r * 8 + lane / 4;
                if (row >= live_rows) continue;
#pragma unroll
                for (int n = 0; n < 8; ++n)
                    *reinterpret_cast<float2*>(args.sums + (split_row + row) * kValues + warp * 64 + n * 8 + lane % 4 * 2) =
                        make_float2(out[m][n][r * 2], out[m][n][r * 2 + 1]);
            }
        return;
    }
    __syncthreads();   // all have left the factors of the last tile
    if (lane % 4 == 0) {
        const float sink = args.sinks ? args.sinks[(row0 + own) % heads] * kLog2e : -INFINITY;
        const float largest = fmaxf(top, sink), weight = exp2f(top - largest), sum = total * weight + exp2f(sink - largest);
        factors[own] = sum > 0.f ? weight / sum : 0.f;
    }
    __syncthreads();
    // Each warp gathers rows of its columns over the queries, which all have left.
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = m * 16 + r * 8 + lane / 4;
            const float factor = factors[row];
#pragma unroll
            for (int n = 0; n < 8; ++n) {
                const float pair[2] = {out[m][n][r * 2] * factor, out[m][n][r * 2 + 1] * factor};
                *reinterpret_cast<uint32_t*>(queries + place(row, warp * 8 + n) + lane % 4 * 2) = Format<T>::narrow(pair);
            }
        }
    __syncwarp();
    for (int row = lane / 8; row < live_rows; row += 4) {
        const int chunk = warp * 8 + lane % 8;
        uint16_t* const to = static_cast<uint16_t*>(args.out) + (out_row + row) * kValues + chunk * 8;
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(queries + place(row, chunk));
    }
}

#define KERNEL(format, T)                                                                                       \
    extern "C" __global__ void __launch_bounds__(kThreads, 1) mla_prefill_##format(const __grid_constant__ Args args) { \
        mla_prefill<T>(args);                                                                                   \
    }

// prove mla_prefill: 224 registers, LDGSTS.E.BYPASS.128, HMMA.16816, LDSM.16, STG.E.128
KERNEL(bf16, __nv_bfloat16)
KERNEL(f16, __half)
