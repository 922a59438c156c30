// Linear attention with a matrix state (gated delta, Kimi delta, lightning), token by token, in place:
//   S = S * decay;  v = beta (v - k . S) with the delta rule;  S += k (x) v;  o = scale q . S
//
// A block holds COLUMNS value columns of one head in registers over all tokens: a thread has 16 bytes of columns of
// every so many key rows. k . S and q . S are summed in one pass, since o = scale (q . S + (q . k) v), so that a token
// costs one reduction: over the lanes of a warp that share columns, then over warps through shared memory.
#include "linear_attention.cuh"

// Threads of a block: one for each vector of a key row, and as many key rows as make four warps.
template <typename TS, int K, int COLUMNS> constexpr int kThreads = K * COLUMNS / kPerVec<TS> < 128 ? K * COLUMNS / kPerVec<TS> : 128;

template <typename TS, typename TI, int K, int COLUMNS> DEVICE void update(const Args& args) {
    constexpr int V = kPerVec<TS>, kThreads = ::kThreads<TS, K, COLUMNS>, kWarps = kThreads / 32;
    constexpr int LANES = COLUMNS / V;            // threads side by side on a key row
    constexpr int AT_ONCE = kThreads / LANES;     // key rows that a block has at once
    constexpr int ROWS = K / AT_ONCE;             // key rows of a thread
    static_assert(LANES <= 32 && K % AT_ONCE == 0, "whole rounds");
    __shared__ __align__(16) float keys[K], queries[K], decays[K], sums[kWarps][2][COLUMNS], norms[kWarps][3];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int head = blockIdx.y, sequence = blockIdx.z, key_head = head / args.heads_per_key;
    const int column = threadIdx.x % LANES * V, first = threadIdx.x / LANES;   // key rows first, first + AT_ONCE, ..
    const int64_t value = (int64_t)head * args.value_dim + blockIdx.x * COLUMNS, values = (int64_t)args.heads * args.value_dim;
    const int slot = args.slots[sequence];
    const int begin = args.cu_seqlens[sequence], end = args.cu_seqlens[sequence + 1];
    TI* const o = static_cast<TI*>(args.o) + value;
    if (end - begin > args.few) return;
    if (slot < 0) {
        for (int row = begin; row < end; ++row)
            for (int i = threadIdx.x; i < COLUMNS; i += kThreads) o[row * values + i] = from_float<TI>(0.f);
        return;
    }
    if (begin == end) return;
    const int64_t inner = ((int64_t)head * K + first) * args.value_dim + blockIdx.x * COLUMNS + column;
    const int64_t step = (int64_t)AT_ONCE * args.value_dim;
    TS* const state = static_cast<TS*>(args.pool) + slot * args.slot_elems + args.layer_offset + inner;
    float held[ROWS][V];
    auto load = [&](const TS* from) {
        Vec16 raw[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) raw[r] = load_streamed(from + r * step);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) widen<TS>(raw[r], held[r]);
    };
    auto store = [&](TS* to) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) store_streamed(to + r * step, narrow<TS>(held[r]));
    };
    load(state);
    for (int row = begin; row < end; ++row) {
        if (const TS* const before = state_before<TS>(args.writes, state, inner, begin, row)) load(before);
        // Keys, queries and decays of the token, and the sums that they are divided by.
        float parts[3] = {};   // k.k, q.q, q.k
        for (int i = threadIdx.x; i < K; i += kThreads) {
            const float q = to_float(static_cast<const TI*>(args.q)[row * args.q_stride + key_head * K + i]);
            const float k = to_float(static_cast<const TI*>(args.k)[row * args.k_stride + key_head * K + i]);
            queries[i] = q, keys[i] = k;
            parts[0] += k * k, parts[1] += q * q, parts[2] += q * k;
            const int64_t decay = row * args.decay_stride + (args.per_channel ? head * K + i : head);
            decays[i] = expf(args.fixed ? args.fixed[head] : load_either<TI>(args.decay, decay, args.wide_decay));
        }
#pragma unroll
        for (int part = 0; part < 3; ++part) {
#pragma unroll
            for (int offset = 16; offset > 0; offset /= 2) parts[part] += __shfl_xor_sync(kAllLanes, parts[part], offset);
            if (lane == 0) norms[warp][part] = parts[part];
        }
        __syncthreads();
        float kk = 0.f, qq = 0.f, qk = 0.f;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) kk += norms[w][0], qq += norms[w][1], qk += norms[w][2];
        const float k_scale = args.unit ? rsqrtf(kk + 1e-6f) : 1.f;
        const float q_scale = args.scale * (args.unit ? rsqrtf(qq + 1e-6f) : 1.f);
        float both[2 * V] = {};   // k . S, then q . S, of the thread's rows
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int at = first + r * AT_ONCE;
            const float decay = decays[at], k = keys[at], q = queries[at];
#pragma unroll
            for (int i = 0; i < V; ++i) {
                held[r][i] *= decay;
                both[i] += k * held[r][i], both[V + i] += q * held[r][i];
            }
        }
        // Over the lanes that share columns; with each exchange a lane keeps half of its sums.
        int count = 2 * V, kept = 0;
#pragma unroll
        for (int offset = 16; offset >= LANES; offset /= 2) {
            const bool upper = lane & offset;
            count /= 2;
            kept += upper ? count : 0;
#pragma unroll
            for (int i = 0; i < V; ++i)
                if (i < count) {
                    const float send = upper ? both[i] : both[i + count], keep = upper ? both[i + count] : both[i];
                    both[i] = keep + __shfl_xor_sync(kAllLanes, send, offset);
                }
        }
#pragma unroll
        for (int i = 0; i < 2 * V * LANES / 32; ++i) sums[warp][kept / V][column + kept % V + i] = both[i];
        __syncthreads();
        const float beta = args.beta ? load_either<TI>(args.beta, row * args.beta_stride + head, args.wide_beta) : 1.f;
        float added[V], out[V];
        load_floats<TI, V>(static_cast<const TI*>(args.v) + row * args.v_stride + value + column, added);
#pragma unroll
        for (int i = 0; i < V; ++i) {
            float held_k = 0.f, held_q = 0.f;
#pragma unroll
            for (int w = 0; w < kWarps; ++w) held_k += sums[w][0][column + i], held_q += sums[w][1][column + i];
            if (args.beta) added[i] = beta * (added[i] - k_scale * held_k);
            out[i] = q_scale * (held_q + k_scale * qk * added[i]);
            added[i] *= k_scale;
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int i = 0; i < V; ++i) held[r][i] += keys[first + r * AT_ONCE] * added[i];
        if (first == 0) store_floats<TI, V>(o + row * values + column, out);
        if (TS* const after = state_after<TS>(args.writes, inner, row)) store(after);
        if (args.writes.rounds) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r) widen<TS>(narrow<TS>(held[r]), held[r]);
        }
        __syncthreads();   // all have read what the next token overwrites
    }
    if (args.writes.last) store(state);
}

#define KERNEL(state, input, TS, TI, K, COLUMNS)                                                                \
    extern "C" __global__ void __launch_bounds__((kThreads<TS, K, COLUMNS>), 4)                                   \
        linear_update_##state##_##input##_##K##_##COLUMNS(const __grid_constant__ Args args) {                  \
        update<TS, TI, K, COLUMNS>(args);                                                                       \
    }
#define STATES(K, COLUMNS)                                                \
    KERNEL(f32, f32, float, float, K, COLUMNS)                            \
    KERNEL(f32, bf16, float, __nv_bfloat16, K, COLUMNS)                   \
    KERNEL(f32, f16, float, __half, K, COLUMNS)                           \
    KERNEL(bf16, bf16, __nv_bfloat16, __nv_bfloat16, K, COLUMNS)          \
    KERNEL(f16, f16, __half, __half, K, COLUMNS)

// prove linear_update: 128 registers, LDG.E.EF.128, STG.E.EF.128
STATES(16, 16)
STATES(64, 32)
STATES(128, 32)
