//! Names that look like the one that was not found.

use std::fmt;

use cacheplan_files::Shown;

/// The known names that resemble `wanted` most and `may_be` meant, at most three, joined by commas; empty if nothing is close.
pub(crate) fn near_of<'a>(
    wanted: &str,
    known: impl IntoIterator<Item = &'a str>,
    may_be: impl Fn(&str) -> bool,
) -> String {
    let mut ranked: Vec<(usize, &str)> = known.into_iter().map(|name| (Shown(wanted).distance(name), name)).collect();
    ranked.sort_unstable();
    ranked.dedup();
    let limit = (wanted.chars().count() / 2).max(2);
    let close = ranked.iter().filter(|(far, _)| *far <= limit).map(|&(_, name)| name);
    let close: Vec<&str> = close.filter(|name| may_be(name)).take(3).collect();
    close.join(", ")
}

/// The same of any name.
pub(crate) fn near<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    near_of(wanted, known, |_| true)
}

/// What an error says of near names, behind the name that was not found.
pub(crate) struct Near<'a>(pub(crate) &'a str);

impl fmt::Display for Near<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, " (near: {})", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_come_first_and_distant_ones_are_left_out() {
        assert_eq!(near("qwen4", ["llama", "qwen3", "qwen2"]), "qwen2, qwen3");
        assert_eq!(near("something_else", ["llama"]), "");
        assert_eq!(format!("{}{}", Near("a"), Near("")), " (near: a)");
    }
}
