// Recurrences whose channels have nothing to do with each other, token by token, in place.
//
// Mamba-1:  s = s * exp(a * dt) + dt * b * x,  y = s . c + d * x,  y *= silu(z); a channel has N states.
// RG-LRU:   h = a * h + sqrt(1 - a^2) * sigmoid(i) * x with log a = rate * sigmoid(r); a channel has one.
//
// A lane holds four states of a channel of Mamba-1 over all tokens, so that a sum crosses four lanes. A thread of RG-LRU holds 16 bytes of channels.
#include "common.cuh"

struct ScanArgs {
    void* pool;                       // [slots, slot_elems], of which the layer is [channels, N]
    const void *x, *dt, *b, *c, *z;   // rows of the step; z may be null
    const float *a, *d, *dt_bias;     // [channels, N], [channels] twice; these may be null
    void* y;                          // [tokens, channels]
    const int32_t* slots;             // [batch], -1 for padding
    const uint32_t* cu_seqlens;       // [batch + 1]
    Writes writes;
    int64_t slot_elems, layer_offset, x_stride, dt_stride, b_stride, c_stride, z_stride;
    int32_t channels, softplus;
    float dt_low, dt_high;
};

// Four elements of a state, read and written once.
template <typename T> DEVICE void load_four(const T* from, float* out) {
    if constexpr (sizeof(T) == 4) {
        widen<T>(load_streamed(from), out);
    } else {
        const uint2 v = __ldcs(reinterpret_cast<const uint2*>(from));
        Format<T>::widen(v.x, out), Format<T>::widen(v.y, out + 2);
    }
}
template <typename T> DEVICE void store_four(T* to, const float* in) {
    if constexpr (sizeof(T) == 4) {
        store_streamed(to, narrow<T>(in));
    } else {
        __stcs(reinterpret_cast<uint2*>(to), make_uint2(Format<T>::narrow(in), Format<T>::narrow(in + 2)));
    }
}

template <typename TS, typename TI, int N> DEVICE void channel_scan(const ScanArgs& args) {
    constexpr int V = 4, LANES = N / V;   // states of a lane, and lanes of a channel
    const int channel = (blockIdx.x * blockDim.x + threadIdx.x) / LANES, column = threadIdx.x % LANES * V;
    const int sequence = blockIdx.y, slot = args.slots[sequence];
    const int begin = args.cu_seqlens[sequence], end = args.cu_seqlens[sequence + 1];
    const bool live = channel < args.channels, writes = live && column == 0;
    TI* const y = static_cast<TI*>(args.y) + channel;
    if (slot < 0) {
        if (writes)
            for (int row = begin; row < end; ++row) y[(int64_t)row * args.channels] = from_float<TI>(0.f);
        return;
    }
    if (begin == end) return;
    const int64_t inner = (int64_t)channel * N + column;
    TS* const state = static_cast<TS*>(args.pool) + slot * args.slot_elems + args.layer_offset + inner;
    float held[V] = {}, a[V] = {};
    if (live) load_four<TS>(state, held), load_floats<float, V>(args.a + (int64_t)channel * N + column, a);
#pragma unroll
    for (int i = 0; i < V; ++i) a[i] *= 1.44269504f;   // powers of two are cheaper
    const float bias = live && args.dt_bias ? args.dt_bias[channel] : 0.f, d = live && args.d ? args.d[channel] : 0.f;
    for (int row = begin; row < end; ++row) {
        const TS* const before = state_before<TS>(args.writes, state, inner, begin, row);
        if (before && live) load_four<TS>(before, held);
        float x = 0.f, dt = 0.f, b[V], c[V];
        load_floats<TI, V>(static_cast<const TI*>(args.b) + row * args.b_stride + column, b);
        load_floats<TI, V>(static_cast<const TI*>(args.c) + row * args.c_stride + column, c);
        if (live) {
            x = to_float(static_cast<const TI*>(args.x)[row * args.x_stride + channel]);
            dt = to_float(static_cast<const TI*>(args.dt)[row * args.dt_stride + channel]) + bias;
        }
        dt = time_step(dt, args.softplus, args.dt_low, args.dt_high);
        const float input = dt * x;
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < V; ++i) {
            held[i] = held[i] * exp2f(a[i] * dt) + b[i] * input;
            sum += held[i] * c[i];
        }
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
        if (writes) {
            const float gate = args.z ? silu(to_float(static_cast<const TI*>(args.z)[row * args.z_stride + channel])) : 1.f;
            y[(int64_t)row * args.channels] = from_float<TI>((sum + d * x) * gate);
        }
        TS* const after = state_after<TS>(args.writes, inner, row);
        if (after && live) store_four<TS>(after, held);
        if (args.writes.rounds) {
            constexpr int kPerWord = Format<TS>::kPerWord;
#pragma unroll
            for (int i = 0; i < V; i += kPerWord) Format<TS>::widen(Format<TS>::narrow(held + i), held + i);
        }
    }
    if (args.writes.last && live) store_four<TS>(state, held);
}

struct LruArgs {
    void* pool;                            // [slots, slot_elems], of which the layer is [channels]
    const void *x, *input, *recurrence;    // [tokens, channels], the latter two logits of gates
    const void* a;                         // [channels]
    const uint32_t* positions;             // [tokens], 0 begins a document
    void* y;                               // [tokens, channels]
    const int32_t* slots;                  // [batch], -1 for padding
    const uint32_t* cu_seqlens;            // [batch + 1]
    Writes writes;
    int64_t slot_elems, layer_offset, x_stride, input_stride, recurrence_stride;
    int32_t channels, wide_a;
};

DEVICE float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

template <typename TS, typename TI> DEVICE void lru(const LruArgs& args) {
    constexpr int V = kPerVec<TS>;
    const int channel = (blockIdx.x * blockDim.x + threadIdx.x) * V, sequence = blockIdx.y;
    if (channel >= args.channels) return;
    const int slot = args.slots[sequence];
    const int begin = args.cu_seqlens[sequence], end = args.cu_seqlens[sequence + 1];
    TI* const y = static_cast<TI*>(args.y) + channel;
    if (slot < 0) {
        const float zeros[V] = {};
        for (int row = begin; row < end; ++row) store_floats<TI, V>(y + (int64_t)row * args.channels, zeros);
        return;
    }
    if (begin == end) return;
    TS* const state = static_cast<TS*>(args.pool) + slot * args.slot_elems + args.layer_offset + channel;
    float held[V], rates[V];
    widen<TS>(load_streamed(state), held);
    if (args.wide_a) load_floats<float, V>(static_cast<const float*>(args.a) + channel, rates);
    else load_floats<TI, V>(static_cast<const TI*>(args.a) + channel, rates);
#pragma unroll
    for (int i = 0; i < V; ++i) rates[i] = -8.f * (rates[i] > 20.f ? rates[i] : log1pf(expf(rates[i])));
    for (int row = begin; row < end; ++row) {
        if (const TS* const before = state_before<TS>(args.writes, state, channel, begin, row)) widen<TS>(load_streamed(before), held);
        float x[V], input[V], recurrence[V];
        load_floats<TI, V>(static_cast<const TI*>(args.x) + row * args.x_stride + channel, x);
        load_floats<TI, V>(static_cast<const TI*>(args.input) + row * args.input_stride + channel, input);
        load_floats<TI, V>(static_cast<const TI*>(args.recurrence) + row * args.recurrence_stride + channel, recurrence);
        const bool begins = args.positions[row] == 0;
#pragma unroll
        for (int i = 0; i < V; ++i) {
            const float log_a = rates[i] * sigmoid(recurrence[i]), gated = x[i] * sigmoid(input[i]);
            // 1 - a^2 without what it would lose next to a decay of one.
            held[i] = begins ? gated : expf(log_a) * held[i] + sqrtf(-expm1f(2.f * log_a)) * gated;
        }
        store_floats<TI, V>(y + (int64_t)row * args.channels, held);
        if (TS* const after = state_after<TS>(args.writes, channel, row)) store_streamed(after, narrow<TS>(held));
        if (args.writes.rounds) widen<TS>(narrow<TS>(held), held);
    }
    if (args.writes.last) store_streamed(state, narrow<TS>(held));
}

#define SCAN(state, input, TS, TI)                                                                                     \
    extern "C" __global__ void __launch_bounds__(128) channel_scan_##state##_##input(const __grid_constant__ ScanArgs args) { \
        channel_scan<TS, TI, 16>(args);                                                                                \
    }
#define LRU(state, input, TS, TI)                                                                                      \
    extern "C" __global__ void __launch_bounds__(128) rg_lru_##state##_##input(const __grid_constant__ LruArgs args) { \
        lru<TS, TI>(args);                                                                                             \
    }
#define FORMATS(KERNEL)                                  \
    KERNEL(f32, f32, float, float)                       \
    KERNEL(f32, bf16, float, __nv_bfloat16)              \
    KERNEL(f32, f16, float, __half)                      \
    KERNEL(bf16, bf16, __nv_bfloat16, __nv_bfloat16)     \
    KERNEL(f16, f16, __half, __half)

// prove channel_scan: 64 registers, LDG.E.EF, STG.E.EF
// prove rg_lru: 80 registers, LDG.E.EF.128, STG.E.EF.128
FORMATS(SCAN)
FORMATS(LRU)
