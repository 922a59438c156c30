//! Aligned text columns within a fixed width.

use cacheplan_files::Shown;

/// Where lines are broken: what terminals show who looks for the first time.
pub(crate) const WIDTH: usize = 80;

/// The widest line of a table whose columns leave too little below [`WIDTH`] for a last one to be broken.
const WIDEST: usize = 100;

/// Rows aligned by column, two blanks between; columns whose index is in `right` end flush. A last cell that would end
/// beyond [`WIDTH`] goes on in the lines below.
pub(crate) fn align(rows: &[Vec<String>], right: &[usize]) -> Vec<String> {
    let (rows, widths) = measured(rows);
    let lines = |row: &Vec<String>| {
        let whole = line(row, &widths, right);
        let Some((last, before)) = row.split_last().filter(|(_, before)| !right.contains(&before.len())) else {
            return vec![whole];
        };
        let indent: usize = widths[..before.len()].iter().map(|width| width + 2).sum();
        let most = [WIDTH, WIDEST].into_iter().find(|most| indent + LEAST_WRAPPED <= *most);
        let Some(most) = most.filter(|most| whole.chars().count() > *most) else { return vec![whole] };
        let mut wrapped = of_width(last, most - indent).into_iter();
        let first = [before, &[wrapped.next().unwrap_or_default()]].concat();
        let rest = wrapped.map(|rest| " ".repeat(indent) + &rest);
        [line(&first, &widths, right)].into_iter().chain(rest).collect()
    };
    rows.iter().flat_map(lines).collect()
}

/// The same with each row in one line, however long, for programs too.
pub(crate) fn columns(rows: &[Vec<String>], right: &[usize]) -> Vec<String> {
    let (rows, widths) = measured(rows);
    rows.iter().map(|row| line(row, &widths, right)).collect()
}

/// The rows as they are shown, since cells may come from outside, and the width of each column.
fn measured(rows: &[Vec<String>]) -> (Vec<Vec<String>>, Vec<usize>) {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| Shown(cell).to_string()).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row: &Vec<String>| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    (rows, widths)
}

fn line(row: &[String], widths: &[usize], right: &[usize]) -> String {
    let cells = row.iter().enumerate().map(|(column, cell)| {
        let width = widths[column];
        if right.contains(&column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
    });
    cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

/// No column is broken into less than this.
const LEAST_WRAPPED: usize = 17;

/// `text` broken at blanks and commas so that each line, indent included, is at most [`WIDTH`] wide.
pub(crate) fn wrap(text: &str, indent: usize) -> String {
    let text = Shown::printable(text).replace('\n', "\\u000a");
    let pad = " ".repeat(indent);
    of_width(&text, WIDTH - indent).iter().map(|line| format!("{pad}{line}\n")).collect()
}

fn of_width(text: &str, width: usize) -> Vec<String> {
    broken(text, |line| line.chars().count() <= width)
}

/// `text` broken at blanks and commas into lines that fit, as far as its words do.
pub(crate) fn broken(text: &str, fits: impl Fn(&str) -> bool) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive([' ', ',']) {
        let line = lines.last().map(String::as_str).unwrap_or_default();
        if !line.is_empty() && !fits(&format!("{line}{}", word.trim_end())) {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            line.push_str(word);
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}
