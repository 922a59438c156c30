//! What it costs that a sequence makes way for others, as the run has measured it.

use std::time::Duration;

/// How a sequence that makes way comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResumeBy {
    /// Its tokens are computed again.
    Recompute,
    /// Its caches wait in host memory.
    Host,
}

/// What computing and copying have cost so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Costs {
    /// By token of a prompt.
    computing: Rate,
    /// By byte, in one direction.
    copying: Rate,
}

/// Seconds for each of many.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    seconds: f64,
    count: f64,
}

impl Rate {
    fn add(&mut self, count: f64, time: Duration) {
        self.seconds += time.as_secs_f64();
        self.count += count;
    }

    /// `None` before anything was measured.
    fn of(self, count: f64) -> Option<f64> {
        (self.count > 0.0).then(|| self.seconds / self.count * count)
    }
}

impl Costs {
    /// A step computed so many tokens of prompts.
    pub(crate) fn computed(&mut self, tokens: usize, time: Duration) {
        self.computing.add(tokens as f64, time);
    }

    /// So many bytes were copied between the pools and host memory.
    pub(crate) fn copied(&mut self, bytes: u64, time: Duration) {
        self.copying.add(bytes as f64, time);
    }

    /// The cheaper way for a sequence with `tokens` to compute again and `bytes` to copy there and back. What was never
    /// done is tried, so that its cost is known.
    pub(crate) fn cheaper(&self, tokens: usize, bytes: u64) -> ResumeBy {
        let Some(copying) = self.copying.of(2.0 * bytes as f64) else { return ResumeBy::Host };
        match self.computing.of(tokens as f64) {
            Some(computing) if copying < computing => ResumeBy::Host,
            _ => ResumeBy::Recompute,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const SECOND: Duration = Duration::from_secs(1);

    #[rstest]
    #[case::nothing_was_copied_yet(None, Some(1), 1, ResumeBy::Host)]
    #[case::copying_there_and_back_takes_less(Some(1000), Some(10), 100, ResumeBy::Host)]
    #[case::it_takes_as_long(Some(1000), Some(10), 5, ResumeBy::Recompute)]
    #[case::few_tokens_are_computed_sooner(Some(1000), Some(10), 4, ResumeBy::Recompute)]
    #[case::nothing_was_computed_yet(Some(1000), None, 100, ResumeBy::Recompute)]
    fn the_cheaper_way_is_taken(
        #[case] bytes_a_second: Option<u64>,
        #[case] tokens_a_second: Option<usize>,
        #[case] tokens: usize,
        #[case] expected: ResumeBy,
    ) {
        let mut costs = Costs::default();
        bytes_a_second.into_iter().for_each(|bytes| costs.copied(bytes, SECOND));
        tokens_a_second.into_iter().for_each(|tokens| costs.computed(tokens, SECOND));
        assert_eq!(costs.cheaper(tokens, 250), expected);
    }
}
