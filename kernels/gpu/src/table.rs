//! Tables of text.

/// Rows under headings, in columns as wide as their widest entry. Columns whose heading begins with `>` end on one line.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let names: Vec<&str> = headings.iter().map(|heading| heading.trim_start_matches('>')).collect();
    let widest = |column: usize| {
        let entries = rows.iter().filter_map(|row| row.get(column)).map(|entry| entry.chars().count());
        entries.chain([names[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..names.len()).map(widest).collect();
    let line = |entries: &[String]| {
        let mut line = String::new();
        for ((entry, heading), width) in entries.iter().zip(headings).zip(&widths) {
            let space = " ".repeat(width - entry.chars().count());
            line += &if heading.starts_with('>') { format!("{space}{entry}  ") } else { format!("{entry}{space}  ") };
        }
        line.trim_end().to_owned() + "\n"
    };
    let head = line(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
    rows.iter().fold(head, |text, row| text + &line(row))
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn columns_are_as_wide_as_their_widest_entry() {
        let rows = [vec!["a".to_owned(), "1.25".to_owned()], vec!["longer".to_owned(), "10".to_owned()]];
        assert_eq!(table(&["op", ">part"], &rows), "op      part\na       1.25\nlonger    10\n");
    }
}
