// The Mamba-2 recurrence over a few tokens of each sequence, in place:
//   S = S * exp(a * dt) + dt * x (x) b,  y = S . c + d * x,  y *= silu(z)
//
// A warp holds STEPS rows of the state for each group of LANES lanes, in registers for all tokens. All of its loads of
// the state are under way before the first is used, and a warp's request is a whole number of sectors.
#include "common.cuh"

struct Args {
    void* pool;              // [slots, slot_elems], of which the layer is [heads, head_dim, N]
    const void *x, *dt, *b, *c, *z;  // rows of the step; z may be null
    const float *a, *d, *dt_bias;    // [heads]; d and dt_bias may be null
    void* y;                 // [tokens, heads * head_dim]
    const int32_t* slots;    // [batch], -1 for padding
    const uint32_t* cu_seqlens;  // [batch + 1]
    int64_t slot_elems, layer_offset, x_stride, dt_stride, b_stride, c_stride, z_stride;
    int32_t heads, head_dim, heads_per_group, softplus, keep;
    float dt_low, dt_high;
};

template <typename TS, typename TI, int N, int STEPS> DEVICE void state_update(const Args& args) {
    constexpr int V = kPerVec<TS>;
    constexpr int VECS = N / V > 32 ? N / V / 32 : 1;   // vectors of a lane in each row
    constexpr int LANES = N / V / VECS;                 // lanes on one row
    constexpr int ROWS = 32 / LANES * STEPS;            // rows of a warp
    static_assert(LANES <= 32 && LANES % STEPS == 0, "each lane ends with one sum");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int sequence = blockIdx.z, head = blockIdx.y;
    // The rows of a lane lie side by side, so that their inputs are one vector.
    const int first_row = (blockIdx.x * warps + warp) * ROWS + lane / LANES * STEPS;
    const int own_row = first_row + kept<STEPS, LANES>(lane);
    const bool writes = lane % (LANES / STEPS) == 0;
    const int64_t channel = (int64_t)head * args.head_dim;
    const int64_t y_stride = (int64_t)args.heads * args.head_dim;
    const int slot = args.slots[sequence];
    const int begin = args.cu_seqlens[sequence], end = args.cu_seqlens[sequence + 1];
    TI* const y = static_cast<TI*>(args.y) + channel + own_row;
    if (slot < 0) {
        if (writes)
            for (int row = begin; row < end; ++row) y[row * y_stride] = from_float<TI>(0.f);
        return;
    }
    if (begin == end) return;
    TS* const state = static_cast<TS*>(args.pool) + slot * args.slot_elems + args.layer_offset + (channel + first_row) * N;
    auto column = [&](int vec) { return (vec * LANES + lane % LANES) * V; };
    Vec16 raw[STEPS][VECS];
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
        for (int v = 0; v < VECS; ++v) raw[s][v] = load_streamed(state + s * N + column(v));
    const int group = head / args.heads_per_group;
    const float a = args.a[head], d = args.d ? args.d[head] : 0.f, bias = args.dt_bias ? args.dt_bias[head] : 0.f;
    float held[STEPS][VECS * V];
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
        for (int v = 0; v < VECS; ++v) widen<TS>(raw[s][v], held[s] + v * V);
    for (int row = begin; row < end; ++row) {
        const TI* const x_row = static_cast<const TI*>(args.x) + row * args.x_stride + channel;
        float b[VECS * V], c[VECS * V], x[STEPS], sums[STEPS];
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            load_floats<TI, V>(static_cast<const TI*>(args.b) + row * args.b_stride + group * N + column(v), b + v * V);
            load_floats<TI, V>(static_cast<const TI*>(args.c) + row * args.c_stride + group * N + column(v), c + v * V);
        }
        load_floats<TI, STEPS>(x_row + first_row, x);
        float dt = to_float(static_cast<const TI*>(args.dt)[row * args.dt_stride + head]) + bias;
        if (args.softplus && dt <= 20.f) dt = log1pf(expf(dt));
        dt = fminf(fmaxf(dt, args.dt_low), args.dt_high);
        const float decay = expf(a * dt);
        float own_x = 0.f, gate = 1.f;
        if (writes) {
            own_x = to_float(x_row[own_row]);
            if (args.z) gate = silu(to_float(static_cast<const TI*>(args.z)[row * args.z_stride + channel + own_row]));
        }
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            const float input = dt * x[s];
            sums[s] = 0.f;
#pragma unroll
            for (int i = 0; i < VECS * V; ++i) {
                held[s][i] = held[s][i] * decay + b[i] * input;
                sums[s] += held[s][i] * c[i];
            }
        }
        const float sum = sum_transposed<STEPS, LANES>(sums, lane);
        if (writes) y[row * y_stride] = from_float<TI>((sum + d * own_x) * gate);
    }
    if (!args.keep) return;
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
        for (int v = 0; v < VECS; ++v) store_streamed(state + s * N + column(v), narrow<TS>(held[s] + v * V));
}

#define KERNEL(state, input, TS, TI, N, STEPS)                                            \
    extern "C" __global__ void __launch_bounds__(128)                                     \
        state_update_##state##_##input##_##N(const __grid_constant__ Args args) {         \
        state_update<TS, TI, N, STEPS>(args);                                             \
    }
#define STATES(N, STEPS32, STEPS16)                                       \
    KERNEL(f32, f32, float, float, N, STEPS32)                            \
    KERNEL(f32, bf16, float, __nv_bfloat16, N, STEPS32)                   \
    KERNEL(f32, f16, float, __half, N, STEPS32)                           \
    KERNEL(bf16, bf16, __nv_bfloat16, __nv_bfloat16, N, STEPS16)          \
    KERNEL(f16, f16, __half, __half, N, STEPS16)

// prove state_update: 96 registers, LDG.E.EF.128, STG.E.EF.128
STATES(16, 2, 2)
STATES(64, 8, 4)
STATES(128, 8, 4)
STATES(256, 4, 4)
