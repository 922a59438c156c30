// Products of rows with the weights of the experts that they chose, at decode: each weight that is read is used once,
// so that nothing counts but the rate of memory. A warp has four outputs, of one choice of a row (expert_rows), or of a
// row's whole choice, of which it gives the weighted sum (expert_sums). Their rows of the weight, of one choice behind the
// other, pass through a ring of the warp's own, of which six spans of 4 x 512 bytes are under way at once by cp.async. A
// lane reads no more of it than it copied itself, so that nothing but its own wait is needed. Sums are in f32.
// Blocks of all rows and choices begin with the same outputs: those that chose the same expert read its rows at about
// the same time, and all but the first find them in the second-level cache.
#include "common.cuh"

struct Args {
    const void *x, *weight, *bias;   // rows; [experts, outputs, inputs]; [experts, outputs] or null
    const uint32_t* chosen;          // [rows, per_token]
    const float* shares;             // [rows, per_token]
    void* out;                       // [rows, per_token, outputs], or sums: [rows, outputs]
    int64_t x_stride;                // of rows
    int32_t experts, outputs, inputs, per_token;
    int32_t sharing;                 // choices that have a row of x in common
};

constexpr int kWarps = 4, kOutputs = 4, kStages = 6;

template <typename T, bool SUMS> DEVICE void products(const Args& args) {
    __shared__ Vec16 rings[kWarps][kStages][kOutputs][32];
    constexpr int V = kPerVec<T>, kSpan = 32 * V;
    const int lane = threadIdx.x % 32, first = (blockIdx.y * kWarps + threadIdx.x / 32) * kOutputs;
    if (first >= args.outputs) return;
    auto& ring = rings[threadIdx.x / 32];
    // Choices, one after the other over all rows.
    const int begin = SUMS ? blockIdx.x * args.per_token : blockIdx.x, count = SUMS ? args.per_token : 1;
    // A lane holds a choice, so that no product waits for its index.
    const uint32_t chosen = lane < count ? args.chosen[begin + lane] : 0;
    const float share = SUMS && lane < count ? args.shares[begin + lane] : 1.f;
    // The last output stands for those behind it.
    const int last = args.outputs - 1 - first;
    const int64_t matrix = static_cast<int64_t>(args.outputs) * args.inputs;
    const T* const weight = static_cast<const T*>(args.weight) + static_cast<int64_t>(first) * args.inputs + lane * V;

    // Asks for the next span, of the next choice behind the last one; an empty group where there is none.
    int next = 0, next_at = 0;
    auto ask = [&](int stage) {
        if (next < count) {
            const uint32_t expert = __shfl_sync(kAllLanes, chosen, next);
            const bool live = next_at + lane * V < args.inputs && expert < args.experts;
            const T* const from = live ? weight + expert * matrix + next_at : static_cast<const T*>(args.weight);
#pragma unroll
            for (int n = 0; n < kOutputs; ++n) {
                const int64_t beside = static_cast<int64_t>(min(n, last)) * args.inputs;
                copy_async(&ring[stage][n][lane], live ? from + beside : from, live);
            }
            next_at += kSpan;
            if (next_at >= args.inputs) next_at = 0, ++next;
        }
        copy_commit();
    };
#pragma unroll
    for (int stage = 0; stage + 1 < kStages; ++stage) ask(stage);

    float totals[kOutputs] = {};
    int stage = 0;
    for (int i = 0; i < count; ++i) {
        const T* const x = static_cast<const T*>(args.x) + (begin + i) / args.sharing * args.x_stride;
        float sums[kOutputs] = {};
        for (int at = lane * V; at - lane * V < args.inputs; at += kSpan) {
            const bool live = at < args.inputs;
            float left[V], right[V];
            if (live) load_floats<T, V>(x + at, left);
            ask(stage == 0 ? kStages - 1 : stage - 1);
            copy_wait<kStages - 1>();
            if (live) {
#pragma unroll
                for (int n = 0; n < kOutputs; ++n) {
                    widen<T>(ring[stage][n][lane], right);
#pragma unroll
                    for (int v = 0; v < V; ++v) sums[n] += left[v] * right[v];
                }
            }
            stage = stage + 1 == kStages ? 0 : stage + 1;
        }
        const uint32_t expert = __shfl_sync(kAllLanes, chosen, i);
        if (expert >= args.experts) {
#pragma unroll
            for (int n = 0; n < kOutputs; ++n) sums[n] = NAN;
        } else if (args.bias && lane == 0) {
            const T* const bias = static_cast<const T*>(args.bias) + static_cast<int64_t>(expert) * args.outputs + first;
#pragma unroll
            for (int n = 0; n < kOutputs; ++n) sums[n] += to_float(bias[min(n, last)]);
        }
        const float factor = SUMS ? __shfl_sync(kAllLanes, share, i) : 1.f;
#pragma unroll
        for (int n = 0; n < kOutputs; ++n) totals[n] += factor * sums[n];
    }
    const float total = sum_transposed<kOutputs, 32>(totals, lane);
    const int output = first + kept<kOutputs, 32>(lane);
    if (lane % (32 / kOutputs) == 0 && output < args.outputs)
        static_cast<T*>(args.out)[static_cast<int64_t>(blockIdx.x) * args.outputs + output] = from_float<T>(total);
}

#define KERNELS(format, T)                                                                                               \
    extern "C" __global__ void __launch_bounds__(32 * kWarps) expert_rows_##format(const __grid_constant__ Args args) {  \
        products<T, false>(args);                                                                                        \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(32 * kWarps) expert_sums_##format(const __grid_constant__ Args args) {  \
        products<T, true>(args);                                                                                         \
    }

// prove expert_rows: 80 registers, LDGSTS.E.BYPASS.128, LDG.E.128
// prove expert_sums: 80 registers, LDGSTS.E.BYPASS.128, LDG.E.128
KERNELS(f32, float)
KERNELS(bf16, __nv_bfloat16)
KERNELS(f16, __half)
