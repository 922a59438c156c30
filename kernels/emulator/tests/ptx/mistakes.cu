// Kernels of 256 threads with one mistake each, which the emulator must report at the line that `MISTAKE` stands on,
// and their right counterparts, in which it must find nothing.
#include <cuda_pipeline.h>

#define KERNEL(name) extern "C" __global__ void __launch_bounds__(256) name(const float* in, float* out, int n)

KERNEL(out_of_bounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) out[i] = 2.f * in[i % 256];  // MISTAKE
}

KERNEL(misaligned) {
    int i = threadIdx.x % 8;
    float4 v = *reinterpret_cast<const float4*>(in + 1 + 4 * i);  // MISTAKE
    out[threadIdx.x] = v.x + v.w;
}

KERNEL(writes_input) {
    const_cast<float*>(in)[threadIdx.x] = 1.f;  // MISTAKE
    out[threadIdx.x] = 0.f;
}

KERNEL(uninitialised) {
    __shared__ float s[256];
    if (threadIdx.x < 100) s[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x];  // MISTAKE
}

KERNEL(lanes_race) {
    __shared__ float s[256];
    s[threadIdx.x] = in[threadIdx.x];
    out[threadIdx.x] = s[threadIdx.x ^ 1];  // MISTAKE
}

KERNEL(lanes_meet) {
    __shared__ float s[256];
    s[threadIdx.x] = in[threadIdx.x];
    __syncwarp();
    float v = s[threadIdx.x ^ 1];
    __syncwarp();
    s[threadIdx.x] = v;
    out[threadIdx.x] = s[threadIdx.x];
}

KERNEL(warps_race) {
    __shared__ float s[256];
    s[threadIdx.x] = in[threadIdx.x];
    __syncwarp();
    out[threadIdx.x] = s[threadIdx.x ^ 32];  // MISTAKE
}

KERNEL(warps_meet) {
    __shared__ float s[256];
    s[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x ^ 33];
}

KERNEL(overwrites_before_all_have_read) {
    __shared__ float s[256];
    s[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    float v = s[threadIdx.x ^ 32];
    s[threadIdx.x] = v + 1.f;  // MISTAKE
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x];
}

KERNEL(blocks_race) {
    if (threadIdx.x == 0) out[0] = in[blockIdx.x];  // MISTAKE
}

KERNEL(blocks_add) {
    atomicAdd(out, in[threadIdx.x]);
}

KERNEL(adds_without_atomics) {
    out[n - 1] += in[threadIdx.x];  // MISTAKE
}

KERNEL(divergent_barrier) {
    __shared__ float s[256];
    s[threadIdx.x] = in[threadIdx.x];
    if (threadIdx.x % 32 < 20) __syncthreads();  // MISTAKE
    out[threadIdx.x] = s[threadIdx.x];
}

KERNEL(divergent_shuffle) {
    float v = in[threadIdx.x];
    if (threadIdx.x % 32 < 20) v += __shfl_xor_sync(0xffffffffu, v, 1);  // MISTAKE
    out[threadIdx.x] = v;
}

KERNEL(copy_before_its_wait) {
    __shared__ float s[256];
    __pipeline_memcpy_async(s + threadIdx.x, in + threadIdx.x, 4);
    __pipeline_commit();
    out[threadIdx.x] = s[threadIdx.x];  // MISTAKE
    __pipeline_wait_prior(0);
}

KERNEL(copy_of_another_lane_after_its_wait) {
    __shared__ float s[256];
    __pipeline_memcpy_async(s + threadIdx.x, in + threadIdx.x, 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[threadIdx.x] = s[threadIdx.x ^ 1];  // MISTAKE
}

KERNEL(copies_in_two_stages) {
    __shared__ float s[2][256];
    for (int i = 0; i < 2; ++i) {
        __pipeline_memcpy_async(s[i] + threadIdx.x, in + threadIdx.x, 4);
        __pipeline_commit();
    }
    __pipeline_wait_prior(1);
    float v = s[0][threadIdx.x];
    __pipeline_wait_prior(0);
    out[threadIdx.x] = v + s[1][threadIdx.x];
}

KERNEL(conflicts_of_banks) {
    __shared__ float s[32 * 32];
    for (int i = threadIdx.x / 32; i < 32; i += 8) s[threadIdx.x % 32 * 32 + i] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x];
}
