//! The arithmetic of architecture descriptions: `head_dim ?? hidden_size / num_attention_heads`.
//!
//! Names are config keys, dots descend into objects, and where a list is met the layer's entry counts.
//! `a ?? b` is `b` where `a` is absent; an absent operand makes a whole sum or product absent.
//! `a == b` and `a < b` are 1 or 0, `a / b` must leave no rest, `a // b` drops it, `layer` is the absolute layer.
//! `len(key)` is the length of a list or text, `in(key)` is 1 if a list of layers holds this one, `in(key, 1)` the same
//! for lists that count layers from 1, `last(key)` is the last layer of a list up to this one, `of(values, key)` what a
//! list has at the place at which a list of layers has this one. `is(key, word)` is 1 if the text under the key, or the
//! layer's in a list, is that word, `scaled(size, factor)` the whole part of a size times a fraction. `sum(n, a)` adds `a`
//! for the layers 0 to n - 1, `at(n, a)` is `a` for layer n. `power(a, b)` multiplies b times by `a`, `primes(a, n)` adds
//! the first n primes above `a`.

/// A parsed expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expr {
    Number(u64),
    Key(String),
    Len(String),
    /// A list of layers and the number of the first layer in it.
    In(String, u64),
    /// The last layer of a list up to this one.
    Last(String),
    /// Values, one for each entry of a list of layers, and that list.
    Of(String, String),
    /// A text, and what it is compared with.
    Is(String, String),
    /// A size, and the fraction of it.
    Scaled(String, String),
    Layer,
    Or(Box<Expr>, Box<Expr>),
    /// An operator or a function of two numbers, as it is written.
    Binary(&'static str, Box<Expr>, Box<Expr>),
    /// How many layers there are, and what is added over them.
    Sum(Box<Expr>, Box<Expr>),
    /// A layer, and what is taken there.
    At(Box<Expr>, Box<Expr>),
}

/// Functions of two numbers.
const FUNCTIONS: [&str; 2] = ["power", "primes"];

/// What a [`Expr::Binary`] makes of two numbers, as it would be written.
pub(super) fn written(operator: &str, a: u64, b: u64) -> String {
    if FUNCTIONS.contains(&operator) { format!("{operator}({a}, {b})") } else { format!("{a} {operator} {b}") }
}

/// The most characters of an expression. It is walked over by recursion, as deep as it has operands.
const LONGEST: usize = 1000;

impl Expr {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!("an expression of more than {LONGEST} characters is not read"));
        }
        let mut parser = Parser { rest: text.trim_start(), depth: 0 };
        let expr = parser.alternatives()?;
        if parser.rest.is_empty() { Ok(expr) } else { Err(format!("`{text}`: unexpected `{}`", parser.rest)) }
    }

    /// The same expression with other expressions in place of some keys.
    pub(super) fn with<'a>(&self, replacement: &dyn Fn(&str) -> Option<&'a Self>) -> Self {
        match self {
            Self::Key(key) => replacement(key).unwrap_or(self).clone(),
            Self::Or(left, right) => Self::Or(Box::new(left.with(replacement)), Box::new(right.with(replacement))),
            Self::Binary(operator, left, right) => {
                Self::Binary(operator, Box::new(left.with(replacement)), Box::new(right.with(replacement)))
            }
            Self::Sum(count, each) => Self::Sum(Box::new(count.with(replacement)), Box::new(each.with(replacement))),
            Self::At(layer, what) => Self::At(Box::new(layer.with(replacement)), Box::new(what.with(replacement))),
            Self::Number(_) | Self::Len(_) | Self::In(..) | Self::Last(_) | Self::Of(..) => self.clone(),
            Self::Is(..) | Self::Scaled(..) | Self::Layer => self.clone(),
        }
    }

    /// The lists of layers it reads, each with the number that stands for the first layer.
    pub(super) fn layer_lists(&self) -> Vec<(&str, u64)> {
        match self {
            Self::In(key, base) => vec![(key, *base)],
            Self::Last(key) | Self::Of(_, key) => vec![(key, 0)],
            Self::Or(left, right) | Self::Binary(_, left, right) | Self::Sum(left, right) | Self::At(left, right) => {
                [left.layer_lists(), right.layer_lists()].concat()
            }
            Self::Number(_) | Self::Key(_) | Self::Len(_) | Self::Is(..) | Self::Scaled(..) | Self::Layer => Vec::new(),
        }
    }

    /// The keys it reads, in order.
    pub(super) fn keys(&self) -> Vec<&str> {
        match self {
            Self::Key(key) | Self::Len(key) | Self::In(key, _) | Self::Last(key) | Self::Is(key, _) => vec![key],
            Self::Of(values, key) | Self::Scaled(values, key) => vec![values, key],
            Self::Number(_) | Self::Layer => Vec::new(),
            Self::Or(left, right) | Self::Binary(_, left, right) | Self::Sum(left, right) | Self::At(left, right) => {
                [left.keys(), right.keys()].concat()
            }
        }
    }

    /// The keys of which another takes the place where they are not there.
    pub(super) fn optional_keys(&self) -> Vec<&str> {
        match self {
            Self::Or(left, right) => [left.keys(), right.optional_keys()].concat(),
            Self::Binary(_, left, right) | Self::Sum(left, right) | Self::At(left, right) => {
                [left.optional_keys(), right.optional_keys()].concat()
            }
            _ => Vec::new(),
        }
    }

    /// Whether it asks how many entries a key has.
    pub(super) fn counts(&self, key: &str) -> bool {
        match self {
            Self::Len(counted) => counted == key,
            Self::Or(left, right) | Self::Binary(_, left, right) | Self::Sum(left, right) | Self::At(left, right) => {
                left.counts(key) || right.counts(key)
            }
            _ => false,
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
    depth: u32,
}

impl Parser<'_> {
    fn eat(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    /// The first of some tokens that is there.
    fn eat_any(&mut self, tokens: &[&'static str]) -> Option<&'static str> {
        tokens.iter().copied().find(|token| self.eat(token))
    }

    fn alternatives(&mut self) -> Result<Expr, String> {
        let mut left = self.comparison()?;
        while self.eat("??") {
            left = Expr::Or(Box::new(left), Box::new(self.comparison()?));
        }
        Ok(left)
    }

    fn comparison(&mut self) -> Result<Expr, String> {
        let left = self.sum()?;
        match self.eat_any(&["==", "<"]) {
            Some(operator) => Ok(Expr::Binary(operator, Box::new(left), Box::new(self.sum()?))),
            None => Ok(left),
        }
    }

    fn sum(&mut self) -> Result<Expr, String> {
        let mut left = self.product()?;
        while let Some(operator) = self.eat_any(&["+", "-"]) {
            left = Expr::Binary(operator, Box::new(left), Box::new(self.product()?));
        }
        Ok(left)
    }

    fn product(&mut self) -> Result<Expr, String> {
        let mut left = self.atom()?;
        while let Some(operator) = self.eat_any(&["*", "//", "/", "%"]) {
            left = Expr::Binary(operator, Box::new(left), Box::new(self.atom()?));
        }
        Ok(left)
    }

    fn two_words(&mut self, expected: &str) -> Result<(String, String), String> {
        match (self.atom()?, self.eat(","), self.atom()?) {
            (Expr::Key(left), true, Expr::Key(right)) if self.eat(")") => Ok((left, right)),
            _ => Err(expected.to_owned()),
        }
    }

    /// What stands in parentheses, whose first is read already, up to `end`.
    fn inner(&mut self, end: &str) -> Result<Expr, String> {
        self.depth += 1;
        if self.depth > 16 {
            return Err("too many parentheses".to_owned());
        }
        let inner = self.alternatives()?;
        self.depth -= 1;
        if self.eat(end) { Ok(inner) } else { Err(format!("a `{end}` is missing")) }
    }

    fn two(&mut self) -> Result<(Box<Expr>, Box<Expr>), String> {
        Ok((Box::new(self.inner(",")?), Box::new(self.inner(")")?)))
    }

    fn atom(&mut self) -> Result<Expr, String> {
        if self.eat("(") {
            return self.inner(")");
        }
        let end =
            self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.')).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        if word.is_empty() {
            let place = if self.rest.is_empty() { "at the end".to_owned() } else { format!("before `{}`", self.rest) };
            return Err(format!("a key or a number was expected {place}"));
        }
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return word.parse().map(Expr::Number).map_err(|_| format!("`{word}` is not a whole number"));
        }
        if let Some(function) = FUNCTIONS.into_iter().find(|name| *name == word)
            && self.eat("(")
        {
            return self.two().map(|(left, right)| Expr::Binary(function, left, right));
        }
        match word {
            "layer" => Ok(Expr::Layer),
            "sum" if self.eat("(") => self.two().map(|(count, each)| Expr::Sum(count, each)),
            "at" if self.eat("(") => self.two().map(|(layer, what)| Expr::At(layer, what)),
            "len" if self.eat("(") => match self.atom()? {
                Expr::Key(key) if self.eat(")") => Ok(Expr::Len(key)),
                _ => Err("len(…) takes one key".to_owned()),
            },
            "last" if self.eat("(") => match self.atom()? {
                Expr::Key(key) if self.eat(")") => Ok(Expr::Last(key)),
                _ => Err("last(…) takes one key".to_owned()),
            },
            "of" if self.eat("(") => self.two_words("of(values, key) takes two keys").map(|(a, b)| Expr::Of(a, b)),
            "scaled" if self.eat("(") => {
                self.two_words("scaled(size, factor) takes two keys").map(|(a, b)| Expr::Scaled(a, b))
            }
            "is" if self.eat("(") => self.two_words("is(key, word) takes two words").map(|(a, b)| Expr::Is(a, b)),
            "in" if self.eat("(") => {
                let Expr::Key(key) = self.atom()? else { return Err("in(…) takes a key".to_owned()) };
                let base = if self.eat(",") { self.atom()? } else { Expr::Number(0) };
                match base {
                    Expr::Number(base) if self.eat(")") => Ok(Expr::In(key, base)),
                    _ => Err("in(key, base) takes a number as base".to_owned()),
                }
            }
            _ => Ok(Expr::Key(word.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("a ?? b / 2")]
    #[case("len(layer_types) ?? (x + 1) * y - layer % 2")]
    #[case("a.b == 3")]
    #[case("(a + 255) // 256 * 256")]
    #[case("in(list, 1) ?? layer < n")]
    #[case("last(list) + of(values, list)")]
    #[case("is(mode, per_loop) ?? 1")]
    #[case("scaled(hidden_size, factor) // 2")]
    #[case("sum(len(list), at(layer - 1, list ?? 1) * power(2, layer)) + primes(base - 1, n)")]
    fn valid_text_parses(#[case] text: &str) {
        assert!(Expr::parse(text).is_ok(), "{text}");
    }

    #[rstest]
    #[case("")]
    #[case("a b")]
    #[case("(a")]
    #[case("1x")]
    #[case("len(3)")]
    #[case("in(list, x)")]
    #[case("last(3)")]
    #[case("of(values)")]
    #[case("a +")]
    #[case("sum(3)")]
    #[case("primes(3, 4")]
    #[case(&"(".repeat(LONGEST))]
    #[case(&"len(".repeat(LONGEST / 4))]
    #[case(&format!("1{}", " + 1".repeat(LONGEST)))]
    fn invalid_text_is_an_error(#[case] text: &str) {
        assert!(Expr::parse(text).is_err(), "{text}");
    }
}
