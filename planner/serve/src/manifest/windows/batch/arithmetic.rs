//! What `set /a` computes.

use std::collections::HashMap;

/// Parentheses in each other.
const DEPTH: usize = 32;

/// The signs of two operands, with how tightly they bind: longer ones stand in front of those that they begin with.
const SIGNS: [(&str, u8); 10] =
    [("<<", 4), (">>", 4), ("|", 1), ("^", 2), ("&", 3), ("+", 5), ("-", 5), ("*", 6), ("/", 6), ("%", 6)];

/// What an expression assigns, name by name, a number where it is known; nothing where it is none. `value` has the numbers of variables.
pub(super) fn computed(text: &str, value: &dyn Fn(&str) -> Option<i32>) -> Option<Vec<(String, Option<i32>)>> {
    let mut sum = Sum { rest: text.trim_start(), value, own: HashMap::new(), assigned: Vec::new() };
    loop {
        sum.assignment(DEPTH)?;
        if sum.rest.is_empty() {
            return Some(sum.assigned);
        }
        if !sum.takes(",") {
            return None;
        }
    }
}

struct Sum<'a> {
    rest: &'a str,
    value: &'a dyn Fn(&str) -> Option<i32>,
    own: HashMap<String, Option<i32>>,
    assigned: Vec<(String, Option<i32>)>,
}

/// A number; none where it follows from a variable that is not known.
type Number = Option<i32>;

impl<'a> Sum<'a> {
    fn takes(&mut self, sign: &str) -> bool {
        let behind = self.rest.strip_prefix(sign);
        behind.into_iter().for_each(|behind| self.rest = behind.trim_start());
        behind.is_some()
    }

    /// The word that stands here, of which names and numbers are made.
    fn word(&mut self) -> &'a str {
        let end = self.rest.find(|c: char| c.is_whitespace() || "()*/%+-<>&^|=,!~\"".contains(c));
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest.trim_start();
        word
    }

    fn assignment(&mut self, depth: usize) -> Option<Number> {
        let depth = depth.checked_sub(1)?;
        let before = self.rest;
        let name = self.word();
        let sign = SIGNS
            .iter()
            .map(|(sign, _)| *sign)
            .chain([""])
            .find(|sign| self.rest.strip_prefix(sign).is_some_and(|behind| behind.starts_with('=')));
        let Some(sign) = sign.filter(|_| !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit())) else {
            self.rest = before;
            return self.operation(0, depth);
        };
        self.rest = self.rest[sign.len() + 1..].trim_start();
        let was = self.of(name);
        let given = self.assignment(depth)?;
        let number = if sign.is_empty() { given } else { applied(sign, was, given)? };
        self.own.insert(name.to_uppercase(), number);
        self.assigned.push((name.to_owned(), number));
        Some(number)
    }

    fn of(&self, name: &str) -> Number {
        self.own.get(&name.to_uppercase()).copied().unwrap_or_else(|| (self.value)(name))
    }

    fn operation(&mut self, least: u8, depth: usize) -> Option<Number> {
        let mut number = self.operand(depth)?;
        while let Some((sign, binds)) =
            SIGNS.iter().find(|(sign, _)| self.rest.starts_with(sign)).filter(|(_, binds)| *binds > least)
        {
            self.takes(sign);
            let other = self.operation(*binds, depth)?;
            number = applied(sign, number, other)?;
        }
        Some(number)
    }

    fn operand(&mut self, depth: usize) -> Option<Number> {
        let depth = depth.checked_sub(1)?;
        if self.takes("(") {
            let number = self.assignment(depth)?;
            return self.takes(")").then_some(number);
        }
        for (sign, of) in
            [("-", i32::wrapping_neg as fn(i32) -> i32), ("+", |n| n), ("~", |n| !n), ("!", |n| i32::from(n == 0))]
        {
            if self.takes(sign) {
                return Some(self.operand(depth)?.map(of));
            }
        }
        match self.word() {
            "" => None,
            word if word.starts_with(|c: char| c.is_ascii_digit()) => number(word).map(Some),
            word => Some(self.of(word)),
        }
    }
}

/// A number as it is written: of ten, of sixteen behind `0x`, of eight behind `0`.
pub(super) fn number(text: &str) -> Option<i32> {
    let text = text.trim();
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let of_sixteen = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let of_eight = digits.strip_prefix('0').filter(|rest| !rest.is_empty());
    let number = match (of_sixteen, of_eight) {
        (Some(digits), _) => i64::from_str_radix(digits, 16),
        (None, Some(digits)) => i64::from_str_radix(digits, 8),
        (None, None) => digits.parse(),
    };
    i32::try_from(number.ok()? * sign).ok()
}

fn applied(sign: &str, left: Number, right: Number) -> Option<Number> {
    let (Some(left), Some(right)) = (left, right) else { return Some(None) };
    Some(Some(match sign {
        "+" => left.wrapping_add(right),
        "-" => left.wrapping_sub(right),
        "*" => left.wrapping_mul(right),
        "/" => left.checked_div(right)?,
        "%" => left.checked_rem(right)?,
        "&" => left & right,
        "|" => left | right,
        "^" => left ^ right,
        "<<" => left.checked_shl(u32::try_from(right).ok()?)?,
        ">>" => left.checked_shr(u32::try_from(right).ok()?)?,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("A=2*(3+4)", Some("A=14"))]
    #[case("A=1,B=A+1", Some("A=1 B=2"))]
    #[case("L*=2", Some("L=4096"))]
    #[case("L=L>>1", Some("L=1024"))]
    #[case("L<<=1", Some("L=4096"))]
    #[case("A=7-2-1", Some("A=4"))]
    #[case("A=-7%4", Some("A=-3"))]
    #[case("A=0x10+010", Some("A=24"))]
    #[case("A=6|1^3&2", Some("A=7"))]
    #[case("A=!0", Some("A=1"))]
    #[case("A=B=3", Some("B=3 A=3"))]
    #[case("A=X*2", Some("A=?"))]
    #[case("1+1", Some(""))]
    #[case("A=1/0", None)]
    #[case("A=2)", None)]
    #[case("A=", None)]
    #[case("A=09", None)]
    fn set_computes_whole_numbers(#[case] text: &str, #[case] expected: Option<&str>) {
        let found = computed(text, &|name| (name == "L").then_some(2048));
        let shown = |(name, number): &(String, Option<i32>)| {
            format!("{name}={}", number.map_or("?".to_owned(), |number| number.to_string()))
        };
        let found = found.map(|all| all.iter().map(shown).collect::<Vec<_>>().join(" "));
        assert_eq!(found.as_deref(), expected);
    }
}
