// RMS normalisation of rows, and of groups of rows beside a gate:
//   y = x / rms(x) * w,   y = x silu(z) / rms(x silu(z)) * w,   y = x / rms(x) * w silu(z),   y = x silu(z)
//
// A unit is one group of one row. Its lanes hold it in registers, so that it is read once; units of up to 32 vectors
// share a warp, wider ones take a block each, whose warps meet once.
#include "common.cuh"

enum { kGateThenNorm, kNormThenGate, kGateOnly };

struct Args {
    const void *x, *z, *weight;   // z may be null
    void* y;                      // [rows, groups, size]
    int64_t x_stride, z_stride;   // of rows
    int32_t units, groups, size, weight_groups, lanes, shift, order;   // 2^shift lanes on a unit
    float eps;
};

template <typename T, typename TW, int VECS, bool GATED> DEVICE void rms_norm(const Args& args) {
    constexpr int V = kPerVec<T>;
    __shared__ float sums[32];
    const int lane = threadIdx.x & (args.lanes - 1), unit = blockIdx.x * (blockDim.x >> args.shift) + (threadIdx.x >> args.shift);
    const bool live = unit < args.units;
    const int row = live ? unit / args.groups : 0, group = live ? unit % args.groups : 0;
    const int64_t start = group * args.size + lane * V;
    const T* const x = static_cast<const T*>(args.x) + row * args.x_stride + start;
    const T* const z = static_cast<const T*>(args.z) + row * args.z_stride + start;
    // All loads are under way before the first is used.
    const int left = live ? args.size - lane * V : 0, step = args.lanes * V;
    Vec16 raw[VECS], raw_gate[VECS];
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        raw[v] = raw_gate[v] = Vec16{};
        if (v * step < left) raw[v] = load_streamed(x + v * step);
        if (GATED && v * step < left) raw_gate[v] = load_streamed(z + v * step);
    }
    const bool gate_first = GATED && args.order != kNormThenGate;
    float held[VECS][V], gate[VECS][V], sum = 0.f;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        widen<T>(raw[v], held[v]);
        if constexpr (GATED) widen<T>(raw_gate[v], gate[v]);
#pragma unroll
        for (int i = 0; i < V; ++i) {
            if constexpr (GATED) gate[v][i] = silu(gate[v][i]);
            if (gate_first) held[v][i] *= gate[v][i];
            sum += held[v][i] * held[v][i];
        }
    }
    for (int offset = min(args.lanes, 32) / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
    if (args.lanes > 32) {
        if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
        __syncthreads();
        sum = 0.f;
        for (int warp = 0; warp < args.lanes / 32; ++warp) sum += sums[warp];
    }
    const bool normed = !GATED || args.order != kGateOnly;
    const float scale = 1.f / sqrtf(sum / args.size + args.eps);
    const TW* const weight = static_cast<const TW*>(args.weight) + group % args.weight_groups * args.size + lane * V;
    T* const y = static_cast<T*>(args.y) + (int64_t)unit * args.size + lane * V;
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        if (v * step >= left) continue;
        if (normed) {
            float w[V];
            load_floats<TW, V>(weight + v * step, w);
#pragma unroll
            for (int i = 0; i < V; ++i) held[v][i] *= scale * w[i];
        }
        if (GATED && !gate_first) {
#pragma unroll
            for (int i = 0; i < V; ++i) held[v][i] *= gate[v][i];
        }
        store_streamed(y + v * step, narrow<T>(held[v]));
    }
}

#define KERNEL(name, input, weight, T, TW, VECS, GATED, THREADS)                                               \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
        name##_##input##_##weight##_##VECS(const __grid_constant__ Args args) {                                \
        rms_norm<T, TW, VECS, GATED>(args);                                                                    \
    }
#define WIDTHS(input, weight, T, TW)                                                                           \
    KERNEL(rms_norm, input, weight, T, TW, 1, false, 128) KERNEL(rms_norm, input, weight, T, TW, 4, false, 512) \
    KERNEL(gated_norm, input, weight, T, TW, 1, true, 128) KERNEL(gated_norm, input, weight, T, TW, 4, true, 512)

// prove rms_norm: 64 registers, LDG.E.EF.128, STG.E.EF.128
// prove gated_norm: 104 registers, LDG.E.EF.128, STG.E.EF.128
WIDTHS(f32, f32, float, float)
WIDTHS(bf16, bf16, __nv_bfloat16, __nv_bfloat16)
WIDTHS(bf16, f32, __nv_bfloat16, float)
WIDTHS(f16, f16, __half, __half)
WIDTHS(f16, f32, __half, float)
