//! Strings that end a text, wherever the ends of tokens fall.

/// What a token adds to the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Text that nothing to come can change; often empty.
    pub text: String,
    /// Whether a stop string has come: the text ends before it.
    pub stopped: bool,
}

/// Why a string ends no text when it comes, where it does not.
pub fn no_stop(stop: &str) -> Option<&'static str> {
    match stop.chars().last() {
        None => Some("an empty string ends no text"),
        Some(char::REPLACEMENT_CHARACTER) => Some(
            "U+FFFD stands for bytes that are no character yet, and is seen only behind what comes next; end it before",
        ),
        Some(_) => None,
    }
}

#[derive(Debug, Default)]
pub(crate) struct StopStrings {
    stop: Vec<String>,
    /// Text that may be the beginning of one of them.
    held: String,
}

impl StopStrings {
    pub(crate) fn new(mut stop: Vec<String>) -> Self {
        stop.retain(|stop| !stop.is_empty());
        Self { stop, held: String::new() }
    }

    /// The text that can be let out, up to the first stop string.
    pub(crate) fn push(&mut self, text: &str) -> Piece {
        self.held.push_str(text);
        if let Some(at) = self.stop.iter().filter_map(|stop| self.held.find(stop)).min() {
            self.held.truncate(at);
            return Piece { text: std::mem::take(&mut self.held), stopped: true };
        }
        let kept = self.held.split_off(self.held.len() - self.beginning());
        Piece { text: std::mem::replace(&mut self.held, kept), stopped: false }
    }

    /// What turned out to be no stop string.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Bytes at the end of what is held that a stop string may begin with.
    fn beginning(&self) -> usize {
        let longest = |stop: &String| {
            let ends = stop.char_indices().map(|(at, _)| at);
            ends.rev().find(|&at| self.held.ends_with(&stop[..at])).unwrap_or(0)
        };
        self.stop.iter().map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// However the text is cut, what is let out is what comes before the first stop string.
        #[test]
        fn a_stop_string_is_found_across_every_cut(
            text in "[abé]{0,24}",
            stop in prop::collection::vec("[abé]{1,3}", 0..3),
            cuts in prop::collection::vec(1usize..4, 24),
        ) {
            let mut stream = StopStrings::new(stop.clone());
            let (mut out, mut stopped) = (String::new(), false);
            let characters: Vec<char> = text.chars().collect();
            let mut rest = characters.as_slice();
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                rest = later;
                let piece = stream.push(&now.iter().collect::<String>());
                out += &piece.text;
                stopped = piece.stopped;
                if stopped {
                    break;
                }
            }
            if !stopped {
                out += &stream.finish();
            }
            // The cuts decide which of two overlapping strings is whole first.
            let first = stop.iter().filter_map(|stop| text.find(stop)).min();
            prop_assert_eq!(stopped, first.is_some());
            if let Some(first) = first {
                prop_assert!(text.starts_with(&out) && out.len() >= first);
                prop_assert!(stop.iter().all(|stop| !out.contains(stop)));
                prop_assert!(stop.iter().any(|stop| text[out.len()..].starts_with(stop)));
            } else {
                prop_assert_eq!(out, text);
            }
        }
    }
}
