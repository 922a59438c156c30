//! Names that look like the one that was not found.

/// The known names that resemble `wanted` most, at most three, joined by commas; `none` if nothing is close.
pub(crate) fn near<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let mut ranked: Vec<(usize, &str)> = known.into_iter().map(|name| (edit_distance(wanted, name), name)).collect();
    ranked.sort_unstable();
    ranked.dedup();
    let limit = (wanted.chars().count() / 2).max(2);
    let close: Vec<&str> = ranked.iter().filter(|(far, _)| *far <= limit).map(|&(_, name)| name).take(3).collect();
    if close.is_empty() { "none".to_owned() } else { close.join(", ") }
}

/// Levenshtein distance; only the first 64 characters count, which bounds the work on hostile input.
pub fn edit_distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, l) in left.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &r) in right.iter().enumerate() {
            let substituted = diagonal + usize::from(l != r);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_come_first_and_distant_ones_are_left_out() {
        assert_eq!(near("qwen4", ["llama", "qwen3", "qwen2"]), "qwen2, qwen3");
        assert_eq!(near("something_else", ["llama"]), "none");
        assert_eq!(edit_distance("kitten", "sitting"), 3);
    }
}
