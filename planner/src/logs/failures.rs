//! Why a start fails, by the words of engines: those that a log is looked through for, and that are said of a command which would fail so.

use std::fmt;

use aho_corasick::AhoCorasick;

/// Less of a device is free than its share.
pub const SHARE_IS_TAKEN: &str = "is less than desired GPU memory utilization";
/// vLLM: longer sequences are asked for than the model takes.
pub const TOO_LONG: &str = "is greater than the derived max_model_len";
/// SGLang: the same.
pub const TOO_LONG_A_CONTEXT: &str = "is greater than the derived context_length";
/// More ranks than devices.
pub const FEW_DEVICES: &str = "is larger than the number of available GPUs";
/// vLLM: nothing is left for caches.
pub const NOTHING_LEFT: &str = "No available memory for the cache blocks";
/// SGLang: the same.
pub const NOTHING_LEFT_OF_SHARE: &str = "Not enough memory. Please try to increase --mem-fraction-static.";

const LENGTH: &str = "longer sequences are asked for than the model takes";
const DEVICES: &str = "it sees fewer devices than its ranks need";
const RANKS: &str = "the model cannot be divided over so many ranks";
const MEMORY: &str = "a device has too little memory";
const KERNELS: &str = "no kernel of the device does what is asked of attention";
const CLASS: &str = "it has no class for the model";
const FLAG: &str = "its parser does not know a flag";
const VALUE: &str = "it does not take a value of a flag";
const STATES: &str = "it has fewer slots for states than sequences need";
const UNKNOWN: &str = "an error that is not known here";

/// What a line has that says why a start ends, those first that say most, and what that means.
const FAILURES: [(&str, &str); 32] = [
    ("To serve at least one request", "one sequence of the longest length does not fit into what is left for caches"),
    (NOTHING_LEFT, "weights and a step leave nothing for caches"),
    ("available Mamba cache blocks", "it has fewer blocks for states than sequences"),
    ("In Mamba cache align mode", "a step is shorter than a block beside states"),
    (NOTHING_LEFT_OF_SHARE, "weights leave nothing of its share for caches"),
    ("Not enough GPU memory for hybrid", STATES),
    ("state cache is too small to serve", STATES),
    ("Capture cuda graph failed", "graphs do not fit beside its share"),
    (SHARE_IS_TAKEN, "less of a device is free than its share: something else is on it"),
    ("out of memory", MEMORY),
    ("failed to allocate", MEMORY),
    (TOO_LONG, LENGTH),
    (TOO_LONG_A_CONTEXT, LENGTH),
    (FEW_DEVICES, DEVICES),
    ("No CUDA GPUs are available", DEVICES),
    ("No accelerator (CUDA", DEVICES),
    ("invalid device ordinal", DEVICES),
    ("must be divisible by tensor parallel size", RANKS),
    ("not divisible by tp_size", RANKS),
    ("No valid attention backend", KERNELS),
    ("is not valid for this configuration", KERNELS),
    ("Unknown architecture for AutoModel", CLASS),
    ("are not supported for now", CLASS),
    ("has no SGlang implementation", CLASS),
    ("Cannot find model module", CLASS),
    ("unknown model architecture", CLASS),
    ("unrecognized arguments", FLAG),
    ("invalid argument: ", FLAG),
    ("error while handling argument", VALUE),
    ("error: argument ", VALUE),
    ("Error: ", UNKNOWN),
    ("error: ", UNKNOWN),
];

/// What is kept of a line.
const MOST_SAID: usize = 4 << 10;

/// Looks lines through for why a start fails.
pub(super) struct Failures {
    words: AhoCorasick,
    found: Option<(usize, u64, String)>,
}

/// The failure that says most, and of these the first.
pub(super) struct Found {
    pub(super) line: u64,
    pub(super) why: &'static str,
    pub(super) said: Line,
}

/// A line of a log, which is looked through and never shown.
pub struct Line(String);

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a line")
    }
}

impl Line {
    /// Whether it has the words of a message, whatever the numbers in either are.
    pub(super) fn says(&self, message: &str) -> bool {
        // A few words may be any line's.
        const FEWEST: usize = 12;
        let is_of_word = |sign: &char| !(sign.is_whitespace() || sign.is_numeric() || matches!(sign, '.' | ','));
        let words = |text: &str| text.chars().filter(is_of_word).collect::<String>();
        let message = words(message);
        message.len() >= FEWEST && words(&self.0).contains(&message)
    }
}

impl Default for Failures {
    fn default() -> Self {
        Self { words: AhoCorasick::new(FAILURES.map(|(words, _)| words)).expect("few and short texts"), found: None }
    }
}

impl Failures {
    pub(super) fn look(&mut self, number: u64, line: &[u8]) {
        let Some(which) = self.words.find_overlapping_iter(line).map(|found| found.pattern().as_usize()).min() else {
            return;
        };
        if self.found.as_ref().is_none_or(|(known, ..)| which < *known) {
            let said = String::from_utf8_lossy(&line[..line.len().min(MOST_SAID)]).into_owned();
            self.found = Some((which, number, said));
        }
    }

    pub(super) fn first(self) -> Option<Found> {
        self.found.map(|(which, line, said)| Found { line, why: FAILURES[which].1, said: Line(said) })
    }
}
