// What a device can do, for `cacheplan bench`: the rate of its matrix units, and a read that empties its caches.
//
// `matrix_peak` keeps everything in registers: a warp multiplies the two operands that it has read with each other again
// and again into `kSums` sums that do not wait for each other, with m16n8k16 products. What it counts is thus the
// limit of `mma.sync`, which no kernel of ours can pass, and of which a real product of matrices reaches part.
// `read_memory` reads all of a buffer; what it writes is never what the buffer can sum to, but the compiler cannot know.
#include "../../cuda/common.cuh"

struct ReadArgs {
    const Vec16* memory;
    uint32_t* sum;
    int64_t vectors;
};

extern "C" __global__ void __launch_bounds__(256) read_memory(const __grid_constant__ ReadArgs args) {
    const int64_t stride = int64_t(gridDim.x) * blockDim.x;
    uint32_t sum = 0;
    for (int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; at < args.vectors; at += stride) {
        const uint4 v = __ldg(reinterpret_cast<const uint4*>(args.memory + at));
        sum |= v.x | v.y | v.z | v.w;
    }
    if (sum == 0xdeadbeefu) *args.sum = sum;
}

struct MultiplyArgs {
    // Operands as lanes hold them: 4 words of the left one, and for each sum 2 of the right one.
    const uint4* left;
    const uint2* right;
    float4* out;
    int rounds;
};

constexpr int kSums = 8;

extern "C" __global__ void __launch_bounds__(256) matrix_peak(const __grid_constant__ MultiplyArgs args) {
    const int lane = threadIdx.x % 32;
    const uint4 v = args.left[lane];
    const uint32_t left[4] = {v.x, v.y, v.z, v.w};
    uint2 right[kSums];
    float sums[kSums][4] = {};
#pragma unroll
    for (int i = 0; i < kSums; ++i) right[i] = args.right[32 * i + lane];
    for (int round = 0; round < args.rounds; ++round) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) multiply<__nv_bfloat16>(sums[i], left, right[i].x, right[i].y);
    }
    float4 out = {};
#pragma unroll
    for (int i = 0; i < kSums; ++i) out.x += sums[i][0], out.y += sums[i][1], out.z += sums[i][2], out.w += sums[i][3];
    args.out[int64_t(blockIdx.x) * blockDim.x + threadIdx.x] = out;
}

// prove read_memory: 16 registers, LDG.E.128
// prove matrix_peak: 64 registers, HMMA.16816
