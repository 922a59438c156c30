//! The MLA preprocessing against its reference, its cache layouts, its table, and DeepSeek's own attention.

use super::{Random, assert_close, on_cpu, values};
use crate::reference::{self, MlaCase, MlaQuant};
use crate::*;
use cacheplan_handlers::KvLayout;
use candle_core::{DType, Device, Tensor};
use rstest::rstest;

const TOKENS: usize = 5;

fn wide(tensor: &Tensor) -> Vec<f64> {
    values(tensor).into_iter().map(f64::from).collect()
}

/// int8 bits as numbers.
fn signed(tensor: &Tensor) -> Vec<f64> {
    values(tensor).into_iter().map(|x| f64::from(if x < 128.0 { x } else { x - 256.0 })).collect()
}

/// Those of the latent, and the rotated ones.
pub(crate) type Queries = (Tensor, Option<Tensor>);

/// An operator of small sizes, its reference, and inputs.
pub(crate) struct Setup {
    pub(crate) mla: MlaPreprocess,
    case: MlaCase,
    input: Tensor,
    cos: Tensor,
    sin: Tensor,
}

impl Setup {
    pub(crate) fn new(
        shape: MlaShape,
        cache_mode: MlaCacheMode,
        quant_mode: MlaQuantMode,
        dtype: DType,
        nz: bool,
    ) -> Self {
        let mut random = Random::new(41);
        let mut float = |dims: &[usize]| random.tensor(dims).to_dtype(dtype).unwrap();
        let input = float(&[TOKENS, shape.hidden]);
        let (cos, sin) = (float(&[TOKENS, shape.rope]), float(&[TOKENS, shape.rope]));
        let gamma2 = float(&[shape.kv_lora]);
        let absorb = float(&[shape.heads, shape.nope, shape.kv_lora]);
        let mut bytes = Random::new(42);
        let quantised = quant_mode != MlaQuantMode::Unquantised;
        let per_tensor = quant_mode == MlaQuantMode::PerTensorAsymmetric;
        let mut part = |width: usize, rows: usize| {
            let mut float = |dims: &[usize]| bytes.tensor(dims).to_dtype(dtype).unwrap();
            let norm = MlaNorm {
                gamma: float(&[width]),
                beta: Some(float(&[width])),
                quant_scale: per_tensor
                    .then(|| Tensor::new(&[0.0234375f32], &Device::Cpu).unwrap().to_dtype(dtype).unwrap()),
                quant_offset: per_tensor.then(|| Tensor::new(&[253u8], &Device::Cpu).unwrap()),
            };
            let plain = match quantised {
                true => ((bytes.tensor(&[rows, width]) + 1.0).unwrap() * 127.0).unwrap().to_dtype(DType::U8).unwrap(),
                false => bytes.tensor(&[rows, width]).to_dtype(dtype).unwrap(),
            };
            let factors: Vec<f32> = (0..rows).map(|n| 1e-4 * (1.0 + n as f32 / rows as f32)).collect();
            let biases: Vec<i32> = (0..rows as i32).map(|n| n * 37 % 200 - 100).collect();
            let descale = match dtype {
                DType::F16 => Tensor::from_iter(factors.iter().map(|f| i64::from(f.to_bits())), &Device::Cpu),
                _ => Tensor::new(factors.as_slice(), &Device::Cpu),
            };
            let quant = match quant_mode {
                MlaQuantMode::Unquantised => MlaQuant::None,
                MlaQuantMode::PerTensorAsymmetric => MlaQuant::PerTensor(
                    0.0234375,
                    -3.0,
                    biases.iter().map(|&b| f64::from(b)).collect(),
                    factors.iter().map(|&f| f64::from(f)).collect(),
                ),
                MlaQuantMode::PerTokenSymmetric => MlaQuant::PerToken(factors.iter().map(|&f| f64::from(f)).collect()),
            };
            let weights = if quantised { signed(&plain) } else { wide(&plain) };
            let projection = MlaProjection {
                weight: if nz { MlaCacheMode::to_nz(&plain).unwrap().unsqueeze(0).unwrap() } else { plain },
                descale: quantised.then(|| descale.unwrap()),
                bias: per_tensor.then(|| Tensor::new(biases.as_slice(), &Device::Cpu).unwrap()),
            };
            let norms = (wide(&norm.gamma), wide(norm.beta.as_ref().unwrap()));
            (norm, projection, norms, weights, quant)
        };
        let (norm0, down, norms0, down_plain, quant0) = part(shape.hidden, shape.down_rows());
        let (norm1, up, norms1, up_plain, quant1) = part(shape.q_lora.unwrap_or(32), shape.query_rows());
        let int8 = cache_mode == MlaCacheMode::Int8Nz;
        let scale = |values: &[f32]| Tensor::new(values, &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        let case = MlaCase {
            heads: shape.heads,
            q_lora: shape.q_lora.unwrap_or(0),
            kv_lora: shape.kv_lora,
            nope: shape.nope,
            rope: shape.rope,
            epsilon: [1e-6; 3],
            norm0: norms0,
            down: down_plain,
            norm1: norms1,
            up: up_plain,
            gamma2: wide(&gamma2),
            absorb: wide(&absorb),
            quantised: [quant0, quant1],
        };
        let mla = MlaPreprocess {
            shape,
            cache_mode,
            quant_mode,
            epsilon: 1e-6.into(),
            norm0,
            down,
            norm1: shape.q_lora.map(|_| norm1),
            up: shape.q_lora.map(|_| up),
            gamma2,
            absorb: if nz { MlaCacheMode::to_nz(&absorb).unwrap() } else { absorb },
            latent_scale: int8.then(|| scale(&[0.03125])),
            query_scale: int8.then(|| scale(&vec![4.0; shape.heads])),
        };
        Self { mla, case, input, cos, sin }
    }

    /// The cache, and one for rope keys.
    pub(crate) fn caches(&self) -> Vec<Cache> {
        let MlaShape { kv_lora, rope, .. } = self.mla.shape;
        let dtype = self.input.dtype();
        match self.mla.cache_mode {
            MlaCacheMode::KvCache => vec![Cache::new(1, 16, kv_lora + rope, dtype)],
            MlaCacheMode::KropeCtkv => vec![Cache::new(1, 16, kv_lora, dtype), Cache::new(1, 16, rope, dtype)],
            MlaCacheMode::Int8Nz => {
                vec![Cache::new(kv_lora / 32, 128, 32, DType::U8), Cache::new(rope / 16, 128, 16, dtype)]
            }
            MlaCacheMode::Nz => {
                vec![Cache::new(kv_lora / 16, 128, 16, dtype), Cache::new(rope / 16, 128, 16, dtype)]
            }
        }
    }

    fn run_on(&self, on: &Run<'_>, slots: &[i64]) -> Result<(Queries, Vec<Cache>), KernelError> {
        let caches = self.caches();
        Ok((self.mla.run(on, &self.step(&caches, slots))?, caches))
    }

    pub(crate) fn step<'a>(&'a self, caches: &'a [Cache], slots: &'a [i64]) -> MlaStep<'a> {
        MlaStep {
            input: &self.input,
            cos: &self.cos,
            sin: &self.sin,
            cache: caches[0].pool(slots),
            rope_cache: caches.get(1).map(|cache| cache.pool(slots)),
        }
    }

    fn run(&self, slots: &[i64]) -> Result<(Queries, Vec<Cache>), KernelError> {
        self.run_on(&on_cpu(), slots)
    }
}

/// A layer of two blocks full of ones, with others before and behind it in each.
#[derive(Debug)]
pub(crate) struct Cache {
    tensor: Tensor,
    view: KvLayerView,
}

impl Cache {
    fn new(columns: usize, tokens: usize, column: usize, dtype: DType) -> Self {
        let block_elems = columns * tokens * column + 3 * column;
        let (layer_offset, num_kv_heads, head_dim, tokens_per_block) = (2 * column, columns, column, tokens);
        let order = KvLayout::Hnd;
        let view =
            KvLayerView { block_elems, layer_offset, kv_factor: 1, num_kv_heads, head_dim, tokens_per_block, order };
        Self { tensor: Tensor::ones((2, block_elems), dtype, &Device::Cpu).unwrap(), view }
    }

    fn pool<'a>(&'a self, slots: &'a [i64]) -> MlaPool<'a> {
        MlaPool { tensor: &self.tensor, view: &self.view, slot_mapping: slots.into() }
    }

    /// As `[slots, width]`, whatever its order.
    fn rows(&self) -> Vec<f32> {
        let KvLayerView { layer_offset, num_kv_heads, head_dim, tokens_per_block, .. } = self.view;
        let layer = self.tensor.narrow(1, layer_offset, self.view.layer_elems()).unwrap().contiguous().unwrap();
        let columns = layer.reshape((2, num_kv_heads, tokens_per_block, head_dim)).unwrap();
        values(&columns.transpose(1, 2).unwrap().contiguous().unwrap())
    }

    /// What lies around the layer.
    fn around(&self) -> Vec<f32> {
        let (layer, block) =
            (self.view.layer_offset..self.view.layer_offset + self.view.layer_elems(), self.view.block_elems);
        values(&self.tensor)
            .into_iter()
            .enumerate()
            .filter(|(at, _)| !layer.contains(&(at % block)))
            .map(|(_, x)| x)
            .collect()
    }
}

pub(crate) const SHAPE: MlaShape = MlaShape { hidden: 96, heads: 3, q_lora: Some(64), kv_lora: 64, nope: 32, rope: 16 };
pub(crate) const SLOTS: [i64; TOKENS] = [17, 3, -1, 31, 0];

#[rstest]
fn every_mode(
    #[values(0, 1, 2, 3)] cache_mode: u8,
    #[values(0, 1, 3)] quant_mode: u16,
    #[values(DType::F16, DType::BF16)] dtype: DType,
    #[values(
        SHAPE,
        MlaShape { q_lora: None, ..SHAPE },
        MlaShape { nope: 48, heads: 2, ..SHAPE }
    )]
    shape: MlaShape,
    #[values(false, true)] nz: bool,
    #[values(Backend::Cpu, Backend::Candle(Device::Cpu))] backend: Backend,
) {
    let cache_mode = MlaCacheMode::try_from(cache_mode).unwrap();
    let quant_mode = MlaQuantMode::try_from(quant_mode).unwrap();
    let setup = Setup::new(shape, cache_mode, quant_mode, dtype, nz);
    let run = setup.run_on(&backend.run(), &SLOTS);
    if cache_mode == MlaCacheMode::Int8Nz && quant_mode == MlaQuantMode::Unquantised {
        assert!(run.unwrap_err().to_string().contains("an int8 cache needs a quantMode of 0 or 1"));
        return;
    }
    let (queries, caches) = run.unwrap();
    setup.assert_as_reference(&queries, &caches);
}

impl Setup {
    /// That queries and caches are the reference's, and that nothing else was written.
    pub(crate) fn assert_as_reference(&self, queries: &Queries, caches: &[Cache]) {
        let MlaPreprocess { shape, cache_mode, quant_mode, .. } = self.mla;
        let dtype = self.input.dtype();
        let int8 = cache_mode == MlaCacheMode::Int8Nz;
        // Rounding to the dtype may flip a quantised value, which moves a whole row by up to a step.
        let tolerance = match (dtype, quant_mode) {
            (DType::F16, MlaQuantMode::Unquantised) => 2e-3,
            (DType::F16, _) => 1.5e-2,
            _ => 3e-2,
        };

        assert!(caches.iter().all(|cache| cache.around().iter().all(|&x| x == 1.0)), "other layers are left alone");
        let latent_rows = caches[0].rows();
        let rope_rows = caches.get(1).map(Cache::rows);
        let width = if cache_mode == MlaCacheMode::KvCache { shape.kv_lora + shape.rope } else { shape.kv_lora };
        let untouched: Vec<usize> =
            (0..latent_rows.len() / width).filter(|&slot| !SLOTS.contains(&(slot as i64))).collect();
        assert!(untouched.iter().all(|&slot| latent_rows[slot * width..][..width].iter().all(|&x| x == 1.0)));

        let (mut found, mut expected) = (Outputs::default(), Outputs::default());
        let (input, cos, sin) = (wide(&self.input), wide(&self.cos), wide(&self.sin));
        let latents = values(&queries.0);
        let rotated = queries.1.as_ref().map(values);
        for (token, &slot) in SLOTS.iter().enumerate() {
            let x = &input[token * shape.hidden..][..shape.hidden];
            let span = token * shape.rope..(token + 1) * shape.rope;
            let out = reference::mla_preprocess(&self.case, x, &cos[span.clone()], &sin[span]);
            for head in 0..shape.heads {
                let absorbed = &out.absorbed[head * shape.kv_lora..][..shape.kv_lora];
                let turned = &out.rotated[head * shape.rope..][..shape.rope];
                expected.absorbed.extend(absorbed.iter().map(|&x| x as f32 * if int8 { 4.0 } else { 1.0 }));
                expected.rotated.extend(turned.iter().map(|&x| x as f32));
                let at = token * shape.heads + head;
                found.absorbed.extend(&latents[at * width..][..shape.kv_lora]);
                match &rotated {
                    None => found.rotated.extend(&latents[at * width + shape.kv_lora..][..shape.rope]),
                    Some(rotated) => found.rotated.extend(&rotated[at * shape.rope..][..shape.rope]),
                }
            }
            let Ok(slot) = usize::try_from(slot) else { continue };
            expected.latent.extend(out.latent.iter().map(|&x| x as f32 / if int8 { 0.03125 } else { 1.0 }));
            expected.key.extend(out.key.iter().map(|&x| x as f32));
            found.latent.extend(&latent_rows[slot * width..][..shape.kv_lora]);
            match &rope_rows {
                None => found.key.extend(&latent_rows[slot * width + shape.kv_lora..][..shape.rope]),
                Some(rows) => found.key.extend(&rows[slot * shape.rope..][..shape.rope]),
            }
        }
        assert_close(&found.rotated, &expected.rotated, tolerance);
        assert_close(&found.key, &expected.key, tolerance);
        if int8 {
            for (found, expected) in [(&found.absorbed, &expected.absorbed), (&found.latent, &expected.latent)] {
                let largest = expected.iter().fold(127f32, |most, x| most.max(x.abs()));
                for (&found, &expected) in found.iter().zip(expected) {
                    let found = if found < 128.0 { found } else { found - 256.0 };
                    let clamped = expected.round_ties_even().clamp(-128.0, 127.0);
                    let step = 1.0 + largest * tolerance;
                    assert!((found - clamped).abs() <= step, "{found} instead of {clamped}");
                }
            }
        } else {
            assert_close(&found.absorbed, &expected.absorbed, tolerance);
            assert_close(&found.latent, &expected.latent, tolerance);
        }
    }
}

#[derive(Default)]
struct Outputs {
    absorbed: Vec<f32>,
    rotated: Vec<f32>,
    latent: Vec<f32>,
    key: Vec<f32>,
}

#[test]
fn unquantised_f32_is_exact() {
    let setup = Setup::new(SHAPE, MlaCacheMode::KropeCtkv, MlaQuantMode::Unquantised, DType::F32, false);
    let (queries, ..) = setup.run(&SLOTS).unwrap();
    let (input, cos, sin) = (wide(&setup.input), wide(&setup.cos), wide(&setup.sin));
    let expected: Vec<f32> = (0..TOKENS)
        .flat_map(|token| {
            let span = token * 16..(token + 1) * 16;
            let x = &input[token * 96..][..96];
            reference::mla_preprocess(&setup.case, x, &cos[span.clone()], &sin[span]).absorbed
        })
        .map(|x| x as f32)
        .collect();
    assert_close(&values(&queries.0), &expected, 1e-5);
}

#[test]
fn each_norm_adds_its_own_epsilon() {
    assert_eq!(MlaEpsilon::default(), 1e-5.into(), "what the operator declares");
    let mut setup = Setup::new(SHAPE, MlaCacheMode::KropeCtkv, MlaQuantMode::Unquantised, DType::F32, false);
    setup.mla.epsilon = MlaEpsilon { input: 0.1, query: 2.0, latent: 7.0 };
    setup.case.epsilon = [0.1, 2.0, 7.0];
    let (queries, caches) = setup.run(&SLOTS).unwrap();
    let (input, cos, sin) = (wide(&setup.input), wide(&setup.cos), wide(&setup.sin));
    let out = reference::mla_preprocess(&setup.case, &input[..96], &cos[..16], &sin[..16]);
    let narrow = |values: &[f64]| values.iter().map(|&x| x as f32).collect::<Vec<_>>();
    assert_close(&values(&queries.0)[..3 * 64], &narrow(&out.absorbed), 1e-5);
    assert_close(&caches[0].rows()[17 * 64..][..64], &narrow(&out.latent), 1e-5);
}

#[test]
fn cache_orders_hold_the_same_values() {
    let of = |mode| {
        let (_, caches) =
            Setup::new(SHAPE, mode, MlaQuantMode::PerTokenSymmetric, DType::BF16, false).run(&SLOTS).unwrap();
        SLOTS
            .iter()
            .filter_map(|&slot| usize::try_from(slot).ok())
            .flat_map(|slot| match caches.get(1) {
                None => caches[0].rows()[slot * 80..][..80].to_vec(),
                Some(rope) => [&caches[0].rows()[slot * 64..][..64], &rope.rows()[slot * 16..][..16]].concat(),
            })
            .collect::<Vec<_>>()
    };
    let plain = of(MlaCacheMode::KvCache);
    assert_eq!(plain, of(MlaCacheMode::KropeCtkv));
    assert_eq!(plain, of(MlaCacheMode::Nz));
}

#[test]
fn nz_order_is_a_bijection() {
    let x = Tensor::arange(0f32, 2.0 * 5.0 * 24.0, &Device::Cpu).unwrap().reshape((2, 5, 24)).unwrap();
    let nz = MlaCacheMode::to_nz(&x).unwrap();
    assert_eq!(nz.dims(), [2, 3, 5, 8]);
    let (flat, plain) = (values(&nz), values(&x));
    for block in 0..2 {
        for i in 0..5 {
            for j in 0..24 {
                let offset = block * 120 + j / 8 * 5 * 8 + i * 8 + j % 8;
                assert_eq!(flat[offset], plain[(block * 5 + i) * 24 + j]);
            }
        }
    }
    assert_eq!(values(&MlaCacheMode::from_nz(&nz).unwrap()), plain);
}

#[test]
fn quant_mode_2_is_refused_as_the_operator_refuses_it() {
    assert!(MlaQuantMode::try_from(2).unwrap_err().to_string().contains("the operator refuses it"));
    assert!(MlaCacheMode::try_from(4).is_err());
}

#[rstest]
#[case::gamma(|mla: &mut MlaPreprocess| mla.gamma2 = mla.gamma2.narrow(0, 0, 8).unwrap(), "`gamma2` has shape [8], expected [64]")]
#[case::descale(|mla: &mut MlaPreprocess| mla.down.descale = None, "deScale0 is missing")]
#[case::scale(|mla: &mut MlaPreprocess| mla.norm0.quant_scale = None, "quantScale0 is missing")]
#[case::bias(|mla: &mut MlaPreprocess| mla.down.bias = mla.down.bias.as_ref().map(|b| b.to_dtype(DType::I64).unwrap()), "`bias0` has dtype I64, expected i32")]
#[case::weight(|mla: &mut MlaPreprocess| mla.down.weight = mla.down.weight.to_dtype(DType::F32).unwrap(), "`wdqkv` has dtype F32, expected int8")]
#[case::second_norm(|mla: &mut MlaPreprocess| mla.norm1 = None, "norm1 and up go together")]
fn the_table_is_enforced(#[case] spoil: fn(&mut MlaPreprocess), #[case] message: &str) {
    let mut setup = Setup::new(SHAPE, MlaCacheMode::KvCache, MlaQuantMode::PerTensorAsymmetric, DType::BF16, false);
    spoil(&mut setup.mla);
    let error = setup.run(&SLOTS).unwrap_err().to_string();
    assert!(error.contains(message), "{error}");
}

#[rstest]
#[case::columns(Cache::new(2, 16, 40, DType::BF16), "`kvCache` has shape [2, 40], expected 1 columns of 80 elements")]
#[case::block(Cache::new(1, 129, 80, DType::BF16), "block size 129, expected 1 to 128 or 256")]
#[case::dtype(Cache::new(1, 16, 80, DType::F16), "`kvCache` has dtype F16, expected the dtype of the input")]
fn caches_that_are_not_the_modes_are_refused(#[case] cache: Cache, #[case] message: &str) {
    let Setup { mla, input, cos, sin, .. } =
        Setup::new(SHAPE, MlaCacheMode::KvCache, MlaQuantMode::Unquantised, DType::BF16, false);
    let step = |slots| MlaStep { input: &input, cos: &cos, sin: &sin, cache: cache.pool(slots), rope_cache: None };
    let error = mla.run(&on_cpu(), &step(&SLOTS)).unwrap_err().to_string();
    assert!(error.contains(message), "{error}");
}

#[test]
fn there_are_as_many_slots_as_tokens_in_the_cache() {
    let setup = Setup::new(SHAPE, MlaCacheMode::KvCache, MlaQuantMode::Unquantised, DType::BF16, false);
    let refused = |slots: &[i64]| setup.run(slots).map(|_| ()).unwrap_err().to_string();
    assert!(refused(&[1, 2]).contains("2 slots for 5 tokens"));
    assert!(refused(&[1, 2, 3, 4, 32]).contains("expected -1 or less than 32"));
}

/// Layer 0 of a tiny DeepSeek-V3: what Hugging Face's attention had in its cache after a prefill.
#[test]
fn the_cache_is_that_of_deepseek() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/mla_deepseek_v3.safetensors");
    let file = candle_core::safetensors::load(path, &Device::Cpu).unwrap();
    let (heads, q_lora, kv_lora, nope, rope, tokens) = (4, 48, 32, 16, 16, 21);
    // Rope rows in halves instead of pairs.
    let halves = |rows: &Tensor| {
        let order: Vec<u32> = (0..rope as u32).step_by(2).chain((1..rope as u32).step_by(2)).collect();
        rows.index_select(&Tensor::new(order, &Device::Cpu).unwrap(), 0).unwrap()
    };
    let kv_a = &file["self_attn.kv_a_proj_with_mqa"];
    let key_rows = halves(&kv_a.narrow(0, kv_lora, rope).unwrap());
    let down = Tensor::cat(&[&kv_a.narrow(0, 0, kv_lora).unwrap(), &key_rows, &file["self_attn.q_a_proj"]], 0).unwrap();
    let up: Vec<Tensor> = (0..heads)
        .flat_map(|head| {
            let rows = file["self_attn.q_b_proj"].narrow(0, head * 32, 32).unwrap();
            [rows.narrow(0, 0, nope).unwrap(), halves(&rows.narrow(0, nope, rope).unwrap())]
        })
        .collect();
    let kv_b = file["self_attn.kv_b_proj"].reshape((heads, nope + 16, kv_lora)).unwrap();
    let norm = |name: &str| MlaNorm { gamma: file[name].clone(), beta: None, quant_scale: None, quant_offset: None };
    let projection = |weight| MlaProjection { weight, descale: None, bias: None };
    let mla = MlaPreprocess {
        shape: MlaShape { hidden: 64, heads, q_lora: Some(q_lora), kv_lora, nope, rope },
        cache_mode: MlaCacheMode::KropeCtkv,
        quant_mode: MlaQuantMode::Unquantised,
        epsilon: 1e-6.into(),
        norm0: norm("input_layernorm"),
        down: projection(down),
        norm1: Some(norm("self_attn.q_a_layernorm")),
        up: Some(projection(Tensor::cat(&up, 0).unwrap())),
        gamma2: file["self_attn.kv_a_layernorm"].clone(),
        absorb: kv_b.narrow(1, 0, nope).unwrap().contiguous().unwrap(),
        latent_scale: None,
        query_scale: None,
    };
    let angle = |position: usize, i: usize| position as f32 / 10_000f32.powf((2 * (i % 8)) as f32 / 16.0);
    let table = |f: fn(f32) -> f32| {
        let data: Vec<f32> = (0..tokens).flat_map(|t| (0..rope).map(move |i| f(angle(t, i)))).collect();
        Tensor::from_vec(data, (tokens, rope), &Device::Cpu).unwrap()
    };
    let slots: Vec<i64> = (0..tokens as i64).collect();
    let caches = [kv_lora, rope].map(|width| Cache::new(1, 16, width, DType::F32));
    let step = MlaStep {
        input: &file["hidden"],
        cos: &table(f32::cos),
        sin: &table(f32::sin),
        cache: caches[0].pool(&slots),
        rope_cache: Some(caches[1].pool(&slots)),
    };
    mla.run(&on_cpu(), &step).unwrap();
    assert_close(&caches[0].rows()[..tokens * kv_lora], &values(&file["k"]), 1e-5);
    assert_close(&caches[1].rows()[..tokens * rope], &values(&file["v"]), 1e-5);
}
