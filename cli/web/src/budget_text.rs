//! Changes a key in the text of a budget and leaves everything else as it stands: comments, order, blanks.

use cacheplan_files::Source;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

/// `text` with `path` set to `value` (TOML, or a text without quotes), or without it.
///
/// Where the text is written in a way that cannot be changed in place, such as a section in braces, it is written anew.
pub(crate) fn set(text: &str, path: &str, value: Option<&str>) -> Result<String, String> {
    let table: Table = Source::parse_toml(text).map_err(|error| error.to_string())?;
    let value = value.map(literal);
    let wanted = changed(table, path, value.as_deref())?;
    let in_place = match (place(text, path), &value) {
        (Some(place), Some(value)) => {
            Some(format!("{}{value}{}", &text[..place.value.start], &text[place.value.end..]))
        }
        (Some(place), None) => Some(without_line(text, &place, path)),
        (None, Some(value)) => Some(with_line(text, path, value)),
        (None, None) => Some(text.to_owned()),
    };
    let right = |text: &String| Source::parse_toml::<Table>(text).is_ok_and(|found| found == wanted);
    match in_place.filter(right) {
        Some(text) => Ok(text),
        None => toml::to_string(&wanted).map_err(|error| error.to_string()),
    }
}

/// As a flag's value is read: TOML where it is that, else a text without quotes.
fn literal(text: &str) -> String {
    let alone = |table: Table| table.len() == 1;
    match Source::parse_toml::<Table>(&format!("value = {text}")) {
        Ok(table) if alone(table.clone()) && !text.contains('\n') => text.trim().to_owned(),
        _ => Value::String(text.to_owned()).to_string(),
    }
}

/// The table as it shall be; a section without keys is none.
fn changed(mut table: Table, path: &str, value: Option<&str>) -> Result<Table, String> {
    let value = value.map(|value| Source::parse_toml::<Table>(&format!("value = {value}")));
    let value = value.transpose().map_err(|error| error.to_string())?.and_then(|mut table| table.remove("value"));
    let (section, key) = path.rsplit_once('.').unwrap_or(("", path));
    let within = match section {
        "" => &mut table,
        section => table
            .entry(section)
            .or_insert_with(|| Value::Table(Table::new()))
            .as_table_mut()
            .ok_or_else(|| format!("`{section}` is no section"))?,
    };
    match value {
        Some(value) => within.insert(key.to_owned(), value),
        None => within.remove(key),
    };
    if !section.is_empty() && within.is_empty() {
        table.remove(section);
    }
    Ok(table)
}

/// Where a key and its value stand.
struct Span {
    key: usize,
    value: std::ops::Range<usize>,
}

fn place(text: &str, path: &str) -> Option<Span> {
    let table = DeTable::parse(text).ok()?;
    let mut names = path.split('.').peekable();
    let mut level = table.get_ref();
    while let Some(name) = names.next() {
        let (key, value) = level.iter().find(|(key, _)| key.get_ref().as_ref() == name)?;
        if names.peek().is_none() {
            return Some(Span { key: key.span().start, value: value.span() });
        }
        match value.get_ref() {
            DeValue::Table(inner) => level = inner,
            _ => return None,
        }
    }
    None
}

/// Without the line of the key, and without the header of a section that has no other.
fn without_line(text: &str, place: &Span, path: &str) -> String {
    let start = text[..place.key].rfind('\n').map_or(0, |end| end + 1);
    let end = text[place.value.end..].find('\n').map_or(text.len(), |end| place.value.end + end + 1);
    let rest = format!("{}{}", &text[..start], &text[end..]);
    let empty = |section: &str| {
        let table = Source::parse_toml::<Table>(&rest).ok();
        table.is_some_and(|table| table.get(section).and_then(Value::as_table).is_some_and(Table::is_empty))
    };
    match path.rsplit_once('.') {
        Some((section, _)) if empty(section) => {
            let kept = rest.split_inclusive('\n').filter(|line| !is_header_of(line, section));
            kept.collect::<String>().trim_end_matches('\n').to_owned() + if rest.is_empty() { "" } else { "\n" }
        }
        _ => rest,
    }
}

/// With a line for the key behind the last one of its section.
fn with_line(text: &str, path: &str, value: &str) -> String {
    let (section, key) = path.rsplit_once('.').unwrap_or(("", path));
    let line = format!("{key} = {value}\n");
    let is_header = |line: &&str| line.trim_start().starts_with('[');
    let lines: Vec<&str> = text.lines().collect();
    let first = match section {
        "" => 0,
        section => match lines.iter().position(|line| is_header_of(line, section)) {
            Some(header) => header + 1,
            None => {
                let gap = if lines.is_empty() { "" } else { "\n" };
                let text = text.trim_end_matches('\n');
                let text = if text.is_empty() { String::new() } else { format!("{text}\n") };
                return format!("{text}{gap}[{section}]\n{line}");
            }
        },
    };
    let end = lines[first..].iter().position(is_header).map_or(lines.len(), |header| first + header);
    let last = lines[first..end].iter().rposition(|line| !line.trim().is_empty()).map_or(first, |at| first + at + 1);
    let above: String = lines[..last].iter().map(|line| format!("{line}\n")).collect();
    let below: String = lines[last..].iter().map(|line| format!("{line}\n")).collect();
    let gap = if section.is_empty() && last == 0 && !below.is_empty() && !below.starts_with('\n') { "\n" } else { "" };
    format!("{above}{line}{gap}{below}")
}

fn is_header_of(line: &str, section: &str) -> bool {
    line.split('#').next().is_some_and(|line| line.trim() == format!("[{section}]"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::first("", "max_seq_len", Some("8"), "max_seq_len = 8\n")]
    #[case::replaced("max_seq_len = 4 # long\n", "max_seq_len", Some("8"), "max_seq_len = 8 # long\n")]
    #[case::removed("# a\nmax_seq_len = 4\n# b\n", "max_seq_len", None, "# a\n# b\n")]
    #[case::not_there("a = 1\n", "b", None, "a = 1\n")]
    #[case::new_section(
        "max_seq_len = 4\n",
        "memory.fraction",
        Some("0.5"),
        "max_seq_len = 4\n\n[memory]\nfraction = 0.5\n"
    )]
    #[case::in_section(
        "[memory]\nof = 'free' # so\n\n[dtypes]\nkv = 'fp8'\n",
        "memory.fraction",
        Some("0.5"),
        "[memory]\nof = 'free' # so\nfraction = 0.5\n\n[dtypes]\nkv = 'fp8'\n"
    )]
    #[case::above_sections(
        "[memory]\nof = 'free'\n",
        "max_seq_len",
        Some("8"),
        "max_seq_len = 8\n\n[memory]\nof = 'free'\n"
    )]
    #[case::last_of_section("a = 1\n\n[memory]\nof = 'free'\n", "memory.of", None, "a = 1\n")]
    #[case::text_without_quotes("", "dtypes.kv", Some("fp8"), "[dtypes]\nkv = \"fp8\"\n")]
    #[case::dotted("memory.of = 'free'\n", "memory.of", Some("total"), "memory.of = \"total\"\n")]
    #[case::braces(
        "memory = { of = 'free' }\n",
        "memory.fraction",
        Some("0.5"),
        "[memory]\nfraction = 0.5\nof = \"free\"\n"
    )]
    #[case::a_header_in_a_text(
        "a = '''\n[memory]\n'''\n",
        "memory.of",
        Some("free"),
        "a = \"\"\"\n[memory]\n\"\"\"\n\n[memory]\nof = \"free\"\n"
    )]
    #[case::hostile("", "dtypes.kv", Some("fp8\n[x]"), "[dtypes]\nkv = \"\"\"\nfp8\n[x]\"\"\"\n")]
    fn only_the_key_changes(
        #[case] text: &str,
        #[case] key: &str,
        #[case] value: Option<&str>,
        #[case] expected: &str,
    ) {
        assert_eq!(set(text, key, value).unwrap(), expected);
    }

    #[test]
    fn text_that_is_no_toml_is_left_to_its_author() {
        assert!(set("a = ", "b", Some("1")).unwrap_err().contains("line 1"));
    }
}
