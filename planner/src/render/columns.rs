//! Aligned text columns within a fixed width.

/// The widest line of a table.
pub(crate) const WIDTH: usize = 100;

/// Rows aligned by column, two blanks between; columns whose index is in `right` end flush.
pub(crate) fn align(rows: &[Vec<String>], right: &[usize]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0))
        .collect();
    rows.iter()
        .map(|row| {
            let cells = row.iter().enumerate().map(|(column, cell)| {
                let width = widths[column];
                if right.contains(&column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        })
        .collect()
}

/// `text` broken at blanks and commas so that each line, indent included, is at most [`WIDTH`] wide.
pub(crate) fn wrap(text: &str, indent: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive([' ', ',']) {
        let used = lines.last().map_or(0, |line| line.chars().count());
        if used > 0 && indent + used + word.trim_end().chars().count() > WIDTH {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            line.push_str(word);
        }
    }
    let pad = " ".repeat(indent);
    lines.iter().map(|line| format!("{pad}{}\n", line.trim_end())).collect()
}
