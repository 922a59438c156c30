// The Mamba-2 recurrence, token by token, in place:
//   S = S * exp(a * dt) + dt * x (x) b,  y = S . c + d * x,  y *= silu(z)
//
// A warp holds STEPS rows of the state for each group of LANES lanes, in registers for all tokens. All of its loads of
// the state are under way before the first is used, and a warp's request is a whole number of sectors.
#include "mamba2.cuh"

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
    if (end - begin > args.few) return;
    if (slot < 0) {
        if (writes)
            for (int row = begin; row < end; ++row) y[row * y_stride] = from_float<TI>(0.f);
        return;
    }
    if (begin == end) return;
    auto column = [&](int vec) { return (vec * LANES + lane % LANES) * V; };
    const int64_t inner = (channel + first_row) * N;
    TS* const state = static_cast<TS*>(args.pool) + slot * args.slot_elems + args.layer_offset + inner;
    Vec16 raw[STEPS][VECS];
    auto load = [&](const TS* from) {
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
#pragma unroll
            for (int v = 0; v < VECS; ++v) raw[s][v] = load_streamed(from + s * N + column(v));
    };
    float held[STEPS][VECS * V];
    auto open = [&] {
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
#pragma unroll
            for (int v = 0; v < VECS; ++v) widen<TS>(raw[s][v], held[s] + v * V);
    };
    auto store = [&](TS* to) {
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
#pragma unroll
            for (int v = 0; v < VECS; ++v) store_streamed(to + s * N + column(v), narrow<TS>(held[s] + v * V));
    };
    load(state);
    const int group = head / args.heads_per_group;
    const float a = args.a[head], d = args.d ? args.d[head] : 0.f, bias = args.dt_bias ? args.dt_bias[head] : 0.f;
    open();
    for (int row = begin; row < end; ++row) {
        if (const TS* const before = state_before<TS>(args.writes, state, inner, begin, row)) load(before), open();
        const TI* const x_row = static_cast<const TI*>(args.x) + row * args.x_stride + channel;
        float b[VECS * V], c[VECS * V], x[STEPS], sums[STEPS];
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            load_floats<TI, V>(static_cast<const TI*>(args.b) + row * args.b_stride + group * N + column(v), b + v * V);
            load_floats<TI, V>(static_cast<const TI*>(args.c) + row * args.c_stride + group * N + column(v), c + v * V);
        }
        load_floats<TI, STEPS>(x_row + first_row, x);
        const float dt = time_step<TI>(args, row, head, bias), decay = expf(a * dt);
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
        if (TS* const after = state_after<TS>(args.writes, inner, row)) store(after);
        if (args.writes.rounds) {
#pragma unroll
            for (int s = 0; s < STEPS; ++s)
#pragma unroll
                for (int v = 0; v < VECS; ++v) widen<TS>(narrow<TS>(held[s] + v * V), held[s] + v * V);
        }
    }
    if (args.writes.last) store(state);
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
