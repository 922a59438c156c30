// Attention over block tables, token by token, for pools of any format and heads of any width:
// what paged_decode and paged_prefill were not made for.
//
// A block takes a query token, up to HEADS query heads of one KV head, and a stretch of the context. LANES lanes hold a
// row of the pool, 16 bytes to a vector, with KEYS rows of keys and values under way each; queries and sums stay in
// registers, and a score is a sum over those lanes. Latents (no values of their own) are loaded once.
#include "common.cuh"

struct Args {
    const void *q, *pool;
    void* out;                   // [tokens, heads, value_dim], where the context is not split
    float* sums;                 // [splits, tokens, heads, value_dim], where it is: of weights times values
    float* tops;                 // [splits, tokens, heads, 2]: the largest score, and the sum of weights under it
    const int32_t* tables;       // [batch, max_blocks]
    const uint32_t* kv_lens;     // [batch], 0 for padding
    const uint32_t* cu_seqlens;  // [batch + 1]
    const float *sinks, *slopes; // [heads], or null
    const float* own_scales;     // [blocks, layer_rows], or null
    const float *k_scales, *v_scales;   // [kv_heads], or null
    int64_t q_stride, block_elems, layer_offset, kv_stride, head_stride, token_stride, layer_rows;
    int32_t batch, max_blocks, block_tokens, block_shift, kv_heads, group, head_dim, value_dim, latent, splits, split_tokens;
    int32_t window, chunked;     // 0 sees everything
    float scale, cap;            // times log2(e); a cap of 0 is none
    float k_scale, v_scale;      // where there are none for each head
};

constexpr int kThreads = 128;
constexpr float kLog2e = 1.44269504f, kNothing = -1e30f;   // less than any score that counts

template <typename TP, int VECS> constexpr int kHeads = 32 / (VECS * kPerVec<TP>) >= 4 ? 4 : 32 / (VECS * kPerVec<TP>) >= 1 ? 32 / (VECS * kPerVec<TP>) : 1;

template <typename TQ, typename TP, int LANES, int VECS> DEVICE void attend(const Args& args) {
    constexpr int V = kPerVec<TP>, HEADS = kHeads<TP, VECS>, KEYS = VECS == 1 ? 4 : VECS == 2 ? 2 : 1;
    constexpr int GROUPS = kThreads / LANES, WIDTH = LANES * VECS * V;
    __shared__ __align__(16) float sums[GROUPS * HEADS * WIDTH];
    __shared__ float tops[GROUPS][HEADS][2];
    const int lane = threadIdx.x % LANES, own = threadIdx.x / LANES;
    const int row = blockIdx.x, kv_head = blockIdx.y % args.kv_heads, in_group = blockIdx.y / args.kv_heads * HEADS, split = blockIdx.z;
    const int head0 = kv_head * args.group + in_group, heads = args.kv_heads * args.group, live_heads = min(HEADS, args.group - in_group);
    int sequence = 0;   // the last that begins at or before the row
    for (int beyond = args.batch; beyond - sequence > 1;) {
        const int middle = (sequence + beyond) / 2;
        if (args.cu_seqlens[middle] <= row) sequence = middle; else beyond = middle;
    }
    const int kv_len = args.kv_lens[sequence], position = kv_len - (int)(args.cu_seqlens[sequence + 1] - row);
    int visible = 0;
    if (args.window) visible = args.chunked ? position / args.window * args.window : max(position + 1 - args.window, 0);
    const int begin = max(split * args.split_tokens, visible);
    const int end = kv_len == 0 ? 0 : min((split + 1) * args.split_tokens, position + 1);

    auto column = [&](int v) { return (v * LANES + lane) * V; };
    float query[HEADS][VECS][V], out[HEADS][VECS][V] = {}, top[HEADS], total[HEADS] = {}, slope[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        top[h] = kNothing;
        slope[h] = args.slopes && h < live_heads ? args.slopes[head0 + h] * kLog2e : 0.f;
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
#pragma unroll
            for (int i = 0; i < V; ++i) query[h][v][i] = 0.f;
            const TQ* const q = static_cast<const TQ*>(args.q) + row * args.q_stride + (int64_t)(head0 + h) * args.head_dim;
            if (h < live_heads && column(v) < args.head_dim) load_floats<TQ, V>(q + column(v), query[h][v]);
        }
    }
    const float scale = args.scale * (args.k_scales ? args.k_scales[kv_head] : args.k_scale);
    const TP* const pool = static_cast<const TP*>(args.pool) + args.layer_offset + kv_head * args.head_stride;
    const int32_t* const table = args.tables + (int64_t)sequence * args.max_blocks;
    auto block_of = [&](int token) { return args.block_shift >= 0 ? token >> args.block_shift : token / args.block_tokens; };
    for (int first = begin; first < end; first += GROUPS * KEYS) {
        // Behind the end stands the last token once more, which counts nothing.
        const TP* from[KEYS];
        float k_scale[KEYS], v_scale[KEYS];
        int blocks[KEYS];
#pragma unroll
        for (int j = 0; j < KEYS; ++j) blocks[j] = table[block_of(min(first + j * GROUPS + own, end - 1))];
#pragma unroll
        for (int j = 0; j < KEYS; ++j) {
            const int token = min(first + j * GROUPS + own, end - 1);
            const int64_t place = (token - block_of(token) * args.block_tokens) * args.token_stride;
            from[j] = pool + blocks[j] * args.block_elems + place + lane * V;
            k_scale[j] = v_scale[j] = 1.f;
            if (args.own_scales) {
                const float* const scales = args.own_scales + blocks[j] * args.layer_rows;
                k_scale[j] = scales[(kv_head * args.head_stride + place) / args.head_dim];
                v_scale[j] = args.latent ? k_scale[j] : scales[(args.kv_stride + kv_head * args.head_stride + place) / args.head_dim];
            }
        }
        Vec16 keys[KEYS][VECS], values[KEYS][VECS];
#pragma unroll
        for (int j = 0; j < KEYS; ++j)
#pragma unroll
            for (int v = 0; v < VECS; ++v) {
                keys[j][v] = values[j][v] = Vec16{};
                if (column(v) < args.head_dim) {
                    keys[j][v] = load_streamed(from[j] + v * LANES * V);
                    if (!args.latent) values[j][v] = load_streamed(from[j] + args.kv_stride + v * LANES * V);
                }
                if (args.latent) values[j][v] = keys[j][v];
            }
        float score[KEYS][HEADS];
#pragma unroll
        for (int j = 0; j < KEYS; ++j) {
#pragma unroll
            for (int h = 0; h < HEADS; ++h) score[j][h] = 0.f;
#pragma unroll
            for (int v = 0; v < VECS; ++v) {
                float key[V];
                widen<TP>(keys[j][v], key);
#pragma unroll
                for (int h = 0; h < HEADS; ++h) {
                    if (h >= live_heads) break;
#pragma unroll
                    for (int i = 0; i < V; ++i) score[j][h] += query[h][v][i] * key[i];
                }
            }
        }
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            if (h >= live_heads) break;
            float largest = top[h];
#pragma unroll
            for (int j = 0; j < KEYS; ++j) {
#pragma unroll
                for (int offset = LANES / 2; offset > 0; offset /= 2) score[j][h] += __shfl_xor_sync(kAllLanes, score[j][h], offset);
                const int token = first + j * GROUPS + own;
                float s = score[j][h] * scale * k_scale[j];
                if (args.cap != 0.f) s = args.cap * tanhf(s / args.cap);
                s = token < end ? s + slope[h] * (token - position) : -INFINITY;
                score[j][h] = s;
                largest = fmaxf(largest, s);
            }
            const float factor = exp2_flushed(top[h] - largest);
            top[h] = largest;
            total[h] *= factor;
#pragma unroll
            for (int v = 0; v < VECS; ++v)
#pragma unroll
                for (int i = 0; i < V; ++i) out[h][v][i] *= factor;
#pragma unroll
            for (int j = 0; j < KEYS; ++j) {
                score[j][h] = exp2_flushed(score[j][h] - largest);
                total[h] += score[j][h];
                score[j][h] *= v_scale[j];
            }
        }
#pragma unroll
        for (int j = 0; j < KEYS; ++j)
#pragma unroll
            for (int v = 0; v < VECS; ++v) {
                float value[V];
                widen<TP>(values[j][v], value);
#pragma unroll
                for (int h = 0; h < HEADS; ++h) {
                    if (h >= live_heads) break;
#pragma unroll
                    for (int i = 0; i < V; ++i) out[h][v][i] += score[j][h] * value[i];
                }
            }
    }
    // The groups of lanes meet once.
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        if (lane == 0) tops[own][h][0] = top[h], tops[own][h][1] = total[h];
#pragma unroll
        for (int v = 0; v < VECS; ++v)
#pragma unroll
            for (int i = 0; i < V; i += 4)
                *reinterpret_cast<float4*>(sums + (own * HEADS + h) * WIDTH + column(v) + i) =
                    make_float4(out[h][v][i], out[h][v][i + 1], out[h][v][i + 2], out[h][v][i + 3]);
    }
    __syncthreads();
    const float v_scale = args.v_scales ? args.v_scales[kv_head] : args.v_scale;
    for (int at = threadIdx.x; at < live_heads * args.value_dim; at += kThreads) {
        const int h = at / args.value_dim, c = at % args.value_dim;
        float largest = kNothing, sum = 0.f, weight = 0.f;
        for (int g = 0; g < GROUPS; ++g) largest = fmaxf(largest, tops[g][h][0]);
        const bool whole = args.splits == 1;
        const float sink = whole && args.sinks ? args.sinks[head0 + h] * kLog2e : -INFINITY;
        largest = fmaxf(largest, sink);
        for (int g = 0; g < GROUPS; ++g) {
            const float f = exp2f(tops[g][h][0] - largest);
            sum += f * sums[(g * HEADS + h) * WIDTH + c];
            weight += f * tops[g][h][1];
        }
        const int64_t place = ((int64_t)split * gridDim.x + row) * heads + head0 + h;
        if (whole) {
            weight += exp2f(sink - largest);
            static_cast<TQ*>(args.out)[place * args.value_dim + c] = from_float<TQ>(weight == 0.f ? 0.f : v_scale * sum / weight);
        } else {
            args.sums[place * args.value_dim + c] = v_scale * sum;
            if (c == 0) args.tops[place * 2] = largest, args.tops[place * 2 + 1] = weight;
        }
    }
}

struct JoinArgs {
    const float *sums, *tops;    // as above
    const float* sinks;          // [heads] logits without a value, or null
    void* out;                   // [tokens, heads, value_dim]
    int32_t splits, value_dim;
};

template <typename T> DEVICE void join(const JoinArgs& args) {
    const int head = blockIdx.x, heads = gridDim.x;
    const int64_t place = (int64_t)blockIdx.y * heads + head, places = (int64_t)gridDim.y * heads;
    const float sink = args.sinks ? args.sinks[head] * kLog2e : -INFINITY;
    float largest = fmaxf(kNothing, sink);
    for (int split = 0; split < args.splits; ++split) largest = fmaxf(largest, args.tops[(split * places + place) * 2]);
    for (int column = threadIdx.x; column < args.value_dim; column += kThreads) {
        float weight = exp2f(sink - largest), sum = 0.f;
        for (int split = 0; split < args.splits; ++split) {
            const float f = exp2f(args.tops[(split * places + place) * 2] - largest);
            sum += f * args.sums[(split * places + place) * args.value_dim + column];
            weight += f * args.tops[(split * places + place) * 2 + 1];
        }
        static_cast<T*>(args.out)[place * args.value_dim + column] = from_float<T>(weight == 0.f ? 0.f : sum / weight);
    }
}

#define KERNEL(query, pool, TQ, TP, LANES, VECS)                                                                \
    extern "C" __global__ void __launch_bounds__(kThreads)                                                      \
        paged_attend_##query##_##pool##_##LANES##_##VECS(const __grid_constant__ Args args) {                   \
        attend<TQ, TP, LANES, VECS>(args);                                                                      \
    }
#define JOIN(query, TQ)                                                                                         \
    extern "C" __global__ void __launch_bounds__(kThreads) join_rows_##query(const __grid_constant__ JoinArgs args) { \
        join<TQ>(args);                                                                                         \
    }
#define WIDTHS(query, pool, TQ, TP)                                                                             \
    KERNEL(query, pool, TQ, TP, 4, 1) KERNEL(query, pool, TQ, TP, 8, 1) KERNEL(query, pool, TQ, TP, 16, 1)      \
    KERNEL(query, pool, TQ, TP, 32, 1) KERNEL(query, pool, TQ, TP, 32, 2)

// prove paged_attend: 160 registers, LDG.E.EF.128
// prove join_rows: 48 registers
WIDTHS(f32, f32, float, float)
WIDTHS(f32, f8, float, Fp8)
WIDTHS(f32, i8, float, Int8)
WIDTHS(bf16, bf16, __nv_bfloat16, __nv_bfloat16)
WIDTHS(bf16, f8, __nv_bfloat16, Fp8)
WIDTHS(bf16, i8, __nv_bfloat16, Int8)
WIDTHS(f16, f16, __half, __half)
WIDTHS(f16, f8, __half, Fp8)
WIDTHS(f16, i8, __half, Int8)
// Latents of 512 and 64.
KERNEL(f32, f32, float, float, 32, 5)
KERNEL(bf16, bf16, __nv_bfloat16, __nv_bfloat16, 32, 3)
KERNEL(f16, f16, __half, __half, 32, 3)
JOIN(f32, float)
JOIN(bf16, __nv_bfloat16)
JOIN(f16, __half)
