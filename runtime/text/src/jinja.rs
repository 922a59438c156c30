//! jinja2's filters, tests and functions where the library's are not as Python has them.

#![expect(clippy::needless_pass_by_value, reason = "the library hands arguments over by value")]

use std::sync::atomic::{AtomicBool, Ordering};

use minijinja::value::{Rest, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value, escape_formatter, filters};

use crate::python::methods::{self, is_space, lines};
use crate::python::{self, bind, pairs, raised, text, tuple};
use crate::syntax;

/// Makes an environment jinja2's.
pub(crate) fn prepare(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, state, value| match state.auto_escape() {
        AutoEscape::None => Ok(out.write_str(&text(value)?)?),
        _ => escape_formatter(out, state, &Value::from(text(value)?)),
    });
    environment.add_function(syntax::TEXT, |parts: Rest<Value>| {
        parts
            .iter()
            .try_fold(String::new(), |out, part| Ok::<_, Error>(out + string(part)?.as_str().unwrap_or_default()))
    });
    environment.add_function(syntax::REMAINDER, |left: &Value, right: &Value| python::remainder(left, right));
    environment.add_function(syntax::QUOTIENT, |left: &Value, right: &Value| python::quotient(left, right));
    environment.add_function(syntax::TUPLE, |items: Rest<Value>| tuple(items.0));
    environment.add_function("range", |args: Rest<Value>| python::range(&args));
    environment.add_function("joiner", |separator: Option<String>| {
        let (separator, used) = (separator.unwrap_or_else(|| ", ".into()), AtomicBool::new(false));
        Value::from_function(move || if used.swap(true, Ordering::Relaxed) { separator.clone() } else { String::new() })
    });
    environment.add_filter("tojson", |value: &Value, args: Rest<Value>| python::dumps(value, &args));
    for name in ["upper", "lower", "capitalize"] {
        environment.add_filter(name, move |state: &State<'_, '_>, value: &Value| method(state, value, name, &[]));
    }
    environment.add_filter("trim", |state: &State<'_, '_>, value: &Value, args: Rest<Value>| {
        method(state, value, "strip", &args)
    });
    environment.add_filter("center", |state: &State<'_, '_>, value: &Value, width: Option<i64>| {
        method(state, value, "center", &[Value::from(width.unwrap_or(80))])
    });
    environment.add_filter("replace", replace);
    environment.add_filter("title", |value: &Value| Ok::<_, Error>(title(&text(value)?)));
    environment.add_filter("string", string);
    environment.add_filter("escape", escape);
    environment.add_filter("e", escape);
    environment.add_filter("round", round);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("join", join);
    environment.add_filter("sum", sum);
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_filter("indent", indent);
    environment.add_filter("truncate", truncate);
    environment.add_filter("wordcount", |value: &Value| {
        let is_word = |character: char| character.is_alphanumeric() || character == '_';
        Ok::<_, Error>(text(value)?.split(|character| !is_word(character)).filter(|word| !word.is_empty()).count())
    });
    environment.add_filter("urlencode", urlencode);
    environment.add_filter("format", |value: &Value, args: Rest<Value>| {
        let named = args.first().filter(|given| args.len() == 1 && given.is_kwargs());
        python::remainder(&Value::from(text(value)?), &named.cloned().unwrap_or_else(|| tuple(args.0.clone())))
    });
    environment.add_filter("items", |value: &Value| match value.kind() {
        ValueKind::Undefined => Ok(Vec::new()),
        ValueKind::Map => Ok(pairs(value).into_iter().map(|(key, value)| tuple([key, value])).collect()),
        other => Err(raised(format!("can only get item pairs from a mapping, not {other}"))),
    });
    environment.add_filter("dictsort", |value: &Value, options: minijinja::value::Kwargs| {
        let sorted = filters::dictsort(value, options)?;
        let as_tuple = |pair: Value| Ok(tuple(pair.try_iter()?.collect::<Vec<_>>()));
        sorted.try_iter()?.map(as_tuple).collect::<Result<Vec<_>, Error>>()
    });
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Map | ValueKind::Seq)
    });
    environment.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Bool | ValueKind::Number));
    for name in ["lower", "upper"] {
        environment.add_test(name, move |state: &State<'_, '_>, value: &Value| {
            Ok::<_, Error>(method(state, value, &format!("is{name}"), &[])?.is_true())
        });
    }
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

fn escape(value: &Value) -> Result<String, Error> {
    let replaced = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&#34;"), ('\'', "&#39;")];
    Ok(replaced.into_iter().fold(text(value)?, |text, (character, entity)| text.replace(character, entity)))
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

/// What a filter goes over, or an attribute of each.
fn each(state: &State<'_, '_>, value: &Value, attribute: Option<Value>) -> Result<Vec<Value>, Error> {
    match attribute.filter(|attribute| !attribute.is_none()) {
        None if value.is_undefined() => Ok(Vec::new()),
        None => Ok(value.try_iter()?.collect()),
        Some(attribute) => {
            let attribute = minijinja::value::Kwargs::from_iter([("attribute", attribute)]);
            filters::map(state, value.clone(), Rest(vec![attribute.into()]))
        }
    }
}

fn join(state: &State<'_, '_>, value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let [between, attribute] = bind(&args, ["d", "attribute"])?;
    let items = each(state, value, attribute)?.iter().map(text).collect::<Result<Vec<_>, _>>()?;
    Ok(items.join(&between.as_ref().map_or_else(|| Ok(String::new()), text)?))
}

fn sum(state: &State<'_, '_>, value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let [attribute, start] = bind(&args, ["attribute", "start"])?;
    let mut items = each(state, value, attribute)?;
    items.insert(0, start.unwrap_or_else(|| Value::from(0)));
    if items.iter().all(|item| item.kind() == ValueKind::Seq) {
        return items
            .iter()
            .map(Value::try_iter)
            .collect::<Result<Vec<_>, _>>()
            .map(|lists| lists.into_iter().flatten().collect());
    }
    // A bool is a number to Python.
    filters::sum(state, items.into_iter().map(|item| python::integer(&item).map_or(item, Value::from)).collect())
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
    let text = text(value)? + "\n";
    let mut out = String::new();
    for (place, line) in lines(&text, false).into_iter().enumerate() {
        out += if place > 0 { "\n" } else { "" };
        out += if if place > 0 { blank || !line.is_empty() } else { first } { &indent } else { "" };
        out += line;
    }
    Ok(out)
}

fn truncate(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    let [length, kill, end, leeway] = bind(&args, ["length", "killwords", "end", "leeway"])?;
    let number = |value: Option<Value>, otherwise| value.map_or(Ok(otherwise), usize::try_from);
    let (length, leeway) = (number(length, 255)?, number(leeway, 5)?);
    let end = end.as_ref().map_or_else(|| Ok("...".into()), text)?;
    let text = text(value)?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let keep =
        length.checked_sub(end.chars().count()).ok_or_else(|| raised("the length is less than that of the end"))?;
    let kept: String = text.chars().take(keep).collect();
    let kept = if kill.is_some_and(|kill| kill.is_true()) {
        &kept
    } else {
        kept.rsplit_once(' ').map_or(kept.as_str(), |(kept, _)| kept)
    };
    Ok(kept.to_owned() + &end)
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
    let pairs: Vec<[Value; 2]> = match value.kind() {
        ValueKind::Map => pairs(value).into_iter().map(|(key, value)| [key, value]).collect(),
        ValueKind::Seq | ValueKind::Iterable => {
            let pair = |pair: Value| {
                <[Value; 2]>::try_from(pair.try_iter()?.collect::<Vec<_>>()).map_err(|_| raised("pairs are wanted"))
            };
            value.try_iter()?.map(pair).collect::<Result<_, Error>>()?
        }
        _ => return Ok(quote(&text(value)?, false)),
    };
    let joined = |[key, value]: &[Value; 2]| Ok(format!("{}={}", quote(&text(key)?, true), quote(&text(value)?, true)));
    Ok(pairs.iter().map(joined).collect::<Result<Vec<_>, Error>>()?.join("&"))
}
