//! Values of PowerShell, and what its operators make of them.

use super::super::super::unknown::Why;

/// The most elements or letters that a value is repeated to.
const LONGEST: usize = 4096;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(String),
    Int(i64),
    Real(f64),
    Bool(bool),
    Null,
    List(Vec<Value>),
    /// What is not known, as its mark.
    Unknown(String),
}

impl Value {
    pub(super) fn unknown(why: Why, name: &str) -> Self {
        Self::Unknown(why.mark(name))
    }

    /// As a text, in which the elements of a list stand behind each other.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Text(text) | Self::Unknown(text) => text.clone(),
            Self::Int(number) => number.to_string(),
            Self::Real(number) => number.to_string(),
            Self::Bool(true) => "True".to_owned(),
            Self::Bool(false) => "False".to_owned(),
            Self::Null => String::new(),
            Self::List(elements) => elements.iter().map(Self::text).collect::<Vec<_>>().join(" "),
        }
    }

    /// What it costs to copy it.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Text(text) | Self::Unknown(text) => 32 + text.len(),
            Self::List(elements) => elements.iter().map(Self::weight).sum::<usize>() + 32,
            _ => 32,
        }
    }

    /// Its elements, where it is a list; else itself.
    pub(super) fn elements(self) -> Vec<Self> {
        match self {
            Self::List(elements) => elements,
            value => vec![value],
        }
    }

    fn number(&self) -> Option<Self> {
        match self {
            Self::Int(_) | Self::Real(_) => Some(self.clone()),
            Self::Null => Some(Self::Int(0)),
            Self::Bool(is) => Some(Self::Int(i64::from(*is))),
            Self::Text(text) => match text.trim() {
                "" => Some(Self::Int(0)),
                text => number(text),
            },
            Self::List(_) | Self::Unknown(_) => None,
        }
    }

    /// The value under a type that is written in front of it; none where the type is not followed.
    pub(super) fn cast(self, name: &str) -> Option<Self> {
        if let Self::Unknown(_) = self {
            return Some(self);
        }
        match &*name.to_ascii_lowercase() {
            "string" => Some(Self::Text(self.text())),
            "array" | "object[]" | "string[]" => {
                Some(Self::List(match (self, name.eq_ignore_ascii_case("string[]")) {
                    (value, false) => value.elements(),
                    (value, true) => value.elements().iter().map(|element| Self::Text(element.text())).collect(),
                }))
            }
            "object" => Some(self),
            "int" | "int32" | "long" | "int64" | "uint32" | "uint64" => match self.number()? {
                Self::Real(number) => whole(number.round_ties_even()),
                value => Some(value),
            },
            "double" | "float" | "single" | "decimal" => match self.number()? {
                Self::Int(number) => Some(Self::Real(number as f64)),
                value => Some(value),
            },
            _ => None,
        }
    }

    /// What an operator makes of two; none where it is not followed.
    pub(super) fn applied(sign: char, left: Self, right: Self) -> Option<Self> {
        match (sign, left, right) {
            (_, left @ Self::Unknown(_), _) => Some(left),
            ('+', Self::List(mut left), right) => {
                left.extend(right.elements());
                Some(Self::List(left))
            }
            (_, _, right @ Self::Unknown(_)) => Some(right),
            ('+', Self::Text(left), right) => Some(Self::Text(left + &right.text())),
            ('+', Self::Null, right) => Some(right),
            ('*', Self::Text(text), right) => {
                let times = right.times(text.len())?;
                Some(Self::Text(text.repeat(times)))
            }
            ('*', Self::List(list), right) => {
                let times = right.times(list.len())?;
                Some(Self::List(vec![list; times].concat()))
            }
            (_, left, right) => calculated(sign, &left.number()?, &right.number()?),
        }
    }

    /// How often something of a length is repeated.
    fn times(&self, length: usize) -> Option<usize> {
        let Self::Int(times) = self.number()? else { return None };
        usize::try_from(times).ok().filter(|times| times.saturating_mul(length.max(1)) <= LONGEST)
    }
}

fn calculated(sign: char, left: &Value, right: &Value) -> Option<Value> {
    if let (Value::Int(left), Value::Int(right)) = (left, right) {
        let number = match sign {
            '+' => left.checked_add(*right),
            '-' => left.checked_sub(*right),
            '*' => left.checked_mul(*right),
            '%' => left.checked_rem(*right),
            '/' if *right != 0 && left.checked_rem(*right)? != 0 => {
                return Some(Value::Real(*left as f64 / *right as f64));
            }
            '/' => left.checked_div(*right),
            _ => None,
        };
        return number.filter(|number| number.abs() < LARGEST as i64).map(Value::Int);
    }
    let real = |value: &Value| match value {
        Value::Int(number) => *number as f64,
        Value::Real(number) => *number,
        _ => f64::NAN,
    };
    let (left, right) = (real(left), real(right));
    let number = match sign {
        '+' => left + right,
        '-' => left - right,
        '*' => left * right,
        '/' => left / right,
        _ => return None,
    };
    plain(number).then_some(Value::Real(number))
}

/// Beyond it, and below its inverse, numbers are written with an exponent.
const LARGEST: f64 = 1e15;

fn plain(number: f64) -> bool {
    number == 0.0 || (number.is_finite() && number.abs() < LARGEST && number.abs() >= 1e-4)
}

fn whole(number: f64) -> Option<Value> {
    plain(number).then_some(Value::Int(number as i64))
}

/// A number as it is written: `2kb`, `0x800`, `1.5e3`.
pub(super) fn number(text: &str) -> Option<Value> {
    const UNITS: [(&str, u32); 5] = [("kb", 10), ("mb", 20), ("gb", 30), ("tb", 40), ("pb", 50)];
    let low = text.to_ascii_lowercase();
    let (sign, digits) = low.strip_prefix('-').map_or((1, &*low), |digits| (-1, digits));
    let (digits, shift) =
        UNITS.iter().find_map(|(unit, shift)| Some((digits.strip_suffix(unit)?, *shift))).unwrap_or((digits, 0));
    let unit = 1_i64 << shift;
    if let Some(hex) = digits.strip_prefix("0x") {
        let hex = hex.strip_suffix('l').unwrap_or(hex);
        // More digits mean what the type can hold, and below zero.
        let number = i64::from_str_radix(hex, 16).ok().filter(|_| hex.len() < 8)?;
        return number.checked_mul(unit * sign).map(Value::Int);
    }
    let digits = digits.strip_suffix('l').unwrap_or(digits);
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && digits.bytes().all(|byte| byte.is_ascii_digit() || b".e+-".contains(&byte));
    if !is_number {
        return None;
    }
    if let Ok(number) = digits.parse::<i64>() {
        return number.checked_mul(unit * sign).filter(|number| number.abs() < LARGEST as i64).map(Value::Int);
    }
    let number = digits.parse::<f64>().ok()? * (unit * sign) as f64;
    plain(number).then_some(Value::Real(number))
}
