//! The MLA preprocessing of one token.

/// The weights as plain matrices, with signed quantised values as whole numbers.
#[derive(Clone, Debug)]
pub(crate) struct MlaCase {
    /// Heads.
    pub(crate) heads: usize,
    /// Width of the compressed query; 0 for none.
    pub(crate) q_lora: usize,
    /// Width of the latent.
    pub(crate) kv_lora: usize,
    /// Elements without position.
    pub(crate) nope: usize,
    /// Elements with position.
    pub(crate) rope: usize,
    /// What the three norms add to mean squares.
    pub(crate) epsilon: [f64; 3],
    /// `[hidden]` weight and bias of the first norm.
    pub(crate) norm0: (Vec<f64>, Vec<f64>),
    /// `[kv_lora + rope + q_lora or queries, hidden]`.
    pub(crate) down: Vec<f64>,
    /// `[q_lora]` weight and bias of the second norm.
    pub(crate) norm1: (Vec<f64>, Vec<f64>),
    /// `[heads * (nope + rope), q_lora]`.
    pub(crate) up: Vec<f64>,
    /// `[kv_lora]`.
    pub(crate) gamma2: Vec<f64>,
    /// `[heads, nope, kv_lora]`.
    pub(crate) absorb: Vec<f64>,
    /// How the two products are quantised.
    pub(crate) quantised: [MlaQuant; 2],
}

/// How one product is quantised.
#[derive(Clone, Debug)]
pub(crate) enum MlaQuant {
    /// Not at all.
    None,
    /// Scale, offset, per-row bias and per-row factor.
    PerTensor(f64, f64, Vec<f64>, Vec<f64>),
    /// Per-row factor.
    PerToken(Vec<f64>),
}

/// The latent, the rope key, and per head the absorbed query and the rotated query.
#[derive(Clone, Debug)]
pub(crate) struct MlaOutput {
    /// `[kv_lora]`.
    pub(crate) latent: Vec<f64>,
    /// `[rope]`.
    pub(crate) key: Vec<f64>,
    /// `[heads, kv_lora]`.
    pub(crate) absorbed: Vec<f64>,
    /// `[heads, rope]`.
    pub(crate) rotated: Vec<f64>,
}

/// Preprocesses the hidden state `x` with `[rope]` cosines and sines.
pub(crate) fn mla_preprocess(case: &MlaCase, x: &[f64], cos: &[f64], sin: &[f64]) -> MlaOutput {
    let MlaCase { heads, kv_lora, nope, rope, .. } = *case;
    let down = product(&norm(x, &case.norm0.0, &case.norm0.1, case.epsilon[0]), &case.down, &case.quantised[0]);
    let none = vec![0.0; kv_lora];
    let latent = norm(&down[..kv_lora], &case.gamma2, &none, case.epsilon[2]);
    let key = turn(&down[kv_lora..kv_lora + rope], cos, sin);
    let rest = &down[kv_lora + rope..];
    let query = match case.q_lora {
        0 => rest.to_vec(),
        _ => product(&norm(rest, &case.norm1.0, &case.norm1.1, case.epsilon[1]), &case.up, &case.quantised[1]),
    };
    let (mut absorbed, mut rotated) = (Vec::new(), Vec::new());
    for head in 0..heads {
        let query = &query[head * (nope + rope)..(head + 1) * (nope + rope)];
        for column in 0..kv_lora {
            absorbed.push((0..nope).map(|i| query[i] * case.absorb[(head * nope + i) * kv_lora + column]).sum());
        }
        rotated.extend(turn(&query[nope..], cos, sin));
    }
    MlaOutput { latent, key, absorbed, rotated }
}

fn norm(x: &[f64], gamma: &[f64], beta: &[f64], epsilon: f64) -> Vec<f64> {
    let mean_square = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    (0..x.len()).map(|i| x[i] / (mean_square + epsilon).sqrt() * gamma[i] + beta[i]).collect()
}

fn product(x: &[f64], weight: &[f64], quant: &MlaQuant) -> Vec<f64> {
    let int8 = |x: f64| x.round_ties_even().clamp(-128.0, 127.0);
    let scale = x.iter().fold(0f64, |max, x| max.max(x.abs())) / 127.0;
    let x: Vec<f64> = match quant {
        MlaQuant::None => x.to_vec(),
        MlaQuant::PerTensor(scale, offset, ..) => x.iter().map(|x| int8(x / scale + offset)).collect(),
        MlaQuant::PerToken(_) => x.iter().map(|x| int8(x / scale)).collect(),
    };
    let rows = weight.chunks_exact(x.len()).map(|row| row.iter().zip(&x).map(|(w, x)| w * x).sum::<f64>());
    rows.enumerate()
        .map(|(n, sum)| match quant {
            MlaQuant::None => sum,
            MlaQuant::PerTensor(_, _, bias, factor) => (sum + bias[n]) * factor[n],
            MlaQuant::PerToken(factor) => sum * factor[n] * scale,
        })
        .collect()
}

fn turn(x: &[f64], cos: &[f64], sin: &[f64]) -> Vec<f64> {
    let half = x.len() / 2;
    (0..x.len()).map(|i| x[i] * cos[i] + sin[i] * if i < half { -x[i + half] } else { x[i - half] }).collect()
}
