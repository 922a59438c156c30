//! The reference of all keys, for people.

use crate::budget::key::{BudgetKey, Values};

/// One row per key.
pub(super) fn reference() -> String {
    let mut text = String::from("| key | flag | value | default | what it is |\n|---|---|---|---|---|\n");
    for key in BudgetKey::all() {
        let default = if key.required { "needed in its section" } else { key.default };
        text.push_str(&format!(
            "| `{}` | `{}` | {} | {default} | {} |\n",
            key.path,
            key.flag,
            value(key.values),
            key.help.trim_end_matches('.')
        ));
    }
    text
}

fn value(values: Values) -> String {
    match values {
        Values::Count(least, most) => format!("{least} to {}", power(most)),
        Values::Tokens(least, most) => format!("tokens, {least} to {}", power(most)),
        Values::Bytes => "bytes".into(),
        Values::Fraction => "above 0, at most 1".into(),
        Values::Ratio => "above 0".into(),
        Values::DType => "dtype".into(),
        Values::Choice(names) => {
            names.iter().map(|(name, meaning)| format!("`{name}`: {meaning}")).collect::<Vec<_>>().join("; ")
        }
        Values::Switch => "`true` or `false`".into(),
        Values::Lengths => "lengths".into(),
    }
}

/// Large bounds are powers of two.
fn power(bound: u64) -> String {
    if bound > 1 << 16 && bound.is_power_of_two() { format!("2^{}", bound.trailing_zeros()) } else { bound.to_string() }
}
