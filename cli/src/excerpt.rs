//! The lines of a text around a place in it, which is underlined.

use std::fmt::Write;
use std::ops::Range;

/// The line that `span` begins on, between its neighbours, under the text's name.
pub(crate) fn excerpt(name: &str, text: &str, span: Range<usize>) -> String {
    let before = text.get(..span.start).unwrap_or(text);
    let line = before.matches('\n').count();
    let column = before.chars().rev().take_while(|char| *char != '\n').count();
    let marked = text.get(span).and_then(|marked| marked.lines().next()).unwrap_or_default();
    let first = line.saturating_sub(1);
    let width = (line + 2).to_string().len();
    let mut shown = format!(" {:width$} ╭─[{name}:{}:{}]\n", "", line + 1, column + 1);
    for (number, content) in text.lines().enumerate().skip(first).take(line + 2 - first) {
        let _ = writeln!(shown, " {:>width$} │ {}", number + 1, content.replace('\t', " "));
        if number == line {
            let _ = writeln!(shown, " {:width$} · {:column$}{}", "", "", "─".repeat(marked.chars().count().max(1)));
        }
    }
    let _ = writeln!(shown, " {:width$} ╰────", "");
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case::first("ab = 3\n[c]\nd = 1\n", 0..2, "   ╭─[b:1:1]\n 1 │ ab = 3\n   · ──\n 2 │ [c]\n   ╰────\n")]
    #[case::last("[c]\nd =\t1", 8..9, "   ╭─[b:2:5]\n 1 │ [c]\n 2 │ d = 1\n   ·     ─\n   ╰────\n")]
    #[case::over_lines("a\nö = [\n1]\nc", 2..10, "   ╭─[b:2:1]\n 1 │ a\n 2 │ ö = [\n   · ─────\n 3 │ 1]\n   ╰────\n")]
    #[case::beyond("a", 7..9, "   ╭─[b:1:2]\n 1 │ a\n   ·  ─\n   ╰────\n")]
    fn a_place_stands_between_its_neighbours(#[case] text: &str, #[case] span: Range<usize>, #[case] shown: &str) {
        assert_eq!(excerpt("b", text, span), shown);
    }
}
