//! What is checked: every instantiation of every kernel, and what is left to the portable path.

use cacheplan_handlers::KvLayout;
use cacheplan_kernels::cases::{
    Attention, CacheWrite, Case, Channels, Choice, Convolution, DeltaKind, Elementwise, Experts, Features, Format,
    Latents, LinearAttention, Mamba2, Move, Norm, Pool, Product, Recurrence, Scales, Sequences, Writes,
};
use cacheplan_kernels::{GateOrder, MlaCacheMode, MlaQuantMode, MlaShape, Routing, Window};
use candle_core::DType::{self, BF16, F8E4M3, F16, F32, U8};

/// Formats of a state pool and of activations.
const STATES: [(DType, DType); 5] = [(F32, F32), (F32, BF16), (F32, F16), (BF16, BF16), (F16, F16)];

/// All of them, at sizes for a device, or at tiny ones for the emulator.
pub(super) fn all(large: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(state_updates(large));
    cases.extend(linear_attention(large));
    cases.extend(convolutions(large));
    cases.extend(channels(large));
    cases.extend(decode(large));
    cases.extend(attend(large));
    cases.extend(cache_writes(large));
    cases.extend(rows(large));
    cases.extend(experts(large));
    cases.extend(latents(large));
    cases.extend(moves(large));
    cases.extend(prefills(large));
    cases
}

/// A few tokens of each of some sequences, one without any and one of padding among them.
fn short(large: bool) -> Sequences {
    let sequences = [(1, 1), (0, 5), (3, 8), (16, 16), (1, 9), (5, 70), (1, 1), (1, 2)];
    Sequences::ragged(if large { &sequences } else { &sequences[..3] })
}

fn state_updates(large: bool) -> impl Iterator<Item = Case> {
    let sizes = [16, 64, 128, 256].into_iter().flat_map(|d_state| STATES.map(|formats| (d_state, formats)));
    sizes.map(move |(d_state, (state, input))| {
        let (heads, head_dim) = if large { (24, 64) } else { (2, 32) };
        let groups = if d_state == 64 { heads } else { 2 };
        Mamba2 { heads, head_dim, d_state, groups, state, input, writes: Writes::Final }.case(short(large))
    })
}

fn linear_attention(large: bool) -> impl Iterator<Item = Case> {
    let kinds = [DeltaKind::Gated, DeltaKind::Kimi, DeltaKind::Lightning];
    let sizes = [16, 64, 128].into_iter().flat_map(|key_dim| STATES.map(|formats| (key_dim, formats)));
    sizes.enumerate().flat_map(move |(at, (key_dim, (state, input)))| {
        // Each rule of each on a device; in the emulator one after the other.
        let kinds: Vec<_> = if large { kinds.to_vec() } else { vec![kinds[at % 3]] };
        let (heads, key_heads) = if large { (16, 8) } else { (2, 1) };
        let value_dim = if key_dim == 16 { 48 } else { 64 };
        let of = move |kind| LinearAttention {
            kind,
            heads,
            key_heads,
            key_dim,
            value_dim,
            state,
            input,
            writes: Writes::Final,
        };
        kinds.into_iter().map(move |kind| of(kind).case(short(large)))
    })
}

fn convolutions(large: bool) -> impl Iterator<Item = Case> {
    let sizes = [2, 3, 4].into_iter().flat_map(|d_conv| [F32, BF16, F16].map(|dtype| (d_conv, dtype)));
    sizes.flat_map(move |(d_conv, dtype)| {
        let channels = if large { 5376 } else { 136 };
        let conv = Convolution { channels, d_conv, dtype, writes: Writes::Final };
        let long = Sequences::ragged(if large { &[(1, 1), (65, 65), (700, 900)] } else { &[(1, 1), (65, 65)] });
        [conv.case(short(large)), conv.case(long)]
    })
}

fn channels(large: bool) -> impl Iterator<Item = Case> {
    STATES.into_iter().flat_map(move |(state, input)| {
        let of = |recurrence, channels| Channels { recurrence, channels, state, input, writes: Writes::Final };
        let (mamba, gated) = if large { (4096, 2560) } else { (96, 136) };
        [of(Recurrence::Mamba1(16), mamba).case(short(large)), of(Recurrence::Gated, gated).case(short(large))]
    })
}

fn format(kv_heads: usize, head_dim: usize, pool: DType) -> Format {
    Format { kv_heads, head_dim, kv_factor: 2, block: 16, order: KvLayout::Hnd, pool, scales: Scales::PerTensor }
}

/// One query token each, at contexts around tiles, blocks and splits.
fn contexts(large: bool) -> Sequences {
    let contexts = [(1, 1), (1, 33), (0, 20), (1, 150), (1, 17), (1, 1031), (1, 5000)];
    Sequences::ragged(if large { &contexts } else { &contexts[..4] })
}

fn decode(large: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for pool in [BF16, F16] {
        let kv_heads = if large { 8 } else { 1 };
        for head_dim in [64, 128] {
            let plain = Attention {
                format: format(kv_heads, head_dim, pool),
                group: 4,
                value_dim: head_dim,
                input: pool,
                features: Features::default(),
            };
            let window = Features { window: Some(Window::Sliding(40)), sinks: true, ..Features::default() };
            let chunks = Features { window: Some(Window::Chunked(48)), softcap: Some(0.5), ..Features::default() };
            let other = Format { order: KvLayout::Nhd, block: 32, ..plain.format };
            cases.push(plain.case(contexts(large)));
            cases.push(Attention { features: window, group: 5, format: other, ..plain }.case(contexts(large)));
            cases.push(Attention { features: chunks, group: 1, ..plain }.case(contexts(large)));
        }
        let latents = Format { kv_factor: 1, block: 64, ..format(1, 576, pool) };
        let of =
            |group| Attention { format: latents, group, value_dim: 512, input: pool, features: Features::default() };
        cases.push(of(16).case(contexts(large)));
        cases.push(of(if large { 128 } else { 5 }).case(contexts(large)));
    }
    for (pool, input, scales) in BYTES {
        for head_dim in [64, 128] {
            let format = Format { scales, ..format(2, head_dim, pool) };
            let features = Features { softcap: (scales == Scales::PerHead).then_some(0.5), ..Features::default() };
            let attention = Attention { format, group: 4, value_dim: head_dim, input, features };
            cases.push(attention.case(contexts(large)));
        }
    }
    cases
}

/// Pools of 8 bits, each with queries of one of two types and scales of each sort.
const BYTES: [(DType, DType, Scales); 4] = [
    (F8E4M3, BF16, Scales::PerTensor),
    (F8E4M3, F16, Scales::PerToken),
    (U8, BF16, Scales::PerHead),
    (U8, F16, Scales::PerToken),
];

fn attend(large: bool) -> Vec<Case> {
    let sequences = [(1, 1), (5, 21), (1, 60), (16, 16), (1, 700), (2, 3000)];
    let sequences = || Sequences::ragged(if large { &sequences } else { &sequences[..3] });
    let of = |pool, input, head_dim, group| Attention {
        format: Format { block: 8, ..format(2, head_dim, pool) },
        group,
        value_dim: head_dim,
        input,
        features: Features::default(),
    };
    let mut cases = Vec::new();
    for head_dim in [16, 24, 64, 128, 256, 512] {
        cases.push(of(F32, F32, head_dim, 3).case(sequences()));
    }
    for pool in [BF16, F16] {
        for head_dim in [32, 64, 96, 256, 512] {
            cases.push(of(pool, pool, head_dim, 2).case(sequences()));
        }
    }
    let scales = [Scales::PerTensor, Scales::PerHead, Scales::PerToken];
    let formats = [F8E4M3, U8].into_iter().flat_map(|pool| [F32, BF16, F16].map(|input| (pool, input)));
    for ((pool, input), scales) in formats.zip(scales.into_iter().cycle()) {
        for head_dim in [64, 128, 256, 512] {
            let mut attention = of(pool, input, head_dim, 2);
            attention.format.scales = scales;
            cases.push(attention.case(sequences()));
        }
        let mut latents = of(pool, input, 576, 4);
        latents.format = Format { kv_factor: 1, kv_heads: 1, scales, ..latents.format };
        latents.value_dim = 512;
        cases.push(latents.case(sequences()));
    }
    for pool in [F32, BF16, F16] {
        let mut latents = of(pool, pool, 576, 4);
        latents.format = Format { kv_factor: 1, kv_heads: 1, ..latents.format };
        latents.value_dim = 512;
        // What no other kernel takes.
        latents.features.softcap = Some(0.3);
        cases.push(latents.case(sequences()));
    }
    let features = [
        Features { window: Some(Window::Sliding(9)), ..Features::default() },
        Features { window: Some(Window::Chunked(12)), ..Features::default() },
        Features { softcap: Some(0.3), sinks: true, ..Features::default() },
        Features { alibi: true, ..Features::default() },
    ];
    for features in features {
        cases.push(Attention { features, ..of(F32, F32, 64, 4) }.case(sequences()));
    }
    cases
}

fn cache_writes(large: bool) -> Vec<Case> {
    let tokens = if large { 200 } else { 9 };
    let formats = [
        (F32, F32, Scales::PerTensor),
        (F32, BF16, Scales::PerTensor),
        (F32, F16, Scales::PerTensor),
        (BF16, BF16, Scales::PerTensor),
        (F16, F16, Scales::PerTensor),
        (F32, F8E4M3, Scales::PerHead),
        (BF16, F8E4M3, Scales::PerTensor),
        (F16, F8E4M3, Scales::PerToken),
        (F32, U8, Scales::PerToken),
        (BF16, U8, Scales::PerHead),
        (F16, U8, Scales::PerTensor),
    ];
    let mut cases = Vec::new();
    for (at, (input, pool, scales)) in formats.into_iter().enumerate() {
        let format = Format { scales, ..format(if large { 8 } else { 2 }, 128, pool) };
        let plain = CacheWrite { format, tokens, input, rotated: None };
        let latents = Format { kv_factor: 1, kv_heads: 1, head_dim: 192, order: KvLayout::Nhd, ..format };
        cases.push(plain.case());
        if scales != Scales::PerToken {
            cases.push(CacheWrite { format: latents, ..plain }.case());
        }
        if pool == input {
            // In vectors, and in pairs.
            for dim in [if at == 0 { 64 } else { 128 }, 20] {
                cases.push(CacheWrite { rotated: Some((dim, 3, at % 2 == 1)), ..plain }.case());
            }
        }
    }
    cases
}

fn rows(large: bool) -> Vec<Case> {
    let rows = if large { 64 } else { 5 };
    let mut cases = Vec::new();
    for (input, weight) in [(F32, F32), (BF16, BF16), (BF16, F32), (F16, F16), (F16, F32)] {
        // In part of a warp, in one, in a block, and with several vectors to a lane.
        for size in [8, 128, 520, 4096] {
            let plain = Norm { rows, width: size, gate: None, input, weight };
            cases.push(plain.case());
            for order in [GateOrder::GateThenNorm, GateOrder::NormThenGate, GateOrder::GateOnly] {
                if large || order == GateOrder::GateThenNorm || size == 128 {
                    cases.push(Norm { width: 3 * size, gate: Some((3, order)), ..plain }.case());
                }
            }
        }
    }
    for dtype in [F32, BF16, F16] {
        for of in [Elementwise::SiluProduct, Elementwise::WeightedSum] {
            cases.push(of.case(rows, if large { 4096 } else { 136 }, dtype));
        }
    }
    cases.push(Product { rows, inputs: 256, outputs: 64, input: BF16, weight: BF16 }.case());
    cases
}

/// Choices for which each instantiation has room, and experts of part of a span, of a few, and of many.
fn experts(large: bool) -> Vec<Case> {
    let rows = if large { 16 } else { 2 };
    let grouped = |experts, groups| Routing {
        groups,
        top_groups: groups / 2,
        softmax: false,
        scale: 2.5,
        ..Routing::softmax(experts, 8, true)
    };
    let mut cases = Vec::new();
    for dtype in [F32, BF16, F16] {
        for routing in
            [Routing::softmax(60, 4, false), Routing::softmax(128, 8, true), grouped(256, 8), grouped(512, 16)]
        {
            for corrected in [false, true] {
                cases.push(Choice { rows, routing, corrected, dtype }.case());
            }
        }
        for inputs in [40, if large { 2048 } else { 1288 }] {
            for (bias, summed) in [(false, false), (true, false), (false, true), (true, true)] {
                let outputs = if large { 770 } else { 6 };
                cases.push(Experts { rows, per_token: 3, experts: 5, inputs, outputs, bias, summed, dtype }.case());
            }
        }
    }
    cases
}

/// What stands in front of latent attention, in each of its quantisations, with and without a compressed query.
fn latents(large: bool) -> impl Iterator<Item = Case> {
    let modes = [
        (MlaQuantMode::PerTensorAsymmetric, MlaCacheMode::KvCache),
        (MlaQuantMode::PerTokenSymmetric, MlaCacheMode::Nz),
        (MlaQuantMode::Unquantised, MlaCacheMode::KropeCtkv),
    ];
    let (heads, hidden) = if large { (16, 2048) } else { (2, 96) };
    let shape = MlaShape { hidden, heads, q_lora: Some(hidden / 2), kv_lora: 64, nope: 32, rope: 16 };
    modes.into_iter().flat_map(move |(quant_mode, cache_mode)| {
        [shape, MlaShape { q_lora: None, ..shape }]
            .map(|shape| Latents { shape, quant_mode, cache_mode, input: BF16 }.case(5))
    })
}

fn moves(large: bool) -> impl Iterator<Item = Case> {
    let pools = [(2064, F32), (if large { 1 << 20 } else { 4096 }, BF16)];
    pools
        .into_iter()
        .flat_map(|(elements, dtype)| [Move::Copy, Move::Zero].map(|what| Pool { rows: 5, elements, dtype }.case(what)))
}

fn scan((state, input): (DType, DType), d_state: usize, writes: Writes) -> Mamba2 {
    Mamba2 { heads: 4, head_dim: 64, d_state, groups: 2, state, input, writes }
}

fn delta(kind: DeltaKind, (state, input): (DType, DType), size: usize, writes: Writes) -> LinearAttention {
    LinearAttention { kind, heads: 2, key_heads: 1, key_dim: size, value_dim: size, state, input, writes }
}

/// More tokens than a loop over them is worth, and steps that leave other states than the last.
fn prefills(large: bool) -> Vec<Case> {
    let long = || Sequences::ragged(if large { &[(130, 130), (1, 70), (600, 1000)] } else { &[(70, 70), (1, 20)] });
    let mut cases = Vec::new();
    for (state, input) in STATES {
        for size in [16, 64, 128] {
            let formats = (state, input);
            cases.push(scan(formats, size, Writes::Final).case(long()));
            cases.push(delta(DeltaKind::Gated, formats, size, Writes::Final).case(long()));
            cases.push(delta(DeltaKind::Kimi, formats, size, Writes::Final).case(long()));
        }
        for (writes, sequences) in [
            (Writes::Final, long()),
            (Writes::Replay, short(large)),
            (Writes::Snapshots, short(large)),
            (Writes::Tree, short(large)),
        ] {
            let formats = (state, input);
            if writes == Writes::Final {
                let channels = Channels { recurrence: Recurrence::Mamba1(16), channels: 64, state, input, writes };
                cases.push(channels.case(sequences.clone()));
                cases.push(Channels { recurrence: Recurrence::Gated, ..channels }.case(sequences));
                cases.push(delta(DeltaKind::Lightning, formats, 128, writes).case(long()));
                continue;
            }
            cases.push(scan(formats, 128, writes).case(sequences.clone()));
            cases.push(delta(DeltaKind::Gated, formats, 128, writes).case(sequences.clone()));
            if state == input {
                for d_conv in [2, 3, 4] {
                    cases.push(Convolution { channels: 136, d_conv, dtype: input, writes }.case(sequences.clone()));
                }
            }
        }
    }
    let plain = [F32, BF16, F16].map(|pool| (pool, pool, Scales::PerTensor));
    for (pool, input, scales) in plain.into_iter().chain(BYTES) {
        let of = |format, value_dim| Attention { format, group: 4, value_dim, input, features: Features::default() };
        let heads = |head_dim| of(Format { scales, ..format(2, head_dim, pool) }, head_dim);
        cases.extend([64, 128, 256].map(|head_dim| heads(head_dim).case(long())));
        if input == pool {
            cases.push(of(Format { kv_factor: 1, ..format(1, 576, pool) }, 512).case(long()));
        }
    }
    cases
}
