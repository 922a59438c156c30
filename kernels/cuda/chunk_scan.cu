// The Mamba-2 recurrence over many tokens of each sequence, in place, in chunks of 64 (Dao and Gu, 2024). With `cum` the
// running sum of a * dt inside of a chunk:
//   y_l = exp(cum_l) c_l . S + sum_{s <= l} (c_l . b_s) exp(cum_l - cum_s) dt_s x_s,  then y = (y + d x) silu(z)
//   S   = exp(cum_last) S + sum_s exp(cum_last - cum_s) dt_s x_s (x) b_s
//
// A block walks the chunks of a sequence for 64 channels of a head, so that inputs are read once and the state passes from
// chunk to chunk in registers, in f32. While a chunk is computed the next is under way into the other half of shared
// memory (f32 inputs have no room for that). Eight warps share out the outputs by 16 tokens and 32 channels, the state by
// 16 channels and half of its columns; the only thing that crosses warps is the state, as the next chunk's operand.
//
// All products are of bf16 parts (chunks.cuh), summed in f32. Inputs are whole in their parts; what enters the state has
// one part more, since an f32 state is held to what f32 can say.
#include "chunks.cuh"
#include "mamba2.cuh"

constexpr int kChunk = 64, kChannels = 64, kThreads = 256, kOutRow = 40;

template <typename TS, typename TI, int N, int STAGES> DEVICE void chunk_scan(const Args& args) {
    constexpr int V = kPerVec<TI>, VS = kPerVec<TS>, PARTS = kParts<TI>, GAIN_PARTS = PARTS < 3 ? PARTS + 1 : 3;
    constexpr int STAGE = kChunk * (kChannels + 2 * N);           // elements of the inputs of a chunk
    constexpr int COLUMNS = N < 32 ? N : N / 2, PAIRS = COLUMNS / 16;   // columns of the state of a warp, by 16
    constexpr int WIDE_ROW = N + 8;                               // of the state in f32, on its way from and to memory
    static_assert(kChannels * WIDE_ROW * sizeof(float) <= STAGE * sizeof(TI), "the state passes through a stage");
    extern __shared__ __align__(16) uint8_t shared[];
    TI* const stages = reinterpret_cast<TI*>(shared);
    __nv_bfloat16* const carried = reinterpret_cast<__nv_bfloat16*>(stages + STAGES * STAGE);   // [PARTS][kChannels][N]
    float* const outs = reinterpret_cast<float*>(carried + PARTS * kChannels * N);              // of a warp [8][kOutRow]
    __shared__ float sums[2][2][kChunk], steps[2][kChunk], starts[2][kChunk], gains[2][kChunk], keeps[2];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile = warp % 4, half = warp / 4;
    const int sequence = blockIdx.z, head = blockIdx.y, channel0 = blockIdx.x * kChannels;
    const int channels = min(kChannels, args.head_dim - channel0);
    const int64_t channel = (int64_t)head * args.head_dim + channel0, y_stride = (int64_t)args.heads * args.head_dim;
    const int slot = args.slots[sequence];
    const int begin = args.cu_seqlens[sequence], end = args.cu_seqlens[sequence + 1];
    if (end - begin <= args.few) return;
    TI* const y = static_cast<TI*>(args.y) + channel;
    if (slot < 0) {
        for (int i = threadIdx.x; i < (end - begin) * (kChannels / V); i += kThreads)
            if (i % (kChannels / V) * V < channels) store_streamed(y + (begin + i / (kChannels / V)) * y_stride + i % (kChannels / V) * V, Vec16{});
        return;
    }
    const int64_t inner = channel * N;
    TS* const state = static_cast<TS*>(args.pool) + slot * args.slot_elems + args.layer_offset + inner;
    const int group = head / args.heads_per_group;

    auto fetch = [&](int from, int to, TI* stage) {
        auto row = [&](const void* source, int64_t stride, int64_t first) { return static_cast<const TI*>(source) + from * stride + first; };
        const int64_t shared_column = (int64_t)group * N;
        fetch_rows<TI, kChannels, kChunk, kThreads>(stage, row(args.x, args.x_stride, channel), args.x_stride, to - from, channels);
        fetch_rows<TI, N, kChunk, kThreads>(stage + kChunk * kChannels, row(args.b, args.b_stride, shared_column), args.b_stride, to - from, N);
        fetch_rows<TI, N, kChunk, kThreads>(stage + kChunk * (kChannels + N), row(args.c, args.c_stride, shared_column), args.c_stride, to - from, N);
        copy_commit();
    };
    // What the tokens of a chunk are weighed with, by one warp; a lane has two tokens that follow each other.
    auto weigh = [&](int from, int to, int which) {
        const float a = args.a[head], bias = args.dt_bias ? args.dt_bias[head] : 0.f;
        float step[2];
        Sum sum[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = from + lane * 2 + i;
            step[i] = row < to ? time_step<TI>(args, row, head, bias) : 0.f;
            sum[i] = {row < to ? a * step[i] : 0.f, 0.f};
        }
        const Sum last = running_sums<32>(sum, lane), none = {0.f, 0.f};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int token = lane * 2 + i;
            sums[which][0][token] = sum[i].high, sums[which][1][token] = sum[i].low, steps[which][token] = step[i];
            starts[which][token] = exp_between(sum[i], none), gains[which][token] = exp_between(last, sum[i]) * step[i];
        }
        if (lane == 0) keeps[which] = exp_between(last, none);
    };

    // The state, of which a lane has pairs of columns of two rows in each tile of 8.
    float held[2 * PAIRS][4];
    const int state_row = tile * 16 + lane / 4, state_column = half * COLUMNS + lane % 4 * 2;
    const bool holds = half * COLUMNS < N;
    auto carry = [&] {
        if (!holds) return;
#pragma unroll
        for (int n = 0; n < 2 * PAIRS; ++n)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                uint32_t words[PARTS];
                split(held[n][r * 2], held[n][r * 2 + 1], words);
#pragma unroll
                for (int p = 0; p < PARTS; ++p)
                    *reinterpret_cast<uint32_t*>(carried + p * kChannels * N + swizzled<__nv_bfloat16, N>(state_row + r * 8, state_column + n * 8)) = words[p];
            }
    };
    auto each_wide = [&](float* wide, auto body) {
        if (!holds) return;
#pragma unroll
        for (int n = 0; n < 2 * PAIRS; ++n)
#pragma unroll
            for (int r = 0; r < 2; ++r)
                body(*reinterpret_cast<float2*>(wide + (state_row + r * 8) * WIDE_ROW + state_column + n * 8), held[n] + r * 2);
    };
    float* wide = reinterpret_cast<float*>(stages);
#pragma unroll
    for (int i = 0; i < kChannels * N / VS / kThreads + 1; ++i) {
        const int at = (i * kThreads + threadIdx.x) * VS, row = at / N;
        if (row >= kChannels) break;
        float values[VS] = {};
        if (row < channels) widen<TS>(load_streamed(state + at), values);
#pragma unroll
        for (int e = 0; e < VS; e += 4) *reinterpret_cast<float4*>(wide + row * WIDE_ROW + at % N + e) = make_float4(values[e], values[e + 1], values[e + 2], values[e + 3]);
    }
    __syncthreads();
    each_wide(wide, [](float2& from, float* to) { to[0] = from.x, to[1] = from.y; });
    carry();
    __syncthreads();   // all have taken their part

    int next = chunk_end<kChunk>(args.writes, begin, end, lane);
    fetch(begin, next, stages);
    if (warp == 0) weigh(begin, next, 0);
    for (int first = begin, turn = 0; first < end; turn ^= 1) {
        const int last = next;
        copy_wait<0>();
        __syncthreads();   // the chunk, its weights and the state lie ready, and all have left the chunk before
        const TI* const x = stages + (STAGES > 1 ? turn : 0) * STAGE;
        const TI *const b = x + kChunk * kChannels, *const c = b + kChunk * N;
        if (last < end) {
            next = chunk_end<kChunk>(args.writes, last, end, lane);
            if (STAGES > 1) fetch(last, next, stages + (turn ^ 1) * STAGE);
            if (warp == 0) weigh(last, next, turn ^ 1);
        }
        const int row = tile * 16 + lane / 4;   // and the one 8 further
        if (first + tile * 16 < last) {
            float out[4][4] = {};
#pragma unroll 4
            for (int k = 0; k < N; k += 16) {
                uint32_t left[PARTS][4], right[PARTS][4];
                load_parts<TI, N, Operand::kLeft>(left, c, tile * 16, k, lane);
#pragma unroll
                for (int pair = 0; pair < 2; ++pair) {
#pragma unroll
                    for (int p = 0; p < PARTS; ++p)
                        load_words<__nv_bfloat16, N, Operand::kRight>(right[p], carried + p * kChannels * N, half * 32 + pair * 16, k, lane);
                    multiply_parts(out[pair * 2], left, right, 0);
                    multiply_parts(out[pair * 2 + 1], left, right, 1);
                }
            }
            const Sum at[2] = {{sums[turn][0][row], sums[turn][1][row]}, {sums[turn][0][row + 8], sums[turn][1][row + 8]}};
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float start = starts[turn][row + r * 8];
#pragma unroll
                for (int n = 0; n < 4; ++n) out[n][r * 2] *= start, out[n][r * 2 + 1] *= start;
            }
#pragma unroll 1
            for (int s = 0; s <= tile; ++s) {
                uint32_t left[PARTS][4], right[PARTS][4];
                float mixed[2][4] = {}, pairs[4][2];
#pragma unroll 2
                for (int k = 0; k < N; k += 16) {
                    load_parts<TI, N, Operand::kLeft>(left, c, tile * 16, k, lane);
                    load_parts<TI, N, Operand::kRight>(right, b, s * 16, k, lane);
                    multiply_parts(mixed[0], left, right, 0);
                    multiply_parts(mixed[1], left, right, 1);
                }
#pragma unroll
                for (int n = 0; n < 2; ++n)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const int token = s * 16 + n * 8 + lane % 4 * 2 + e;
                        const Sum from = {sums[turn][0][token], sums[turn][1][token]};
                        const float step = steps[turn][token];
#pragma unroll
                        for (int r = 0; r < 2; ++r)
                            pairs[n * 2 + r][e] = token <= row + r * 8 ? mixed[n][r * 2 + e] * exp_between(at[r], from) * step : 0.f;
                    }
                split_pairs(left, pairs);
#pragma unroll
                for (int pair = 0; pair < 2; ++pair) {
                    load_parts<TI, kChannels, Operand::kRightAcross>(right, x, s * 16, half * 32 + pair * 16, lane);
                    multiply_parts(out[pair * 2], left, right, 0);
                    multiply_parts(out[pair * 2 + 1], left, right, 1);
                }
            }
            // Eight rows at a time through shared memory, so that memory sees whole rows.
            float* const own = outs + warp * 8 * kOutRow;
            const float d = args.d ? args.d[head] : 0.f;
#pragma unroll 1
            for (int r = 0; r < 2; ++r) {
                __syncwarp();   // all have read the rows before
#pragma unroll
                for (int n = 0; n < 4; ++n)
                    *reinterpret_cast<float2*>(own + lane / 4 * kOutRow + n * 8 + lane % 4 * 2) = make_float2(r ? out[n][2] : out[n][0], r ? out[n][3] : out[n][1]);
                __syncwarp();
#pragma unroll
                for (int i = lane; i < 8 * 32 / V; i += 32) {
                    const int token = tile * 16 + r * 8 + i / (32 / V), column = i % (32 / V) * V;
                    if (first + token >= last || half * 32 + column >= channels) continue;
                    float values[V], inputs[V], gates[V];
#pragma unroll
                    for (int e = 0; e < V; ++e) values[e] = own[i / (32 / V) * kOutRow + column + e];
                    widen<TI>(*reinterpret_cast<const Vec16*>(x + swizzled<TI, kChannels>(token, half * 32 + column)), inputs);
                    if (args.z) widen<TI>(load_streamed(static_cast<const TI*>(args.z) + (first + token) * args.z_stride + channel + half * 32 + column), gates);
#pragma unroll
                    for (int e = 0; e < V; ++e) {
                        values[e] += d * inputs[e];
                        if (args.z) values[e] *= silu(gates[e]);
                    }
                    store_streamed(y + (first + token) * y_stride + half * 32 + column, narrow<TI>(values));
                }
            }
        }
        const float keep = keeps[turn];
#pragma unroll
        for (int n = 0; n < 2 * PAIRS; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) held[n][e] *= keep;
#pragma unroll 1
        for (int s = 0; s < kChunk; s += 16) {
            if (first + s >= last || !holds) break;
            float pairs[4][2];
            load_pairs<TI, kChannels, Operand::kLeftAcross>(pairs, x, s, tile * 16, lane);
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) pairs[j][e] *= gains[turn][s + j / 2 * 8 + lane % 4 * 2 + e];
            uint32_t left[GAIN_PARTS][4], right[PARTS][4];
            split_pairs(left, pairs);
#pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair) {
                load_parts<TI, N, Operand::kRightAcross>(right, b, s, half * COLUMNS + pair * 16, lane);
                multiply_parts(held[pair * 2], left, right, 0);
                multiply_parts(held[pair * 2 + 1], left, right, 1);
            }
        }
        __syncthreads();   // all have left the chunk and the state before it
        TS* const kept = state_after<TS>(args.writes, inner, last - 1);
        TS* const slot_state = last == end && args.writes.last ? state : nullptr;
        if (kept || slot_state) {
            float* const through = reinterpret_cast<float*>(stages + (STAGES > 1 ? turn : 0) * STAGE);
            each_wide(through, [](float2& to, float* from) { to = make_float2(from[0], from[1]); });
            __syncthreads();
            for (int i = threadIdx.x; i < channels * N / VS; i += kThreads) {
                float values[VS];
#pragma unroll
                for (int e = 0; e < VS; ++e) values[e] = through[i * VS / N * WIDE_ROW + i * VS % N + e];
                const Vec16 v = narrow<TS>(values);
                if (kept) store_streamed(kept + i * VS, v);
                if (slot_state) store_streamed(slot_state + i * VS, v);
            }
            if (STAGES == 1) __syncthreads();   // before the next chunk comes
        }
        first = last;
        if (last < end) {
            carry();
            if (STAGES == 1) fetch(last, next, stages);
        }
    }
}

#define KERNEL(state, input, TS, TI, N, STAGES, BLOCKS)                                          \
    extern "C" __global__ void __launch_bounds__(kThreads, BLOCKS)                               \
        chunk_scan_##state##_##input##_##N(const __grid_constant__ Args args) {                  \
        chunk_scan<TS, TI, N, STAGES>(args);                                                     \
    }
#define STATES(N)                                                         \
    KERNEL(f32, f32, float, float, N, 1, 1)                               \
    KERNEL(f32, bf16, float, __nv_bfloat16, N, 2, 2)                      \
    KERNEL(f32, f16, float, __half, N, 2, 1)                              \
    KERNEL(bf16, bf16, __nv_bfloat16, __nv_bfloat16, N, 2, 2)             \
    KERNEL(f16, f16, __half, __half, N, 2, 1)

// prove chunk_scan: 168 registers, LDGSTS.E.BYPASS.128, HMMA.16816, STG.E.EF.128
STATES(16)
STATES(64)
STATES(128)
