// Absorbed multi-head latent attention of one query token of each sequence: scores over latents of 512 and 64 elements,
// of which the first 512 are the values as well.
//
// A block takes 16 query heads, the rows of a matrix operand, of one sequence and one stretch of its context, so that a
// latent is read from memory once for them. A tile of 32 tokens lies in shared memory while the next is under way. Its
// eight warps share out the scores by token and by half of the elements, and leave them in shared memory; then each warp
// has all weights of the tile and owns 64 columns of the values, so that nothing is left to join but the stretches.
#include "common.cuh"

struct Args {
    const void *q, *pool;
    float* sums;                 // [splits, batch, heads, 512], of weights times values
    float* tops;                 // [splits, batch, heads, 2]: the largest score, and the sum of weights under it
    const int32_t* tables;       // [batch, max_blocks]
    const uint32_t* kv_lens;     // [batch], 0 for padding
    const uint32_t* cu_seqlens;  // [batch + 1]
    int64_t q_stride, block_elems, layer_offset;
    int32_t max_blocks, block_shift, heads, split_tokens;
    float scale;                 // times log2(e)
};

constexpr int kKeys = 576, kValues = 512, kRows = 16, kTile = 32, kWarps = 8, kStages = 2;
constexpr int kScoreRow = kTile + 8;   // so that eight rows lie in different banks

template <typename T> DEVICE void mla_decode(const Args& args) {
    extern __shared__ __align__(16) uint16_t shared[];
    uint16_t* const queries = shared + kStages * kTile * kKeys;
    float* const scores = reinterpret_cast<float*>(queries + kRows * kKeys);   // [2][kRows][kScoreRow]
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int head0 = blockIdx.x * kRows, sequence = blockIdx.y, split = blockIdx.z;
    const int live_heads = min(kRows, args.heads - head0), query_row = args.cu_seqlens[sequence];
    const bool single = args.cu_seqlens[sequence + 1] - query_row == 1;
    const int begin = split * args.split_tokens, end = min(begin + args.split_tokens, (int)args.kv_lens[sequence]);
    const int64_t out_row = (int64_t)(split * gridDim.y + sequence) * args.heads + head0;
    if (begin >= end || !single) {
        if (threadIdx.x < live_heads) {
            args.tops[(out_row + threadIdx.x) * 2] = -INFINITY;
            args.tops[(out_row + threadIdx.x) * 2 + 1] = 0.f;
        }
        return;
    }
    // Chunk c of row r lies at chunk c ^ (r % 8), so that 8 rows of a matrix lie in different banks. Eight threads copy a
    // row; the number of its block is read one tile ahead.
    const int row = threadIdx.x / 8, chunk0 = threadIdx.x % 8, swizzle = row & 7;
    const uint16_t* const pool = static_cast<const uint16_t*>(args.pool) + args.layer_offset + chunk0 * 8;
    const int32_t* const table = args.tables + (int64_t)sequence * args.max_blocks;
    auto block_of = [&](int token) { return token < end ? table[token >> args.block_shift] : 0; };
    int next_block = block_of(begin + row);
    auto fetch = [&](int tile0) {
        const int token = tile0 + row, in_block = token & ((1 << args.block_shift) - 1);
        const bool live = token < end;
        const uint16_t* const from = pool + next_block * args.block_elems + (int64_t)in_block * kKeys;
        next_block = block_of(token + kTile);
        uint16_t* const to = shared + (tile0 / kTile & 1) * kTile * kKeys + row * kKeys + (chunk0 ^ swizzle) * 8;
        if (tile0 < end) {
#pragma unroll
            for (int i = 0; i < kKeys / 64; ++i) copy_async(to + i * 64, live ? from + i * 64 : pool, live);
        }
        copy_commit();
    };
    const uint16_t* const q = static_cast<const uint16_t*>(args.q) + query_row * args.q_stride + (int64_t)head0 * kKeys + chunk0 * 8;
    if (row < kRows) {
#pragma unroll
        for (int i = 0; i < kKeys / 64; ++i)
            copy_async(queries + row * kKeys + (chunk0 ^ swizzle) * 8 + i * 64, row < live_heads ? q + row * kKeys + i * 64 : q, row < live_heads);
    }
    fetch(begin);

    float out[8][4] = {}, top[2] = {-INFINITY, -INFINITY}, total[2] = {0.f, 0.f};
    for (int tile0 = begin; tile0 < end; tile0 += kTile) {
        copy_wait<0>();
        __syncthreads();   // the tile has landed, and all have left the one before, and its scores
        fetch(tile0 + kTile);
        const uint16_t* const stage = shared + (tile0 / kTile & 1) * kTile * kKeys;
        float s[4][4] = {};
        const int n = warp % 4, half = warp / 4;
#pragma unroll
        for (int k = half * (kKeys / 32); k < (half + 1) * (kKeys / 32); k += 2) {
            uint32_t a[4], b[4];
            const int key = n * 8 + lane % 8, query = lane % 16;
            load_matrices(b, stage + key * kKeys + ((k * 2 + lane / 8) ^ (key & 7)) * 8);
            load_matrices(a, queries + query * kKeys + ((k * 2 + lane / 16) ^ (query & 7)) * 8);
            multiply<T>(s[0], a, b[0], b[1]);
            load_matrices(a, queries + query * kKeys + ((k * 2 + 2 + lane / 16) ^ (query & 7)) * 8);
            multiply<T>(s[0], a, b[2], b[3]);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r)
            *reinterpret_cast<float2*>(scores + (half * kRows + lane / 4 + r * 8) * kScoreRow + n * 8 + lane % 4 * 2) =
                make_float2(s[0][r * 2], s[0][r * 2 + 1]);
        __syncthreads();
        float largest[2] = {top[0], top[1]};
#pragma unroll
        for (int m = 0; m < 4; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float* const from = scores + (lane / 4 + r * 8) * kScoreRow + m * 8 + lane % 4 * 2;
                const float2 a = *reinterpret_cast<const float2*>(from), b = *reinterpret_cast<const float2*>(from + kRows * kScoreRow);
                const int token = tile0 + m * 8 + lane % 4 * 2;
                s[m][r * 2] = token < end ? (a.x + b.x) * args.scale : -INFINITY;
                s[m][r * 2 + 1] = token + 1 < end ? (a.y + b.y) * args.scale : -INFINITY;
                largest[r] = fmaxf(largest[r], fmaxf(s[m][r * 2], s[m][r * 2 + 1]));
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
#pragma unroll
        for (int c = 0; c < 8; ++c)
#pragma unroll
            for (int e = 0; e < 4; ++e) out[c][e] *= factor[e / 2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            uint32_t weights[4];
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                float(&w)[4] = s[k * 2 + m];
#pragma unroll
                for (int e = 0; e < 4; ++e) w[e] = exp2f(w[e] - top[e / 2]), total[e / 2] += w[e];
                weights[m * 2] = Format<T>::narrow(w), weights[m * 2 + 1] = Format<T>::narrow(w + 2);
            }
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const int token = k * 16 + lane % 16, chunk = warp * 8 + c * 2 + lane / 16;
                uint32_t b[4];
                load_matrices_transposed(b, stage + token * kKeys + (chunk ^ (token & 7)) * 8);
                multiply<T>(out[c * 2], weights, b[0], b[1]);
                multiply<T>(out[c * 2 + 1], weights, b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        total[r] += __shfl_xor_sync(kAllLanes, total[r], 1);
        total[r] += __shfl_xor_sync(kAllLanes, total[r], 2);
        const int head = lane / 4 + r * 8;
        if (head >= live_heads) continue;
        if (warp == 0 && lane % 4 == 0) {
            args.tops[(out_row + head) * 2] = top[r];
            args.tops[(out_row + head) * 2 + 1] = total[r];
        }
#pragma unroll
        for (int c = 0; c < 8; ++c)
            *reinterpret_cast<float2*>(args.sums + (out_row + head) * kValues + warp * 64 + c * 8 + lane % 4 * 2) =
                make_float2(out[c][r * 2], out[c][r * 2 + 1]);
    }
}

#define KERNEL(format, T)                                                                                       \
    extern "C" __global__ void __launch_bounds__(32 * kWarps, 2) mla_decode_##format(const __grid_constant__ Args args) { \
        mla_decode<T>(args);                                                                                    \
    }

// prove mla_decode: 128 registers, LDGSTS.E.BYPASS.128, HMMA.16816, LDSM.16
KERNEL(bf16, __nv_bfloat16)
KERNEL(f16, __half)
