// Linear attention with a decay per head (gated delta, lightning) over many tokens of each sequence, in place, in chunks
// of 64 (Yang et al., 2024). With `cum` the running sum of the log decays inside of a chunk and D(t, s) = exp(cum_t - cum_s):
//   u_t = beta_t (v_t - D(t, 0) k_t . S - sum_{s < t} D(t, s) (k_t . k_s) u_s),  or v_t without the delta rule
//   o_t = scale (D(t, 0) q_t . S + sum_{s <= t} D(t, s) (q_t . k_s) u_s)
//   S   = D(last, 0) S + sum_s D(last, s) k_s (x) u_s
//
// A block walks the chunks of a sequence for 64 value columns of a head. Its four warps first share out the products of
// keys with keys and with queries, and invert the four blocks of 16 tokens on the diagonal of the triangular system. Then
// each warp has 16 columns of its own, turned: S, u and o stand in registers with values as their rows, so that the result
// of one product is the left operand of the next and no warp waits for another.
//
// All products are of bf16 parts (chunks.cuh), summed in f32. Inputs are whole in their parts. What enters the state has as
// many as the state is held to, two at least; what only outputs take, as many as the inputs.
#include "chunks.cuh"
#include "linear_attention.cuh"

constexpr int kValues = 64, kThreads = 128, kWideRow = kValues + 4, kDiagonalRow = 17, kOutRow = 20;

template <typename TS, typename TI, int K> DEVICE void chunk_delta(const Args& args) {
    constexpr int V = kPerVec<TI>, VS = kPerVec<TS>, PARTS = kParts<TI>, WIDE = kParts<TS> < 2 ? 2 : kParts<TS>;
    constexpr int STAGE = kChunk * (2 * K + kValues), PAIRS = kChunk * kChunk;
    static_assert(K * kWideRow * sizeof(float) <= STAGE * sizeof(TI), "the state passes through the inputs");
    extern __shared__ __align__(16) uint8_t shared[];
    TI* const keys = reinterpret_cast<TI*>(shared);
    TI *const queries = keys + kChunk * K, *const values = queries + kChunk * K;
    // [WIDE][kChunk][kChunk]: what token t takes of u_s, negative; on the diagonal the inverse of the system's block.
    __nv_bfloat16* const taken = reinterpret_cast<__nv_bfloat16*>(keys + STAGE);
    __nv_bfloat16* const given = taken + WIDE * PAIRS;   // [PARTS][kChunk][kChunk]: what o_t reads of u_s
    float* const diagonals = reinterpret_cast<float*>(given + PARTS * PAIRS);   // of a warp [16][kDiagonalRow]
    float* const outs = diagonals + 4 * 16 * kDiagonalRow;                      // of a warp [16][kOutRow]
    __shared__ float sums[2][kChunk], betas[kChunk], starts[kChunk], gains[kChunk], key_scales[kChunk], query_scales[kChunk], keep;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int sequence = blockIdx.z, head = blockIdx.y, value0 = blockIdx.x * kValues, key_head = head / args.heads_per_key;
    const int columns = min(kValues, args.value_dim - value0);
    const int64_t value = (int64_t)head * args.value_dim + value0, o_stride = (int64_t)args.heads * args.value_dim;
    const int slot = args.slots[sequence];
    const int begin = args.cu_seqlens[sequence], end = args.cu_seqlens[sequence + 1];
    if (end - begin <= args.few) return;
    TI* const o = static_cast<TI*>(args.o) + value;
    if (slot < 0) {
        for (int i = threadIdx.x; i < (end - begin) * (kValues / V); i += kThreads)
            if (i % (kValues / V) * V < columns) store_streamed(o + (begin + i / (kValues / V)) * o_stride + i % (kValues / V) * V, Vec16{});
        return;
    }
    const int64_t inner = (int64_t)head * K * args.value_dim + value0;
    TS* const state = static_cast<TS*>(args.pool) + slot * args.slot_elems + args.layer_offset + inner;
    const bool delta = args.beta;

    auto fetch = [&](int from, int to) {
        auto row = [&](const void* source, int64_t stride, int64_t first) { return static_cast<const TI*>(source) + from * stride + first; };
        fetch_rows<TI, K, kChunk, kThreads>(keys, row(args.k, args.k_stride, (int64_t)key_head * K), args.k_stride, to - from, K);
        fetch_rows<TI, K, kChunk, kThreads>(queries, row(args.q, args.q_stride, (int64_t)key_head * K), args.q_stride, to - from, K);
        fetch_rows<TI, kValues, kChunk, kThreads>(values, row(args.v, args.v_stride, value), args.v_stride, to - from, columns);
        copy_commit();
    };
    // What the tokens of a chunk are weighed with, by one warp; a lane has two tokens that follow each other.
    auto weigh = [&](int from, int to) {
        Sum sum[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int token = lane * 2 + i, row = from + token;
            float decay = 0.f, beta = 0.f;
            if (row < to) {
                decay = args.fixed ? args.fixed[head] : load_either<TI>(args.decay, row * args.decay_stride + head, args.wide_decay);
                if (delta) beta = load_either<TI>(args.beta, row * args.beta_stride + head, args.wide_beta);
            }
            sum[i] = {decay, 0.f}, betas[token] = beta;
        }
        const Sum last = running_sums(sum, lane), none = {0.f, 0.f};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int token = lane * 2 + i;
            sums[0][token] = sum[i].high, sums[1][token] = sum[i].low;
            starts[token] = exp_between(sum[i], none), gains[token] = exp_between(last, sum[i]);
        }
        if (lane == 0) keep = exp_between(last, none);
    };
    auto sum_at = [&](int token) { return Sum{sums[0][token], sums[1][token]}; };

    // The state, of which a lane has pairs of keys of two value columns in each tile of 8 keys.
    float held[K / 8][4];
    const int own_value = warp * 16 + lane / 4;   // and the one 8 further
    float* const wide = reinterpret_cast<float*>(shared);   // [K][kWideRow]
    for (int i = threadIdx.x; i < K * (kValues / VS); i += kThreads) {
        const int key = i / (kValues / VS), column = i % (kValues / VS) * VS;
        float loaded[VS] = {};
        if (column < columns) widen<TS>(load_streamed(state + (int64_t)key * args.value_dim + column), loaded);
#pragma unroll
        for (int e = 0; e < VS; e += 4) *reinterpret_cast<float4*>(wide + key * kWideRow + column + e) = make_float4(loaded[e], loaded[e + 1], loaded[e + 2], loaded[e + 3]);
    }
    __syncthreads();
    auto each_wide = [&](auto body) {
#pragma unroll
        for (int n = 0; n < K / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) body(wide[(n * 8 + lane % 4 * 2 + e % 2) * kWideRow + own_value + e / 2 * 8], held[n][e]);
    };
    each_wide([](float& from, float& to) { to = from; });
    __syncthreads();   // all have taken their part

    for (int first = begin, last; first < end; first = last) {
        last = chunk_end(args.writes, first, end, lane);
        fetch(first, last);
        if (warp == 0) weigh(first, last);
        copy_wait<0>();
        __syncthreads();   // the inputs and their weights lie ready
        {
            const TI* const rows = threadIdx.x < kChunk ? keys : queries;
            const int token = threadIdx.x % kChunk;
            float length = 0.f;
            if (args.unit) {
#pragma unroll
                for (int c = 0; c < K; c += V) {
                    float parts[V];
                    widen<TI>(*reinterpret_cast<const Vec16*>(rows + swizzled<TI, K>(token, c)), parts);
#pragma unroll
                    for (int e = 0; e < V; ++e) length += parts[e] * parts[e];
                }
            }
            const float scale = args.unit ? rsqrtf(length + 1e-6f) : 1.f;
            if (threadIdx.x < kChunk) key_scales[token] = scale;
            else query_scales[token] = scale * args.scale;
        }
        __syncthreads();   // and their lengths

        // The products of 16 tokens with those up to them.
        const int row = warp * 16 + lane / 4;   // and the one 8 further
        float* const diagonal = diagonals + warp * 16 * kDiagonalRow;
        auto put = [&](auto parts, __nv_bfloat16* to, int r, int token, float low, float high) {
            constexpr int COUNT = decltype(parts)::value;
            uint32_t words[COUNT];
            split(low, high, words);
#pragma unroll
            for (int p = 0; p < COUNT; ++p) *reinterpret_cast<uint32_t*>(to + p * PAIRS + swizzled<__nv_bfloat16, kChunk>(r, token)) = words[p];
        };
#pragma unroll 1
        for (int s = 0; s <= warp; ++s) {
            float with_keys[2][4] = {}, with_queries[2][4] = {};
#pragma unroll 2
            for (int k = 0; k < K; k += 16) {
                uint32_t left[PARTS][4], right[PARTS][4];
                load_parts<TI, K, Operand::kRight>(right, keys, s * 16, k, lane);
                load_parts<TI, K, Operand::kLeft>(left, keys, warp * 16, k, lane);
                multiply_parts(with_keys[0], left, right, 0);
                multiply_parts(with_keys[1], left, right, 1);
                load_parts<TI, K, Operand::kLeft>(left, queries, warp * 16, k, lane);
                multiply_parts(with_queries[0], left, right, 0);
                multiply_parts(with_queries[1], left, right, 1);
            }
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const int t = row + r * 8, token = s * 16 + n * 8 + lane % 4 * 2;
                    float takes[2], gives[2];
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const float weight = exp_between(sum_at(t), sum_at(token + e)) * key_scales[token + e];
                        takes[e] = token + e < t ? -betas[t] * key_scales[t] * weight * with_keys[n][r * 2 + e] : 0.f;
                        gives[e] = token + e <= t ? query_scales[t] * weight * with_queries[n][r * 2 + e] : 0.f;
                    }
                    put(Count<PARTS>{}, given, t, token, gives[0], gives[1]);
                    if (s < warp) {
                        put(Count<WIDE>{}, taken, t, token, takes[0], takes[1]);
                    } else {
                        float* const at = diagonal + (t - warp * 16) * kDiagonalRow + token - warp * 16;
                        at[0] = takes[0], at[1] = takes[1];
                    }
                }
        }
        if (delta) {
            // A lane has a column of the inverse, and every other writes that of its neighbour beside its own.
            __syncwarp();
            float inverse[16];
#pragma unroll
            for (int r = 0; r < 16; ++r) {
                inverse[r] = r == lane % 16 ? 1.f : 0.f;
#pragma unroll
                for (int j = 0; j < r; ++j) inverse[r] += diagonal[r * kDiagonalRow + j] * inverse[j];
            }
#pragma unroll
            for (int r = 0; r < 16; ++r) {
                const float next = __shfl_down_sync(kAllLanes, inverse[r], 1);
                if (lane < 16 && lane % 2 == 0) put(Count<WIDE>{}, taken, warp * 16 + r, warp * 16 + lane, inverse[r], next);
            }
        }
        __syncthreads();   // all products lie ready

        float added[kChunk / 8][4] = {};   // u, of which a lane has pairs of tokens of its two columns
        auto load_left = [&](auto& parts, const float (&a)[4], const float (&b)[4]) {
            const float pairs[4][2] = {{a[0], a[1]}, {a[2], a[3]}, {b[0], b[1]}, {b[2], b[3]}};
            split_pairs(parts, pairs);
        };
#pragma unroll
        for (int i = 0; i < kChunk / 16; ++i) {
            if (first + i * 16 >= last) break;
            float held_keys[2][4] = {}, out[2][4] = {};
#pragma unroll
            for (int k = 0; k < K / 16; ++k) {
                uint32_t left[WIDE][4], right[PARTS][4];
                load_left(left, held[k * 2], held[k * 2 + 1]);
                if (delta) {
                    load_parts<TI, K, Operand::kRight>(right, keys, i * 16, k * 16, lane);
                    multiply_parts(held_keys[0], left, right, 0);
                    multiply_parts(held_keys[1], left, right, 1);
                }
                load_parts<TI, K, Operand::kRight>(right, queries, i * 16, k * 16, lane);
                multiply_parts<PARTS>(out[0], left, right, 0);
                multiply_parts<PARTS>(out[1], left, right, 1);
            }
            float own_values[4][2];
            load_pairs<TI, kValues, Operand::kLeftAcross>(own_values, values, i * 16, warp * 16, lane);
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int token = i * 16 + n * 8 + lane % 4 * 2 + e % 2;
                    const float v = own_values[n * 2 + e / 2][e % 2];
                    out[n][e] *= starts[token] * query_scales[token];
                    held_keys[n][e] = delta ? betas[token] * (v - starts[token] * key_scales[token] * held_keys[n][e]) : v;
                }
            auto right_of = [&](auto& right, const __nv_bfloat16* from, int j) {
#pragma unroll
                for (int p = 0; p < sizeof(right) / sizeof(right[0]); ++p)
                    load_words<__nv_bfloat16, kChunk, Operand::kRight>(right[p], from + p * PAIRS, i * 16, j * 16, lane);
            };
            if (delta) {
                uint32_t left[WIDE][4], right[WIDE][4];
#pragma unroll
                for (int j = 0; j < i; ++j) {
                    load_left(left, added[j * 2], added[j * 2 + 1]);
                    right_of(right, taken, j);
                    multiply_parts(held_keys[0], left, right, 0);
                    multiply_parts(held_keys[1], left, right, 1);
                }
                load_left(left, held_keys[0], held_keys[1]);
                right_of(right, taken, i);
                multiply_parts(added[i * 2], left, right, 0);
                multiply_parts(added[i * 2 + 1], left, right, 1);
            } else {
#pragma unroll
                for (int e = 0; e < 4; ++e) added[i * 2][e] = held_keys[0][e], added[i * 2 + 1][e] = held_keys[1][e];
            }
#pragma unroll
            for (int j = 0; j <= i; ++j) {
                uint32_t left[PARTS][4], right[PARTS][4];
                load_left(left, added[j * 2], added[j * 2 + 1]);
                right_of(right, given, j);
                multiply_parts(out[0], left, right, 0);
                multiply_parts(out[1], left, right, 1);
            }
            // Through shared memory, so that memory sees whole rows.
            float* const own = outs + warp * 16 * kOutRow;
            if (i > 0) __syncwarp();   // all have read the rows before
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) own[(n * 8 + lane % 4 * 2 + e % 2) * kOutRow + lane / 4 + e / 2 * 8] = out[n][e];
            __syncwarp();
#pragma unroll
            for (int at = lane; at < 16 * 16 / V; at += 32) {
                const int token = i * 16 + at / (16 / V), column = at % (16 / V) * V;
                if (first + token >= last || warp * 16 + column >= columns) continue;
                float row_values[V];
#pragma unroll
                for (int e = 0; e < V; e += 4) {
                    const float4 v = *reinterpret_cast<const float4*>(own + at / (16 / V) * kOutRow + column + e);
                    row_values[e] = v.x, row_values[e + 1] = v.y, row_values[e + 2] = v.z, row_values[e + 3] = v.w;
                }
                store_streamed(o + (first + token) * o_stride + warp * 16 + column, narrow<TI>(row_values));
            }
        }
#pragma unroll
        for (int n = 0; n < K / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) held[n][e] *= keep;
#pragma unroll
        for (int j = 0; j < kChunk / 16; ++j) {
            if (first + j * 16 >= last) break;
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int token = j * 16 + n * 8 + lane % 4 * 2 + e % 2;
                    added[j * 2 + n][e] *= gains[token] * key_scales[token];
                }
            uint32_t left[WIDE][4], right[PARTS][4];
            load_left(left, added[j * 2], added[j * 2 + 1]);
#pragma unroll
            for (int n = 0; n < K / 16; ++n) {
                load_parts<TI, K, Operand::kRightAcross>(right, keys, j * 16, n * 16, lane);
                multiply_parts(held[n * 2], left, right, 0);
                multiply_parts(held[n * 2 + 1], left, right, 1);
            }
        }
        __syncthreads();   // all have left the chunk
        TS* const kept = state_after<TS>(args.writes, inner, last - 1);
        TS* const slot_state = last == end && args.writes.last ? state : nullptr;
        if (!kept && !slot_state) continue;
        each_wide([](float& to, float& from) { to = from; });
        __syncthreads();
        for (int i = threadIdx.x; i < K * (kValues / VS); i += kThreads) {
            const int key = i / (kValues / VS), column = i % (kValues / VS) * VS;
            if (column >= columns) continue;
            const Vec16 v = narrow<TS>(wide + key * kWideRow + column);
            if (kept) store_streamed(kept + (int64_t)key * args.value_dim + column, v);
            if (slot_state) store_streamed(slot_state + (int64_t)key * args.value_dim + column, v);
        }
        __syncthreads();   // before the next chunk comes
    }
}

#define KERNEL(state, input, TS, TI, K)                                                    \
    extern "C" __global__ void __launch_bounds__(kThreads, 2)                              \
        chunk_delta_##state##_##input##_##K(const __grid_constant__ Args args) {           \
        chunk_delta<TS, TI, K>(args);                                                      \
    }
#define STATES(K)                                                \
    KERNEL(f32, bf16, float, __nv_bfloat16, K)                   \
    KERNEL(f32, f16, float, __half, K)                           \
    KERNEL(bf16, bf16, __nv_bfloat16, __nv_bfloat16, K)          \
    KERNEL(f16, f16, __half, __half, K)

// prove chunk_delta: 255 registers, LDGSTS.E.BYPASS.128, HMMA.16816, LDG.E.EF.128, STG.E.EF.128
STATES(16)
STATES(64)
STATES(128)
// With 128 keys the parts of f32 inputs do not fit into registers.
KERNEL(f32, f32, float, float, 16)
KERNEL(f32, f32, float, float, 64)
