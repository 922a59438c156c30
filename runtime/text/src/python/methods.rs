//! The methods of `str`, `list` and `dict`.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

use super::format::str_format;
use super::items::view;
use super::operators::{equal, find, hashable};
use super::{bind, bounded, integer, is_printable, iterate, of_tuple, pairs, raised, tuple, type_of};

/// Calls a method; [`ErrorKind::UnknownMethod`] where Python has it not, or a sandbox forbids it, or it is not here.
pub(crate) fn call(_: &State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String if value.is_safe() => Err(raised(format!("`{method}` of an escaped text is not known"))),
        ValueKind::String => of_str(value.as_str().unwrap_or_default(), method, args),
        ValueKind::Map => of_dict(value, method, args),
        ValueKind::Seq | ValueKind::Iterable => of_list(value, method, args),
        _ => Err(ErrorKind::UnknownMethod.into()),
    }
}

/// The methods that a type has and a sandbox allows.
pub(crate) fn names(kind: &str) -> &'static [&'static str] {
    match kind {
        "str" => &[
            "capitalize",
            "casefold",
            "center",
            "count",
            "encode",
            "endswith",
            "expandtabs",
            "find",
            "format",
            "format_map",
            "index",
            "isalnum",
            "isalpha",
            "isascii",
            "isdecimal",
            "isdigit",
            "isidentifier",
            "islower",
            "isnumeric",
            "isprintable",
            "isspace",
            "istitle",
            "isupper",
            "join",
            "ljust",
            "lower",
            "lstrip",
            "maketrans",
            "partition",
            "removeprefix",
            "removesuffix",
            "replace",
            "rfind",
            "rindex",
            "rjust",
            "rpartition",
            "rsplit",
            "rstrip",
            "split",
            "splitlines",
            "startswith",
            "strip",
            "swapcase",
            "title",
            "translate",
            "upper",
            "zfill",
        ],
        "dict" => &["copy", "fromkeys", "get", "items", "keys", "values"],
        "list" => &["copy", "count", "index"],
        "tuple" => &["count", "index"],
        "range" => &["count", "index", "start", "step", "stop"],
        "int" | "bool" => &[
            "as_integer_ratio",
            "bit_count",
            "bit_length",
            "conjugate",
            "denominator",
            "from_bytes",
            "imag",
            "is_integer",
            "numerator",
            "real",
            "to_bytes",
        ],
        "float" => &["as_integer_ratio", "conjugate", "fromhex", "hex", "imag", "is_integer", "real"],
        "dict_keys" | "dict_items" => &["isdisjoint", "mapping"],
        "dict_values" => &["mapping"],
        "generator" => &["close", "send", "throw"],
        _ => &[],
    }
}

/// What `str.isspace` says of a character, at which `strip` and `split` cut.
pub(crate) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

fn is_cased(character: char) -> bool {
    character.is_lowercase() || character.is_uppercase()
}

/// An argument that must be there.
fn required(value: Option<Value>) -> Result<Value, Error> {
    value.ok_or_else(|| ErrorKind::MissingArgument.into())
}

fn str_of(value: &Value) -> Result<&str, Error> {
    let text = value.as_str().filter(|_| value.kind() == ValueKind::String);
    text.ok_or_else(|| raised(format!("a str is wanted, not {}", value.kind())))
}

/// An int where one is given; None counts as none.
fn int_of(value: Option<Value>) -> Result<Option<i128>, Error> {
    let value = value.filter(|value| !value.is_none());
    value.map(|value| integer(&value).ok_or_else(|| raised("an int is wanted"))).transpose()
}

/// `text[start:end]`, and how many characters stand before it; `None` where it begins behind the end.
fn part(text: &str, start: Option<Value>, end: Option<Value>) -> Result<Option<(usize, &str)>, Error> {
    let length = text.chars().count() as i128;
    let from_end = |at: i128| if at < 0 { (at + length).max(0) } else { at };
    let (start, end) = (int_of(start)?.map_or(0, from_end), int_of(end)?.map_or(length, from_end).min(length));
    if start > end {
        return Ok(None);
    }
    let at = |place: i128| text.char_indices().nth(place as usize).map_or(text.len(), |(at, _)| at);
    Ok(Some((start as usize, &text[at(start)..at(end)])))
}

/// Where a text is first, or last, in characters.
fn found(text: &str, args: &[Value], last: bool) -> Result<Option<usize>, Error> {
    let [what, start, end] = bind(args, ["sub", "start", "end"])?;
    let what = required(what)?;
    let what = str_of(&what)?;
    let Some((before, text)) = part(text, start, end)? else { return Ok(None) };
    let place = if last { text.rfind(what) } else { text.find(what) };
    Ok(place.map(|place| before + text[..place].chars().count()))
}

/// `startswith` and `endswith`, of one text or of a tuple of them.
fn affix(text: &str, args: &[Value], is: fn(&str, &str) -> bool) -> Result<bool, Error> {
    let [what, start, end] = bind(args, ["prefix", "start", "end"])?;
    let what = required(what)?;
    let text = part(text, start, end)?;
    let has = |what: &Value| str_of(what).map(|what| text.is_some_and(|(_, text)| is(text, what)));
    match of_tuple(&what) {
        None => has(&what),
        Some(all) => all.iter().try_fold(false, |any, what| Ok(any || has(what)?)),
    }
}

/// `strip` and its like: of spaces, or of these characters.
fn strip(text: &str, args: &[Value], left: bool, right: bool) -> Result<Value, Error> {
    let [characters] = bind(args, ["chars"])?;
    let characters = characters.filter(|characters| !characters.is_none());
    let characters = characters.as_ref().map(str_of).transpose()?;
    let cut = |character: char| characters.map_or_else(|| is_space(character), |all| all.contains(character));
    let text = if left { text.trim_start_matches(cut) } else { text };
    Ok(Value::from(if right { text.trim_end_matches(cut) } else { text }))
}

/// `split` and `rsplit`.
fn split(text: &str, args: &[Value], from_end: bool) -> Result<Value, Error> {
    let [separator, most] = bind(args, ["sep", "maxsplit"])?;
    let most = int_of(most)?.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let separator = separator.filter(|separator| !separator.is_none());
    let mut parts: Vec<&str> = match separator.as_ref().map(str_of).transpose()? {
        Some("") => return Err(raised("empty separator")),
        Some(separator) if from_end => text.rsplitn(most.saturating_add(1), separator).collect(),
        Some(separator) => return Ok(text.splitn(most.saturating_add(1), separator).map(Value::from).collect()),
        None => {
            let mut parts = Vec::new();
            let trim = |text| {
                if from_end { str::trim_end_matches(text, is_space) } else { str::trim_start_matches(text, is_space) }
            };
            let mut rest = trim(text);
            while !rest.is_empty() {
                let cut = if from_end { rest.rfind(is_space) } else { rest.find(is_space) };
                let (part, behind) = match cut.filter(|_| parts.len() < most) {
                    None => (rest, ""),
                    Some(cut) if from_end => {
                        let space = rest[cut..].chars().next().map_or(1, char::len_utf8);
                        (&rest[cut + space..], &rest[..cut])
                    }
                    Some(cut) => (&rest[..cut], &rest[cut..]),
                };
                parts.push(part);
                rest = trim(behind);
            }
            parts
        }
    };
    if from_end {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// `splitlines`.
pub(crate) fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let ends = ['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'];
    let (mut lines, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let end = rest.find(ends).unwrap_or(rest.len());
        let mark =
            if rest[end..].starts_with("\r\n") { 2 } else { rest[end..].chars().next().map_or(0, char::len_utf8) };
        lines.push(&rest[..if keep_ends { end + mark } else { end }]);
        rest = &rest[end + mark..];
    }
    lines
}

/// `partition` and `rpartition`.
fn partition(text: &str, args: &[Value], from_end: bool) -> Result<Value, Error> {
    let [separator] = bind(args, ["sep"])?;
    let separator = required(separator)?;
    let separator = str_of(&separator)?;
    let parts = match if from_end { text.rsplit_once(separator) } else { text.split_once(separator) } {
        _ if separator.is_empty() => return Err(raised("empty separator")),
        Some((before, behind)) => [before, separator, behind],
        None if from_end => ["", "", text],
        None => [text, "", ""],
    };
    Ok(tuple(parts.map(Value::from)))
}

/// `ljust`, `rjust` and `center`, by how much of what is missing goes to the left.
fn justify(text: &str, args: &[Value], left: fn(usize, usize) -> usize) -> Result<Value, Error> {
    const WIDEST: i128 = 1 << 20;
    let [width, fill] = bind(args, ["width", "fillchar"])?;
    let width = int_of(width)?.ok_or(ErrorKind::MissingArgument)?;
    if width > WIDEST {
        return Err(raised(format!("a text is filled up to {WIDEST} characters at most")));
    }
    let fill = fill.unwrap_or_else(|| Value::from(" "));
    let fill = str_of(&fill)?;
    if fill.chars().count() != 1 {
        return Err(raised("the fill character must be exactly one character long"));
    }
    let width = width.max(0) as usize;
    let missing = width.saturating_sub(text.chars().count());
    let left = left(missing, width);
    Ok(Value::from(fill.repeat(left) + text + &fill.repeat(missing - left)))
}

/// A word's first letter: of those that are several as capitals only the first is one.
fn title_case(character: char) -> String {
    let mut upper = character.to_uppercase();
    let first = upper.next().map(String::from).unwrap_or_default();
    first + &upper.collect::<String>().to_lowercase()
}

/// `capitalize`.
fn capitalize(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map(title_case).unwrap_or_default() + &rest.as_str().to_lowercase()
}

fn title(text: &str) -> String {
    let (mut out, mut within) = (String::new(), false);
    for character in text.chars() {
        if within {
            out.extend(character.to_lowercase());
        } else {
            out += &title_case(character);
        }
        within = is_cased(character);
    }
    out
}

/// Digits of other scripts are told apart by tables that are not here.
fn is_digit(character: char) -> Result<bool, Error> {
    match character {
        '0'..='9' => Ok(true),
        other if !other.is_ascii() && other.is_numeric() => {
            Err(raised(format!("whether `{other}` is a digit is not known")))
        }
        _ => Ok(false),
    }
}

/// That there is a character, and of each that it is such a one.
fn every(text: &str, mut is: impl FnMut(char) -> Result<bool, Error>) -> Result<Value, Error> {
    let all = text.chars().try_fold(!text.is_empty(), |all, character| Ok::<_, Error>(is(character)? && all))?;
    Ok(Value::from(all))
}

fn of_str(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let none = || bind(args, []).map(|[]| ());
    let place = |found: Option<usize>| Value::from(found.map_or(-1, |place| place as i64));
    let there = |found: Option<usize>| found.map(Value::from).ok_or_else(|| raised("substring not found"));
    Ok(match method {
        "upper" => none().map(|()| text.to_uppercase())?.into(),
        "lower" => none().map(|()| text.to_lowercase())?.into(),
        "casefold" if text.is_ascii() => none().map(|()| text.to_lowercase())?.into(),
        "capitalize" => none().map(|()| capitalize(text))?.into(),
        "title" => none().map(|()| title(text))?.into(),
        "swapcase" => {
            none()?;
            let swapped = |character: char| match character.is_uppercase() {
                true => character.to_lowercase().collect::<String>(),
                false => character.to_uppercase().collect(),
            };
            text.chars().map(swapped).collect::<String>().into()
        }
        "islower" | "isupper" => {
            none()?;
            let (is, is_not) = match method {
                "islower" => (char::is_lowercase as fn(char) -> bool, char::is_uppercase as fn(char) -> bool),
                _ => (char::is_uppercase as fn(char) -> bool, char::is_lowercase as fn(char) -> bool),
            };
            (text.contains(is) && !text.contains(is_not)).into()
        }
        "istitle" => none().map(|()| text.contains(is_cased) && title(text) == text)?.into(),
        "isspace" => none().and_then(|()| every(text, |character| Ok(is_space(character))))?,
        "isalpha" => none().and_then(|()| every(text, |character| Ok(character.is_alphabetic())))?,
        "isalnum" => none().and_then(|()| every(text, |character| Ok(character.is_alphanumeric())))?,
        "isnumeric" => none().and_then(|()| every(text, |character| Ok(character.is_numeric())))?,
        "isdigit" | "isdecimal" => none().and_then(|()| every(text, is_digit))?,
        "isascii" => none().map(|()| text.is_ascii())?.into(),
        "isprintable" => none().map(|()| text.chars().all(is_printable))?.into(),
        "strip" => strip(text, args, true, true)?,
        "lstrip" => strip(text, args, true, false)?,
        "rstrip" => strip(text, args, false, true)?,
        "split" => split(text, args, false)?,
        "rsplit" => split(text, args, true)?,
        "splitlines" => {
            let [keep] = bind(args, ["keepends"])?;
            lines(text, keep.is_some_and(|keep| keep.is_true())).into_iter().map(Value::from).collect()
        }
        "partition" => partition(text, args, false)?,
        "rpartition" => partition(text, args, true)?,
        "removeprefix" | "removesuffix" => {
            let [affix] = bind(args, ["affix"])?;
            let affix = required(affix)?;
            let affix = str_of(&affix)?;
            let rest = if method == "removeprefix" { text.strip_prefix(affix) } else { text.strip_suffix(affix) };
            rest.unwrap_or(text).into()
        }
        "replace" => {
            let [old, new, count] = bind(args, ["old", "new", "count"])?;
            let (old, new) = (required(old)?, required(new)?);
            let (old, new) = (str_of(&old)?, str_of(&new)?);
            let count = int_of(count)?.and_then(|count| usize::try_from(count).ok());
            let times = text.matches(old).count().min(count.unwrap_or(usize::MAX));
            bounded(times.checked_mul(new.len()).and_then(|more| more.checked_add(text.len())))?;
            match count {
                Some(count) => text.replacen(old, new, count).into(),
                None => text.replace(old, new).into(),
            }
        }
        "count" => {
            let [what, start, end] = bind(args, ["sub", "start", "end"])?;
            let what = required(what)?;
            let what = str_of(&what)?;
            let part = part(text, start, end)?;
            part.map_or(0, |(_, text)| text.matches(what).count()).into()
        }
        "find" => place(found(text, args, false)?),
        "rfind" => place(found(text, args, true)?),
        "index" => there(found(text, args, false)?)?,
        "rindex" => there(found(text, args, true)?)?,
        "startswith" => affix(text, args, |text, affix| text.starts_with(affix))?.into(),
        "endswith" => affix(text, args, |text, affix| text.ends_with(affix))?.into(),
        "join" => {
            let [items] = bind(args, ["iterable"])?;
            let items = iterate(&required(items)?)?;
            let items = items.iter().map(str_of).collect::<Result<Vec<_>, _>>()?;
            let most = items.iter().map(|item| item.len() + text.len()).sum();
            bounded(Some(most))?;
            items.join(text).into()
        }
        "ljust" => justify(text, args, |_, _| 0)?,
        "rjust" => justify(text, args, |missing, _| missing)?,
        "center" => justify(text, args, |missing, width| missing / 2 + (missing & width & 1))?,
        "zfill" => {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            let [width] = bind(args, ["width"])?;
            let width = int_of(width)?.ok_or(ErrorKind::MissingArgument)? - sign.len() as i128;
            let filled = justify(digits, &[Value::from(width), Value::from("0")], |missing, _| missing)?;
            (sign.to_owned() + str_of(&filled)?).into()
        }
        "expandtabs" => {
            let [size] = bind(args, ["tabsize"])?;
            let size = int_of(size)?.unwrap_or(8).clamp(0, 1000) as usize;
            let (mut out, mut column) = (String::new(), 0);
            for character in text.chars() {
                let spaces = if size > 0 { size - column % size } else { 0 };
                match character {
                    '\t' => out += &" ".repeat(spaces),
                    other => out.push(other),
                }
                column = match character {
                    '\n' | '\r' => 0,
                    '\t' => column + spaces,
                    _ => column + 1,
                };
            }
            out.into()
        }
        "format" => str_format(text, args)?.into(),
        _ => return Err(ErrorKind::UnknownMethod.into()),
    })
}

fn of_dict(dict: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if method == "get" {
        let [key, default] = bind(args, ["key", "default"])?;
        let key = required(key)?;
        if !hashable(&key) {
            return Err(raised(format!("unhashable type: '{}'", type_of(&key))));
        }
        return Ok(find(dict, &key).or(default).unwrap_or_else(|| Value::from(())));
    }
    let pairs = pairs(dict).into_iter();
    let made = match method {
        "keys" => view("dict_keys", pairs.map(|(key, _)| key).collect()),
        "values" => view("dict_values", pairs.map(|(_, value)| value).collect()),
        "items" => view("dict_items", pairs.map(|(key, value)| tuple([key, value])).collect()),
        "copy" => dict.clone(),
        _ => return Err(ErrorKind::UnknownMethod.into()),
    };
    bind(args, []).map(|[]| made)
}

fn of_list(list: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if method == "copy" {
        return bind(args, []).map(|[]| list.clone());
    }
    match (method, args.first()) {
        ("count", Some(what)) => Ok(iterate(list)?.iter().filter(|item| equal(item, what)).count().into()),
        ("index", Some(what)) => {
            let place = iterate(list)?.iter().position(|item| equal(item, what));
            place.map(Value::from).ok_or_else(|| raised("the value is not in the list"))
        }
        _ => Err(ErrorKind::UnknownMethod.into()),
    }
}
