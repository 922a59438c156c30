// The choice of experts: scores of a row's router logits, the best groups of experts, the best experts of those, and
// what each of them counts. A warp has a row. A lane holds every 32nd expert of it in registers, and the best of them is
// found by exchanges, once for each that is chosen. Numbers are compared by their order as integers, which has a place
// for every one of them, NaN too; of two that are equal the earlier expert is better.
#include "common.cuh"

struct Args {
    const void* logits;       // [rows, experts]
    const float* correction;  // [experts], added to the scores for the choice alone, or null
    uint32_t* chosen;         // [rows, per_token]
    float* weights;           // [rows, per_token]
    int64_t stride;           // of rows
    int32_t experts, per_token, groups, top_groups, softmax, normalise;
    float scale;
};

constexpr int kNone = INT32_MIN;

// A number's place among all of them, and back. None is as low as kNone.
DEVICE int order(float value) {
    const int bits = __float_as_int(value);
    return max(bits ^ (bits >> 31 & 0x7fffffff), kNone + 1);
}
DEVICE float ordered(int place) { return __int_as_float(place ^ (place >> 31 & 0x7fffffff)); }

// The highest place of all lanes, in all lanes, and the lowest index that has it.
DEVICE void best_of_lanes(int& place, int& index) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const int other = __shfl_xor_sync(kAllLanes, place, offset), other_index = __shfl_xor_sync(kAllLanes, index, offset);
        if (other > place || (other == place && other_index < index)) place = other, index = other_index;
    }
}

// EACH is how many experts a lane has.
template <typename T, int EACH> DEVICE void route(const Args& args) {
    __shared__ float scores[32 * EACH], choices[32 * EACH];
    const int lane = threadIdx.x;
    const int64_t row = blockIdx.x;
    const T* const logits = static_cast<const T*>(args.logits) + row * args.stride;
    float score[EACH];
    float most = -INFINITY, sum = 0.f;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int expert = lane + 32 * i;
        score[i] = expert < args.experts ? to_float(logits[expert]) : -INFINITY;
        most = larger(most, score[i]);
    }
    if (args.softmax) {
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) most = larger(most, __shfl_xor_sync(kAllLanes, most, offset));
#pragma unroll
        for (int i = 0; i < EACH; ++i) score[i] = expf(score[i] - most), sum += score[i];
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
#pragma unroll
        for (int i = 0; i < EACH; ++i) score[i] /= sum;
    } else {
#pragma unroll
        for (int i = 0; i < EACH; ++i) score[i] = 1.f / (1.f + expf(-score[i]));
    }
    int places[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int expert = lane + 32 * i;
        const bool is = expert < args.experts;
        const float choice = is && args.correction ? score[i] + args.correction[expert] : score[i];
        places[i] = is ? order(choice) : kNone;
        scores[expert] = score[i], choices[expert] = choice;
    }
    __syncwarp();
    if (args.groups > 1) {
        // A lane has a group, which is worth the sum of its two best experts. Lanes begin at different members, whose
        // banks differ then.
        const int members = args.experts / args.groups;
        int worth = kNone;
        if (lane < args.groups) {
            int first = kNone, second = kNone;
            for (int at = 0, member = lane % members; at < members; ++at) {
                const int place = order(choices[lane * members + member]);
                second = max(second, min(first, place)), first = max(first, place);
                if (++member == members) member = 0;
            }
            worth = order(second == kNone ? ordered(first) : ordered(first) + ordered(second));
        }
        uint32_t kept = 0;
        for (int i = 0; i < args.top_groups; ++i) {
            int best = worth, group = lane;
            best_of_lanes(best, group);
            kept |= 1u << group;
            if (group == lane) worth = kNone;
        }
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int expert = lane + 32 * i;
            if (expert < args.experts && !(kept >> expert / members & 1)) places[i] = kNone;
        }
    }
    // Lane j keeps the j-th that is chosen.
    float weight = 0.f, all = 0.f;
    int chosen = 0;
    for (int j = 0; j < args.per_token; ++j) {
        int best = kNone, expert = lane;
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            if (places[i] > best) best = places[i], expert = lane + 32 * i;
        best_of_lanes(best, expert);
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            if (expert == lane + 32 * i) places[i] = kNone;
        all += scores[expert];
        if (lane == j) chosen = expert, weight = scores[expert];
    }
    const float scale = args.normalise ? args.scale / (all + 1e-20f) : args.scale;
    if (lane < args.per_token) {
        args.chosen[row * args.per_token + lane] = chosen;
        args.weights[row * args.per_token + lane] = weight * scale;
    }
}

#define KERNEL(format, T, most, each)                                                                                    \
    extern "C" __global__ void __launch_bounds__(32) route_experts_##format##_##most(const __grid_constant__ Args args) { \
        route<T, each>(args);                                                                                             \
    }
#define KERNELS(format, T) KERNEL(format, T, 64, 2) KERNEL(format, T, 128, 4) KERNEL(format, T, 256, 8) KERNEL(format, T, 512, 16)

// prove route_experts: 80 registers
KERNELS(f32, float)
KERNELS(bf16, __nv_bfloat16)
KERNELS(f16, __half)
