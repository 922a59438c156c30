//! Python's operators.

use std::cmp::Ordering;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::format::printf;
use super::items::{of_tuple, repeated};
use super::{bounded, escaped, integer, iterate, pairs, parse_float, raised, text, tuple, type_of};

/// Operands with their operators between them, from left to right.
pub(crate) fn sum(operators: &str, operands: &Value) -> Result<Value, Error> {
    let mut operands = operands.try_iter()?;
    let mut left = operands.next().unwrap_or_default();
    let (mut lists, mut is_list) = (Vec::new(), false);
    for (operator, right) in operators.split(',').zip(operands) {
        // A long sum of lists is made once.
        if operator == "+" && type_of(&left) == "list" && type_of(&right) == "list" {
            if !is_list {
                lists = iterate(&left)?;
            }
            is_list = true;
            let more = iterate(&right)?;
            bounded((lists.len() + more.len()).checked_mul(size_of::<Value>()))?;
            lists.extend(more);
            continue;
        }
        if std::mem::take(&mut is_list) {
            left = Value::from(std::mem::take(&mut lists));
        }
        left = binary(operator, &left, &right)?;
    }
    Ok(if is_list { Value::from(lists) } else { left })
}

fn float(value: &Value) -> Option<f64> {
    parse_float(value).filter(|_| matches!(value.kind(), ValueKind::Number | ValueKind::Bool))
}

fn unsupported(operator: &str, left: &Value, right: &Value) -> Error {
    if left.is_undefined() || right.is_undefined() {
        return ErrorKind::UndefinedError.into();
    }
    raised(format!("unsupported operand types for {operator}: '{}' and '{}'", type_of(left), type_of(right)))
}

fn binary(operator: &str, left: &Value, right: &Value) -> Result<Value, Error> {
    let is_safe = left.is_safe() || right.is_safe();
    if left.is_safe() && operator == "%" {
        return Err(raised("what `%` makes of an escaped text is not known here"));
    }
    let unsupported = || unsupported(operator, left, right);
    let large =
        || raised(format!("what `{operator}` makes of these numbers is larger than numbers here, and not known"));
    let numbers = integer(left).zip(integer(right));
    let floats = || float(left).zip(float(right));
    match (operator, type_of(left), type_of(right)) {
        // What is escaped escapes the other.
        ("+", "str", "str") if is_safe => {
            let [left, right] = [left, right].map(escaped);
            Ok(Value::from_safe_string(left? + &right?))
        }
        ("+", "str", "str") => {
            let (left, right) = (left.as_str().unwrap_or_default(), right.as_str().unwrap_or_default());
            bounded(left.len().checked_add(right.len()))?;
            Ok(Value::from([left, right].concat()))
        }
        ("+", "tuple", "tuple") => Ok(tuple([iterate(left)?, iterate(right)?].concat())),
        ("*", "str" | "list" | "tuple", _) => {
            integer(right).ok_or_else(unsupported).and_then(|times| repeated(left, times))
        }
        ("*", _, "str" | "list" | "tuple") => {
            integer(left).ok_or_else(unsupported).and_then(|times| repeated(right, times))
        }
        ("%", "str", _) => printf(left.as_str().unwrap_or_default(), right).map(Value::from),
        ("+" | "-" | "*", ..) => match (numbers, operator) {
            (Some((left, right)), "+") => left.checked_add(right).ok_or_else(large).map(Value::from),
            (Some((left, right)), "-") => left.checked_sub(right).ok_or_else(large).map(Value::from),
            (Some((left, right)), _) => left.checked_mul(right).ok_or_else(large).map(Value::from),
            (None, operator) => floats().ok_or_else(unsupported).map(|(left, right)| {
                Value::from(match operator {
                    "+" => left + right,
                    "-" => left - right,
                    _ => left * right,
                })
            }),
        },
        ("/", ..) => {
            let (dividend, divisor) = floats().ok_or_else(unsupported)?;
            if divisor == 0.0 {
                return Err(raised("division by zero"));
            }
            let exact = |number: i128| number.unsigned_abs() <= 1 << 53;
            if numbers.is_some_and(|(left, right)| !exact(left) || !exact(right)) {
                return Err(raised("what `/` makes of so large numbers is not known here"));
            }
            Ok(Value::from(dividend / divisor))
        }
        ("**", ..) => match numbers {
            Some((base, exponent)) if exponent >= 0 => {
                let power = u32::try_from(exponent).ok().and_then(|exponent| base.checked_pow(exponent));
                let power = power.or(if matches!(base, 0 | 1) { Some(base) } else { None });
                power.ok_or_else(large).map(Value::from)
            }
            _ => {
                let (base, exponent) = floats().ok_or_else(unsupported)?;
                if base == 0.0 && exponent < 0.0 {
                    return Err(raised("0.0 cannot be raised to a negative power"));
                }
                let power = base.powf(exponent);
                if power.is_nan() && !base.is_nan() && !exponent.is_nan() {
                    return Err(raised("complex numbers are not known here"));
                }
                if power.is_infinite() && base.is_finite() && exponent.is_finite() {
                    return Err(raised("Numerical result out of range"));
                }
                Ok(Value::from(power))
            }
        },
        _ => {
            let (quotient, rest) = divided(left, right, unsupported)?;
            Ok(if operator == "%" { rest } else { quotient })
        }
    }
}

/// How often `right` goes into `left`, and what is left, which has its sign.
fn divided(left: &Value, right: &Value, unsupported: impl Fn() -> Error) -> Result<(Value, Value), Error> {
    if let (Some(left), Some(right)) = (integer(left), integer(right)) {
        let quotient = left.checked_div(right).ok_or_else(|| raised("division or modulo by zero"))?;
        let rest = left - quotient * right;
        let beyond = rest != 0 && (rest < 0) != (right < 0);
        let (quotient, rest) = if beyond { (quotient - 1, rest + right) } else { (quotient, rest) };
        return Ok((Value::from(quotient), Value::from(rest)));
    }
    let (left, right) = float(left).zip(float(right)).ok_or_else(unsupported)?;
    if right == 0.0 {
        return Err(raised("division or modulo by zero"));
    }
    let rest = left % right;
    let rest = match rest {
        0.0 => 0f64.copysign(right),
        rest if (rest < 0.0) != (right < 0.0) => rest + right,
        rest => rest,
    };
    let quotient = (left - rest) / right;
    let quotient = if quotient == 0.0 { 0f64.copysign(left / right) } else { quotient.round() };
    Ok((Value::from(quotient), Value::from(rest)))
}

/// `-value` and `+value`.
pub(crate) fn sign(sign: &str, value: &Value) -> Result<Value, Error> {
    let negative = sign == "-";
    if let Some(whole) = integer(value) {
        return Ok(Value::from(if negative { -whole } else { whole }));
    }
    match float(value) {
        Some(number) => Ok(Value::from(if negative { -number } else { number })),
        None if value.is_undefined() => Err(ErrorKind::UndefinedError.into()),
        None => Err(raised(format!("bad operand type for unary {sign}: '{}'", type_of(value)))),
    }
}

/// `a ~ b ~ c`.
pub(crate) fn concatenated(parts: &Value) -> Result<Value, Error> {
    let mut out = String::new();
    for part in parts.try_iter()? {
        let part = text(&part)?;
        bounded(out.len().checked_add(part.len()))?;
        out += &part;
    }
    Ok(Value::from(out))
}

/// `a < b < c`.
pub(crate) fn compared(operators: &str, operands: &Value) -> Result<Value, Error> {
    let operands: Vec<Value> = operands.try_iter()?.collect();
    for (operator, pair) in operators.split(',').zip(operands.windows(2)) {
        if !compare(operator, &pair[0], &pair[1])? {
            return Ok(Value::from(false));
        }
    }
    Ok(Value::from(true))
}

pub(crate) fn compare(operator: &str, left: &Value, right: &Value) -> Result<bool, Error> {
    Ok(match operator {
        "==" => equal(left, right),
        "!=" => !equal(left, right),
        "in" => contains(right, left)?,
        "not in" => !contains(right, left)?,
        _ => {
            let order = order(operator, left, right)?;
            match operator {
                "<" => order == Some(Ordering::Less),
                "<=" => matches!(order, Some(Ordering::Less | Ordering::Equal)),
                ">" => order == Some(Ordering::Greater),
                _ => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
            }
        }
    })
}

/// The order of an int and a float, both as they are.
fn order_of_numbers(left: &Value, right: &Value) -> Option<Ordering> {
    match (integer(left), integer(right)) {
        (Some(left), Some(right)) => Some(left.cmp(&right)),
        (None, None) => float(left)?.partial_cmp(&float(right)?),
        (Some(_), None) => order_of_numbers(right, left).map(Ordering::reverse),
        (None, Some(right)) => {
            let left = float(left)?;
            // Beyond all whole numbers of ours.
            if left.abs() >= 1.7e38 {
                return left.partial_cmp(&0.0);
            }
            if left.is_nan() {
                return None;
            }
            Some((left.trunc() as i128).cmp(&right).then(left.fract().partial_cmp(&0.0)?))
        }
    }
}

fn is_number(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
}

/// `left == right`.
pub(crate) fn equal(left: &Value, right: &Value) -> bool {
    if is_number(left) && is_number(right) {
        return order_of_numbers(left, right) == Some(Ordering::Equal);
    }
    let same_items = || {
        let (left, right) = (iterate(left).unwrap_or_default(), iterate(right).unwrap_or_default());
        left.len() == right.len() && left.iter().zip(&right).all(|(left, right)| equal(left, right))
    };
    match (type_of(left), type_of(right)) {
        ("Undefined", "Undefined") | ("NoneType", "NoneType") => true,
        ("str", "str") => left.as_str() == right.as_str(),
        ("list", "list") | ("tuple", "tuple") | ("range", "range") => same_items(),
        ("dict", "dict") => {
            let pairs = super::pairs(left);
            right.len() == Some(pairs.len())
                && pairs.iter().all(|(key, value)| find(right, key).is_some_and(|other| equal(value, &other)))
        }
        ("dict_keys" | "dict_items", "dict_keys" | "dict_items") => {
            left.len() == right.len()
                && iterate(left).is_ok_and(|all| all.iter().all(|item| contains(right, item).unwrap_or(false)))
        }
        _ => same(left, right),
    }
}

/// Whether two are the same one of ours.
fn same(left: &Value, right: &Value) -> bool {
    let items = |value: &Value| value.downcast_object_ref::<super::Items>().map(std::ptr::from_ref);
    items(left).is_some() && items(left) == items(right)
}

/// What a dict has at a key.
pub(super) fn find(dict: &Value, of: &Value) -> Option<Value> {
    if let Some(found) = dict.as_object().and_then(|object| object.get_value(of)) {
        return Some(found);
    }
    // `1`, `1.0` and `true` are one key.
    let is_number = matches!(of.kind(), ValueKind::Number | ValueKind::Bool) || of_tuple(of).is_some();
    let mut pairs = if is_number { pairs(dict) } else { Vec::new() }.into_iter();
    pairs.find(|(key, _)| equal(key, of)).map(|(_, value)| value)
}

/// Whether it can be a dict's key.
pub(crate) fn hashable(value: &Value) -> bool {
    match type_of(value) {
        "list" | "dict" | "dict_keys" | "dict_items" => false,
        "tuple" => of_tuple(value).is_some_and(|items| items.iter().all(hashable)),
        _ => true,
    }
}

/// `what in value`.
pub(crate) fn contains(value: &Value, what: &Value) -> Result<bool, Error> {
    match type_of(value) {
        "str" => {
            let what = what.as_str().filter(|_| what.kind() == ValueKind::String);
            let what = what.ok_or_else(|| raised("'in <string>' requires string as left operand"))?;
            Ok(value.as_str().is_some_and(|text| text.contains(what)))
        }
        "dict" if !hashable(what) => Err(raised(format!("unhashable type: '{}'", type_of(what)))),
        "dict" => Ok(find(value, what).is_some()),
        "generator" => {
            while let Some(next) = super::items::first(value)? {
                if equal(&next, what) {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => Ok(iterate(value)?.iter().any(|item| equal(item, what))),
    }
}

/// How two values stand to each other; none where a number is none. Python orders only what is of one type.
pub(crate) fn order(operator: &str, left: &Value, right: &Value) -> Result<Option<Ordering>, Error> {
    if is_number(left) && is_number(right) {
        return Ok(order_of_numbers(left, right));
    }
    match (type_of(left), type_of(right)) {
        ("str", "str") => Ok(Some(left.as_str().cmp(&right.as_str()))),
        ("list", "list") | ("tuple", "tuple") => {
            let (left, right) = (iterate(left)?, iterate(right)?);
            match left.iter().zip(&right).find(|(left, right)| !equal(left, right)) {
                Some((left, right)) => order(operator, left, right),
                None => Ok(Some(left.len().cmp(&right.len()))),
            }
        }
        ("dict_keys" | "dict_items", "dict_keys" | "dict_items") => Err(raised("an order of views is not known here")),
        ("Undefined", _) | (_, "Undefined") => Err(ErrorKind::UndefinedError.into()),
        (one, other) => Err(raised(format!("'{operator}' not supported between instances of '{one}' and '{other}'"))),
    }
}

/// Values by their keys, as `sorted` does: equal ones stay in their order.
pub(crate) fn sorted(mut items: Vec<(Value, Value)>, reverse: bool) -> Result<Vec<(Value, Value)>, Error> {
    if items.len() < 2 {
        return Ok(items);
    }
    let behind = sorted(items.split_off(items.len() / 2), reverse)?;
    let (mut left, mut right) = (sorted(items, reverse)?.into_iter().peekable(), behind.into_iter().peekable());
    let mut out = Vec::with_capacity(left.len() + right.len());
    while let (Some((one, _)), Some((other, _))) = (left.peek(), right.peek()) {
        let (smaller, larger) = if reverse { (one, other) } else { (other, one) };
        out.extend(if compare("<", smaller, larger)? { right.next() } else { left.next() });
    }
    out.extend(left);
    out.extend(right);
    Ok(out)
}
