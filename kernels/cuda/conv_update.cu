// The causal depthwise convolution, in place; over a few tokens of each sequence, and over many:
//   y[t] = bias + sum_k weight[k] * x[t - (K - 1) + k], where the rows before the first are the state.
//
// A thread holds 16 bytes of channels: their weights and their last K - 1 inputs stay in registers over all tokens. Many
// tokens are cut into stretches, each a block's own; since the first of them reads the state that the last would write, a
// second kernel writes it. Trees, and states after single tokens, are a third kernel's: a thread looks up the inputs behind
// one token.
#include "common.cuh"

struct Args {
    void* pool;                      // [slots, slot_elems], of which the layer is [K - 1, channels], the oldest first
    const void *x, *weight, *bias;   // [tokens, channels], [K, channels], [channels] or null
    void* y;                         // [tokens, channels]
    const int32_t* slots;            // [batch], -1 for padding
    const uint32_t* cu_seqlens;      // [batch + 1]
    const int32_t* kept;             // [tokens] slot for the state after each, -1 for none, or null
    const int32_t* parents;          // [tokens] token that each follows, -1 for the state; null: the one before
    int64_t slot_elems, layer_offset, x_stride;
    int32_t channels, silu, keep;
};

constexpr int kStretch = 64;   // tokens of a block, of many

// Over all tokens of the sequence, or over a stretch of them without the state.
template <typename T, int K, bool MANY> DEVICE void convolve(const Args& args) {
    constexpr int V = kPerVec<T>;
    const int channel = (blockIdx.x * blockDim.x + threadIdx.x) * V, sequence = MANY ? blockIdx.z : blockIdx.y;
    if (channel >= args.channels) return;
    const int slot = args.slots[sequence], start = args.cu_seqlens[sequence];
    const int begin = MANY ? start + blockIdx.y * kStretch : start;
    const int end = MANY ? min((int)args.cu_seqlens[sequence + 1], begin + kStretch) : args.cu_seqlens[sequence + 1];
    T* const y = static_cast<T*>(args.y) + channel;
    if (slot < 0) {
        for (int row = begin; row < end; ++row) store_streamed(y + (int64_t)row * args.channels, Vec16{});
        return;
    }
    if (begin >= end) return;
    T* const state = static_cast<T*>(args.pool) + slot * args.slot_elems + args.layer_offset + channel;
    const T* const x = static_cast<const T*>(args.x) + channel;
    Vec16 columns[K - 1], next = load_streamed(x + begin * args.x_stride);
    float weight[K][V], bias[V] = {};
#pragma unroll
    for (int k = 0; k < K - 1; ++k) {
        const int row = begin - (K - 1) + k;   // where it is a token of the sequence
        columns[k] = load_streamed(MANY && row >= start ? x + row * args.x_stride : state + (row - start + K - 1) * args.channels);
    }
#pragma unroll
    for (int k = 0; k < K; ++k) load_floats<T, V>(static_cast<const T*>(args.weight) + k * args.channels + channel, weight[k]);
    if (args.bias) load_floats<T, V>(static_cast<const T*>(args.bias) + channel, bias);
    for (int row = begin; row < end; ++row) {
        const Vec16 newest = next;
        if (row + 1 < end) next = load_streamed(x + (row + 1) * args.x_stride);
        float sums[V], column[V];
#pragma unroll
        for (int i = 0; i < V; ++i) sums[i] = bias[i];
#pragma unroll
        for (int k = 0; k < K; ++k) {
            widen<T>(k < K - 1 ? columns[k] : newest, column);
#pragma unroll
            for (int i = 0; i < V; ++i) sums[i] += weight[k][i] * column[i];
        }
        if (args.silu) {
#pragma unroll
            for (int i = 0; i < V; ++i) sums[i] = silu(sums[i]);
        }
        store_streamed(y + (int64_t)row * args.channels, narrow<T>(sums));
#pragma unroll
        for (int k = 0; k < K - 2; ++k) columns[k] = columns[k + 1];
        columns[K - 2] = newest;
    }
    if constexpr (!MANY) {
        if (!args.keep) return;
#pragma unroll
        for (int k = 0; k < K - 1; ++k) store_streamed(state + k * args.channels, columns[k]);
    }
}

// The state after the last token.
template <typename T, int K> DEVICE void keep_state(const Args& args) {
    constexpr int V = kPerVec<T>;
    const int channel = (blockIdx.x * blockDim.x + threadIdx.x) * V, sequence = blockIdx.y, slot = args.slots[sequence];
    if (channel >= args.channels || slot < 0) return;
    const int begin = args.cu_seqlens[sequence], end = args.cu_seqlens[sequence + 1];
    T* const state = static_cast<T*>(args.pool) + slot * args.slot_elems + args.layer_offset + channel;
    const T* const x = static_cast<const T*>(args.x) + channel;
    Vec16 columns[K - 1];
#pragma unroll
    for (int k = 0; k < K - 1; ++k) {
        const int row = end - (K - 1) + k;
        columns[k] = load_streamed(row >= begin ? x + row * args.x_stride : state + (row - begin + K - 1) * args.channels);
    }
#pragma unroll
    for (int k = 0; k < K - 1; ++k) store_streamed(state + k * args.channels, columns[k]);
}

// The output of each token, where `y` is there, and the state after it, where a slot keeps that.
template <typename T, int K> DEVICE void each_token(const Args& args) {
    constexpr int V = kPerVec<T>;
    const int channel = (blockIdx.x * blockDim.x + threadIdx.x) * V, sequence = blockIdx.z, slot = args.slots[sequence];
    const int begin = args.cu_seqlens[sequence], token = begin + blockIdx.y;
    if (channel >= args.channels || token >= (int)args.cu_seqlens[sequence + 1]) return;
    T* const y = static_cast<T*>(args.y) + (int64_t)token * args.channels + channel;
    if (slot < 0) {
        if (args.y) store_streamed(y, Vec16{});
        return;
    }
    const int kept = args.kept ? args.kept[token] : -1;
    if (!args.y && kept < 0) return;
    T* const layer = static_cast<T*>(args.pool) + args.layer_offset + channel;
    const T* const x = static_cast<const T*>(args.x) + channel;
    Vec16 columns[K];
    int row = token, before = 0;   // once the path has left the tokens, how far
#pragma unroll
    for (int k = K - 1; k >= 0; --k) {
        columns[k] = load_streamed(before == 0 ? x + row * args.x_stride : layer + slot * args.slot_elems + (K - 1 - before) * args.channels);
        const int parent = args.parents ? args.parents[row] : row > begin ? row - 1 : -1;
        if (before > 0 || parent < 0) ++before;
        else row = parent;
    }
    if (args.y) {
        float sums[V] = {}, column[V], weight[V];
        if (args.bias) load_floats<T, V>(static_cast<const T*>(args.bias) + channel, sums);
#pragma unroll
        for (int k = 0; k < K; ++k) {
            load_floats<T, V>(static_cast<const T*>(args.weight) + k * args.channels + channel, weight);
            widen<T>(columns[k], column);
#pragma unroll
            for (int i = 0; i < V; ++i) sums[i] += weight[i] * column[i];
        }
        if (args.silu) {
#pragma unroll
            for (int i = 0; i < V; ++i) sums[i] = silu(sums[i]);
        }
        store_streamed(y, narrow<T>(sums));
    }
    if (kept < 0) return;
#pragma unroll
    for (int k = 0; k < K - 1; ++k) store_streamed(layer + kept * args.slot_elems + k * args.channels, columns[k + 1]);
}

#define KERNEL(format, T, K)                                                                                       \
    extern "C" __global__ void __launch_bounds__(128) conv_update_##format##_##K(const __grid_constant__ Args args) { \
        convolve<T, K, false>(args);                                                                               \
    }                                                                                                              \
    extern "C" __global__ void __launch_bounds__(128) conv_prefill_##format##_##K(const __grid_constant__ Args args) { \
        convolve<T, K, true>(args);                                                                                \
    }                                                                                                              \
    extern "C" __global__ void __launch_bounds__(128) conv_state_##format##_##K(const __grid_constant__ Args args) { \
        keep_state<T, K>(args);                                                                                    \
    }                                                                                                              \
    extern "C" __global__ void __launch_bounds__(128) conv_tokens_##format##_##K(const __grid_constant__ Args args) { \
        each_token<T, K>(args);                                                                                    \
    }
#define WIDTHS(format, T) KERNEL(format, T, 2) KERNEL(format, T, 3) KERNEL(format, T, 4)

// prove conv_tokens: 56 registers, LDG.E.EF.128, STG.E.EF.128
// prove conv_state: 40 registers, LDG.E.EF.128, STG.E.EF.128
// prove conv_prefill: 128 registers, LDG.E.EF.128, STG.E.EF.128
// prove conv_update: 128 registers, LDG.E.EF.128, STG.E.EF.128
WIDTHS(f32, float)
WIDTHS(bf16, __nv_bfloat16)
WIDTHS(f16, __half)
