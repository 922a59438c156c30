//! How fast requests were served, and how full the pools were meanwhile.

use std::time::Duration;

use cacheplan_managers::book::CacheBook;
use serde::Serialize;

use crate::request::Output;
use crate::timeline::{Moment, Timeline};
use crate::totals::Totals;

/// How fast requests were served; times in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Speed {
    /// From the start to the last token.
    pub seconds: f64,
    /// Steps of the model.
    pub steps: u64,
    /// Tokens of prompts that were computed, those of preempted sequences again.
    pub computed_prompt_tokens: u64,
    /// Tokens whose caches sequences found again that had given them up.
    pub returned_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Generated tokens per second.
    pub tokens_per_second: f64,
    /// From the arrival of a request to its first token.
    pub time_to_first_token: Option<Quantiles>,
    /// From a token of a sequence to the next.
    pub time_per_token: Option<Quantiles>,
    /// Times that a sequence gave up its caches.
    pub preemptions: u64,
    /// Of these, those after which they waited in host memory; after the others they were computed again.
    pub offloads: u64,
    /// Tokens that were guessed ahead.
    pub drafted_tokens: u64,
    /// Of these, those that the model chose too.
    pub accepted_tokens: u64,
    /// Where guesses branched, the tokens that a chain would have guessed at the same places.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain_drafted_tokens: Option<u64>,
    /// Of these, those that the model chose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain_accepted_tokens: Option<u64>,
    /// Tokens that a sequence gained by a step that verified guesses for it; 1 is what a step gives without any.
    pub tokens_per_verification: Option<f64>,
}

/// Some of the order statistics of times in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quantiles {
    /// Half took no longer.
    pub p50: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
    /// None took longer.
    pub max: f64,
}

/// The most times that are kept; of more, as many at random.
const SAMPLES: usize = 1 << 16;

/// Times whose order statistics are wanted, in bounded memory: exact up to [`SAMPLES`], of an even sample beyond.
#[derive(Debug, Default)]
struct Sample {
    kept: Vec<Duration>,
    seen: u64,
    longest: Duration,
}

impl Sample {
    fn push(&mut self, time: Duration) {
        self.seen += 1;
        self.longest = self.longest.max(time);
        if self.kept.len() < SAMPLES {
            self.kept.push(time);
            return;
        }
        // Each that was seen is as likely to be kept as any other. The numbers are those of SplitMix64.
        let mut random = self.seen.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        random = (random ^ (random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        random = (random ^ (random >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let place = (random ^ (random >> 31)) % self.seen;
        if let Some(kept) = usize::try_from(place).ok().and_then(|place| self.kept.get_mut(place)) {
            *kept = time;
        }
    }

    /// `None` of no times.
    fn quantiles(&mut self) -> Option<Quantiles> {
        self.kept.sort_unstable();
        // The smallest that is not below so many of a hundred.
        let at = |percent: usize| (self.kept.len() * percent).div_ceil(100).saturating_sub(1);
        let [p50, p99] = [50, 99].map(|percent| self.kept.get(at(percent)).map(Duration::as_secs_f64));
        Some(Quantiles { p50: p50?, p99: p99?, max: self.longest.as_secs_f64() })
    }
}

/// Takes notes while requests are served.
#[derive(Debug)]
pub(crate) struct Recorder<'a> {
    totals: &'a mut Totals,
    steps: u64,
    end: Duration,
    computed_prompt_tokens: u64,
    generated_tokens: u64,
    preemptions: u64,
    offloads: u64,
    drafted_tokens: u64,
    accepted_tokens: u64,
    verifications: u64,
    /// Guessed by chains in place of trees, and accepted.
    chained: Option<[u64; 2]>,
    first: Sample,
    gaps: Sample,
    returned_tokens: u64,
    timeline: Timeline,
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(book: &CacheBook, totals: &'a mut Totals) -> Self {
        let (steps, computed_prompt_tokens, generated_tokens, preemptions) = Default::default();
        let (end, offloads, drafted_tokens, accepted_tokens, verifications, first, gaps) = Default::default();
        let returned_tokens = 0;
        let pools = book.stats().pools.into_iter().map(|pool| (pool.id, pool.capacity));
        let timeline = Timeline::new(pools.collect());
        Self {
            totals,
            steps,
            end,
            computed_prompt_tokens,
            generated_tokens,
            preemptions,
            offloads,
            drafted_tokens,
            accepted_tokens,
            verifications,
            chained: None,
            first,
            gaps,
            returned_tokens,
            timeline,
        }
    }

    /// A sequence was admitted that has so many tokens to compute.
    pub(crate) fn computes(&mut self, tokens: usize) {
        self.computed_prompt_tokens += tokens as u64;
        self.totals.computed_prompt_tokens += tokens as u64;
    }

    /// A sequence that had made way found so many tokens' caches.
    pub(crate) fn returned(&mut self, tokens: usize) {
        self.returned_tokens += tokens as u64;
    }

    /// The caches of a sequence were moved to host memory.
    pub(crate) fn offloaded(&mut self) {
        self.offloads += 1;
        self.totals.offloads += 1;
    }

    /// So many tokens were guessed, and so many of them accepted.
    pub(crate) fn drafted(&mut self, drafted: usize, accepted: usize) {
        self.drafted_tokens += drafted as u64;
        self.accepted_tokens += accepted as u64;
        self.verifications += u64::from(drafted > 0);
        self.totals.drafted_tokens += drafted as u64;
        self.totals.accepted_tokens += accepted as u64;
    }

    /// In place of a tree a chain would have guessed so many tokens, of which so many would have been accepted.
    pub(crate) fn chained(&mut self, drafted: usize, accepted: usize) {
        let [all, right] = self.chained.unwrap_or_default();
        self.chained = Some([all + drafted as u64, right + accepted as u64]);
    }

    pub(crate) fn gap(&mut self, time: Duration) {
        self.gaps.push(time);
        self.totals.gap(time);
    }

    pub(crate) fn step(&mut self, at: Duration, running: usize, waiting: usize, book: &CacheBook) {
        self.steps += 1;
        self.totals.steps += 1;
        self.end = at;
        self.timeline.push(|| Moment { at, running, waiting, used: book.used_units().collect() });
    }

    pub(crate) fn finished(&mut self, output: &Output) {
        self.totals.finished(output);
        self.generated_tokens += output.tokens.len() as u64;
        self.preemptions += u64::from(output.preemptions);
        output.times.first_token.into_iter().for_each(|time| self.first.push(time));
    }

    pub(crate) fn done(mut self) -> (Speed, Timeline) {
        let seconds = self.end.as_secs_f64();
        let speed = Speed {
            seconds,
            steps: self.steps,
            computed_prompt_tokens: self.computed_prompt_tokens,
            returned_tokens: self.returned_tokens,
            generated_tokens: self.generated_tokens,
            tokens_per_second: if seconds > 0.0 { self.generated_tokens as f64 / seconds } else { 0.0 },
            time_to_first_token: self.first.quantiles(),
            time_per_token: self.gaps.quantiles(),
            preemptions: self.preemptions,
            offloads: self.offloads,
            drafted_tokens: self.drafted_tokens,
            accepted_tokens: self.accepted_tokens,
            chain_drafted_tokens: self.chained.map(|[drafted, _]| drafted),
            chain_accepted_tokens: self.chained.map(|[_, accepted]| accepted),
            tokens_per_verification: (self.verifications > 0)
                .then(|| 1.0 + self.accepted_tokens as f64 / self.verifications as f64),
        };
        (speed, self.timeline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantiles(times: impl IntoIterator<Item = u64>) -> Option<Quantiles> {
        let mut sample = Sample::default();
        times.into_iter().for_each(|seconds| sample.push(Duration::from_secs(seconds)));
        assert!(sample.kept.len() <= SAMPLES && sample.kept.capacity() <= SAMPLES);
        sample.quantiles()
    }

    #[test]
    fn quantiles_are_times_that_were_measured() {
        assert_eq!(quantiles((1..=200).rev()), Some(Quantiles { p50: 100.0, p99: 198.0, max: 200.0 }));
        assert_eq!(quantiles([200]), Some(Quantiles { p50: 200.0, p99: 200.0, max: 200.0 }));
        assert_eq!(quantiles([]), None);
    }

    #[test]
    fn quantiles_of_very_many_times_are_near_and_take_no_more_memory() {
        let found = quantiles((1..=1_000_000).rev()).unwrap();
        assert!((found.p50 - 500_000.0).abs() < 10_000.0, "{found:?}");
        assert!((found.p99 - 990_000.0).abs() < 2_000.0, "{found:?}");
        assert_eq!(found.max, 1_000_000.0);
    }
}
