//! The choice of experts: what a router is told, and what it refuses.

use super::check;
use crate::error::{KernelError, Result};
use candle_core::Tensor;

const OP: &str = "routing";

/// How a router turns logits into chosen experts and their weights.
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    /// Experts that there are.
    pub experts: usize,
    /// Experts that are chosen for a row.
    pub experts_per_token: usize,
    /// Groups of equal size into which experts are divided.
    pub groups: usize,
    /// Experts of the best so many groups are considered.
    pub top_groups: usize,
    /// What a group is worth is the sum of so many of its best experts.
    pub best_of_group: usize,
    /// Whether scores add up to one over all experts; else each is a sigmoid.
    pub softmax: bool,
    /// Whether the chosen experts' weights are divided by their sum.
    pub normalise: bool,
    /// What weights are multiplied by.
    pub scale: f64,
}

impl Routing {
    /// The best of all experts by softmax.
    pub const fn softmax(experts: usize, experts_per_token: usize, normalise: bool) -> Self {
        Self {
            experts,
            experts_per_token,
            groups: 1,
            top_groups: 1,
            best_of_group: 2,
            softmax: true,
            normalise,
            scale: 1.0,
        }
    }

    /// Whether its numbers fit together: groups of equal size, and no more chosen than there are.
    pub fn fits(&self) -> bool {
        let even = self.groups > 0 && self.experts.is_multiple_of(self.groups);
        let known_groups = even && self.top_groups <= self.groups;
        let considered = if known_groups { self.experts / self.groups * self.top_groups } else { 0 };
        (1..=considered).contains(&self.experts_per_token)
    }

    /// The experts of one row by the scores `choice`, weighted by `scores`. Of equal ones the earlier is taken.
    pub(crate) fn choose(&self, scores: &[f32], choice: &[f32]) -> Vec<(usize, f32)> {
        let per_group = self.experts / self.groups;
        let mut candidates: Vec<usize> = if self.groups > 1 {
            let worth = |group: usize| -> f32 {
                let members = &choice[group * per_group..(group + 1) * per_group];
                let best = top(self.best_of_group, (0..per_group).collect(), |member| members[member]);
                best.into_iter().map(|member| members[member]).sum()
            };
            let mut groups = top(self.top_groups, (0..self.groups).collect(), worth);
            groups.sort_unstable();
            groups.into_iter().flat_map(|group| group * per_group..(group + 1) * per_group).collect()
        } else {
            (0..self.experts).collect()
        };
        candidates = top(self.experts_per_token, candidates, |expert| choice[expert]);
        let sum: f32 = candidates.iter().map(|&expert| scores[expert]).sum();
        let scale = if self.normalise { self.scale as f32 / (sum + 1e-20) } else { self.scale as f32 };
        candidates.into_iter().map(|expert| (expert, scores[expert] * scale)).collect()
    }
}

/// The `count` items of the highest score, the earlier one where two are equal.
fn top(count: usize, mut items: Vec<usize>, score: impl Fn(usize) -> f32) -> Vec<usize> {
    items.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
    items.truncate(count);
    items
}

/// Checks the operands of a call.
pub(super) fn check(routing: &Routing, logits: &Tensor, correction: Option<&Tensor>) -> Result<()> {
    let Routing { experts, experts_per_token, groups, top_groups, .. } = *routing;
    if !routing.fits() {
        let reason =
            format!("{experts_per_token} of {experts} experts cannot be chosen from {top_groups} of {groups} groups");
        return Err(KernelError::Argument { op: OP, reason });
    }
    let (rows, _) = logits.dims2()?;
    check::rows(OP, "logits", logits, rows, experts)?;
    check::vector(OP, "correction", correction, experts)
}

/// For each expert the rows that chose it and what it counts for them.
pub(super) fn by_expert(
    routing: &Routing,
    chosen: &[Vec<u32>],
    shares: &[Vec<f32>],
) -> Result<Vec<(Vec<u32>, Vec<f32>)>> {
    let mut experts = vec![(Vec::new(), Vec::new()); routing.experts];
    for (row, (chosen, shares)) in (0u32..).zip(chosen.iter().zip(shares)) {
        for (at, (&expert, &share)) in chosen.iter().zip(shares).enumerate() {
            let Some((rows, counts)) = experts.get_mut(expert as usize) else {
                let expected = format!("below {}", routing.experts);
                return Err(KernelError::index(OP, "chosen", at, expert, expected));
            };
            rows.push(row);
            counts.push(share);
        }
    }
    Ok(experts)
}

#[cfg(test)]
mod tests {
    use super::Routing;

    const ROUTING: Routing =
        Routing { groups: 2, top_groups: 1, softmax: false, scale: 2.0, ..Routing::softmax(4, 2, true) };

    #[test]
    fn the_best_group_wins_over_the_best_expert() {
        let scores = [0.9, 0.0, 0.6, 0.6];
        let chosen = ROUTING.choose(&scores, &scores);
        assert_eq!(chosen, [(2, 1.0), (3, 1.0)]);
    }

    #[test]
    fn a_group_may_be_worth_what_its_best_expert_is() {
        let scores = [0.9, 0.0, 0.6, 0.6];
        let routing = Routing { best_of_group: 1, normalise: false, scale: 1.0, ..ROUTING };
        assert_eq!(routing.choose(&scores, &scores), [(0, 0.9), (1, 0.0)]);
    }

    #[test]
    fn the_correction_moves_the_choice_but_not_the_weight() {
        let routing = Routing { groups: 1, normalise: false, scale: 1.0, ..ROUTING };
        let chosen = routing.choose(&[0.1, 0.2, 0.3, 0.4], &[5.1, 0.2, 0.3, 0.4]);
        assert_eq!(chosen, [(0, 0.1), (3, 0.4)]);
    }

    #[test]
    fn of_equal_experts_the_earlier_one_is_taken_in_whatever_group() {
        let routing = Routing { experts_per_token: 3, top_groups: 2, ..ROUTING };
        let chosen = routing.choose(&[0.5; 4], &[0.5, 0.2, 0.5, 0.5]);
        assert_eq!(chosen.into_iter().map(|(expert, _)| expert).collect::<Vec<_>>(), [0, 2, 3]);
    }
}
