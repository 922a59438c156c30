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

impl Quantiles {
    /// `None` of no times.
    fn of(times: &mut [Duration]) -> Option<Self> {
        times.sort_unstable();
        // The smallest that is not below so many of a hundred.
        let at = |percent: usize| times[(times.len() * percent).div_ceil(100).saturating_sub(1)].as_secs_f64();
        (!times.is_empty()).then(|| Self { p50: at(50), p99: at(99), max: at(100) })
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
    first: Vec<Duration>,
    gaps: Vec<Duration>,
    timeline: Timeline,
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(book: &CacheBook, totals: &'a mut Totals) -> Self {
        let (steps, computed_prompt_tokens, generated_tokens, preemptions) = Default::default();
        let (end, offloads, drafted_tokens, accepted_tokens, verifications, first, gaps) = Default::default();
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
            first,
            gaps,
            timeline,
        }
    }

    /// A sequence was admitted that has so many tokens to compute.
    pub(crate) fn computes(&mut self, tokens: usize) {
        self.computed_prompt_tokens += tokens as u64;
        self.totals.computed_prompt_tokens += tokens as u64;
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
        self.first.extend(output.times.first_token);
    }

    pub(crate) fn done(mut self) -> (Speed, Timeline) {
        let seconds = self.end.as_secs_f64();
        let speed = Speed {
            seconds,
            steps: self.steps,
            computed_prompt_tokens: self.computed_prompt_tokens,
            generated_tokens: self.generated_tokens,
            tokens_per_second: if seconds > 0.0 { self.generated_tokens as f64 / seconds } else { 0.0 },
            time_to_first_token: Quantiles::of(&mut self.first),
            time_per_token: Quantiles::of(&mut self.gaps),
            preemptions: self.preemptions,
            offloads: self.offloads,
            drafted_tokens: self.drafted_tokens,
            accepted_tokens: self.accepted_tokens,
            tokens_per_verification: (self.verifications > 0)
                .then(|| 1.0 + self.accepted_tokens as f64 / self.verifications as f64),
        };
        (speed, self.timeline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_times_that_were_measured() {
        let mut times: Vec<Duration> = (1..=200).rev().map(Duration::from_secs).collect();
        assert_eq!(Quantiles::of(&mut times), Some(Quantiles { p50: 100.0, p99: 198.0, max: 200.0 }));
        assert_eq!(Quantiles::of(&mut times[..1]), Some(Quantiles { p50: 1.0, p99: 1.0, max: 1.0 }));
        assert_eq!(Quantiles::of(&mut []), None);
    }
}
