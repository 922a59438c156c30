//! What no way of evicting could exceed.
//!
//! A run without limit says which states every request could have continued from, and for each of them since when it
//! would have had to be kept: since the last request that passed it. Whoever knows the future chooses for every
//! request one of them or none, so that never more are kept than there are slots. That choice is bounded from above
//! by giving kept states a price per request and slot: each request then chooses for itself, and the slots are paid
//! for. Any prices give a bound, and the search is for those that give the lowest.
//! Taken as given is where states lie: another way of evicting may leave branch checkpoints elsewhere.

use super::error::SimulateError;
use super::run::Run;
use super::scenario::{Policy, Scenario};
use super::trace::TraceRequest;

/// A state that a request could have continued from.
#[derive(Clone, Copy, Debug)]
struct Choice {
    /// Tokens that need not be computed then.
    tokens: usize,
    /// The request since which it would have had to be kept.
    since: usize,
}

/// Bounds what the requests of a trace could have continued from, see [`Ceiling::hit_rate`].
#[derive(Debug)]
pub struct Ceiling {
    /// One list per request, deepest state first.
    choices: Vec<Vec<Choice>>,
    prompt_tokens: u64,
}

impl Ceiling {
    /// Runs the requests with the checkpoints of [`Policy::Coverage`] and room for all of them.
    ///
    /// # Errors
    /// As [`Scenario::run`].
    pub fn new(requests: &[TraceRequest], scenario: Scenario) -> Result<Self, SimulateError> {
        let mut run = Run::new(Scenario { policy: Policy::Coverage, checkpoints: None, ..scenario })?;
        let mut passed: Vec<usize> = Vec::new();
        let mut choices = Vec::new();
        for (i, request) in requests.iter().enumerate() {
            run.give_way()?;
            passed.resize(run.slots(), i);
            let mut found = Vec::new();
            run.states_on_path(request, |slot, tokens, usable| {
                let since = std::mem::replace(&mut passed[slot], i);
                if usable {
                    found.push(Choice { tokens, since });
                }
            });
            choices.push(found);
            run.start(i, request)?;
            passed.resize(run.slots(), i);
        }
        Ok(Self { choices, prompt_tokens: run.prompt_tokens() })
    }

    /// The token hit rate that cannot be exceeded with so many checkpoints.
    #[must_use]
    pub fn hit_rate(&self, checkpoints: usize) -> f64 {
        const ROUNDS: usize = 400;
        let requests = self.choices.len();
        let deepest: usize = self.choices.iter().map(|choices| choices.first().map_or(0, |choice| choice.tokens)).sum();
        // About what a slot saves per request, so that prices of use are a few steps away.
        let unit = deepest as f64 / (100.0 * requests.max(1) as f64 * checkpoints.max(1) as f64);
        let mut prices = vec![0.0; requests];
        let mut paid = vec![0.0; requests + 1];
        let mut least = f64::INFINITY;
        for round in 0..ROUNDS {
            for (i, price) in prices.iter().enumerate() {
                paid[i + 1] = paid[i] + price;
            }
            let mut bound = checkpoints as f64 * paid[requests];
            let mut change = vec![0_i64; requests + 1];
            for (i, choices) in self.choices.iter().enumerate() {
                let gain = |choice: &Choice| choice.tokens as f64 - (paid[i] - paid[choice.since]);
                let best = choices.iter().map(|choice| (gain(choice), choice.since)).max_by(|a, b| a.0.total_cmp(&b.0));
                if let Some((gain, since)) = best.filter(|(gain, _)| *gain > 0.0) {
                    bound += gain;
                    change[since] += 1;
                    change[i] -= 1;
                }
            }
            least = least.min(bound);
            let step = unit / (1.0 + round as f64 / 20.0);
            let mut kept = 0;
            for (price, change) in prices.iter_mut().zip(&change) {
                kept += change;
                *price = f64::max(0.0, *price + step * (kept - checkpoints as i64) as f64);
            }
        }
        if self.prompt_tokens == 0 { 0.0 } else { least / self.prompt_tokens as f64 }
    }
}
