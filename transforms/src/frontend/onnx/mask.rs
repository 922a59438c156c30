//! How far back attention sees, as far as its mask is computed by the graph: comparisons of positions, joined by And.

use std::collections::HashSet;

use super::lookup::Lookup;

/// What a mask lets through besides what causality and padding leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// Every token.
    All,
    /// So many tokens, the current one included.
    Window(u64),
    /// The graph does not tell.
    Unclear,
}

/// Masks are a few dozen nodes.
const MAX_NODES: usize = 512;

/// Reads a mask, true or 0 where a token is seen.
pub(super) fn sight(lookup: &Lookup<'_>, mask: &str) -> Sight {
    let (mut open, mut seen) = (vec![mask], HashSet::new());
    let mut sight = Sight::All;
    while let Some(name) = open.pop() {
        if !seen.insert(name) {
            continue;
        }
        if seen.len() > MAX_NODES {
            return Sight::Unclear;
        }
        let Some(node) = lookup.producer(name) else { continue };
        match node.op_type.as_str() {
            "And" | "Cast" | "Expand" | "Identity" | "Reshape" | "Slice" | "Squeeze" | "Transpose" | "Unsqueeze" => {
                // What follows the data of a Reshape or a Slice are sizes.
                let operands = if node.op_type == "And" { 2 } else { 1 };
                open.extend(node.input.iter().take(operands).map(String::as_str));
            }
            // The condition says what is seen; zeros and infinities take its place.
            "Where" => open.extend(node.at(0)),
            // A mask that the caller gives, gathered by position: padding.
            "Gather" | "GatherND" => {}
            "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" => {
                match node.at(0).zip(node.at(1)).and_then(|(left, right)| bound(lookup, &node.op_type, left, right)) {
                    // Causality: the key is not behind the query.
                    Some(1) => {}
                    Some(bound) if bound > 1 => {
                        let shorter = match sight {
                            Sight::Window(window) => window.min(bound.unsigned_abs()),
                            _ => bound.unsigned_abs(),
                        };
                        sight = Sight::Window(shorter);
                    }
                    _ => return Sight::Unclear,
                }
            }
            _ => return Sight::Unclear,
        }
    }
    sight
}

/// The comparison as `a - b + bound > 0` of two positions `a` and `b`: 1 leaves what is not ahead, more a window.
fn bound(lookup: &Lookup<'_>, op: &str, left: &str, right: &str) -> Option<i64> {
    let (more, less) = if op.starts_with("Greater") { (left, right) } else { (right, left) };
    let (mut terms, mut constant) = (Vec::new(), i64::from(op.ends_with("OrEqual")));
    add(lookup, more, 1, &mut terms, &mut constant, 0)?;
    add(lookup, less, -1, &mut terms, &mut constant, 0)?;
    match terms.as_slice() {
        [(_, first), (_, second)] if first + second == 0 => Some(constant),
        // What the caller gives against a number says which tokens are padding.
        [(name, _)] if lookup.producer(name).is_none() => Some(1),
        _ => None,
    }
}

/// Adds `sign` times a value to a sum of positions and a constant.
fn add<'a>(
    lookup: &Lookup<'a>,
    name: &'a str,
    sign: i64,
    terms: &mut Vec<(&'a str, i64)>,
    constant: &mut i64,
    depth: u32,
) -> Option<()> {
    if let Some(number) = lookup.whole_number(name) {
        *constant = constant.checked_add(number.checked_mul(sign)?)?;
        return Some(());
    }
    let node = lookup.producer(name).filter(|_| depth < 16);
    match node.map(|node| (node, node.op_type.as_str())) {
        Some((node, "Cast" | "Expand" | "Identity" | "Reshape" | "Squeeze" | "Unsqueeze")) => {
            add(lookup, node.at(0)?, sign, terms, constant, depth + 1)
        }
        // A position may itself be a sum, of the past's length and a range: only constants are taken apart.
        Some((node, op @ ("Add" | "Sub"))) if is_shifted(lookup, node.at(0)?, node.at(1)?) => {
            add(lookup, node.at(0)?, sign, terms, constant, depth + 1)?;
            let other = if op == "Sub" { -sign } else { sign };
            add(lookup, node.at(1)?, other, terms, constant, depth + 1)
        }
        _ => {
            terms.push((name, sign));
            Some(())
        }
    }
}

/// Whether one of two operands is a constant, or both are the positions that a difference is taken of.
fn is_shifted(lookup: &Lookup<'_>, left: &str, right: &str) -> bool {
    let rank = |name: &str| lookup.value(name).map_or(0, |value| value.shape.len());
    [left, right].iter().any(|name| lookup.whole_number(name).is_some()) || (rank(left) > 1 && rank(right) > 1)
}
