//! `text % values` and `text.format(…)`. How a number is laid out is the library's; what is text is Python's.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, FormatStyle, Value, format_filter};

use super::{ascii, bounded, integer, of_tuple, parse_float, raised, repr, text, truncated, type_of};

/// The most characters that one value is laid out in.
const WIDEST: usize = 100_000;

/// `format % values`.
pub(crate) fn printf(format: &str, values: &Value) -> Result<String, Error> {
    let single = [values.clone()];
    let mut given = of_tuple(values).unwrap_or(&single).iter();
    let mut next = || given.next().cloned().ok_or_else(|| raised("not enough arguments for format string"));
    let mut named = false;
    let (mut out, mut rest) = (String::new(), format);
    while let Some(place) = rest.find('%') {
        out += &rest[..place];
        rest = &rest[place + 1..];
        let key = match rest.strip_prefix('(') {
            None => None,
            Some(inner) => {
                let (key, behind) = inner.split_once(')').ok_or_else(|| raised("incomplete format key"))?;
                rest = behind;
                named = true;
                let value = values.get_item(&Value::from(key)).ok().filter(|value| !value.is_undefined());
                Some(value.ok_or_else(|| raised(format!("there is no key `{key}`")))?)
            }
        };
        let end = rest.find(|mark| !"#0- +".contains(mark)).unwrap_or(rest.len());
        let mut flags = rest[..end].to_owned();
        rest = &rest[end..];
        let width = length(&mut rest, &mut next)?;
        if width.is_some_and(|width| width < 0) {
            flags.push('-');
        }
        let precision = match rest.strip_prefix('.') {
            None => None,
            Some(behind) => {
                rest = behind;
                Some(length(&mut rest, &mut next)?.map_or(0, |precision| precision.max(0) as usize))
            }
        };
        let width = width.map_or(0, |width| width.unsigned_abs() as usize);
        rest = rest.trim_start_matches(['h', 'l', 'L']);
        let kind = rest.chars().next().ok_or_else(|| raised("incomplete format"))?;
        rest = &rest[kind.len_utf8()..];
        if kind == '%' {
            out.push('%');
            continue;
        }
        if width.max(precision.unwrap_or(0)) > WIDEST {
            return Err(raised(format!("a value is laid out in at most {WIDEST} characters")));
        }
        let value = match key {
            Some(value) => value,
            None => next()?,
        };
        let made = directive(&flags, width, precision, kind, &value)?;
        bounded(out.len().checked_add(made.len()))?;
        out += &made;
    }
    let several = matches!(type_of(values), "dict" | "list" | "range" | "Undefined");
    if !named && given.next().is_some() && !several {
        return Err(raised("not all arguments converted during string formatting"));
    }
    Ok(out + rest)
}

/// A width or a precision: `*` for one of the values.
fn length(rest: &mut &str, mut next: impl FnMut() -> Result<Value, Error>) -> Result<Option<i128>, Error> {
    if let Some(behind) = rest.strip_prefix('*') {
        *rest = behind;
        return integer(&next()?).map(Some).ok_or_else(|| raised("* wants int"));
    }
    let end = rest.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, behind) = rest.split_at(end);
    *rest = behind;
    let number = (!digits.is_empty()).then(|| digits.parse()).transpose();
    number.map_err(|_| raised(format!("`{digits}` is too wide")))
}

/// One value of `%`.
fn directive(flags: &str, width: usize, precision: Option<usize>, kind: char, value: &Value) -> Result<String, Error> {
    let padded = |text: String| match precision.filter(|_| kind != 'c') {
        Some(most) => pad(text.chars().take(most).collect(), flags.contains('-'), width),
        None => pad(text, flags.contains('-'), width),
    };
    let number = match kind {
        's' => return text(value).map(padded),
        'r' => return repr(value).map(padded),
        'a' => return ascii(value).map(padded),
        'c' => {
            let code = integer(value).and_then(|code| char::from_u32(u32::try_from(code).ok()?));
            let one = value.as_str().filter(|text| text.chars().count() == 1).map(str::to_owned);
            return one.or(code.map(String::from)).map(padded).ok_or_else(|| raised("%c requires int or char"));
        }
        'd' | 'i' | 'u' if value.kind() == ValueKind::Number => {
            integer(value).or_else(|| truncated(parse_float(value)?)).map(Value::from)
        }
        'd' | 'i' | 'u' | 'o' | 'x' | 'X' => integer(value).map(Value::from),
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => parse_float(value).filter(|_| value.as_str().is_none()).map(Value::from),
        other => return Err(raised(format!("unsupported format character `{other}`"))),
    };
    let number = number.ok_or_else(|| raised(format!("%{kind} format: a number is required, not {}", value.kind())))?;
    let width = if width > 0 { width.to_string() } else { String::new() };
    let precision = precision.map_or_else(String::new, |precision| format!(".{precision}"));
    let kind = if matches!(kind, 'i' | 'u') { 'd' } else { kind };
    format_filter(FormatStyle::Printf, &format!("%{flags}{width}{precision}{kind}"), &[number])
}

fn pad(text: String, left: bool, width: usize) -> String {
    let spaces = " ".repeat(width.saturating_sub(text.chars().count()));
    if left { text + &spaces } else { spaces + &text }
}

/// `format.format(*args, **kwargs)`.
pub(super) fn str_format(format: &str, args: &[Value]) -> Result<String, Error> {
    let (given, named): (&[Value], Kwargs) = from_args(args)?;
    let mut automatic = 0..;
    let (mut out, mut rest) = (String::new(), format);
    while let Some(place) = rest.find(['{', '}']) {
        out += &rest[..place];
        let mark = &rest[place..=place];
        rest = &rest[place + 1..];
        if let Some(behind) = rest.strip_prefix(mark) {
            out += mark;
            rest = behind;
            continue;
        }
        let field = rest.split_once('}').filter(|(field, _)| mark == "{" && !field.contains('{'));
        let (field, behind) =
            field.ok_or_else(|| raised(format!("a `{mark}` of the format stands alone, or holds another")))?;
        rest = behind;
        let (field, spec) = field.split_once(':').unwrap_or((field, ""));
        let (name, conversion) = field.split_once('!').map_or((field, None), |(name, kind)| (name, Some(kind)));
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, path) = name.split_at(end);
        let value = match first.parse::<usize>() {
            _ if first.is_empty() => automatic.next().and_then(|place: usize| given.get(place)).cloned(),
            Ok(place) => given.get(place).cloned(),
            Err(_) => named.get(first).ok(),
        };
        let mut value = value.ok_or_else(|| raised(format!("there is no value for `{{{name}}}`")))?;
        for step in path.split(['.', '[']).skip(1) {
            let step = step.trim_end_matches(']');
            value = value.get_item(&step.parse::<usize>().map_or_else(|_| Value::from(step), Value::from))?;
        }
        let value = match conversion {
            None if value.kind() == ValueKind::Number && !spec.is_empty() => value,
            None | Some("s") => Value::from(text(&value)?),
            Some("r") => Value::from(repr(&value)?),
            Some("a") => Value::from(ascii(&value)?),
            Some(other) => return Err(raised(format!("unknown conversion `{other}`"))),
        };
        let digits = spec.split(|digit: char| !digit.is_ascii_digit()).filter_map(|digits| digits.parse().ok());
        if digits.max().is_some_and(|most: usize| most > WIDEST) {
            return Err(raised(format!("a value is laid out in at most {WIDEST} characters")));
        }
        out += &match spec {
            "" => text(&value)?,
            spec => format_filter(FormatStyle::StrFormat, &format!("{{:{spec}}}"), &[value])?,
        };
    }
    Ok(out + rest)
}
