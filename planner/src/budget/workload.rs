//! The sequences that a plan is sized for.

use serde::{Deserialize, Serialize};

use super::key::{TOKENS, Values, section};
use super::values::{Fraction, tokens};
use crate::limits::MAX_COUNT;

const CHECKPOINT_DTYPE_NAMES: Values =
    Values::Choice(&[("int8", "one byte per element and a scale per head and channel")]);

const CHECKPOINT_STRATEGY_NAMES: Values = Values::Choice(&[
    ("no-buffer", "where forwards and sequences end"),
    ("double-buffered", "one aligned or branch position of each forward, and every so many decoded tokens"),
    ("complete", "wherever one can serve a later prompt"),
]);

section! {
    /// The sequences that a plan is sized for; where neither length is stated each is a prompt of `max_seq_len` tokens.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub struct Workload under "workload." {
        /// Prompt lengths in tokens.
        key("--prompt", Values::Lengths, "max_seq_len, or 0 beside an output", "{ fixed = 300 }")
        pub prompt: Lengths,
        /// Output lengths in tokens.
        key("--output", Values::Lengths, "0", "{ fixed = 200 }")
        pub output: Lengths,
        /// The share of each prompt that sequences have in common; its blocks are stored once.
        key("--prefix-reuse", Values::Fraction, "not set", "0.25")
        pub prefix_reuse: Option<Fraction>,
        /// States that each running sequence leaves for prefix reuse.
        key("--checkpoints", Values::Count(0, MAX_COUNT), "0", "0")
        pub checkpoints_per_sequence: u64,
        /// How these states are stored.
        key("--checkpoint-dtype", CHECKPOINT_DTYPE_NAMES, "the states' own", "'int8'")
        #[serde(skip_serializing_if = "Option::is_none")]
        pub checkpoint_dtype: Option<CheckpointDType>,
        /// Where a run leaves these states.
        key("--checkpoint-strategy", CHECKPOINT_STRATEGY_NAMES, "complete", "'complete'")
        #[serde(skip_serializing_if = "Option::is_none")]
        pub checkpoint_strategy: Option<CheckpointStrategy>,
        /// Tokens that a run decodes from one of these states to the next, in whole blocks.
        key("--checkpoint-interval", TOKENS, "256", "256")
        #[serde(deserialize_with = "tokens", skip_serializing_if = "Option::is_none")]
        pub checkpoint_interval: Option<u64>,
    }
}

/// Where sequences leave states for later ones. No size depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckpointStrategy {
    /// Where forwards and sequences end.
    NoBuffer,
    /// At one aligned or branch position of each forward, and at intervals of what is decoded.
    DoubleBuffered,
    /// Wherever a state can serve a later prompt.
    #[default]
    Complete,
}

impl Workload {
    /// The fewest checkpoints that what else is stated of them goes with.
    pub(crate) fn fewest_checkpoints(&self) -> u64 {
        u64::from(
            self.checkpoint_dtype.is_some() || self.checkpoint_strategy.is_some() || self.checkpoint_interval.is_some(),
        )
    }

    /// Tokens from one state of a decoding sequence to the next, in whole blocks of so many tokens.
    pub fn decoded_interval(&self, tokens_per_block: u64) -> u64 {
        /// So few that a conversation goes on from near its end.
        const DECODED: u64 = 256;
        let stated = self.checkpoint_interval.unwrap_or(DECODED).max(1);
        stated.checked_next_multiple_of(tokens_per_block.max(1)).unwrap_or(u64::MAX)
    }
}

impl CheckpointStrategy {
    /// Of what there is for no buffer, a double one and complete ones, what belongs to this.
    pub fn among<T>(self, [no_buffer, double_buffered, complete]: [T; 3]) -> T {
        match self {
            Self::NoBuffer => no_buffer,
            Self::DoubleBuffered => double_buffered,
            Self::Complete => complete,
        }
    }
}

/// A dtype of checkpoints that is not the states' own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointDType {
    /// One byte per element and a float32 scale for each channel of each head.
    Int8,
}

/// A distribution of lengths in tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Lengths {
    /// Always this many.
    Fixed(u64),
    /// Every length from `min` to `max` alike.
    Uniform {
        /// The shortest.
        min: u64,
        /// The longest.
        max: u64,
    },
    /// The logarithm is normal.
    Lognormal {
        /// Half are shorter.
        median: u64,
        /// Standard deviation of the natural logarithm; 1 where absent.
        #[serde(default = "one")]
        sigma: f64,
    },
    /// `[tokens, weight]` pairs.
    Histogram(Vec<(u64, u64)>),
    /// A CSV file of `tokens,weight` lines; whoever reads files replaces it by its histogram.
    File(String),
}

impl Default for Lengths {
    fn default() -> Self {
        Self::Fixed(0)
    }
}

fn one() -> f64 {
    1.0
}

/// The most pairs of a prompt and an output length; histograms of a thousand lengths each stay below.
const MAX_SAMPLES: usize = 1 << 20;

/// The most lines of a histogram; more of them round to no better plan.
const MAX_LINES: usize = 10_000;

/// Points that stand for a continuous distribution, each in the middle of an equal share of it.
const QUANTILES: u32 = 64;

/// A prompt and the sequence it grows to, with a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) prompt: u64,
    pub(crate) total: u64,
    pub(crate) weight: u64,
}

impl Workload {
    /// Replaces files of histograms by what `read` returns for their path.
    ///
    /// # Errors
    /// What `read` returns, or a line that is not `tokens,weight`.
    pub fn load(&mut self, mut read: impl FnMut(&str) -> Result<String, String>) -> Result<(), String> {
        for lengths in [&mut self.prompt, &mut self.output] {
            if let Lengths::File(path) = lengths {
                *lengths = Lengths::Histogram(histogram(path, &read(path)?)?);
            }
        }
        Ok(())
    }

    /// Whether it says how long sequences are, rather than only what they share or leave.
    pub(crate) fn states_lengths(&self) -> bool {
        [&self.prompt, &self.output].into_iter().any(|lengths| *lengths != Lengths::default())
    }

    /// Every combination of prompt and output, cut at `max_seq_len`.
    ///
    /// # Errors
    /// A distribution that is empty, inverted, or still a file; too many combinations.
    pub(crate) fn samples(&self, max_seq_len: u64) -> Result<Vec<Sample>, String> {
        if !self.states_lengths() {
            return Ok(vec![Sample { prompt: max_seq_len, total: max_seq_len, weight: 1 }]);
        }
        let prompts = self.prompt.points("workload.prompt")?;
        let outputs = self.output.points("workload.output")?;
        if prompts.len().saturating_mul(outputs.len()) > MAX_SAMPLES {
            let (prompts, outputs) = (prompts.len(), outputs.len());
            return Err(format!(
                "`[workload]` has {prompts} prompt lengths and {outputs} output lengths, more than {MAX_SAMPLES} pairs; \
                 state each length once, or round them"
            ));
        }
        let mut samples = Vec::with_capacity(prompts.len() * outputs.len());
        for &(prompt, share) in &prompts {
            for &(output, weight) in &outputs {
                let total = prompt.saturating_add(output).clamp(1, max_seq_len);
                samples.push(Sample { prompt: prompt.min(total), total, weight: share * weight });
            }
        }
        Ok(samples)
    }
}

impl Lengths {
    /// Lengths with weights below 2^32.
    fn points(&self, key: &str) -> Result<Vec<(u64, u64)>, String> {
        let quantiles = |length: &dyn Fn(f64) -> f64| {
            let middle = |i: u32| (f64::from(i) + 0.5) / f64::from(QUANTILES);
            (0..QUANTILES).map(|i| (length(middle(i)).round().clamp(0.0, 4e9) as u64, 1)).collect()
        };
        match self {
            Self::Fixed(tokens) => Ok(vec![(*tokens, 1)]),
            Self::Uniform { min, max } if min <= max => {
                let (low, width) = (*min as f64, (max - min) as f64);
                Ok(quantiles(&|share| low + share * width))
            }
            Self::Uniform { min, max } => Err(format!("`{key}`: min {min} is above max {max}")),
            Self::Lognormal { median, sigma } if *median > 0 && (0.0..=4.0).contains(sigma) => {
                Ok(quantiles(&|share| *median as f64 * (sigma * normal_quantile(share)).exp()))
            }
            Self::Lognormal { median, sigma } => {
                Err(format!("`{key}`: median {median} must be above 0, sigma {sigma} between 0 and 4"))
            }
            Self::Histogram(pairs) => {
                let total = pairs.iter().fold(0u64, |sum, (_, weight)| sum.saturating_add(*weight));
                if total == 0 || total >= 1 << 32 {
                    return Err(format!("`{key}`: the histogram's weights add up to {total}; 1 to 2^32 - 1 would do"));
                }
                Ok(pairs.clone())
            }
            Self::File(path) => Err(format!("`{key}`: the file {path} was not read")),
        }
    }
}

fn histogram(path: &str, text: &str) -> Result<Vec<(u64, u64)>, String> {
    let lines = text.lines().map(str::trim).enumerate();
    let data = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    data.map(|(index, line)| {
        let pair = line
            .split_once(',')
            .and_then(|(tokens, weight)| Some((tokens.trim().parse().ok()?, weight.trim().parse().ok()?)));
        // What the line says is not repeated: the budget may name any file.
        match (pair, index < MAX_LINES) {
            (Some(pair), true) => Ok(pair),
            (None, true) => Err(format!("{path}:{}: this line is not `tokens,weight`", index + 1)),
            (_, false) => Err(format!("{path}: more than {MAX_LINES} lines; state each length once, or round them")),
        }
    })
    .collect()
}

/// The standard normal's inverse distribution function, by bisection of its series: exact enough for whole tokens.
fn normal_quantile(share: f64) -> f64 {
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if normal_distribution(middle) < share { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// `1/2 + density(x) * (x + x^3/3 + x^5/(3*5) + …)`.
fn normal_distribution(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for i in 1..200 {
        term *= x * x / f64::from(2 * i + 1);
        sum += term;
    }
    0.5 + sum * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(0.5, 0.0)]
    #[case(0.841_344_746, 1.0)]
    #[case(0.022_750_132, -2.0)]
    fn normal_quantiles_are_the_tables(#[case] share: f64, #[case] expected: f64) {
        assert!((normal_quantile(share) - expected).abs() < 1e-6);
    }

    #[test]
    fn a_lognormal_keeps_its_median_and_mean() {
        let points = Lengths::Lognormal { median: 300, sigma: 0.5 }.points("p").unwrap();
        assert!(points[31].0 < 300 && 300 < points[32].0);
        let mean = points.iter().map(|(tokens, _)| tokens).sum::<u64>() as f64 / 64.0;
        assert!((mean / (300.0 * (0.125f64).exp()) - 1.0).abs() < 0.01, "{mean}");
    }

    #[test]
    fn samples_are_all_pairs_cut_at_the_limit() {
        let workload = Workload {
            prompt: Lengths::Histogram(vec![(100, 3), (900, 1)]),
            output: Lengths::Fixed(200),
            ..Workload::default()
        };
        let samples = workload.samples(1000).unwrap();
        assert_eq!(samples[0], Sample { prompt: 100, total: 300, weight: 3 });
        assert_eq!(samples[1], Sample { prompt: 900, total: 1000, weight: 1 });
    }

    #[test]
    fn sequences_of_no_stated_length_are_as_long_as_they_may_be() {
        let workload = Workload { checkpoints_per_sequence: 2, ..Workload::default() };
        assert_eq!(workload.samples(1000).unwrap(), [Sample { prompt: 1000, total: 1000, weight: 1 }]);
    }

    #[test]
    fn a_file_becomes_its_histogram_and_a_bad_line_is_named() {
        let mut workload = Workload { prompt: Lengths::File("p.csv".into()), ..Workload::default() };
        assert!(workload.samples(100).unwrap_err().contains("was not read"));
        workload.load(|_| Ok("# tokens,weight\n10, 2\n20,1\n".into())).unwrap();
        assert_eq!(workload.prompt, Lengths::Histogram(vec![(10, 2), (20, 1)]));
        let mut workload = Workload { prompt: Lengths::File("p.csv".into()), ..Workload::default() };
        assert_eq!(workload.load(|_| Ok("10;2".into())), Err("p.csv:1: this line is not `tokens,weight`".into()));
    }

    #[rstest]
    #[case(Lengths::Uniform { min: 2, max: 1 })]
    #[case(Lengths::Lognormal { median: 0, sigma: 1.0 })]
    #[case(Lengths::Lognormal { median: 1, sigma: f64::NAN })]
    #[case(Lengths::Histogram(vec![]))]
    #[case(Lengths::Histogram(vec![(1, u64::MAX), (1, u64::MAX)]))]
    fn an_empty_or_inverted_distribution_is_an_error(#[case] lengths: Lengths) {
        assert!(lengths.points("p").is_err());
    }
}
