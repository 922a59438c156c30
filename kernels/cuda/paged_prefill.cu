// Attention of several query tokens of each sequence over block tables: prompts, stretches of them, and guesses to verify.
//
// A block takes one KV head, a stretch of the context, and a tile of query tokens: those times the query heads of the
// group are the rows of its matrix operand, 16 or 32 to each of four warps, and stay in shared memory. Keys and values
// come in tiles, of which one is under way while another is computed on; the pool's blocks are looked up one tile ahead.
// What a tile's rows have seen of the softmax stays in registers, with the weights of a tile, as in FlashAttention 2.
// The tiles that see most begin first. Where tiles are few, the context is split over blocks, and join_rows joins it.
//
// Tiles of pools of 8 bits land beside, and become half floats on their way to where the products read them, once for all
// warps. Half floats hold both formats exactly, and queries of either 16-bit type too, once the largest of a row lies
// between 1 and 2. Scales are factors of scores and results; those of single values are a part of their weights, as
// exponents, so that no weight is above 1.
#include "common.cuh"
#include <type_traits>

struct Args {
    const void *q, *pool;
    void* out;                   // [tokens, heads, D], where the context is not split
    float* sums;                 // [splits, tokens, heads, D], where it is: of weights times values
    float* tops;                 // [splits, tokens, heads, 2]: the largest score, and the sum of weights under it
    const int32_t* tables;       // [batch, max_blocks]
    const uint32_t* kv_lens;     // [batch], 0 for padding
    const uint32_t* cu_seqlens;  // [batch + 1]
    const float* sinks;          // [heads] logits without a value, or null
    const float* own_scales;     // [blocks, layer_rows], or null
    const float *k_scales, *v_scales;   // [kv_heads], or null
    int64_t q_stride, block_elems, layer_offset, kv_stride, head_stride, token_stride, layer_rows;
    int32_t batch, max_blocks, block_shift, heads, group, splits, split_tokens;
    int32_t fewest;              // sequences of fewer tokens are left to paged_decode
    int32_t window, chunked;     // 0 sees everything
    float scale, cap;            // times log2(e); a cap of 0 is none
    float k_scale, v_scale;      // where there are none for each head
    int32_t bf16;                // whether queries over a pool of 8 bits are
};

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kRun = 16;         // tokens that surely lie in one block of the pool
constexpr float kLog2e = 1.44269504f, kNothing = -1e30f;   // less than any score that counts

// 16 bytes of a pool of 8 bits as two vectors of half floats.
template <typename P> DEVICE void to_halves(const Vec16& bytes, Vec16 (&halves)[2]) {
    uint32_t not_numbers = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        uint32_t even, odd;
        Format<P>::halves(bytes.words[i], even, odd);
        not_numbers |= Format<P>::not_numbers(bytes.words[i]);
        halves[i / 2].words[i % 2 * 2] = __byte_perm(even, odd, 0x5410);
        halves[i / 2].words[i % 2 * 2 + 1] = __byte_perm(even, odd, 0x7632);
    }
    if ((not_numbers & Format<P>::kTops) == 0) return;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const bool number = (Format<P>::not_numbers(bytes.words[i / 4]) & Format<P>::kTops & 0x80u << i % 4 * 8) == 0;
        if (!number) halves[i / 8].words[i % 8 / 2] |= 0x7e00u << i % 2 * 16;
    }
}

// M matrices of 16 rows to a warp, and N tokens to a tile.
template <typename P, int D, int M, int N> DEVICE void paged_prefill(const Args& args) {
    constexpr bool BYTES = sizeof(P) == 1;
    using T = std::conditional_t<BYTES, __half, P>;
    constexpr int CHUNKS = D / 8;                        // 16-byte chunks of a row
    constexpr int WARP_ROWS = 16 * M, ROWS = kWarps * WARP_ROWS;
    constexpr int POOL_CHUNKS = D * sizeof(P) / 16, ROWS_AT_ONCE = kThreads / POOL_CHUNKS;   // as the pool has them
    constexpr int STEP = ROWS_AT_ONCE > kRun ? ROWS_AT_ONCE : kRun;
    // [ROWS][D] queries, then [2][2][N][D] keys and values of two tiles; over 8 bits those of one, as bytes another, for
    // its tokens [5][N] scales of keys, logarithms of those of values, their inverses, and both scales as they land, and
    // [ROWS] factors of scores.
    extern __shared__ __align__(16) uint16_t shared[];
    uint16_t* const landed = shared + ROWS * D + 2 * N * D;
    float *const own_scales = reinterpret_cast<float*>(landed + N * D), *const row_scales = own_scales + 5 * N;
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
    const int row0 = threadIdx.x / POOL_CHUNKS, chunk0 = threadIdx.x % POOL_CHUNKS, copy_place = place(row0, chunk0);
    const int run0 = ROWS_AT_ONCE > kRun ? row0 / kRun * kRun : 0;
    const P* const pool = static_cast<const P*>(args.pool) + args.layer_offset + kv_head * args.head_stride + (row0 - run0) * args.token_stride + chunk0 * kPerVec<P>;
    const int32_t* const table = args.tables + (int64_t)sequence * args.max_blocks;
    const int in_blocks = (1 << args.block_shift) - 1;
    auto block_of = [&](int token) { return token < end ? table[token >> args.block_shift] : 0; };
    int blocks[N / STEP];
    const bool owns = BYTES && args.own_scales && threadIdx.x < N;   // the scales of a token
    auto look_up = [&](int tile0) {
#pragma unroll
        for (int i = 0; i < N / STEP; ++i) blocks[i] = block_of(tile0 + i * STEP + run0);
    };
    auto stage_of = [&](int stage) { return shared + ROWS * D + stage * 2 * N * D; };
    auto fetch = [&](int tile0, int stage) {
        if (tile0 < end) {
#pragma unroll
            for (int step = 0; step < N; step += STEP) {
                const P* from = pool + blocks[step / STEP] * args.block_elems + (tile0 + step + run0 & in_blocks) * args.token_stride;
#pragma unroll
                for (int row = step; row < step + STEP; row += ROWS_AT_ONCE) {
                    const int token = tile0 + row + row0;
                    const bool live = token >= begin && token < end;
                    // Bytes land where their thread finds them again.
                    uint16_t* const to = BYTES ? landed + row * (D / 2) + threadIdx.x * 8 : stage_of(stage) + (copy_place ^ row % 8 * 8) + row * D;
                    copy_async(to, from, live);
                    copy_async(to + (BYTES ? N * D / 2 : N * D), from + args.kv_stride, live);
                    from += ROWS_AT_ONCE * args.token_stride;
                }
            }
            if (owns) {
                const int token = tile0 + threadIdx.x;
                const int64_t in_block = kv_head * args.head_stride + (token & in_blocks) * args.token_stride;
                const float* const from = args.own_scales + block_of(token) * args.layer_rows + in_block / D;
                const bool live = token >= begin && token < end;
                copy_word_async(own_scales + 3 * N + threadIdx.x, from, live);
                copy_word_async(own_scales + 4 * N + threadIdx.x, from + args.kv_stride / D, live);
            }
            look_up(tile0 + N);
        }
        copy_commit();
    };
    // The tile that has landed, as half floats. Threads of a row begin with different chunks, for the sake of banks.
    auto widen_tile = [&] {
        if constexpr (BYTES) {
#pragma unroll
            for (int row = 0; row < N; row += ROWS_AT_ONCE)
#pragma unroll
                for (int kv = 0; kv < 2; ++kv) {
                    const uint4 v = *reinterpret_cast<const uint4*>(landed + kv * (N * D / 2) + row * (D / 2) + threadIdx.x * 8);
                    const bool swap = chunk0 & 4;
                    Vec16 halves[2];
                    to_halves<P>(swap ? Vec16{{v.z, v.w, v.x, v.y}} : Vec16{{v.x, v.y, v.z, v.w}}, halves);
                    uint16_t* const to = stage_of(0) + kv * N * D;
                    *reinterpret_cast<Vec16*>(to + place(row + row0, 2 * chunk0 + swap)) = halves[0];
                    *reinterpret_cast<Vec16*>(to + place(row + row0, 2 * chunk0 + !swap)) = halves[1];
                }
            if (owns) {
                // A value whose scale is 0 is 0; its weight counts all the same.
                float* const own = own_scales + threadIdx.x;
                const float v_scale = fmaxf(own[4 * N], 1e-30f);
                own[0] = own[3 * N], own[N] = __log2f(v_scale), own[2 * N] = 1.f / v_scale;
            }
        }
    };
    const int first = begin / kRun * kRun;
    const int64_t token_row = (int64_t)args.cu_seqlens[sequence] + token0;
    if (begin < end) {
        const int chunk = threadIdx.x % CHUNKS;
        const uint16_t* const q = static_cast<const uint16_t*>(args.q) + token_row * args.q_stride + kv_head * group * D + chunk * 8;
#pragma unroll 4
        for (int row = threadIdx.x / CHUNKS; row < ROWS; row += kThreads / CHUNKS) {
            const bool live = row < live_rows;
            copy_async(shared + place(row, chunk), live ? q + row / group * args.q_stride + row % group * D : q, live);
        }
        look_up(first);
    }
    fetch(first, 0);

    const int warp_row = warp * WARP_ROWS;
    const int warp_first = position_of(warp_row), warp_last = position_of(warp_row + WARP_ROWS - 1);
    const int sees_from = visible(warp_first), all_see_from = visible(warp_last);
    // Where the lane reads of the first matrices; two chunks on is another by xor, 16 rows on another by a sum.
    const int query_place = place(warp_row + lane % 16, lane / 16);
    const int key_place = place(lane % 8 + lane / 16 * 8, lane / 8 % 2), value_place = place(lane % 16, lane / 16);
    float out[M][D / 8][4] = {}, top[M][2], total[M][2] = {};
#pragma unroll
    for (int m = 0; m < M; ++m) top[m][0] = top[m][1] = kNothing;
    if constexpr (BYTES) {
        copy_wait<0>();
        __syncthreads();   // the queries have landed
        const float factor = args.scale * Format<P>::kHalves * (args.k_scales ? args.k_scales[kv_head] : args.k_scale);
        for (int row = warp_row; row < warp_row + WARP_ROWS && begin < end; ++row) {
            uint32_t* const words = reinterpret_cast<uint32_t*>(shared + row * D) + lane;
            float query[D / 64][2], largest = 0.f;
#pragma unroll
            for (int i = 0; i < D / 64; ++i) {
                if (args.bf16) Format<__nv_bfloat16>::widen(words[i * 32], query[i]); else Format<__half>::widen(words[i * 32], query[i]);
                largest = fmaxf(largest, fmaxf(fabsf(query[i][0]), fabsf(query[i][1])));
            }
#pragma unroll
            for (int offset = 16; offset > 0; offset /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, offset));
            const float power = power_below(largest), inverse = 1.f / power;
#pragma unroll
            for (int i = 0; i < D / 64; ++i) {
                const float pair[2] = {query[i][0] * inverse, query[i][1] * inverse};
                words[i * 32] = Format<T>::narrow(pair);
            }
            if (lane == 0) row_scales[row] = power * factor;
        }
    }
    for (int tile0 = first, stage = 0; tile0 < end; tile0 += N, stage ^= !BYTES) {
        copy_wait<0>();
        __syncthreads();   // the tile has landed, and all have left the one before
        if (BYTES) {
            widen_tile();
            __syncthreads();
        }
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
            float scale[2] = {args.scale, args.scale};
            if (BYTES) scale[0] = row_scales[warp_row + m * 16 + lane / 4], scale[1] = row_scales[warp_row + m * 16 + 8 + lane / 4];
#pragma unroll
            for (int n = 0; n < N / 8; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) s[m][n][e] *= BYTES && args.own_scales ? scale[e / 2] * own_scales[n * 8 + lane % 4 * 2 + e % 2] : scale[e / 2];
            if (args.cap != 0.f) {
#pragma unroll
                for (int n = 0; n < N / 8; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) s[m][n][e] = args.cap * tanhf(s[m][n][e] / args.cap);
            }
            if (BYTES && args.own_scales) {
#pragma unroll
                for (int n = 0; n < N / 8; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) s[m][n][e] += own_scales[N + n * 8 + lane % 4 * 2 + e % 2];
            }
            if (!whole) {
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const int position = position_of(warp_row + m * 16 + r * 8 + lane / 4);
                    const int from = max(visible(position), begin), beyond = min(position + 1, end);
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
                    for (int e = 0; e < 4; ++e) {
                        w[e] = exp2_flushed(w[e] - top[m][e / 2]);
                        total[m][e / 2] += BYTES && args.own_scales ? w[e] * own_scales[2 * N + k * 16 + n * 8 + lane % 4 * 2 + e % 2] : w[e];
                    }
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

    float v_scale = 1.f;
    if constexpr (BYTES) v_scale = Format<P>::kHalves * (args.v_scales ? args.v_scales[kv_head] : args.v_scale);
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
                    *reinterpret_cast<float2*>(args.sums + at * D + n * 8 + lane % 4 * 2) = make_float2(out[m][n][r * 2] * v_scale, out[m][n][r * 2 + 1] * v_scale);
            } else {
                const float sink = args.sinks ? args.sinks[kv_head * group + row % group] * kLog2e : -INFINITY;
                const float largest = fmaxf(top[m][r], sink), weight = exp2f(top[m][r] - largest);
                sum = sum * weight + exp2f(sink - largest);
                const float factor = sum > 0.f ? weight / sum * v_scale : 0.f;
#pragma unroll
                for (int n = 0; n < D / 8; ++n) {
                    const float pair[2] = {out[m][n][r * 2] * factor, out[m][n][r * 2 + 1] * factor};
                    *reinterpret_cast<uint32_t*>(shared + place(row, n) + lane % 4 * 2) = BYTES && args.bf16 ? Format<__nv_bfloat16>::narrow(pair) : Format<T>::narrow(pair);
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

#define KERNEL(pool, P, D, M, N)                                                                                    \
    extern "C" __global__ void __launch_bounds__(kThreads, 2) paged_prefill_##pool##_##D(const __grid_constant__ Args args) { \
        paged_prefill<P, D, M, N>(args);                                                                            \
    }
#define WIDTHS(pool, P) KERNEL(pool, P, 64, 2, 64) KERNEL(pool, P, 128, 2, 32) KERNEL(pool, P, 256, 1, 32)

// prove paged_prefill: 255 registers, LDGSTS.E.BYPASS.128, HMMA.16816, LDSM.16, STG.E.128
WIDTHS(bf16, __nv_bfloat16)
WIDTHS(f16, __half)
WIDTHS(f8, Fp8)
WIDTHS(i8, Int8)
