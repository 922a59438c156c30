//! Softmax attention of one sequence.

/// The sizes and options of one attention call.
#[derive(Clone, Copy)]
pub(crate) struct AttentionCase<'a> {
    /// Query heads.
    pub(crate) heads: usize,
    /// Key and value heads; consecutive `heads / kv_heads` query heads share one.
    pub(crate) kv_heads: usize,
    /// Elements of a query or key row.
    pub(crate) head_dim: usize,
    /// Elements of a value row.
    pub(crate) value_dim: usize,
    /// Factor on `q . k`.
    pub(crate) scale: f64,
    /// Bound of the scores, `cap * tanh(score / cap)`.
    pub(crate) softcap: Option<f64>,
    /// Whether the query at the first position sees the key at the second.
    pub(crate) sees: &'a dyn Fn(usize, usize) -> bool,
    /// Per head, a logit without a value.
    pub(crate) sinks: Option<&'a [f64]>,
    /// Per head, what each position of distance takes from a score.
    pub(crate) slopes: Option<&'a [f64]>,
}

/// Attends from `q` `[queries, heads, head_dim]`, the last positions of the sequence, to `k`
/// `[positions, kv_heads, head_dim]` and `v` `[positions, kv_heads, value_dim]`.
pub(crate) fn attention(q: &[f64], k: &[f64], v: &[f64], case: &AttentionCase<'_>) -> Vec<f64> {
    let queries = q.len() / (case.heads * case.head_dim);
    let positions = k.len() / (case.kv_heads * case.head_dim);
    let mut out = Vec::new();
    for query in 0..queries {
        let at = positions - queries + query;
        for head in 0..case.heads {
            let kv_head = head * case.kv_heads / case.heads;
            let mut weights = vec![0.0; positions];
            let mut total = 0.0;
            for key in 0..positions {
                if !(case.sees)(at, key) {
                    continue;
                }
                let mut score = 0.0;
                for i in 0..case.head_dim {
                    score += q[(query * case.heads + head) * case.head_dim + i]
                        * k[(key * case.kv_heads + kv_head) * case.head_dim + i];
                }
                score *= case.scale;
                if let Some(cap) = case.softcap {
                    score = cap * (score / cap).tanh();
                }
                if let Some(slopes) = case.slopes {
                    score += slopes[head] * (key as f64 - at as f64);
                }
                weights[key] = score.exp();
                total += weights[key];
            }
            if let Some(sinks) = case.sinks {
                total += sinks[head].exp();
            }
            for i in 0..case.value_dim {
                let mut sum = 0.0;
                for key in 0..positions {
                    if (case.sees)(at, key) {
                        sum += weights[key] * v[(key * case.kv_heads + kv_head) * case.value_dim + i];
                    }
                }
                out.push(if total == 0.0 { 0.0 } else { sum / total });
            }
        }
    }
    out
}
