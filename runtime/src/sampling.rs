//! How the next token is chosen from logits.
//!
//! The order is that of Hugging Face's `generate`: penalties, temperature, top-k, top-p, min-p; then one draw. Presence and
//! frequency, which it lacks, come behind repetition as in vLLM. The draw of a position depends on the request's seed and
//! on the position alone, so that a request gives the same tokens whatever else is in the batch, and however often it was
//! preempted. It goes through the tokens by their ids: by their likelihood, two that rounding lets swap would swap their
//! shares of the draws too.

mod sampler;

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub(crate) use self::sampler::Sampler;

/// How tokens are chosen. The default takes the most likely one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// What logits are divided by; 0 takes the most likely token and draws nothing.
    pub temperature: f32,
    /// Only so many of the most likely tokens, and those as likely as the last of them; 0 for all.
    pub top_k: usize,
    /// The fewest most likely tokens that have this share together; 1 for all.
    pub top_p: f32,
    /// Only tokens at least this likely, in proportion to the most likely one; 0 for all.
    pub min_p: f32,
    /// What the logits of tokens of the prompt and the output are divided by, or multiplied with below 0; 1 for none.
    pub repetition_penalty: f32,
    /// What is taken from the logits of tokens of the output.
    pub presence_penalty: f32,
    /// What is taken from them for each time they occur.
    pub frequency_penalty: f32,
    /// What the draws follow from.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
        }
    }
}

/// What somebody says of sampling; the rest is left to whoever comes before.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "each is the field of `Sampling` of the same name")]
pub struct SamplingOptions {
    pub temperature: Option<f32>,
    pub top_k: Option<usize>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub seed: Option<u64>,
}

impl SamplingOptions {
    /// What is said, in place of what `base` has. Whoever says which tokens may be drawn, and no temperature, wants them
    /// drawn: then it is 1 where `base` takes the most likely ones.
    #[must_use]
    pub fn over(&self, base: &Sampling) -> Sampling {
        let draws = self.top_k.is_some() || self.top_p.is_some() || self.min_p.is_some();
        let unsaid = if draws && base.temperature == 0.0 { 1.0 } else { base.temperature };
        Sampling {
            temperature: self.temperature.unwrap_or(unsaid),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            seed: self.seed.unwrap_or(base.seed),
        }
    }

    /// That what is said of draws is said where something is drawn: over `base`, or by a request with what it says itself.
    ///
    /// # Errors
    /// The first that decides nothing.
    pub fn refuse_undrawn<'a>(
        &self,
        base: &Sampling,
        own: impl IntoIterator<Item = &'a Self>,
    ) -> Result<(), SamplingError> {
        let common = self.over(base);
        let draws = |sampling: &Sampling| sampling.temperature > 0.0;
        if draws(&common) || own.into_iter().any(|own| draws(&own.over(&common))) {
            return Ok(());
        }
        let stated = [
            ("seed", self.seed.is_some()),
            ("top_k", self.top_k.is_some()),
            ("top_p", self.top_p.is_some()),
            ("min_p", self.min_p.is_some()),
        ];
        stated.iter().find(|(_, stated)| *stated).map_or(Ok(()), |(key, _)| Err(SamplingError::Undrawn { key }))
    }
}

/// What nothing can be sampled with.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// A value out of its range.
    #[error("`{key}` is {found}; it must be {known}")]
    Value {
        /// Which.
        key: &'static str,
        /// Its value.
        found: f32,
        /// What would do.
        known: &'static str,
    },
    /// A number that has no like of 32 bits, as it was stated.
    #[error("`{key}` is {found:?}; it must be at most {most:?}", most = f32::MAX)]
    Beyond {
        /// Which.
        key: &'static str,
        /// What was stated.
        found: f64,
    },
    /// What decides a draw, where nothing is drawn.
    #[error(
        "`{key}` does nothing where the most likely token is taken each time; state a `temperature` above 0, or leave it out"
    )]
    Undrawn {
        /// Which.
        key: &'static str,
    },
}

impl SamplingError {
    /// What of sampling is at fault.
    pub const fn key(&self) -> &'static str {
        match self {
            Self::Value { key, .. } | Self::Beyond { key, .. } | Self::Undrawn { key } => key,
        }
    }
}

/// A stated number as [`Sampling`] has it.
pub(crate) fn narrowed(key: &'static str, stated: f64) -> Result<f32, SamplingError> {
    let found = stated as f32;
    if found.is_infinite() && stated.is_finite() {
        return Err(SamplingError::Beyond { key, found: stated });
    }
    Ok(found)
}

/// A token and how likely it is.
type Candidate = (u32, f64);

/// The most that a penalty takes from a logit for each token, and that a factor changes it by: real ones lie between -2
/// and 2. Beyond, logits would overflow after enough tokens.
const MOST: f32 = 100.0;

impl Sampling {
    /// That every value is one that can be sampled with.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&self) -> Result<(), SamplingError> {
        type Rule = (&'static str, f32, fn(f32) -> bool, &'static str);
        let rules: [Rule; 6] = [
            ("temperature", self.temperature, |it| it >= 0.0, "a number from 0 on"),
            ("top_p", self.top_p, |it| it > 0.0 && it <= 1.0, "above 0 and at most 1"),
            ("min_p", self.min_p, |it| (0.0..=1.0).contains(&it), "from 0 to 1"),
            ("repetition_penalty", self.repetition_penalty, |it| (1.0 / MOST..=MOST).contains(&it), "from 0.01 to 100"),
            ("presence_penalty", self.presence_penalty, |it| it.abs() <= MOST, "from -100 to 100"),
            ("frequency_penalty", self.frequency_penalty, |it| it.abs() <= MOST, "from -100 to 100"),
        ];
        match rules.into_iter().find(|(_, value, holds, _)| !value.is_finite() || !holds(*value)) {
            Some((key, found, _, known)) => Err(SamplingError::Value { key, found, known }),
            None => Ok(()),
        }
    }

    /// The token that follows `tokens`, of which the first `prompt` are the prompt's; `None` if the logits are no numbers.
    #[must_use]
    pub fn choose(&self, logits: &[f32], tokens: &[u32], prompt: usize) -> Option<u32> {
        Sampler::new(self, tokens, prompt).choose(logits)
    }

    /// The tokens that may follow and how likely each is, by their ids; `None` if the logits are no numbers.
    #[must_use]
    pub fn distribution(&self, logits: &[f32], tokens: &[u32], prompt: usize) -> Option<Vec<Candidate>> {
        let sampler = Sampler::new(self, tokens, prompt);
        let penalised = sampler.penalised(logits);
        match self.temperature {
            0.0 => Some(vec![(greedy(&penalised)?, 1.0)]),
            _ => self.shares(&penalised),
        }
    }

    /// Whether tokens that have occurred are as any.
    fn is_neutral(&self) -> bool {
        (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) == (1.0, 0.0, 0.0)
    }

    /// How likely each token that may follow is, by their ids, where the temperature is not 0.
    fn shares(&self, logits: &[f32]) -> Option<Vec<Candidate>> {
        let highest = logits
            .iter()
            .copied()
            .try_fold(f32::NEG_INFINITY, |highest, logit| if logit.is_nan() { None } else { Some(highest.max(logit)) });
        let highest = f64::from(highest.filter(|highest| highest.is_finite())?);
        let temperature = f64::from(self.temperature);
        let least = match self.top_k {
            0 => f32::NEG_INFINITY,
            count if count >= logits.len() => f32::NEG_INFINITY,
            count => largest(logits, count),
        };
        // Relative to the most likely one, which is 1: nothing overflows, however low the temperature.
        let relative = |(token, &logit): (u32, &f32)| (token, ((f64::from(logit) - highest) / temperature).exp());
        let mut candidates: Vec<Candidate> =
            (0..).zip(logits).filter(|(_, logit)| **logit >= least).map(relative).collect();
        if self.top_p < 1.0 {
            keep_share(&mut candidates, f64::from(self.top_p));
        }
        let least = f64::from(self.min_p);
        candidates.retain(|(_, share)| *share >= least);
        let sum: f64 = candidates.iter().map(|(_, share)| share).sum();
        candidates.iter_mut().for_each(|(_, share)| *share /= sum);
        Some(candidates)
    }
}

/// The `count`th largest of more numbers than that. Only those are compared that may be among them.
fn largest(numbers: &[f32], count: usize) -> f32 {
    let room = 2 * count + 256;
    let mut kept = Vec::with_capacity(room);
    let mut least = f32::NEG_INFINITY;
    for &number in numbers {
        if number > least {
            kept.push(number);
            if kept.len() == room {
                kept.select_nth_unstable_by(count - 1, |left, right| right.total_cmp(left));
                kept.truncate(count);
                least = kept[count - 1];
            }
        }
    }
    // Those that are no larger than the least of all were left out.
    if kept.len() < count {
        return f32::NEG_INFINITY;
    }
    *kept.select_nth_unstable_by(count - 1, |left, right| right.total_cmp(left)).1
}

/// The more likely first; of equals the lower number.
fn likelier(left: &Candidate, right: &Candidate) -> Ordering {
    right.1.total_cmp(&left.1).then(left.0.cmp(&right.0))
}

/// Keeps the fewest most likely candidates that have `share` of the sum together, by their ids.
fn keep_share(candidates: &mut Vec<Candidate>, share: f64) {
    let all: f64 = candidates.iter().map(|(_, share)| share).sum();
    // All that are rarer together have less than the rest, so that none of them is needed. They are mostly the most.
    let rare = (1.0 - share) * all / candidates.len() as f64;
    candidates.retain(|(_, share)| *share >= rare);
    candidates.sort_unstable_by(likelier);
    let mut sum = 0.0;
    let last = candidates.iter().position(|(_, each)| {
        sum += each;
        sum >= share * all
    });
    candidates.truncate(last.map_or(candidates.len(), |last| last + 1));
    candidates.sort_unstable_by_key(|(token, _)| *token);
}

/// A number from 0 to below 1 that follows from a seed and a position alone.
fn uniform(seed: u64, position: u64) -> f64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes()).update(&position.to_le_bytes());
    let mut bits = [0; 8];
    hasher.finalize_xof().fill(&mut bits);
    (u64::from_le_bytes(bits) >> 11) as f64 / (1u64 << 53) as f64
}

/// The place of the largest logit, the first of several; `None` if one of them is not a number.
pub(crate) fn greedy(logits: &[f32]) -> Option<u32> {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, &logit) in logits.iter().enumerate() {
        if logit.is_nan() {
            return None;
        }
        if logit > best.1 {
            best = (token, logit);
        }
    }
    Some(best.0 as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn the_first_of_equal_logits_wins() {
        assert_eq!(greedy(&[0.5, 2.0, 2.0]), Some(1));
    }

    #[rstest]
    #[case(f32::NAN)]
    #[case(f32::INFINITY)]
    fn logits_that_are_no_numbers_choose_nothing(#[case] bad: f32) {
        assert_eq!(greedy(&[0.5, f32::NAN, 2.0]), None);
        let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
        assert_eq!(sampling.choose(&[0.5, bad, 2.0], &[0], 1), None);
        assert_eq!(sampling.choose(&[f32::NEG_INFINITY; 3], &[0], 1), None);
    }

    #[test]
    fn draws_are_even_and_follow_from_seed_and_position() {
        let draws: Vec<f64> = (0..4096).map(|position| uniform(7, position)).collect();
        let mut tenths = [0u32; 10];
        draws.iter().for_each(|draw| tenths[(draw * 10.0) as usize] += 1);
        // Nine degrees of freedom: above 27.9 in one of a thousand seeds.
        let squared: f64 = tenths.iter().map(|&count| (f64::from(count) - 409.6).powi(2) / 409.6).sum();
        assert!(squared < 27.9, "{squared}");
        assert_eq!(uniform(7, 5), draws[5]);
        assert_ne!(uniform(8, 5), draws[5]);
    }

    #[test]
    fn tokens_come_as_often_as_they_are_likely() {
        let logits = [1.0, 0.0, -1.0, 2.0, 0.5];
        let mut counts = [0u32; 5];
        let sampling = Sampling { temperature: 0.8, ..Sampling::default() };
        const DRAWS: u32 = 20_000;
        for seed in 0..u64::from(DRAWS) {
            let token = Sampling { seed, ..sampling.clone() }.choose(&logits, &[1, 2], 1).unwrap();
            counts[token as usize] += 1;
        }
        let expected = sampling.distribution(&logits, &[1, 2], 1).unwrap();
        let squared: f64 = expected
            .iter()
            .map(|&(token, share)| {
                (f64::from(counts[token as usize]) - share * f64::from(DRAWS)).powi(2) / (share * f64::from(DRAWS))
            })
            .sum();
        // Four degrees of freedom: above 18.5 in one of a thousand.
        assert!(squared < 18.5, "{counts:?}, {squared}");
    }

    #[test]
    fn a_share_of_many_is_found_in_the_order_of_likelihood() {
        let logits: Vec<f32> = (0..5000).map(|at| (at as f32 * 0.37).sin()).collect();
        let sampling = Sampling { temperature: 1.0, top_p: 0.9, ..Sampling::default() };
        let mut kept = sampling.distribution(&logits, &[], 0).unwrap();
        assert!(kept.is_sorted_by_key(|(token, _)| *token));
        kept.sort_unstable_by(likelier);
        let mut all = Sampling { top_p: 1.0, ..sampling }.distribution(&logits, &[], 0).unwrap();
        all.sort_unstable_by(likelier);
        let mut sum = 0.0;
        let count = all
            .iter()
            .take_while(|(_, share)| {
                let before = sum;
                sum += share;
                before < 0.9
            })
            .count();
        assert_eq!(kept.len(), count);
        assert!(kept.iter().zip(&all).all(|(kept, all)| kept.0 == all.0));
    }

    /// By likelihood, the draws between the places of two tokens that rounding lets swap would all change.
    #[test]
    fn rounding_changes_no_more_draws_than_shares() {
        let logits: Vec<f32> = (0..64).map(|at| (at as f32 * 0.7).sin()).collect();
        let sampling = Sampling { temperature: 0.8, top_k: 40, ..Sampling::default() };
        let mut changed = 0;
        for seed in 0..2000 {
            let sampling = Sampling { seed, ..sampling.clone() };
            // Every two neighbours by likelihood are as likely but for rounding, and swap.
            let (mut one, mut other) = (logits.clone(), logits.clone());
            for at in (0..64).step_by(2) {
                (one[at], one[at + 1]) = (logits[at], logits[at] + 7e-7);
                (other[at], other[at + 1]) = (logits[at] + 7e-7, logits[at]);
            }
            changed += usize::from(sampling.choose(&one, &[], 0) != sampling.choose(&other, &[], 0));
        }
        assert!(changed <= 1, "{changed} of 2000 draws changed");
    }

    #[rstest]
    fn the_most_likely_are_those_that_sorting_finds(#[values(1, 3, 40, 300, 4999)] top_k: usize) {
        // Some are equal, so that more than so many may be as likely as the last.
        let logits: Vec<f32> = (0..5000).map(|at| ((at as f32 * 0.37).sin() * 500.0).round() / 100.0).collect();
        let sampling = Sampling { temperature: 1.0, top_k, ..Sampling::default() };
        let mut sorted = logits.clone();
        sorted.sort_unstable_by(|left, right| right.total_cmp(left));
        let kept: Vec<u32> = sampling.distribution(&logits, &[], 0).unwrap().iter().map(|(token, _)| *token).collect();
        let expected: Vec<u32> = (0..5000).filter(|&at| logits[at as usize] >= sorted[top_k - 1]).collect();
        assert_eq!(kept, expected);
    }

    #[test]
    fn more_of_a_prompt_than_there_is_is_all_of_it() {
        let sampling = Sampling { frequency_penalty: 1.0, ..Sampling::default() };
        assert_eq!(sampling.choose(&[0.5, 2.0], &[1], 5), Some(1));
        assert_eq!(sampling.choose(&[1.5, 2.0], &[1], 0), Some(0));
    }

    #[rstest]
    #[case(Sampling { temperature: -1.0, ..Sampling::default() }, "`temperature` is -1; it must be a number from 0 on")]
    #[case(Sampling { top_p: 0.0, ..Sampling::default() }, "`top_p` is 0; it must be above 0 and at most 1")]
    #[case(Sampling { min_p: 1.5, ..Sampling::default() }, "`min_p` is 1.5")]
    #[case(Sampling { repetition_penalty: f32::NAN, ..Sampling::default() }, "`repetition_penalty` is NaN")]
    #[case(Sampling { repetition_penalty: 1e-39, ..Sampling::default() }, "`repetition_penalty` is 0.000000000000000000000000000000000000001; it must be from 0.01 to 100")]
    #[case(Sampling { frequency_penalty: -2e38, ..Sampling::default() }, "`frequency_penalty` is -200000000000000000000000000000000000000; it must be from -100 to 100")]
    #[case(Sampling { presence_penalty: 101.0, ..Sampling::default() }, "`presence_penalty` is 101; it must be from -100 to 100")]
    fn values_that_nothing_is_sampled_with_are_named(#[case] sampling: Sampling, #[case] message: &str) {
        assert!(sampling.check().unwrap_err().to_string().starts_with(message));
    }

    #[rstest]
    #[case::greedy(None, None, None, Some("`seed` does nothing where the most likely token is taken"))]
    #[case::drawn(Some(0.5), None, None, None)]
    #[case::among_few(None, Some(3), None, None)]
    #[case::among_few_and_greedy(Some(0.0), Some(3), Some(1.0), None)]
    #[case::by_a_request(None, None, Some(1.0), None)]
    #[case::by_no_request(None, None, Some(0.0), Some("`seed` does nothing"))]
    fn a_seed_is_refused_where_nothing_is_drawn(
        #[case] temperature: Option<f32>,
        #[case] top_k: Option<usize>,
        #[case] own: Option<f32>,
        #[case] expected: Option<&str>,
    ) {
        let said = SamplingOptions { temperature, top_k, seed: Some(1), ..SamplingOptions::default() };
        let own = own.map(|own| SamplingOptions { temperature: Some(own), ..SamplingOptions::default() });
        let refused = said.refuse_undrawn(&Sampling::default(), &own).err().map(|error| error.to_string());
        assert_eq!(refused.is_some(), expected.is_some(), "{refused:?}");
        assert!(refused.iter().zip(expected).all(|(refused, expected)| refused.starts_with(expected)), "{refused:?}");
    }
}
