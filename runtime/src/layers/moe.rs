//! Mixture of experts: a router, the experts it chooses from, and experts that every token passes.

use candle_core::{D, DType, Tensor};

use super::{Linear, Mlp, MlpShape, SharedExpert};
use crate::error::{ConfigError, RuntimeError};
use crate::weights::Scope;

/// How a router turns logits into chosen experts and their weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Routing {
    pub(crate) experts: usize,
    pub(crate) experts_per_token: usize,
    /// Experts are divided into this many groups; only the best `top_groups` of them are considered.
    pub(crate) groups: usize,
    pub(crate) top_groups: usize,
    pub(crate) scoring: Scoring,
    /// Whether the chosen experts' weights are divided by their sum.
    pub(crate) normalise: bool,
    pub(crate) scale: f64,
}

/// The function from router logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scoring {
    /// Independent scores.
    Sigmoid,
    /// Scores that add up to one over all experts.
    Softmax,
}

/// The feed-forward layer of a sparse model.
#[derive(Debug)]
pub(crate) struct Moe {
    pub(crate) routing: Routing,
    pub(crate) router: Linear,
    /// `[experts]`, added to the scores for the choice alone.
    pub(crate) correction: Option<Tensor>,
    pub(crate) experts: Vec<Mlp>,
    /// To the narrower rows that the experts of some models compute on, and back.
    pub(crate) latent: Option<[Linear; 2]>,
    pub(crate) shared: Option<SharedExpert>,
}

impl Moe {
    /// Reads `gate` and `experts`: each by itself with its projections under `names`, or all of them stacked.
    pub(crate) fn load(
        weights: &Scope<'_>,
        routing: Routing,
        names: [&str; 3],
        expert: MlpShape,
    ) -> Result<Self, RuntimeError> {
        let routing = routing.checked()?;
        let MlpShape { hidden, intermediate, activation, .. } = expert;
        let (count, experts) = (routing.experts, weights.enter("experts"));
        let experts = if experts.stores("gate_up_proj") {
            let gate_up = experts.matrix("gate_up_proj", (count, 2 * intermediate, hidden))?;
            let down = experts.matrix("down_proj", (count, hidden, intermediate))?;
            let linear = |stacked: &Tensor, i| stacked.get(i).map(|weight| Linear::new(weight, None));
            (0..count)
                .map(|i| Ok(Mlp::fused(linear(&gate_up, i)?, linear(&down, i)?, activation)))
                .collect::<candle_core::Result<_>>()?
        } else {
            (0..count).map(|i| Mlp::load_named(&experts.enter(i), names, expert)).collect::<Result<_, _>>()?
        };
        Ok(Self {
            router: Linear::load(&weights.enter("gate"), hidden, count, false)?,
            correction: None,
            experts,
            latent: None,
            shared: None,
            routing,
        })
    }

    /// Reads a `gate` whose choice is corrected, and with `expert` each of `experts`.
    pub(crate) fn load_corrected(
        weights: &Scope<'_>,
        hidden: usize,
        routing: Routing,
        expert: impl Fn(&Scope<'_>) -> Result<Mlp, RuntimeError>,
        shared: Option<Mlp>,
    ) -> Result<Self, RuntimeError> {
        let routing = routing.checked()?;
        let (gate, experts) = (weights.enter("gate"), weights.enter("experts"));
        Ok(Self {
            router: Linear::load(&gate, hidden, routing.experts, false)?,
            correction: Some(gate.get("e_score_correction_bias", routing.experts)?),
            experts: (0..routing.experts).map(|i| expert(&experts.enter(i))).collect::<Result<_, _>>()?,
            latent: None,
            shared: shared.map(|mlp| SharedExpert { mlp, gate: None }),
            routing,
        })
    }

    /// `[rows, hidden]` to `[rows, hidden]`.
    pub(crate) fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let y = match &self.shared {
            Some(shared) => shared.forward(x)?,
            None => x.zeros_like()?,
        };
        let Some([inward, outward]) = &self.latent else { return self.add_routed(y, x, x) };
        let narrow = inward.forward(x)?;
        y + outward.forward(&self.add_routed(narrow.zeros_like()?, x, &narrow)?)?
    }

    /// `y`, and for each row of `x` what its experts make of the same row of `seen`.
    fn add_routed(&self, y: Tensor, x: &Tensor, seen: &Tensor) -> candle_core::Result<Tensor> {
        let (mut rows, mut outs) = (Vec::new(), Vec::new());
        // The choice is made on the host: which rows an expert sees decides the shapes of everything after it.
        for (expert, chosen) in self.experts.iter().zip(self.route(x)?) {
            if chosen.rows.is_empty() {
                continue;
            }
            let seen = seen.index_select(&Tensor::new(&*chosen.rows, x.device())?, 0)?;
            let weights = Tensor::new(chosen.weights, x.device())?.to_dtype(x.dtype())?.unsqueeze(1)?;
            outs.push(expert.forward(&seen)?.broadcast_mul(&weights)?);
            rows.extend(chosen.rows);
        }
        if outs.is_empty() {
            return Ok(y);
        }
        // All at once, since every addition makes a new `y`.
        y.index_add(&Tensor::new(rows, x.device())?, &Tensor::cat(&outs, 0)?, 0)
    }

    /// For each expert the rows that chose it and their weights.
    fn route(&self, x: &Tensor) -> candle_core::Result<Vec<Chosen>> {
        let logits = self.router.forward(x)?.to_dtype(DType::F32)?;
        let scores = match self.routing.scoring {
            Scoring::Sigmoid => candle_nn::ops::sigmoid(&logits)?,
            Scoring::Softmax => candle_nn::ops::softmax(&logits, D::Minus1)?,
        };
        let choice = match &self.correction {
            Some(correction) => scores.broadcast_add(&correction.to_dtype(DType::F32)?)?,
            None => scores.clone(),
        };
        let mut chosen: Vec<Chosen> = self.experts.iter().map(|_| Chosen::default()).collect();
        let rows = scores.to_vec2::<f32>()?.into_iter().zip(choice.to_vec2::<f32>()?);
        for (row, (scores, choice)) in (0u32..).zip(rows) {
            for (expert, weight) in self.routing.choose(&scores, &choice) {
                chosen[expert].rows.push(row);
                chosen[expert].weights.push(weight);
            }
        }
        Ok(chosen)
    }
}

#[derive(Debug, Default)]
struct Chosen {
    rows: Vec<u32>,
    weights: Vec<f32>,
}

impl Routing {
    /// The best of all experts by softmax.
    pub(crate) const fn softmax(experts: usize, experts_per_token: usize, normalise: bool) -> Self {
        let scoring = Scoring::Softmax;
        Self { experts, experts_per_token, groups: 1, top_groups: 1, scoring, normalise, scale: 1.0 }
    }

    /// The same, if its numbers fit together.
    pub(crate) fn checked(self) -> Result<Self, ConfigError> {
        let even = self.groups > 0 && self.experts.is_multiple_of(self.groups);
        let known_groups = even && self.top_groups <= self.groups;
        let considered = if known_groups { self.experts / self.groups * self.top_groups } else { 0 };
        if (1..=considered).contains(&self.experts_per_token) {
            return Ok(self);
        }
        let Self { experts, experts_per_token, groups, top_groups, .. } = self;
        let found = format!("{experts_per_token} of {experts} experts, {top_groups} of {groups} groups");
        let known = "groups of equal size, and no more chosen than there are";
        Err(ConfigError::Unsupported { key: "num_experts_per_tok", found, known })
    }

    /// The experts of one row by the scores `choice`, weighted by `scores`.
    fn choose(&self, scores: &[f32], choice: &[f32]) -> Vec<(usize, f32)> {
        let per_group = self.experts / self.groups;
        let mut candidates: Vec<usize> = if self.groups > 1 {
            // A group is worth the sum of its two best experts.
            let worth = |group: usize| -> f32 {
                let members = &choice[group * per_group..(group + 1) * per_group];
                let best = top(2, (0..per_group).collect(), |member| members[member]);
                best.into_iter().map(|member| members[member]).sum()
            };
            let groups = top(self.top_groups, (0..self.groups).collect(), worth);
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

#[cfg(test)]
mod tests {
    use super::{Routing, Scoring};

    const ROUTING: Routing = Routing {
        experts: 4,
        experts_per_token: 2,
        groups: 2,
        top_groups: 1,
        scoring: Scoring::Sigmoid,
        normalise: true,
        scale: 2.0,
    };

    #[test]
    fn the_best_group_wins_over_the_best_expert() {
        let scores = [0.9, 0.0, 0.6, 0.6];
        let chosen = ROUTING.choose(&scores, &scores);
        assert_eq!(chosen, [(2, 1.0), (3, 1.0)]);
    }

    #[test]
    fn the_correction_moves_the_choice_but_not_the_weight() {
        let routing = Routing { groups: 1, normalise: false, scale: 1.0, ..ROUTING };
        let chosen = routing.choose(&[0.1, 0.2, 0.3, 0.4], &[5.1, 0.2, 0.3, 0.4]);
        assert_eq!(chosen, [(0, 0.1), (3, 0.4)]);
    }
}
