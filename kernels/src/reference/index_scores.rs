//! Scores of an indexer.

/// What each key of `keys` `[entries, head_dim]` is worth to one token's queries `q` `[heads, head_dim]`.
pub(crate) fn index_scores(q: &[f32], keys: &[f32], shares: &[f32], scale: f64) -> Vec<f64> {
    let dim = q.len() / shares.len();
    let mut scores = Vec::new();
    for key in keys.chunks_exact(dim) {
        let mut sum = 0.0;
        for (q, share) in q.chunks_exact(dim).zip(shares) {
            let product: f64 = q.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            sum += f64::from(*share) * (scale * product).max(0.0);
        }
        scores.push(sum);
    }
    scores
}
