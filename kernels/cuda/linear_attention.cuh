// What the kernels of linear attention are told.
#pragma once
#include "common.cuh"

struct Args {
    void* pool;                  // [slots, slot_elems], of which the layer is [heads, K, value_dim]
    const void *q, *k, *v;       // rows of the step: [key_heads, K] twice, [heads, value_dim]
    const void* decay;           // logarithms in f32 or as q: [tokens, heads], [tokens, heads, K], or null
    const float* fixed;          // or [heads]
    const void* beta;            // [tokens, heads] in f32 or as q, or null
    void* o;                     // [tokens, heads * value_dim]
    const int32_t* slots;        // [batch], -1 for padding
    const uint32_t* cu_seqlens;  // [batch + 1]
    Writes writes;
    int64_t slot_elems, layer_offset, q_stride, k_stride, v_stride, decay_stride, beta_stride;
    int32_t heads, heads_per_key, value_dim, per_channel, wide_decay, wide_beta, unit;
    int32_t few;                 // sequences of up to so many tokens are the update's, longer ones are cut into chunks
    float scale;
};

// An element of f32, or of the type of the step.
template <typename T> DEVICE float load_either(const void* from, int64_t at, bool wide) {
    return wide ? static_cast<const float*>(from)[at] : to_float(static_cast<const T*>(from)[at]);
}
