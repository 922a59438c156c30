//! Linear attention with decay and, if asked for, the delta rule; one sequence.

/// The sizes and activations of one scan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinearAttentionCase<'a> {
    /// Query and key heads.
    pub(crate) key_heads: usize,
    /// Value heads.
    pub(crate) heads: usize,
    /// Elements of a key.
    pub(crate) key_dim: usize,
    /// Elements of a value.
    pub(crate) value_dim: usize,
    /// `[tokens, key_heads, key_dim]`.
    pub(crate) q: &'a [f64],
    /// `[tokens, key_heads, key_dim]`.
    pub(crate) k: &'a [f64],
    /// `[tokens, heads, value_dim]`.
    pub(crate) v: &'a [f64],
    /// `[tokens, heads, key_dim]` logarithms.
    pub(crate) decay: &'a [f64],
    /// `[tokens, heads]`.
    pub(crate) beta: Option<&'a [f64]>,
    /// Factor on `q`.
    pub(crate) scale: f64,
    /// Whether rows of `q` and `k` are divided by their length.
    pub(crate) l2_norm: bool,
}

/// Steps `state` `[heads, key_dim, value_dim]` and returns `[tokens, heads, value_dim]`.
pub(crate) fn linear_attention(case: &LinearAttentionCase<'_>, state: &mut [f64]) -> Vec<f64> {
    let LinearAttentionCase { key_heads, heads, key_dim, value_dim, .. } = *case;
    let tokens = case.v.len() / (heads * value_dim);
    let row = |rows: &[f64], token: usize, head: usize| -> Vec<f64> {
        let start = (token * key_heads + head * key_heads / heads) * key_dim;
        let row = &rows[start..start + key_dim];
        let length = if case.l2_norm { (row.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt() } else { 1.0 };
        row.iter().map(|x| x / length).collect()
    };
    let mut out = Vec::new();
    for token in 0..tokens {
        for head in 0..heads {
            let (q, k) = (row(case.q, token, head), row(case.k, token, head));
            let at = |i: usize, j: usize| (head * key_dim + i) * value_dim + j;
            for i in 0..key_dim {
                for j in 0..value_dim {
                    state[at(i, j)] *= case.decay[(token * heads + head) * key_dim + i].exp();
                }
            }
            let mut v = case.v[(token * heads + head) * value_dim..][..value_dim].to_vec();
            if let Some(beta) = case.beta {
                for j in 0..value_dim {
                    let held: f64 = (0..key_dim).map(|i| k[i] * state[at(i, j)]).sum();
                    v[j] = beta[token * heads + head] * (v[j] - held);
                }
            }
            for i in 0..key_dim {
                for j in 0..value_dim {
                    state[at(i, j)] += k[i] * v[j];
                }
            }
            for j in 0..value_dim {
                out.push(case.scale * (0..key_dim).map(|i| q[i] * state[at(i, j)]).sum::<f64>());
            }
        }
    }
    out
}
