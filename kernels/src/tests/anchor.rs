//! The references give what Hugging Face's own functions gave.
//!
//! `oracles.safetensors` comes from `make_oracles.py` beside it. Each file in `ops` holds the inputs and outputs of one model's recurrent ops during a prefill of 21 tokens, one of 13
//! tokens and 8 more (`chunk1`), and a decode step, in the argument order of Hugging Face's functions.

use super::on_cpu;
use crate::reference::*;
use crate::{KvLayerView, KvWrite, Rope, RopeScaling};
use cacheplan_handlers::KvLayout;
use candle_core::{DType, Device, Tensor};
use rstest::rstest;
use safetensors::SafeTensors;

struct Captured {
    bytes: Vec<u8>,
}

impl Captured {
    fn open(model: &str) -> Self {
        Self::file(&format!("ops/{model}"))
    }

    fn file(name: &str) -> Self {
        let path = format!("{}/tests/fixtures/{name}.safetensors", env!("CARGO_MANIFEST_DIR"));
        Self { bytes: std::fs::read(path).unwrap() }
    }

    fn get(&self, name: &str) -> Option<(Vec<usize>, Vec<f64>)> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = tensors.tensor(name).ok()?;
        let data = tensor.data().chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap())));
        Some((tensor.shape().to_vec(), data.collect()))
    }

    fn data(&self, name: &str) -> Vec<f64> {
        self.get(name).unwrap_or_else(|| panic!("{name} is missing")).1
    }

    fn optional(&self, name: &str) -> Option<Vec<f64>> {
        self.get(name).map(|(_, data)| data)
    }
}

#[track_caller]
fn assert_near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    let magnitude = expected.iter().fold(0f64, |max, x| max.max(x.abs()));
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 1e-5 * magnitude, "{found} instead of {expected}");
    }
}

/// `[rows, columns]` to `[columns, rows]`.
fn transpose(data: &[f64], columns: usize) -> Vec<f64> {
    let rows = data.len() / columns;
    (0..columns).flat_map(|column| (0..rows).map(move |row| data[row * columns + column])).collect()
}

/// One value of each row of `width`.
fn first_of_each(data: &[f64], width: usize) -> Vec<f64> {
    data.iter().copied().step_by(width).collect()
}

#[rstest]
fn convolution(
    #[values("bamba", "falcon_h1", "granitemoehybrid", "jamba", "mamba2", "nemotron_h", "qwen3_next", "zamba2")]
    model: &str,
) {
    let file = Captured::open(model);
    // A continued chunk comes with the cached columns in front, and only the outputs behind them are used.
    for (phase, cached) in [("prefill", 0), ("chunk1", 4)] {
        let op = format!("{phase}/causal_conv1d_fn/0");
        let (shape, x) = file.get(&format!("{op}/in0")).unwrap();
        let (channels, columns) = (shape[1], shape[2]);
        let x = transpose(&x, columns);
        let weight = file.data(&format!("{op}/in1"));
        let width = weight.len() / channels;
        let bias = file.optional(&format!("{op}/in2"));
        let mut history = match cached {
            0 => vec![0.0; (width - 1) * channels],
            cached => x[(cached - width + 1) * channels..cached * channels].to_vec(),
        };
        let found = causal_conv1d(&x[cached * channels..], &weight, bias.as_deref(), &mut history, width, true);
        let expected = transpose(&file.data(&format!("{op}/out0")), columns);
        assert_near(&found, &expected[cached * channels..]);
    }
    let op = "decode0/causal_conv1d_update/0";
    let x = file.data(&format!("{op}/in0"));
    let weight = file.data(&format!("{op}/in2"));
    let width = weight.len() / x.len();
    let state = |name: &str| transpose(&file.data(&format!("{op}/{name}")), width)[x.len()..].to_vec();
    let mut history = state("in1");
    // Hugging Face hands over the state as it is before the update.
    let bias = file.optional(&format!("{op}/in3"));
    let found = causal_conv1d(&x, &weight, bias.as_deref(), &mut history, width, true);
    assert_near(&found, &file.data(&format!("{op}/out0")));
    assert_near(&history, &state("after1"));
}

#[rstest]
fn state_space_scan(#[values("bamba", "falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "zamba2")] model: &str) {
    let file = Captured::open(model);
    for phase in ["prefill", "chunk1"] {
        let op = |name: &str| format!("{phase}/mamba2_chunk_scan/0/{name}");
        let (shape, x) = file.get(&op("in0")).unwrap();
        let (b_shape, b) = file.get(&op("in3")).unwrap();
        let (heads, head_dim, groups, d_state) = (shape[2], shape[3], b_shape[2], b_shape[3]);
        let (dt, a, c) = (file.data(&op("in1")), file.data(&op("in2")), file.data(&op("in4")));
        let (d, bias, z) = (file.optional(&op("in_D")), file.data(&op("in_dt_bias")), file.optional(&op("in_z")));
        let case = MambaCase {
            heads,
            head_dim,
            d_state,
            groups,
            x: &x,
            dt: &dt,
            a: &a,
            b: &b,
            c: &c,
            d: d.as_deref(),
            z: z.as_deref(),
            dt_bias: Some(&bias),
            dt_limit: (0.0, f64::INFINITY),
        };
        let mut state =
            file.optional(&op("in_initial_states")).unwrap_or_else(|| vec![0.0; heads * head_dim * d_state]);
        assert_near(&mamba(&case, &mut state), &file.data(&op("out0")));
        assert_near(&state, &file.data(&op("out1")));
    }
    let op = |name: &str| format!("decode0/mamba2_selective_state_update/0/{name}");
    let (shape, mut state) = file.get(&op("in0")).unwrap();
    let (heads, head_dim, d_state) = (shape[1], shape[2], shape[3]);
    let (x, b, c) = (file.data(&op("in1")), file.data(&op("in4")), file.data(&op("in5")));
    // These come expanded over the channels of a head.
    let per_head = |name: &str, width| first_of_each(&file.data(&op(name)), width);
    let (dt, bias, d) = (per_head("in2", head_dim), per_head("in_dt_bias", head_dim), per_head("in6", head_dim));
    let a = per_head("in3", head_dim * d_state);
    let z = file.optional(&op("in_z"));
    let case = MambaCase {
        heads,
        head_dim,
        d_state,
        groups: b.len() / d_state,
        x: &x,
        dt: &dt,
        a: &a,
        b: &b,
        c: &c,
        d: Some(&d),
        z: z.as_deref(),
        dt_bias: Some(&bias),
        dt_limit: (0.0, f64::INFINITY),
    };
    assert_near(&mamba(&case, &mut state), &file.data(&op("out0")));
    assert_near(&state, &file.data(&op("after0")));
}

#[rstest]
fn gated_delta_rule(
    #[values(
        ("prefill", "torch_chunk_gated_delta_rule"),
        ("chunk1", "torch_chunk_gated_delta_rule"),
        ("decode0", "torch_recurrent_gated_delta_rule")
    )]
    call: (&str, &str),
) {
    let file = Captured::open("qwen3_next");
    let op = |name: &str| format!("{}/{}/0/{name}", call.0, call.1);
    let (q_shape, q) = file.get(&op("in0")).unwrap();
    let (v_shape, v) = file.get(&op("in2")).unwrap();
    let (k, g, beta) = (file.data(&op("in1")), file.data(&op("in_g")), file.data(&op("in_beta")));
    let (key_heads, key_dim, heads, value_dim) = (q_shape[2], q_shape[3], v_shape[2], v_shape[3]);
    let decay: Vec<f64> = g.iter().flat_map(|&g| std::iter::repeat_n(g, key_dim)).collect();
    let case = LinearAttentionCase {
        key_heads,
        heads,
        key_dim,
        value_dim,
        q: &q,
        k: &k,
        v: &v,
        decay: &decay,
        beta: Some(&beta),
        scale: (key_dim as f64).powf(-0.5),
        l2_norm: true,
    };
    let mut state = file.optional(&op("in_initial_state")).unwrap_or_else(|| vec![0.0; heads * key_dim * value_dim]);
    assert_near(&linear_attention(&case, &mut state), &file.data(&op("out0")));
    assert_near(&state, &file.data(&op("out1")));
}

#[rstest]
fn kimi_delta_attention(#[values("chunk", "step")] function: &str) {
    let file = Captured::file("oracles");
    let data = |name: &str| file.data(&format!("kda/{name}"));
    let (shape, q) = file.get("kda/q").unwrap();
    let (heads, dim) = (shape[2], shape[3]);
    let (k, v, g, beta, mut state) = (data("k"), data("v"), data("g"), data("beta"), data("state"));
    let case = LinearAttentionCase {
        key_heads: heads,
        heads,
        key_dim: dim,
        value_dim: dim,
        q: &q,
        k: &k,
        v: &v,
        decay: &g,
        beta: Some(&beta),
        scale: (dim as f64).powf(-0.5),
        l2_norm: true,
    };
    assert_near(&linear_attention(&case, &mut state), &data(&format!("{function}/o")));
    assert_near(&state, &data(&format!("{function}/final")));
}

#[test]
fn lightning_attention() {
    let file = Captured::file("oracles");
    let data = |name: &str| file.data(&format!("lightning/{name}"));
    let (shape, q) = file.get("lightning/q").unwrap();
    let (tokens, heads, dim) = (shape[1], shape[2], shape[3]);
    let (k, v, slopes) = (data("k"), data("v"), data("slopes"));
    let decay: Vec<f64> = (0..tokens * heads * dim).map(|at| -slopes[at / dim % heads]).collect();
    let case = LinearAttentionCase {
        key_heads: heads,
        heads,
        key_dim: dim,
        value_dim: dim,
        q: &q,
        k: &k,
        v: &v,
        decay: &decay,
        beta: None,
        scale: 1.0,
        l2_norm: false,
    };
    let mut state = vec![0.0; heads * dim * dim];
    assert_near(&linear_attention(&case, &mut state), &data("o"));
    assert_near(&state, &data("final"));
}

#[test]
fn recurrent_unit() {
    let file = Captured::file("oracles");
    let data = |name: &str| file.data(&format!("rg_lru/{name}"));
    let positions: Vec<u32> = data("positions").into_iter().map(|position| position as u32).collect();
    let mut state = data("state");
    let (x, input_gate, recurrence_gate) = (data("x"), data("input_gate"), data("recurrence_gate"));
    let found = rg_lru(&x, &input_gate, &recurrence_gate, &data("a_param"), &positions, &mut state);
    assert_near(&found, &data("o"));
    assert_near(&state, &data("final"));
}

#[test]
fn selective_scan() {
    let file = Captured::file("oracles");
    let data = |name: &str| file.data(&format!("mamba1/{name}"));
    let (a, d, bias) = (data("a"), data("d"), data("bias"));
    let mut state = vec![0.0; a.len()];
    for (phase, expected_state) in [("prefill", "state"), ("step", "step/final")] {
        let [x, dt, b, c, z, o] = ["x", "dt", "b", "c", "z", "o"].map(|name| data(&format!("{phase}/{name}")));
        let case = MambaCase {
            heads: d.len(),
            head_dim: 1,
            d_state: a.len() / d.len(),
            groups: 1,
            x: &x,
            dt: &dt,
            a: &a,
            b: &b,
            c: &c,
            d: Some(&d),
            z: Some(&z),
            dt_bias: Some(&bias),
            dt_limit: (0.0, f64::INFINITY),
        };
        assert_near(&mamba(&case, &mut state), &o);
        if phase == "step" {
            assert_near(&state, &data(expected_state));
        }
    }
}

#[rstest]
#[case::default("default", RopeScaling::None)]
#[case::interleaved("interleaved", RopeScaling::None)]
#[case::linear("linear", RopeScaling::Linear(4.0))]
#[case::llama3("llama3", LLAMA3)]
#[case::yarn("yarn", RopeScaling::Yarn { factor: 16.0, original_max_position: 256, beta_fast: 32.0, beta_slow: 1.0, truncate: true, attention_factor: None })]
#[case::yarn_default("yarn_default", RopeScaling::Yarn { factor: 4.0, original_max_position: 1024, beta_fast: 32.0, beta_slow: 1.0, truncate: true, attention_factor: None })]
#[case::longrope("longrope", RopeScaling::PerFrequency { divisors: (0..8).map(|i| 1.0 + 0.75 * i as f32).collect(), attention_factor: 0.0 })]
fn rotations(#[case] name: &str, #[case] scaling: RopeScaling) {
    let file = Captured::file("oracles");
    let stated = file.optional(&format!("rope/{name}/factor")).map(|factor| factor[0] as f32);
    let scaling = match scaling {
        // The default of YaRN is ours to know; the others come from the config.
        RopeScaling::Yarn { factor, original_max_position, beta_fast, beta_slow, truncate, .. } if name == "yarn" => {
            RopeScaling::Yarn {
                factor,
                original_max_position,
                beta_fast,
                beta_slow,
                truncate,
                attention_factor: stated,
            }
        }
        RopeScaling::PerFrequency { divisors, .. } => {
            RopeScaling::PerFrequency { divisors, attention_factor: stated.unwrap() }
        }
        scaling => scaling,
    };
    let mut rope = Rope::new(1e4, 16, &scaling).unwrap();
    if name == "interleaved" {
        rope = rope.interleaved();
    }
    let positions: Vec<u32> = file.data("rope/positions").into_iter().map(|position| position as u32).collect();
    let (shape, x) = file.get("rope/x").unwrap();
    let x: Vec<f32> = x.into_iter().map(|x| x as f32).collect();
    let x = Tensor::from_vec(x, shape, &Device::Cpu).unwrap();
    let expected = file.data(&format!("rope/{name}"));
    for found in [rope.apply(&on_cpu(), &x, &positions).unwrap(), written_keys(&x, &rope, &positions)] {
        let found: Vec<f64> =
            found.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f64::from).collect();
        // Angles of up to 4095 are rounded in f32 on both sides.
        let error = found.iter().zip(&expected).fold(0f64, |most, (a, b)| most.max((a - b).abs()));
        assert!(error < 2e-3, "{error}");
        assert_near(&found[..4 * 32], &expected[..4 * 32]);
    }
}

const LLAMA3: RopeScaling =
    RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_position: 256 };

/// What `rope_and_cache` leaves in a pool.
fn written_keys(x: &Tensor, rope: &Rope, positions: &[u32]) -> Tensor {
    let (tokens, heads, dim) = x.dims3().unwrap();
    let view = KvLayerView {
        block_elems: tokens * heads * dim,
        layer_offset: 0,
        kv_factor: 1,
        num_kv_heads: heads,
        head_dim: dim,
        tokens_per_block: tokens,
        order: KvLayout::Nhd,
    };
    let pool = Tensor::zeros((1, view.block_elems), DType::F32, &Device::Cpu).unwrap();
    let slots: Vec<i64> = (0..tokens as i64).collect();
    KvWrite::new(x, None, &slots).run_rotated(&on_cpu(), x, rope, positions, &pool, &view).unwrap();
    pool
}

/// The reference rotation is that of Hugging Face too.
#[test]
fn reference_rotation() {
    let file = Captured::file("oracles");
    let (shape, x) = file.get("rope/x").unwrap();
    let (heads, dim) = (shape[1], shape[2]);
    let positions = file.data("rope/positions");
    let frequencies: Vec<f64> = (0..dim / 2).map(|i| 1e4f64.powf(-2.0 * i as f64 / dim as f64)).collect();
    for name in ["default", "interleaved"] {
        let rows = x.chunks_exact(dim).enumerate().take(4 * heads);
        let found: Vec<f64> =
            rows.flat_map(|(row, x)| rotate(x, positions[row / heads], &frequencies, name == "interleaved")).collect();
        assert_near(&found, &file.data(&format!("rope/{name}"))[..found.len()]);
    }
}

#[test]
fn scaled_dot_product_attention() {
    let file = Captured::file("oracles");
    let (shape, q) = file.get("attention/q").unwrap();
    let (k_shape, k) = file.get("attention/k").unwrap();
    let case = AttentionCase {
        heads: shape[2],
        kv_heads: k_shape[2],
        head_dim: shape[3],
        value_dim: shape[3],
        scale: (shape[3] as f64).powf(-0.5),
        softcap: None,
        sees: &|query, key| key <= query,
        sinks: None,
        slopes: None,
    };
    assert_near(&attention(&q, &k, &file.data("attention/v"), &case), &file.data("attention/o"));
}
