// Attention of several query tokens of each sequence over block tables: prompts, stretches of them, and guesses to verify.
//
// A block takes one KV head, a stretch of the context, and a tile of query tokens: those times the query heads of the
// group are the rows of its matrix operand, 16 or 32 to each of four warps, and stay in shared memory. Keys and values
// come in tiles, of which one is under way while another is computed on; the pool's blocks are looked up one tile ahead.
// What a tile's rows have seen of the softmax stays in registers, with the weights of a tile, as in FlashAttention 2.
// The tiles that see most begin first. Where tiles are few, the context is split over blocks, and join_rows joins it.
#include "common.cuh"

struct Args {
    const void *q, *pool;
    void* out;                   // [tokens, heads, D], where the context is not split
    float* sums;                 // [splits, tokens, heads, D], where it is: of weights times values
    float* tops;                 // [splits, tokens, heads, 2]: the largest score, and the sum of weights under it
    const int32_t* tables;       // [batch, max_blocks]
    const uint32_t* kv_lens;     // [batch], 0 for padding
    const uint32_t* cu_seqlens;  // [batch + 1]
    const float* sinks;          // [heads] logits without a value, or null
    int64_t q_stride, block_elems, layer_offset, kv_stride, head_stride, token_stride;
    int32_t batch, max_blocks, block_shift, heads, group, splits, split_tokens;
    int32_t fewest;              // sequences of fewer tokens are left to paged_decode
    int32_t window, chunked;     // 0 sees everything
    float scale, cap;            // times log2(e); a cap of 0 is none
};

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kRun = 16;         // tokens that surely lie in one block of the pool
constexpr float kLog2e = 1.44269504f, kNothing = -1e30f;   // less than any score that counts

// M matrices of 16 rows to a warp, and N tokens to a tile.
template <typename T, int D, int M, int N> DEVICE void paged_prefill(const Args& args) {
    constexpr int CHUNKS = D / 8;                        // 16-byte chunks of a row
    constexpr int ROWS_AT_ONCE = kThreads / CHUNKS, WARP_ROWS = 16 * M, ROWS = kWarps * WARP_ROWS;
    extern __shared__ __align__(16) uint16_t shared[];   // [ROWS][D] queries, [2][2][N][D] keys and values of two tiles
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int kv_head = blockIdx.y, split = blockIdx.z, group = args.group;

    // Tiles of a sequence begin in the grid where those of all before it have surely ended.
    const int tile_tokens = ROWS / group, grid_tile = gridDim.x - 1 - blockIdx.x;
    auto first_tile = [&](int sequence) { return (int)args.cu_seqlens[sequence] / tile_tokens + sequence; };
    int sequence = 0;   // the last that begins at or before the tile
    for (int beyond = args.batch; beyond - sequence > 1;) {
        const int middle = (sequence + beyond) / 2;
        if (first_tile(middle) <= grid_tile) sequence = middle; else beyond = middle;
    }
    const int kv_len = args.kv_lens[sequence], tokens = args.cu_seqlens[sequence + 1] - args.cu_seqlens[sequence];
    const int token0 = (grid_tile - first_tile(sequence)) * tile_tokens;
    if (token0 >= tokens || tokens < args.fewest) return;
    const int live_rows = min(tile_tokens, tokens - token0) * group;
    const int position0 = kv_len - tokens + token0;
    auto visible = [&](int position) {
        if (!args.window) return 0;
        return args.chunked ? position / args.window * args.window : max(position + 1 - args.window, 0);
    };
    auto position_of = [&](int row) { return position0 + min(row, live_rows - 1) / group; };
    const int begin = max(split * args.split_tokens, visible(position0));
    const int end = kv_len == 0 ? 0 : min((split + 1) * args.split_tokens, position_of(live_rows - 1) + 1);

    // Chunk c of row r lies at chunk c ^ (r % 8), so that 8 rows of a matrix lie in different banks.
    auto place = [&](int row, int chunk) { return row * D + (chunk ^ (row & 7)) * 8; };
    const int row0 = threadIdx.x / CHUNKS, chunk0 = threadIdx.x % CHUNKS, copy_place = place(row0, chunk0);
    const uint16_t* const pool = static_cast<const uint16_t*>(args.pool) + args.layer_offset + kv_head * args.head_stride + row0 * args.token_stride + chunk0 * 8;
    const int32_t* const table = args.tables + (int64_t)sequence * args.max_blocks;
    int blocks[N / kRun];
    auto look_up = [&](int tile0) {
#pragma unroll
        for (int i = 0; i < N / kRun; ++i) {
            const int token = tile0 + i * kRun;
            blocks[i] = token < end ? table[token >> args.block_shift] : 0;
        }
    };
    auto stage_of = [&](int stage) { return shared + ROWS * D + stage * 2 * N * D; };
    auto fetch = [&](int tile0, int stage) {
        if (tile0 < end) {
#pragma unroll
            for (int run = 0; run < N / kRun; ++run) {
                const int in_block = tile0 + run * kRun & ((1 << args.block_shift) - 1);
                const uint16_t* from = pool + blocks[run] * args.block_elems + in_block * args.token_stride;
#pragma unroll
                for (int row = run * kRun; row < (run + 1) * kRun; row += ROWS_AT_ONCE) {
                    const int token = tile0 + row + row0;
                    const bool live = token >= begin && token < end;
                    uint16_t* const to = stage_of(stage) + (copy_place ^ row % 8 * 8) + row * D;
                    copy_async(to, from, live);
                    copy_async(to + N * D, from + args.kv_stride, live);
                    from += ROWS_AT_ONCE * args.token_stride;
                }
            }
            look_up(tile0 + N);
        }
        copy_commit();
    };
    const int first = begin / kRun * kRun;
    const int64_t token_row = (int64_t)args.cu_seqlens[sequence] + token0;
    if (begin < end) {
        const uint16_t* const q = static_cast<const uint16_t*>(args.q) + token_row * args.q_stride + kv_head * group * D + chunk0 * 8;
#pragma unroll 4
        for (int row = row0; row < ROWS; row += ROWS_AT_ONCE) {
            const bool live = row < live_rows;
            copy_async(shared + place(row, chunk0), live ? q + row / group * args.q_stride + row % group * D : q, live);
        }
        look_up(first);
    }
    fetch(first, 0);

    const int warp_row = warp * WARP_ROWS;
    // Positions of the warp's rows and the first that they see.
    int position[M][2], seen[M][2];
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            position[m][r] = position_of(warp_row + m * 16 + r * 8 + lane / 4);
            seen[m][r] = visible(position[m][r]);
        }
    const int warp_first = position_of(warp_row), warp_last = position_of(warp_row + WARP_ROWS - 1);
    const int sees_from = visible(warp_first), all_see_from = visible(warp_last);
    // Where the lane reads of the first matrices; two chunks on is another by xor, 16 rows on another by a sum.
    const int query_place = place(warp_row + lane % 16, lane / 16);
    const int key_place = place(lane % 8 + lane / 16 * 8, lane / 8 % 2), value_place = place(lane % 16, lane / 16);
    float out[M][D / 8][4] = {}, top[M][2], total[M][2] = {};
#pragma unroll
    for (int m = 0; m < M; ++m) top[m][0] = top[m][1] = kNothing;
    for (int tile0 = first, stage = 0; tile0 < end; tile0 += N, stage ^= 1) {
        copy_wait<0>();
        __syncthreads();   // the tile has landed, and all have left the one before
        fetch(tile0 + N, stage ^ 1);
        if (warp_row >= live_rows || tile0 > warp_last || tile0 + N <= sees_from) continue;
        const uint16_t* const keys = stage_of(stage);
        const uint16_t* const values = keys + N * D;
        float s[M][N / 8][4] = {};
#pragma unroll
        for (int k = 0; k < D / 16; ++k) {
            uint32_t a[M][4];
#pragma unroll
            for (int m = 0; m < M; ++m) load_matrices(a[m], shared + (query_place ^ k * 16) + m * 16 * D);
#pragma unroll
            for (int n = 0; n < N / 16; ++n) {
                uint32_t b[4];
                load_matrices(b, keys + (key_place ^ k * 16) + n * 16 * D);
#pragma unroll
                for (int m = 0; m < M; ++m) multiply<T>(s[m][n * 2], a[m], b[0], b[1]), multiply<T>(s[m][n * 2 + 1], a[m], b[2], b[3]);
            }
        }
        // Most tiles are seen by all rows of the warp from end to end.
        const bool whole = tile0 >= max(all_see_from, begin) && tile0 + N <= min(warp_first + 1, end);
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int n = 0; n < N / 8; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) s[m][n][e] *= args.scale;
            if (args.cap != 0.f) {
#pragma unroll
                for (int n = 0; n < N / 8; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) s[m][n][e] = args.cap * tanhf(s[m][n][e] / args.cap);
            }
            if (!whole) {
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const int from = max(seen[m][r], begin), beyond = min(position[m][r] + 1, end);
#pragma unroll
                    for (int n = 0; n < N / 8; ++n)
#pragma unroll
                        for (int i = 0; i < 2; ++i) {
                            const int token = tile0 + n * 8 + lane % 4 * 2 + i;
                            if (token < from || token >= beyond) s[m][n][r * 2 + i] = -INFINITY;
                        }
                }
            }
            float largest[2] = {top[m][0], top[m][1]}, factor[2];
#pragma unroll
            for (int n = 0; n < N / 8; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) largest[e / 2] = fmaxf(largest[e / 2], s[m][n][e]);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                largest[r] = fmaxf(largest[r], __shfl_xor_sync(kAllLanes, largest[r], 1));
                largest[r] = fmaxf(largest[r], __shfl_xor_sync(kAllLanes, largest[r], 2));
                factor[r] = exp2_flushed(top[m][r] - largest[r]);
                top[m][r] = largest[r];
                total[m][r] *= factor[r];
            }
            // Behind the first tiles the largest score of a row changes rarely.
            if (__any_sync(kAllLanes, factor[0] != 1.f || factor[1] != 1.f)) {
#pragma unroll
                for (int n = 0; n < D / 8; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) out[m][n][e] *= factor[e / 2];
            }
        }
#pragma unroll
        for (int k = 0; k < N / 16; ++k) {
            uint32_t weights[M][4];
#pragma unroll
            for (int m = 0; m < M; ++m)
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    float(&w)[4] = s[m][k * 2 + n];
#pragma unroll
                    for (int e = 0; e < 4; ++e) w[e] = exp2_flushed(w[e] - top[m][e / 2]), total[m][e / 2] += w[e];
                    weights[m][n * 2] = Format<T>::narrow(w), weights[m][n * 2 + 1] = Format<T>::narrow(w + 2);
                }
#pragma unroll
            for (int n = 0; n < D / 16; ++n) {
                uint32_t b[4];
                load_matrices_transposed(b, values + (value_place ^ n * 16) + k * 16 * D);
#pragma unroll
                for (int m = 0; m < M; ++m) multiply<T>(out[m][n * 2], weights[m], b[0], b[1]), multiply<T>(out[m][n * 2 + 1], weights[m], b[2], b[3]);
            }
        }
    }

    const int64_t tokens_of_all = args.cu_seqlens[args.batch], split_row = split * tokens_of_all + token_row;
    auto row_of = [&](int row) { return (int64_t)(row / group) * args.heads + kv_head * group + row % group; };
    __syncwarp();   // all have read the warp's queries, over which its rows are left
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float sum = total[m][r];
            sum += __shfl_xor_sync(kAllLanes, sum, 1);
            sum += __shfl_xor_sync(kAllLanes, sum, 2);
            const int row = warp_row + m * 16 + r * 8 + lane / 4;
            if (args.splits > 1) {
                if (row >= live_rows) continue;
                const int64_t at = split_row * args.heads + row_of(row);
                if (lane % 4 == 0) args.tops[at * 2] = top[m][r], args.tops[at * 2 + 1] = sum;
#pragma unroll
                for (int n = 0; n < D / 8; ++n)
                    *reinterpret_cast<float2*>(args.sums + at * D + n * 8 + lane % 4 * 2) = make_float2(out[m][n][r * 2], out[m][n][r * 2 + 1]);
            } else {
                const float sink = args.sinks ? args.sinks[kv_head * group + row % group] * kLog2e : -INFINITY;
                const float largest = fmaxf(top[m][r], sink), weight = exp2f(top[m][r] - largest);
                sum = sum * weight + exp2f(sink - largest);
                const float factor = sum > 0.f ? weight / sum : 0.f;
#pragma unroll
                for (int n = 0; n < D / 8; ++n) {
                    const float pair[2] = {out[m][n][r * 2] * factor, out[m][n][r * 2 + 1] * factor};
                    *reinterpret_cast<uint32_t*>(shared + place(row, n) + lane % 4 * 2) = Format<T>::narrow(pair);
                }
            }
        }
    if (args.splits > 1) return;
    __syncwarp();
    for (int i = lane; i < WARP_ROWS * CHUNKS; i += 32) {
        const int row = warp_row + i / CHUNKS, chunk = i % CHUNKS;
        if (row >= live_rows) break;
        uint16_t* const to = static_cast<uint16_t*>(args.out) + (token_row * args.heads + row_of(row)) * D + chunk * 8;
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(shared + place(row, chunk));
    }
}

#define KERNEL(format, T, D, M, N)                                                                                  \
    extern "C" __global__ void __launch_bounds__(kThreads, 2) paged_prefill_##format##_##D(const __grid_constant__ Args args) { \
        paged_prefill<T, D, M, N>(args);                                                                            \
    }

// prove paged_prefill: 255 registers, LDGSTS.E.BYPASS.128, HMMA.16816, LDSM.16, STG.E.128
KERNEL(bf16, __nv_bfloat16, 64, 2, 64)
KERNEL(bf16, __nv_bfloat16, 128, 2, 32)
KERNEL(bf16, __nv_bfloat16, 256, 1, 32)
KERNEL(f16, __half, 64, 2, 64)
KERNEL(f16, __half, 128, 2, 32)
KERNEL(f16, __half, 256, 1, 32)
