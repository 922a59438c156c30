//! Filters of texts, numbers and single values.

#![expect(clippy::needless_pass_by_value, reason = "the library hands arguments over by value")]

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use crate::python::methods::{self, is_space, lines};
use crate::python::{self, attribute, bind, bounded, escaped, integer, pairs, raised, text, tuple, type_of};

pub(super) fn add(environment: &mut Environment<'static>) {
    environment.add_filter("tojson", |value: &Value, args: Rest<Value>| python::dumps(value, &args));
    for name in ["upper", "lower", "capitalize"] {
        environment.add_filter(name, move |state: &State<'_, '_>, value: &Value| method(state, value, name, &[]));
    }
    environment.add_filter("trim", |state: &State<'_, '_>, value: &Value, args: Rest<Value>| {
        let [characters] = bind(&args, ["chars"])?;
        method(state, value, "strip", &[characters.unwrap_or_else(|| Value::from(()))])
    });
    environment.add_filter("center", |state: &State<'_, '_>, value: &Value, args: Rest<Value>| {
        let [width] = bind(&args, ["width"])?;
        method(state, value, "center", &[width.unwrap_or_else(|| Value::from(80))])
    });
    environment.add_filter("replace", replace);
    environment.add_filter("title", |value: &Value| Ok::<_, Error>(title(&text(value)?)));
    environment.add_filter("string", string);
    for name in ["escape", "e"] {
        environment.add_filter(name, |value: &Value| escaped(value).map(Value::from_safe_string));
    }
    environment
        .add_filter("forceescape", |value: &Value| escaped(&Value::from(text(value)?)).map(Value::from_safe_string));
    environment.add_filter("safe", |value: &Value| text(value).map(Value::from_safe_string));
    environment.add_filter("striptags", striptags);
    environment.add_filter("round", round);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("abs", abs);
    for name in ["default", "d"] {
        environment.add_filter(name, default);
    }
    environment.add_filter("indent", indent);
    environment.add_filter("truncate", truncate);
    environment.add_filter("filesizeformat", filesizeformat);
    environment.add_filter("pprint", pprint);
    environment.add_filter("attr", |value: &Value, name: &Value| {
        let name = text(name)?;
        let has = value.is_undefined() || methods::names(type_of(value)).contains(&name.as_str());
        if has || type_of(value) == "object" { attribute(value, &name) } else { Ok(Value::UNDEFINED) }
    });
    environment.add_filter("wordcount", |value: &Value| {
        let is_word = |character: char| character.is_alphanumeric() || character == '_';
        Ok::<_, Error>(text(value)?.split(|character| !is_word(character)).filter(|word| !word.is_empty()).count())
    });
    environment.add_filter("urlencode", urlencode);
    environment.add_filter("format", |value: &Value, args: Rest<Value>| {
        let named = args.first().filter(|given| args.len() == 1 && given.is_kwargs());
        if named.is_none() && args.iter().any(Value::is_kwargs) {
            return Err(raised("can't handle positional and keyword arguments at the same time"));
        }
        python::printf(&text(value)?, &named.cloned().unwrap_or_else(|| tuple(args.0.clone()))).map(Value::from)
    });
}

/// A value as text; what is text stays where it is.
fn string(value: &Value) -> Result<Value, Error> {
    if value.kind() == ValueKind::String { Ok(value.clone()) } else { text(value).map(Value::from) }
}

/// A method of a value's text.
fn method(state: &State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    methods::call(state, &Value::from(text(value)?), name, args)
}

fn replace(state: &State<'_, '_>, value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let [old, new, count] = bind(&args, ["old", "new", "count"])?;
    let text_of = |value: Option<Value>| Ok::<_, Error>(Value::from(text(&value.ok_or(ErrorKind::MissingArgument)?)?));
    method(state, value, "replace", &[text_of(old)?, text_of(new)?, count.unwrap_or_else(|| Value::from(()))])
}

/// Words begin behind spaces, dashes and opening brackets alone.
fn title(text: &str) -> String {
    let begins = |character: char| is_space(character) || "-({[<".contains(character);
    let word = |word: &str| {
        let mut rest = word.chars();
        rest.next().map(|first| first.to_uppercase().collect::<String>()).unwrap_or_default()
            + &rest.as_str().to_lowercase()
    };
    text.split_inclusive(begins).map(word).collect()
}

fn round(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let [precision, way] = bind(&args, ["precision", "method"])?;
    let precision = precision.map(i32::try_from).transpose()?.unwrap_or(0);
    if !matches!(value.kind(), ValueKind::Bool | ValueKind::Number) {
        return Err(raised(format!("cannot round {}", value.kind())));
    }
    let way = way.unwrap_or_else(|| Value::from("common"));
    let to = match way.as_str() {
        Some("common") => return python::round(value, precision),
        Some("ceil") => f64::ceil,
        Some("floor") => f64::floor,
        _ => return Err(raised("method must be common, ceil or floor")),
    };
    let value = python::parse_float(value).ok_or_else(|| raised("cannot round it"))?;
    let unit = 10f64.powi(precision);
    Ok(Value::from(to(value * unit) / unit))
}

fn int(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let [default, base] = bind(&args, ["default", "base"])?;
    let base = base.map(u32::try_from).transpose()?.unwrap_or(10);
    defined(value)?;
    Ok(python::to_int(value, base).map_or_else(|| default.unwrap_or_else(|| Value::from(0)), Value::from))
}

fn float(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let [default] = bind(&args, ["default"])?;
    defined(value)?;
    Ok(python::parse_float(value).map_or_else(|| default.unwrap_or_else(|| Value::from(0.0)), Value::from))
}

fn defined(value: &Value) -> Result<(), Error> {
    if value.is_undefined() { Err(ErrorKind::UndefinedError.into()) } else { Ok(()) }
}

fn default(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let [default, boolean] = bind(&args, ["default_value", "boolean"])?;
    let lacks = value.is_undefined() || boolean.is_some_and(|boolean| boolean.is_true()) && !value.is_true();
    Ok(if lacks { default.unwrap_or_else(|| Value::from("")) } else { value.clone() })
}

fn indent(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    const WIDEST: usize = 10_000;
    let [width, first, blank] = bind(&args, ["width", "first", "blank"])?;
    let is = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let (first, blank) = (is(first), is(blank));
    let width = width.unwrap_or_else(|| Value::from(4));
    let indent = match width.as_str() {
        Some(indent) => indent.to_owned(),
        None => " ".repeat(
            usize::try_from(width).ok().filter(|width| *width <= WIDEST).ok_or_else(|| raised("no such width"))?,
        ),
    };
    if type_of(value) != "str" {
        return Err(raised(format!("indent wants a text, not '{}'", type_of(value))));
    }
    let text = text(value)? + "\n";
    bounded(indent.len().checked_mul(text.matches('\n').count()).and_then(|more| more.checked_add(text.len())))?;
    let mut out = String::new();
    for (place, line) in lines(&text, false).into_iter().enumerate() {
        out += if place > 0 { "\n" } else { "" };
        out += if if place > 0 { blank || !line.is_empty() } else { first } { &indent } else { "" };
        out += line;
    }
    Ok(out)
}

fn truncate(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let [length, kill, end, leeway] = bind(&args, ["length", "killwords", "end", "leeway"])?;
    let number = |value: Option<Value>, otherwise| value.map_or(Ok(otherwise), usize::try_from);
    let (length, leeway) = (number(length, 255)?, number(leeway, 5)?);
    let end = end.as_ref().map_or_else(|| Ok("...".into()), text)?;
    if python::length(value)? <= length.saturating_add(leeway) {
        return Ok(value.clone());
    }
    let text = value.as_str().ok_or_else(|| raised(format!("truncate wants a text, not '{}'", type_of(value))))?;
    let keep =
        length.checked_sub(end.chars().count()).ok_or_else(|| raised("the length is less than that of the end"))?;
    let kept: String = text.chars().take(keep).collect();
    let kept = if kill.is_some_and(|kill| kill.is_true()) {
        &kept
    } else {
        kept.rsplit_once(' ').map_or(kept.as_str(), |(kept, _)| kept)
    };
    Ok(Value::from(kept.to_owned() + &end))
}

fn urlencode(value: &Value) -> Result<String, Error> {
    let quote = |text: &str, within: bool| {
        let mut out = String::new();
        for byte in text.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => out.push(byte.into()),
                b'/' if !within => out.push('/'),
                b' ' if within => out.push('+'),
                other => out += &format!("%{other:02X}"),
            }
        }
        out
    };
    let pair = |pair: Value| <[Value; 2]>::try_from(python::iterate(&pair)?).map_err(|_| raised("pairs are wanted"));
    let pairs: Vec<[Value; 2]> = match (type_of(value), python::iterate(value)) {
        ("dict", _) => pairs(value).into_iter().map(|(key, value)| [key, value]).collect(),
        ("str", _) | (_, Err(_)) => return Ok(quote(&text(value)?, false)),
        (_, Ok(items)) => items.into_iter().map(pair).collect::<Result<_, Error>>()?,
    };
    let joined = |[key, value]: &[Value; 2]| Ok(format!("{}={}", quote(&text(key)?, true), quote(&text(value)?, true)));
    Ok(pairs.iter().map(joined).collect::<Result<Vec<_>, Error>>()?.join("&"))
}

fn abs(value: &Value) -> Result<Value, Error> {
    match (integer(value), value.kind()) {
        (Some(whole), _) => Ok(Value::from(whole.abs())),
        (None, ValueKind::Number) => f64::try_from(value.clone()).map(|number| Value::from(number.abs())),
        _ => Err(raised(format!("bad operand type for abs(): '{}'", type_of(value)))),
    }
}

fn striptags(value: &Value) -> Result<String, Error> {
    let mut text = text(value)?;
    for (open, close) in [("<!--", "-->"), ("<", ">")] {
        let mut from = 0;
        while let Some(begin) = text[from..].find(open).map(|at| from + at) {
            let Some(end) = text[begin..].find(close).map(|at| begin + at + close.len()) else { break };
            text.replace_range(begin..end, "");
            from = begin;
        }
    }
    if text.contains('&') {
        return Err(raised("entities (`&`) are not known to striptags here"));
    }
    Ok(text.split(is_space).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" "))
}

fn filesizeformat(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let [binary] = bind(&args, ["binary"])?;
    let bytes = python::parse_float(value).ok_or_else(|| raised("a number is wanted"))?;
    let (base, end) = if binary.is_some_and(|binary| binary.is_true()) { (1024f64, "iB") } else { (1000f64, "B") };
    if bytes == 1.0 {
        return Ok("1 Byte".into());
    }
    if bytes < base {
        return Ok(format!("{} Bytes", bytes.trunc()));
    }
    let prefixes = [if end == "B" { "k" } else { "K" }, "M", "G", "T", "P", "E", "Z", "Y"];
    let mut unit = base;
    for (place, prefix) in prefixes.iter().enumerate() {
        unit *= base;
        if bytes < unit || place + 1 == prefixes.len() {
            return Ok(format!("{:.1} {prefix}{end}", base * bytes / unit));
        }
    }
    Err(raised("a number is wanted"))
}

/// What fits into a line; Python sorts dicts, and breaks what is longer.
fn pprint(value: &Value) -> Result<String, Error> {
    const WIDTH: usize = 80;
    let sorted = python::sorted_dicts(value)?;
    let text = python::repr(&sorted)?;
    if text.chars().count() > WIDTH || text.contains("\\n") {
        return Err(raised(format!("pprint of more than {WIDTH} characters, or of several lines, is not known here")));
    }
    Ok(text)
}
