//! The choice of experts, and what they make of rows.

use super::sigmoid;
use crate::Routing;

/// Experts of each row of `logits` `[rows, experts]` and what each counts, the best first.
pub(crate) fn route(logits: &[f64], correction: Option<&[f64]>, routing: &Routing) -> Vec<Vec<(usize, f64)>> {
    let Routing { experts, experts_per_token, groups, top_groups, best_of_group, softmax, normalise, scale } = *routing;
    // Positions of the highest, by how many are higher, or as high and earlier.
    let highest = |of: &[f64], count: usize| -> Vec<usize> {
        let before = |a: usize, b: usize| of[a] > of[b] || (of[a] == of[b] && a < b);
        let mut found = vec![0; count];
        for at in 0..of.len() {
            let rank = (0..of.len()).filter(|&other| before(other, at)).count();
            if rank < count {
                found[rank] = at;
            }
        }
        found
    };
    let row = |logits: &[f64]| {
        let all: f64 = logits.iter().map(|logit| logit.exp()).sum();
        let scores: Vec<f64> =
            logits.iter().map(|&logit| if softmax { logit.exp() / all } else { sigmoid(logit) }).collect();
        let mut choice: Vec<f64> =
            (0..experts).map(|expert| scores[expert] + correction.map_or(0.0, |added| added[expert])).collect();
        let members = experts / groups;
        let worth: Vec<f64> = choice
            .chunks_exact(members)
            .map(|group| highest(group, members.min(best_of_group)).into_iter().map(|member| group[member]).sum())
            .collect();
        let kept = highest(&worth, if groups > 1 { top_groups } else { 1 });
        for (expert, choice) in choice.iter_mut().enumerate() {
            if !kept.contains(&(expert / members)) {
                *choice = f64::NEG_INFINITY;
            }
        }
        let chosen = highest(&choice, experts_per_token);
        let sum: f64 = if normalise { chosen.iter().map(|&expert| scores[expert]).sum() } else { 1.0 };
        chosen.into_iter().map(|expert| (expert, scores[expert] / sum * scale)).collect()
    };
    logits.chunks_exact(experts).map(row).collect()
}

/// What `expert` of `weight` `[experts, outputs, inputs]` and `bias` makes of `x` `[inputs]`.
pub(crate) fn expert(x: &[f64], weight: &[f64], bias: Option<&[f64]>, outputs: usize, expert: usize) -> Vec<f64> {
    let of = &weight[expert * outputs * x.len()..][..outputs * x.len()];
    let dot = |row: &[f64]| x.iter().zip(row).map(|(x, weight)| x * weight).sum::<f64>();
    let rows = of.chunks_exact(x.len()).map(dot);
    rows.enumerate()
        .map(|(output, product)| product + bias.map_or(0.0, |bias| bias[expert * outputs + output]))
        .collect()
}
