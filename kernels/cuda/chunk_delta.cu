// Linear attention over many tokens of each sequence, in place, in blocks of 16 tokens (Yang et al., 2024): gated delta and
// lightning, whose decay is one number for a head, and Kimi delta, which has one for each key channel. With D(t, s) the
// product of the decays of the tokens behind s up to t, and the tokens of a block behind those before it:
//   u_t = beta_t (v_t - D(t, 0) k_t . S - sum_{s < t} (k_t . D(t, s) k_s) u_s),  or v_t without the delta rule
//   o_t = scale (D(t, 0) q_t . S + sum_{s <= t} (q_t . D(t, s) k_s) u_s)
//   S   = D(last, 0) S + sum_s D(last, s) k_s (x) u_s
// The state stays in registers, so that its products cost the same for blocks of any length, and those of tokens with each
// other less for shorter ones: 16 is what a product takes.
//
// A thread block walks a sequence for 64 value columns of a head, and takes the inputs of several blocks at once. Its four
// warps first share out the products of keys with keys and with queries, and invert the triangular systems. Then each warp
// has 16 columns of its own, turned: S, u and o stand in registers with values as their rows, so that the result of one
// product is the left operand of the next and no warp waits for another.
//
// Decays of channels are part of the products of keys. Nothing is divided by a decay, as it may be 0: what has decayed since
// a block began, and what decays until it ends, are products along its tokens. Between two tokens of a block a key takes up
// the decays one by one, in f32 without matrix products, since no factor of each token for itself stands for both.
// That is the same for all value columns, so that a thread block has 128 there, and eight warps; the next chunk is under way
// meanwhile, since keys and queries are no longer needed once they have decayed.
//
// All other products are of bf16 parts (chunks.cuh), summed in f32. Inputs are whole in their parts. What enters the state
// has as many as the state is held to, two at least; what only outputs take, as many as the inputs.
#include "chunks.cuh"
#include "linear_attention.cuh"

constexpr int kBlock = 16, kSystemRow = kBlock + 1, kOutRow = 20;

template <bool CHANNELS> constexpr int kValues = CHANNELS ? 128 : 64;
template <bool CHANNELS> constexpr int kThreads = 2 * kValues<CHANNELS>;   // a warp for each 16

template <typename TS, typename TI, int K, bool CHANNELS> DEVICE void chunk_delta(const Args& args) {
    constexpr int V = kPerVec<TI>, VS = kPerVec<TS>, PARTS = kParts<TI>, WIDE = kParts<TS> < 2 ? 2 : kParts<TS>;
    constexpr int kValues = ::kValues<CHANNELS>, kThreads = ::kThreads<CHANNELS>, kWideRow = kValues + 4;
    constexpr int TOKENS = CHANNELS ? 32 : 64, BLOCKS = TOKENS / kBlock, KEYS = TOKENS * K, PAIRS = TOKENS * kBlock;
    constexpr int DECAYED = CHANNELS ? (2 * WIDE + PARTS) * KEYS : 0;
    extern __shared__ __align__(16) uint8_t shared[];
    TI* const keys = reinterpret_cast<TI*>(shared);
    TI *const queries = keys + KEYS, *const values = queries + KEYS;
    // Of channels that decay, values twice, so that a chunk is under way while that before it is computed, and logarithms
    // of decays [TOKENS][K], as wide as they come.
    uint8_t* const logs = reinterpret_cast<uint8_t*>(values + (CHANNELS ? 2 : 1) * TOKENS * kValues);
    // [parts][TOKENS][K]: keys and queries with what decayed since their block began, and keys with what decays until it ends.
    __nv_bfloat16* const keys_since = reinterpret_cast<__nv_bfloat16*>(logs + (CHANNELS ? KEYS * 4 : 0));
    __nv_bfloat16 *const queries_since = keys_since + (CHANNELS ? WIDE * KEYS : 0), *const keys_until = queries_since + (CHANNELS ? PARTS * KEYS : 0);
    float* const decays = reinterpret_cast<float*>(keys_since + DECAYED);   // [TOKENS][K]
    float* const channels_keep = decays + (CHANNELS ? KEYS : 0);            // [BLOCKS][K]
    // [WIDE][TOKENS][kBlock]: the inverse of a block's system.
    __nv_bfloat16* const taken = reinterpret_cast<__nv_bfloat16*>(channels_keep + (CHANNELS ? BLOCKS * K : 0));
    __nv_bfloat16* const given = taken + WIDE * PAIRS;   // [PARTS][TOKENS][kBlock]: what o_t reads of u_s
    float* const systems = reinterpret_cast<float*>(given + PARTS * PAIRS);   // of a block [kBlock][kSystemRow]: what u_t takes of u_s
    float* const outs = systems + BLOCKS * kBlock * kSystemRow;               // of a warp [kBlock][kOutRow]
    __shared__ float sums[2][TOKENS], betas[TOKENS], starts[TOKENS], gains[TOKENS], key_scales[TOKENS], query_scales[TOKENS], keeps[BLOCKS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int sequence = blockIdx.z, head = blockIdx.y, value0 = blockIdx.x * kValues, key_head = head / args.heads_per_key;
    const int columns = min(kValues, args.value_dim - value0);
    const int64_t value = (int64_t)head * args.value_dim + value0, o_stride = (int64_t)args.heads * args.value_dim;
    const int slot = args.slots[sequence];
    const int begin = args.cu_seqlens[sequence], end = args.cu_seqlens[sequence + 1];
    if (end - begin <= args.few) return;
    TI* const o = static_cast<TI*>(args.o) + value;
    if (slot < 0) {
        for (int i = threadIdx.x; i < (end - begin) * (kValues / V); i += kThreads)
            if (i % (kValues / V) * V < columns) store_streamed(o + (begin + i / (kValues / V)) * o_stride + i % (kValues / V) * V, Vec16{});
        return;
    }
    const int64_t inner = (int64_t)head * K * args.value_dim + value0;
    TS* const state = static_cast<TS*>(args.pool) + slot * args.slot_elems + args.layer_offset + inner;
    const bool delta = args.beta;

    auto fetch = [&](int from, int to, TI* values) {
        auto row = [&](const void* source, int64_t stride, int64_t first) { return static_cast<const TI*>(source) + from * stride + first; };
        fetch_rows<TI, K, TOKENS, kThreads>(keys, row(args.k, args.k_stride, (int64_t)key_head * K), args.k_stride, to - from, K);
        fetch_rows<TI, K, TOKENS, kThreads>(queries, row(args.q, args.q_stride, (int64_t)key_head * K), args.q_stride, to - from, K);
        fetch_rows<TI, kValues, TOKENS, kThreads>(values, row(args.v, args.v_stride, value), args.v_stride, to - from, columns);
        if constexpr (CHANNELS) {
            const int64_t at = from * args.decay_stride + head * K;
            if (args.wide_decay) fetch_rows<float, K, TOKENS, kThreads>(reinterpret_cast<float*>(logs), static_cast<const float*>(args.decay) + at, args.decay_stride, to - from, K);
            else fetch_rows<TI, K, TOKENS, kThreads>(reinterpret_cast<TI*>(logs), static_cast<const TI*>(args.decay) + at, args.decay_stride, to - from, K);
        }
        copy_commit();
    };
    auto beta_of = [&](int row, int to) {
        return delta && row < to ? load_either<TI>(args.beta, row * args.beta_stride + head, args.wide_beta) : 0.f;
    };
    // What the tokens of a chunk are weighed with where a head decays, by one warp. A lane has two tokens that follow each other.
    auto weigh = [&](int from, int to) {
        Sum sum[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int token = lane * 2 + i, row = from + token;
            float decay = 0.f;
            if (row < to) decay = args.fixed ? args.fixed[head] : load_either<TI>(args.decay, row * args.decay_stride + head, args.wide_decay);
            sum[i] = {decay, 0.f}, betas[token] = beta_of(row, to);
        }
        const Sum last = running_sums<kBlock / 2>(sum, lane), none = {0.f, 0.f};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int token = lane * 2 + i;
            sums[0][token] = sum[i].high, sums[1][token] = sum[i].low;
            starts[token] = exp_between(sum[i], none), gains[token] = exp_between(last, sum[i]);
        }
        if (lane % (kBlock / 2) == 0) keeps[lane / (kBlock / 2)] = exp_between(last, none);
    };
    auto sum_at = [&](int token) { return Sum{sums[0][token], sums[1][token]}; };
    // Two neighbours of a matrix of bf16 parts.
    auto put = [&](auto parts, __nv_bfloat16* to, int size, int at, float low, float high) {
        constexpr int COUNT = decltype(parts)::value;
        uint32_t words[COUNT];
        split(low, high, words);
#pragma unroll
        for (int p = 0; p < COUNT; ++p) *reinterpret_cast<uint32_t*>(to + p * size + at) = words[p];
    };

    // What becomes of keys and queries by decays of channels. A thread has two channels of a block, one half of the threads
    // since it began and the other until it ends.
    auto fade = [&] {
        static_assert(!CHANNELS || BLOCKS * K / 2 <= kThreads / 2, "two threads for each");
        const bool is_since = threadIdx.x < kThreads / 2;
        const int block = threadIdx.x % (kThreads / 2) / (K / 2), channel = threadIdx.x % (K / 2) * 2;
        if (block >= BLOCKS) return;
        float decay[kBlock][2];
#pragma unroll
        for (int t = 0; t < kBlock; ++t) {
            const int row = block * kBlock + t;
            if (args.wide_decay) load_near(reinterpret_cast<const float*>(logs) + swizzled<float, K>(row, channel), decay[t]);
            else load_near(reinterpret_cast<const TI*>(logs) + swizzled<TI, K>(row, channel), decay[t]);
            decay[t][0] = expf(decay[t][0]), decay[t][1] = expf(decay[t][1]);
            if (is_since) *reinterpret_cast<float2*>(decays + row * K + channel) = make_float2(decay[t][0], decay[t][1]);
        }
        float part[2] = {1.f, 1.f};
        if (is_since) {
#pragma unroll
            for (int t = 0; t < kBlock; ++t) {
                const int row = block * kBlock + t, at = swizzled<__nv_bfloat16, K>(row, channel);
                float key[2], query[2];
                load_near(keys + swizzled<TI, K>(row, channel), key), load_near(queries + swizzled<TI, K>(row, channel), query);
                part[0] *= decay[t][0], part[1] *= decay[t][1];
                put(Count<WIDE>{}, keys_since, KEYS, at, key[0] * part[0], key[1] * part[1]);
                put(Count<PARTS>{}, queries_since, KEYS, at, query[0] * part[0], query[1] * part[1]);
            }
            *reinterpret_cast<float2*>(channels_keep + block * K + channel) = make_float2(part[0], part[1]);
        } else {
#pragma unroll
            for (int t = kBlock - 1; t >= 0; --t) {
                const int row = block * kBlock + t;
                float key[2];
                load_near(keys + swizzled<TI, K>(row, channel), key);
                put(Count<WIDE>{}, keys_until, KEYS, swizzled<__nv_bfloat16, K>(row, channel), key[0] * part[0], key[1] * part[1]);
                part[0] *= decay[t][0], part[1] *= decay[t][1];
            }
        }
    };
    // Keys and queries are divided by their lengths.
    auto measure = [&] {
        constexpr int SIDE = kThreads / (2 * TOKENS);   // threads of a row
        const bool is_key = threadIdx.x < kThreads / 2;
        const TI* const rows = is_key ? keys : queries;
        const int token = threadIdx.x / SIDE % TOKENS;
        float length = 0.f;
        if (args.unit) {
#pragma unroll
            for (int i = 0; i < K; i += SIDE * V) {
                const int c = i + threadIdx.x % SIDE * V;
                if (c >= K) continue;
                float parts[V];
                widen<TI>(*reinterpret_cast<const Vec16*>(rows + swizzled<TI, K>(token, c)), parts);
#pragma unroll
                for (int e = 0; e < V; ++e) length += parts[e] * parts[e];
            }
#pragma unroll
            for (int offset = SIDE / 2; offset > 0; offset /= 2) length += __shfl_xor_sync(kAllLanes, length, offset);
        }
        const float scale = args.unit ? rsqrtf(length + 1e-6f) : 1.f;
        if (threadIdx.x % SIDE == 0) (is_key ? key_scales : query_scales)[token] = is_key ? scale : scale * args.scale;
    };
    // The products of a block's tokens with those up to them.
    const int own_block = CHANNELS ? warp / 4 : warp;
    float* const system = systems + own_block * kBlock * kSystemRow;
    auto give = [&](int t, int s, float low, float high) {
        put(Count<PARTS>{}, given, PAIRS, swizzled<__nv_bfloat16, kBlock>(own_block * kBlock + t, s), low, high);
    };
    auto pair_channels = [&] {
        // Two of the block's warps have its keys as rows, the others its queries. A lane has every fourth key and some
        // channels: key 4 m + own decays from token to token, and what row t has with it is added up.
        constexpr int FEW = K < 64 ? 1 : 4;
        const bool of_queries = warp % 2;
        const TI* const rows = of_queries ? queries : keys;
        const int own = warp / 2 % 2 * 2 + lane / 16;
        float products[kBlock / 4][16] = {};   // of four rows each: [4][4]
#pragma unroll 1
        for (int c = lane % 16 * FEW; c < K; c += 16 * FEW) {
            float key[kBlock / 4][FEW];
#pragma unroll
            for (int m = 0; m < kBlock / 4; ++m) load_near(keys + swizzled<TI, K>(own_block * kBlock + 4 * m + own, c), key[m]);
#pragma unroll
            for (int t = 0; t < kBlock; ++t) {
                float row[FEW], fades[FEW];
                load_near(rows + swizzled<TI, K>(own_block * kBlock + t, c), row);
                load_near(decays + (own_block * kBlock + t) * K + c, fades);
#pragma unroll
                for (int m = 0; m <= t / 4; ++m)
#pragma unroll
                    for (int e = 0; e < FEW; ++e) {
                        if (m < t / 4 || own < t % 4) key[m][e] *= fades[e];
                        products[t / 4][t % 4 * 4 + m] += row[e] * key[m][e];
                    }
            }
        }
#pragma unroll
        for (int quad = 0; quad < kBlock / 4; ++quad) {
            const float product = sum_transposed<16, 16>(products[quad], lane);
            const int i = kept<16, 16>(lane), t = 4 * quad + i / 4, s = i % 4 * 4 + own;
            const int token = own_block * kBlock + t;
            const float length = key_scales[own_block * kBlock + s] * product;
            if (of_queries) {
                const float gives = s <= t ? query_scales[token] * length : 0.f, next = __shfl_xor_sync(kAllLanes, gives, 16);
                if (own % 2 == 0) give(t, s, gives, next);
            } else {
                system[t * kSystemRow + s] = s < t ? -betas[token] * key_scales[token] * length : 0.f;
            }
        }
    };
    auto pair_heads = [&] {
        float with_keys[2][4] = {}, with_queries[2][4] = {};
#pragma unroll 2
        for (int k = 0; k < K; k += 16) {
            uint32_t left[PARTS][4], right[PARTS][4];
            load_parts<TI, K, Operand::kRight>(right, keys, own_block * kBlock, k, lane);
            load_parts<TI, K, Operand::kLeft>(left, keys, own_block * kBlock, k, lane);
            multiply_parts(with_keys[0], left, right, 0);
            multiply_parts(with_keys[1], left, right, 1);
            load_parts<TI, K, Operand::kLeft>(left, queries, own_block * kBlock, k, lane);
            multiply_parts(with_queries[0], left, right, 0);
            multiply_parts(with_queries[1], left, right, 1);
        }
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int t = lane / 4 + r * 8, s = n * 8 + lane % 4 * 2, token = own_block * kBlock + t;
                float gives[2];
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int other = own_block * kBlock + s + e;
                    const float weight = exp_between(sum_at(token), sum_at(other)) * key_scales[other];
                    system[t * kSystemRow + s + e] = s + e < t ? -betas[token] * key_scales[token] * weight * with_keys[n][r * 2 + e] : 0.f;
                    gives[e] = s + e <= t ? query_scales[token] * weight * with_queries[n][r * 2 + e] : 0.f;
                }
                give(t, s, gives[0], gives[1]);
            }
    };
    // The inverse of a block's system: a lane has a column of it, and every other writes that of its neighbour beside its own.
    auto invert = [&] {
        float inverse[kBlock];
#pragma unroll
        for (int r = 0; r < kBlock; ++r) {
            inverse[r] = r == lane % kBlock ? 1.f : 0.f;
#pragma unroll
            for (int j = 0; j < r; ++j) inverse[r] += system[r * kSystemRow + j] * inverse[j];
        }
#pragma unroll
        for (int r = 0; r < kBlock; ++r) {
            const float next = __shfl_down_sync(kAllLanes, inverse[r], 1);
            if (lane < kBlock && lane % 2 == 0) put(Count<WIDE>{}, taken, PAIRS, swizzled<__nv_bfloat16, kBlock>(own_block * kBlock + r, lane), inverse[r], next);
        }
    };

    // The state, of which a lane has pairs of keys of two value columns in each tile of 8 keys.
    float held[K / 8][4];
    const int own_value = warp * 16 + lane / 4;   // and the one 8 further
    // [K][kWideRow], over what a chunk that is under way does not come to.
    float* const wide = CHANNELS ? reinterpret_cast<float*>(keys_since) : reinterpret_cast<float*>(shared);
    constexpr int LEFT = CHANNELS ? 2 * DECAYED + (KEYS + BLOCKS * K) * 4 : TOKENS * (2 * K + kValues) * sizeof(TI);
    static_assert(K * kWideRow * 4 <= LEFT + 2 * (WIDE + PARTS) * PAIRS + BLOCKS * kBlock * kSystemRow * 4 + kValues * kOutRow * 4, "it has room");
    int next = chunk_end<TOKENS>(args.writes, begin, end, lane);
    float beta = 0.f;   // of a token of the chunk that is under way, for the first warp
    if constexpr (CHANNELS) fetch(begin, next, values), beta = beta_of(begin + lane, next);
    for (int i = threadIdx.x; i < K * (kValues / VS); i += kThreads) {
        const int key = i / (kValues / VS), column = i % (kValues / VS) * VS;
        float loaded[VS] = {};
        if (column < columns) widen<TS>(load_streamed(state + (int64_t)key * args.value_dim + column), loaded);
#pragma unroll
        for (int e = 0; e < VS; e += 4) *reinterpret_cast<float4*>(wide + key * kWideRow + column + e) = make_float4(loaded[e], loaded[e + 1], loaded[e + 2], loaded[e + 3]);
    }
    __syncthreads();
    auto each_wide = [&](auto body) {
#pragma unroll
        for (int n = 0; n < K / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) body(wide[(n * 8 + lane % 4 * 2 + e % 2) * kWideRow + own_value + e / 2 * 8], held[n][e]);
    };
    each_wide([](float& from, float& to) { to = from; });
    if constexpr (!CHANNELS) __syncthreads();   // all have taken their part

    TI* under_way = values;
    for (int first = begin, last; first < end; first = last) {
        last = next;
        if constexpr (!CHANNELS) fetch(first, last, values);
        if (warp == 0) {
            if constexpr (CHANNELS) betas[lane] = beta;
            else weigh(first, last);
        }
        copy_wait<0>();
        __syncthreads();   // the inputs and their weights lie ready
        if constexpr (CHANNELS) fade();
        measure();
        __syncthreads();   // and their lengths and what decayed

        if constexpr (CHANNELS) {
            pair_channels();
            __syncthreads();   // the systems are whole
        } else {
            pair_heads();
            __syncwarp();
        }
        if (delta && (!CHANNELS || warp % 4 == 0)) invert();
        __syncthreads();   // all products lie ready
        const TI* const values_here = under_way;
        if (last < end) {
            next = chunk_end<TOKENS>(args.writes, last, end, lane);
            if constexpr (CHANNELS) {
                under_way = under_way == values ? values + TOKENS * kValues : values;
                fetch(last, next, under_way), beta = beta_of(last + lane, next);
            }
        }

        auto load_left = [&](auto& parts, const float (&a)[4], const float (&b)[4]) {
            const float pairs[4][2] = {{a[0], a[1]}, {a[2], a[3]}, {b[0], b[1]}, {b[2], b[3]}};
            split_pairs(parts, pairs);
        };
#pragma unroll 1
        for (int block = 0; block < BLOCKS; ++block) {
            if (first + block * kBlock >= last) break;
            // The parts of a matrix of all tokens, of which the block's rows are the right operand's.
            auto load_right = [&](auto width, auto kind, auto& right, const __nv_bfloat16* from, int column) {
                constexpr int WIDTH = decltype(width)::value;
#pragma unroll
                for (int p = 0; p < sizeof(right) / sizeof(right[0]); ++p)
                    load_words<__nv_bfloat16, WIDTH, decltype(kind)::value>(right[p], from + p * TOKENS * WIDTH, block * kBlock, column, lane);
            };
            float added[2][4] = {}, out[2][4] = {}, rest[2][4] = {};   // u, of which a lane has pairs of tokens of its two columns
#pragma unroll
            for (int k = 0; k < K; k += 16) {
                uint32_t left[WIDE][4];
                load_left(left, held[k / 8], held[k / 8 + 1]);
                if (delta) {
                    uint32_t right[CHANNELS ? WIDE : PARTS][4];
                    if constexpr (CHANNELS) load_right(Count<K>{}, Kind<Operand::kRight>{}, right, keys_since, k);
                    else load_parts<TI, K, Operand::kRight>(right, keys, block * kBlock, k, lane);
                    multiply_parts(rest[0], left, right, 0);
                    multiply_parts(rest[1], left, right, 1);
                }
                uint32_t right[PARTS][4];
                if constexpr (CHANNELS) load_right(Count<K>{}, Kind<Operand::kRight>{}, right, queries_since, k);
                else load_parts<TI, K, Operand::kRight>(right, queries, block * kBlock, k, lane);
                multiply_parts<PARTS>(out[0], left, right, 0);
                multiply_parts<PARTS>(out[1], left, right, 1);
            }
            float own_values[4][2];
            load_pairs<TI, kValues, Operand::kLeftAcross>(own_values, values_here, block * kBlock, warp * 16, lane);
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int token = block * kBlock + n * 8 + lane % 4 * 2 + e % 2;
                    const float v = own_values[n * 2 + e / 2][e % 2], start = CHANNELS ? 1.f : starts[token];
                    out[n][e] *= start * query_scales[token];
                    rest[n][e] = delta ? betas[token] * (v - start * key_scales[token] * rest[n][e]) : v;
                    if (!delta) added[n][e] = rest[n][e];
                }
            if (delta) {
                uint32_t left[WIDE][4], right[WIDE][4];
                load_left(left, rest[0], rest[1]);
                load_right(Count<kBlock>{}, Kind<Operand::kRight>{}, right, taken, 0);
                multiply_parts(added[0], left, right, 0);
                multiply_parts(added[1], left, right, 1);
            }
            {
                uint32_t left[PARTS][4], right[PARTS][4];
                load_left(left, added[0], added[1]);
                load_right(Count<kBlock>{}, Kind<Operand::kRight>{}, right, given, 0);
                multiply_parts(out[0], left, right, 0);
                multiply_parts(out[1], left, right, 1);
            }
            // The state behind the block.
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int token = block * kBlock + n * 8 + lane % 4 * 2 + e % 2;
                    added[n][e] *= CHANNELS ? key_scales[token] : gains[token] * key_scales[token];
                }
            uint32_t left[WIDE][4];
            load_left(left, added[0], added[1]);
#pragma unroll
            for (int k = 0; k < K; k += 16) {
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    float keep[2];
                    if constexpr (CHANNELS) load_near(channels_keep + block * K + k + n * 8 + lane % 4 * 2, keep);
                    else keep[0] = keep[1] = keeps[block];
#pragma unroll
                    for (int e = 0; e < 4; ++e) held[k / 8 + n][e] *= keep[e % 2];
                }
                uint32_t right[CHANNELS ? WIDE : PARTS][4];
                if constexpr (CHANNELS) load_right(Count<K>{}, Kind<Operand::kRightAcross>{}, right, keys_until, k);
                else load_parts<TI, K, Operand::kRightAcross>(right, keys, block * kBlock, k, lane);
                multiply_parts(held[k / 8], left, right, 0);
                multiply_parts(held[k / 8 + 1], left, right, 1);
            }
            // Through shared memory, so that memory sees whole rows.
            float* const own = outs + warp * kBlock * kOutRow;
            if (block > 0) __syncwarp();   // all have read the rows before
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) own[(n * 8 + lane % 4 * 2 + e % 2) * kOutRow + lane / 4 + e / 2 * 8] = out[n][e];
            __syncwarp();
#pragma unroll
            for (int at = lane; at < kBlock * 16 / V; at += 32) {
                const int row = first + block * kBlock + at / (16 / V), column = at % (16 / V) * V;
                if (row >= last || warp * 16 + column >= columns) continue;
                float row_values[V];
#pragma unroll
                for (int e = 0; e < V; e += 4) {
                    const float4 v = *reinterpret_cast<const float4*>(own + at / (16 / V) * kOutRow + column + e);
                    row_values[e] = v.x, row_values[e + 1] = v.y, row_values[e + 2] = v.z, row_values[e + 3] = v.w;
                }
                store_streamed(o + row * o_stride + warp * 16 + column, narrow<TI>(row_values));
            }
        }
        __syncthreads();   // all have left the chunk
        TS* const kept = state_after<TS>(args.writes, inner, last - 1);
        TS* const slot_state = last == end && args.writes.last ? state : nullptr;
        if (!kept && !slot_state) continue;
        each_wide([](float& to, float& from) { to = from; });
        __syncthreads();
        for (int i = threadIdx.x; i < K * (kValues / VS); i += kThreads) {
            const int key = i / (kValues / VS), column = i % (kValues / VS) * VS;
            if (column >= columns) continue;
            const Vec16 v = narrow<TS>(wide + key * kWideRow + column);
            if (kept) store_streamed(kept + (int64_t)key * args.value_dim + column, v);
            if (slot_state) store_streamed(slot_state + (int64_t)key * args.value_dim + column, v);
        }
        if constexpr (!CHANNELS) __syncthreads();   // before the next chunk comes
    }
}

#define KERNEL(name, state, input, TS, TI, K, CHANNELS)                                             \
    extern "C" __global__ void __launch_bounds__(kThreads<CHANNELS>, CHANNELS ? 1 : 2)              \
        chunk_##name##_##state##_##input##_##K(const __grid_constant__ Args args) {                 \
        chunk_delta<TS, TI, K, CHANNELS>(args);                                                     \
    }
#define STATES(name, K, CHANNELS)                                                \
    KERNEL(name, f32, f32, float, float, K, CHANNELS)                            \
    KERNEL(name, f32, bf16, float, __nv_bfloat16, K, CHANNELS)                   \
    KERNEL(name, f32, f16, float, __half, K, CHANNELS)                           \
    KERNEL(name, bf16, bf16, __nv_bfloat16, __nv_bfloat16, K, CHANNELS)          \
    KERNEL(name, f16, f16, __half, __half, K, CHANNELS)

// prove chunk_delta: 255 registers, LDGSTS.E.BYPASS.128, HMMA.16816, LDG.E.EF.128, STG.E.EF.128
STATES(delta, 16, false)
STATES(delta, 64, false)
STATES(delta, 128, false)

// prove chunk_kimi: 255 registers, LDGSTS.E.BYPASS.128, HMMA.16816, LDG.E.EF.128, STG.E.EF.128
STATES(kimi, 16, true)
STATES(kimi, 64, true)
STATES(kimi, 128, true)
