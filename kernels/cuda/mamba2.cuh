// What the kernels of Mamba-2 are told.
#pragma once
#include "common.cuh"

struct Args {
    void* pool;              // [slots, slot_elems], of which the layer is [heads, head_dim, N]
    const void *x, *dt, *b, *c, *z;  // rows of the step; z may be null
    const float *a, *d, *dt_bias;    // [heads]; d and dt_bias may be null
    void* y;                 // [tokens, heads * head_dim]
    const int32_t* slots;    // [batch], -1 for padding
    const uint32_t* cu_seqlens;  // [batch + 1]
    Writes writes;
    int64_t slot_elems, layer_offset, x_stride, dt_stride, b_stride, c_stride, z_stride;
    int32_t heads, head_dim, heads_per_group, softplus;
    int32_t few;             // sequences of up to so many tokens are the update's, longer ones are cut into chunks
    float dt_low, dt_high;
};

// The time step of a head at a row.
template <typename TI> DEVICE float time_step(const Args& args, int row, int head, float bias) {
    const float dt = to_float(static_cast<const TI*>(args.dt)[row * args.dt_stride + head]) + bias;
    return time_step(dt, args.softplus, args.dt_low, args.dt_high);
}
