//! The lines of a text around a place in it, which is underlined.

use std::fmt::Write;
use std::ops::Range;

/// Characters of a line that are shown.
const LINE: usize = 160;

/// The line that `span` begins on, between its neighbours, under the text's name.
pub(crate) fn excerpt(name: &str, text: &str, span: Range<usize>) -> String {
    let before = text.get(..span.start).unwrap_or(text);
    let line = before.matches('\n').count();
    let column = before.chars().rev().take_while(|char| *char != '\n').count();
    let marked = text.get(span).and_then(|marked| marked.lines().next()).unwrap_or_default();
    let first = line.saturating_sub(1);
    let width = (line + 2).to_string().len();
    let mut shown = format!(" {:width$} ╭─[{name}:{}:{}]\n", "", line + 1, column + 1);
    // Of a long line what stands around the place.
    let from = if column < LINE { 0 } else { column - LINE / 2 };
    for (number, content) in text.lines().enumerate().skip(first).take(line + 2 - first) {
        let content: String = content.replace('\t', " ").chars().skip(from).take(LINE).collect();
        let _ = writeln!(shown, " {:>width$} │ {content}", number + 1);
        if number == line {
            let length = marked.chars().count().clamp(1, LINE);
            let _ = writeln!(shown, " {:width$} · {}{}", "", " ".repeat(column - from), "─".repeat(length));
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

    #[test]
    fn of_a_long_line_what_stands_around_the_place_is_shown() {
        let text = format!("{}!{}", "a".repeat(100_000), "b".repeat(100));
        let shown = excerpt("b", &text, 100_000..100_001);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[1], format!(" 1 │ {}!{}", "a".repeat(LINE / 2), "b".repeat(LINE / 2 - 1)));
        assert_eq!(lines[2], format!("   · {}─", " ".repeat(LINE / 2)));
    }
}
