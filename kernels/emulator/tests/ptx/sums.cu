// The sum of each row: warps by shuffles, then the block through shared memory.
extern "C" __global__ void __launch_bounds__(256) row_sums(const float* in, float* out, int n) {
    __shared__ float partial[8];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum = 0.f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += in[(size_t)blockIdx.x * n + i];
    for (int offset = 16; offset; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane == 0) partial[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        sum = lane < 8 ? partial[lane] : 0.f;
        for (int offset = 4; offset; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if (lane == 0) out[blockIdx.x] = sum;
    }
}

// exp of each element, through approximate instructions.
extern "C" __global__ void exponentials(const float* in, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __expf(in[i]);
}

// One element from far behind the 2^31st of a buffer to its start.
extern "C" __global__ void far(float* pool, long long at) {
    pool[threadIdx.x] = pool[at + threadIdx.x];
}

// c = a b of one tile by a matrix instruction, with both operands through ldmatrix.
extern "C" __global__ void __launch_bounds__(32) tile(const unsigned short* a, const unsigned short* b, float* c) {
    __shared__ __align__(16) unsigned short s[16 * 16 + 16 * 8];
    for (int i = threadIdx.x; i < 16 * 16; i += 32) s[i] = a[i];
    for (int i = threadIdx.x; i < 16 * 8; i += 32) s[256 + i] = b[i];
    __syncwarp();
    unsigned left[4], right[2];
    unsigned row = (unsigned)__cvta_generic_to_shared(s + threadIdx.x % 16 * 16 + threadIdx.x / 16 * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(left[0]), "=r"(left[1]), "=r"(left[2]), "=r"(left[3]) : "r"(row) : "memory");
    row = (unsigned)__cvta_generic_to_shared(s + 256 + threadIdx.x % 16 * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(right[0]), "=r"(right[1]) : "r"(row) : "memory");
    float d[4] = {};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
    for (int i = 0; i < 4; ++i) c[(threadIdx.x / 4 + i / 2 * 8) * 8 + threadIdx.x % 4 * 2 + i % 2] = d[i];
}
