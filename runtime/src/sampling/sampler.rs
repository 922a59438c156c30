//! Choosing the tokens of one sequence one after the other, at the cost of what a token adds.

use std::borrow::Cow;
use std::collections::HashMap;

use super::{Sampling, greedy, uniform};

/// Chooses the tokens of a sequence, and remembers how often each has occurred.
#[derive(Clone, Debug)]
pub(crate) struct Sampler {
    sampling: Sampling,
    /// Tokens of the sequence.
    len: u64,
    /// What has occurred, in the order in which it first did; empty where nothing is penalised.
    seen: Vec<Seen>,
    /// Where each token stands there.
    places: HashMap<u32, usize>,
}

/// How often a token has occurred.
#[derive(Clone, Copy, Debug)]
struct Seen {
    token: u32,
    all: u32,
    generated: u32,
}

impl Sampler {
    /// Of the sequence `tokens`, of which the first `prompt` are the prompt's.
    pub(crate) fn new(sampling: &Sampling, tokens: &[u32], prompt: usize) -> Self {
        let (seen, places) = (Vec::new(), HashMap::new());
        let mut sampler = Self { sampling: sampling.clone(), len: 0, seen, places };
        for (place, &token) in tokens.iter().enumerate() {
            sampler.count(token, place >= prompt);
        }
        sampler
    }

    /// Takes a token that was generated.
    pub(crate) fn push(&mut self, token: u32) {
        self.count(token, true);
    }

    fn count(&mut self, token: u32, generated: bool) {
        self.len += 1;
        if self.sampling.is_neutral() {
            return;
        }
        let place = *self.places.entry(token).or_insert(self.seen.len());
        if place == self.seen.len() {
            self.seen.push(Seen { token, all: 0, generated: 0 });
        }
        let seen = &mut self.seen[place];
        seen.all += 1;
        seen.generated += u32::from(generated);
    }

    /// Takes back the token that was taken last.
    pub(crate) fn pop(&mut self, token: u32) {
        self.len = self.len.saturating_sub(1);
        if let Some(&place) = self.places.get(&token) {
            let seen = &mut self.seen[place];
            seen.all = seen.all.saturating_sub(1);
            seen.generated = seen.generated.saturating_sub(1);
        }
    }

    /// The token that follows; `None` if the logits are no numbers.
    pub(crate) fn choose(&self, logits: &[f32]) -> Option<u32> {
        let logits = self.penalised(logits);
        if self.sampling.temperature == 0.0 {
            return greedy(&logits);
        }
        let candidates = self.sampling.shares(&logits)?;
        let mut left = uniform(self.sampling.seed, self.len);
        let drawn = candidates.iter().find(|(_, share)| {
            left -= share;
            left < 0.0
        });
        // Rounding may leave a little behind the last one that is likely at all.
        let last = || candidates.iter().rev().find(|(_, share)| *share > 0.0);
        drawn.or_else(last).map(|(token, _)| *token)
    }

    /// Logits with the penalties for tokens that have occurred.
    pub(crate) fn penalised<'a>(&self, logits: &'a [f32]) -> Cow<'a, [f32]> {
        if self.sampling.is_neutral() {
            return logits.into();
        }
        let Sampling { repetition_penalty: factor, frequency_penalty, presence_penalty, .. } = self.sampling;
        let mut logits = logits.to_vec();
        for Seen { token, generated, .. } in self.seen.iter().filter(|seen| seen.all > 0) {
            let Some(logit) = logits.get_mut(*token as usize) else { continue };
            *logit = if *logit < 0.0 { *logit * factor } else { *logit / factor };
            if *generated > 0 {
                *logit -= frequency_penalty * *generated as f32 + presence_penalty;
            }
        }
        logits.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_are_kept_are_those_of_the_whole_sequence() {
        let sampling =
            Sampling { repetition_penalty: 1.3, presence_penalty: 0.5, frequency_penalty: 0.25, ..Sampling::default() };
        let logits = [1.0, -1.0, 0.5, 2.0, 0.25, -0.125];
        let tokens = [3, 1, 3, 0, 0, 5, 3, 1, 2];
        let mut kept = Sampler::new(&sampling, &tokens[..4], 4);
        for at in 4..=tokens.len() {
            let anew = Sampler::new(&sampling, &tokens[..at], 4);
            assert_eq!(kept.penalised(&logits), anew.penalised(&logits), "{at} tokens");
            // What is guessed and taken back leaves nothing.
            [4, 3, 4].into_iter().for_each(|token| kept.push(token));
            assert_ne!(kept.penalised(&logits), anew.penalised(&logits));
            [4, 3, 4].into_iter().for_each(|token| kept.pop(token));
            assert_eq!((kept.penalised(&logits), kept.len), (anew.penalised(&logits), anew.len));
            tokens.get(at).into_iter().for_each(|&token| kept.push(token));
        }
    }
}
