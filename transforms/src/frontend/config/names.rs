//! Patterns of the names of a model's modules, as quantised checkpoints list them: names, wildcards, regular expressions.

use std::cell::Cell;

/// The deepest groups in groups that are read.
const MAX_DEPTH: u32 = 4;

/// The longest pattern that is read.
const MAX_LENGTH: usize = 512;

/// A pattern that is not a plain name.
pub(super) struct Pattern {
    nodes: Vec<Node>,
    /// Whether names below a name that matches match too.
    below: bool,
}

enum Node {
    One(Vec<(char, char)>, bool),
    Group(Vec<Vec<Node>>),
    Repeat(Box<Node>, bool, bool),
    End,
}

impl Pattern {
    /// A name with `*` for any text.
    pub(super) fn glob(text: &str) -> Option<Self> {
        let nodes = text.chars().map(|letter| match letter {
            '*' => Node::Repeat(Box::new(any()), true, true),
            '?' => any(),
            letter => Node::One(vec![(letter, letter)], true),
        });
        (text.len() <= MAX_LENGTH).then(|| Self { nodes: nodes.collect(), below: true })
    }

    /// A regular expression of letters, sets, groups, alternatives and repeats; `None` for what it has otherwise.
    pub(super) fn regex(text: &str) -> Option<Self> {
        let mut letters = text.strip_prefix('^').unwrap_or(text).chars().peekable();
        let mut options = alternatives(&mut letters, 0).filter(|_| text.len() <= MAX_LENGTH)?;
        letters.next().is_none().then_some(())?;
        let nodes = if options.len() == 1 { options.remove(0) } else { vec![Node::Group(options)] };
        Some(Self { nodes, below: false })
    }

    /// Whether a name begins as the expression says, or is or lies below one with these wildcards; every step counts.
    pub(super) fn matches(&self, name: &str, steps: &Cell<u64>) -> bool {
        follow(&self.nodes, name, steps, &mut |rest| !self.below || rest.is_empty() || rest.starts_with('.'))
    }
}

fn any() -> Node {
    Node::One(Vec::new(), false)
}

type Letters<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn alternatives(letters: &mut Letters<'_>, depth: u32) -> Option<Vec<Vec<Node>>> {
    let mut options = vec![Vec::new()];
    while let Some(&letter) = letters.peek() {
        if letter == ')' && depth > 0 {
            break;
        }
        letters.next();
        let node = match letter {
            '|' => {
                options.push(Vec::new());
                continue;
            }
            '(' if depth < MAX_DEPTH => {
                if letters.next_if_eq(&'?').is_some() {
                    letters.next_if_eq(&':')?;
                }
                let inner = alternatives(letters, depth + 1)?;
                letters.next_if_eq(&')')?;
                Node::Group(inner)
            }
            '[' => set(letters)?,
            '.' => any(),
            '$' => Node::End,
            '\\' => match letters.next()? {
                'd' => Node::One(vec![('0', '9')], true),
                escaped if !escaped.is_alphanumeric() => Node::One(vec![(escaped, escaped)], true),
                _ => return None,
            },
            '(' | ')' | '*' | '+' | '?' | '{' | '^' => return None,
            letter => Node::One(vec![(letter, letter)], true),
        };
        let node = match letters.next_if(|next| matches!(next, '*' | '+' | '?')) {
            // A repeat of what may be nothing has no end.
            Some('*' | '+') if !matches!(node, Node::One(..)) => return None,
            Some(sign) => Node::Repeat(Box::new(node), sign != '+', sign != '?'),
            None => node,
        };
        options.last_mut()?.push(node);
    }
    Some(options)
}

fn set(letters: &mut Letters<'_>) -> Option<Node> {
    let listed = letters.next_if_eq(&'^').is_none();
    let mut ranges = Vec::new();
    loop {
        match letters.next()? {
            ']' => return Some(Node::One(ranges, listed)),
            '\\' => return None,
            from if letters.next_if_eq(&'-').is_some() => ranges.push((from, letters.next()?)),
            letter => ranges.push((letter, letter)),
        }
    }
}

/// Whether `nodes` match the beginning of `text` so that what is left suits `then`.
fn follow(nodes: &[Node], text: &str, steps: &Cell<u64>, then: &mut dyn FnMut(&str) -> bool) -> bool {
    let Some(left) = steps.get().checked_sub(1) else { return false };
    steps.set(left);
    let Some((node, rest)) = nodes.split_first() else { return then(text) };
    match node {
        Node::One(..) => one(node, text).is_some_and(|text| follow(rest, text, steps, then)),
        Node::End => text.is_empty() && follow(rest, text, steps, then),
        Node::Group(options) => {
            options.iter().any(|option| follow(option, text, steps, &mut |text| follow(rest, text, steps, then)))
        }
        Node::Repeat(inner, may_lack, may_repeat) => {
            let mut text = text;
            if *may_lack && follow(rest, text, steps, then) {
                return true;
            }
            if let Node::Group(_) = **inner {
                return follow(std::slice::from_ref(inner), text, steps, &mut |text| follow(rest, text, steps, then));
            }
            while let Some(after) = one(inner, text) {
                text = after;
                if follow(rest, text, steps, then) {
                    return true;
                }
                if !may_repeat {
                    break;
                }
            }
            false
        }
    }
}

fn one<'t>(node: &Node, text: &'t str) -> Option<&'t str> {
    let Node::One(ranges, listed) = node else { return None };
    let letter = text.chars().next()?;
    let within = ranges.iter().any(|&(from, to)| (from..=to).contains(&letter));
    (within == *listed).then(|| &text[letter.len_utf8()..])
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NAME: &str = "model.layers.3.mlp.gate_proj";

    #[rstest]
    #[case(".*mlp.*", Some(true))]
    #[case(r".*mlp\.(gate|up|gate_up|down)_proj.*", Some(true))]
    #[case(r"model\.layers\.[0-2]\.mlp", Some(false))]
    #[case(r"^model\.layers\.\d+\.mlp\.gate$", Some(false))]
    #[case(r".*\.mlp\.gate_?proj$", Some(true))]
    #[case("mlp", Some(false))]
    #[case(".*(lm_head|self_attn)", Some(false))]
    #[case(r"(?!.*mlp).*", None)]
    #[case("((a)*)*", None)]
    fn expressions_are_matched_from_a_names_beginning(#[case] text: &str, #[case] expected: Option<bool>) {
        let found = Pattern::regex(text).map(|pattern| pattern.matches(NAME, &Cell::new(10_000)));
        assert_eq!(found, expected);
    }

    #[rstest]
    #[case("*mlp*", true)]
    #[case("model.layers.?.mlp", true)]
    #[case("model.layers.*.gate", false)]
    fn wildcards_are_matched_to_a_names_end_or_a_dot(#[case] text: &str, #[case] expected: bool) {
        assert_eq!(Pattern::glob(text).unwrap().matches(NAME, &Cell::new(10_000)), expected);
    }

    #[test]
    fn a_pattern_that_takes_too_long_matches_nothing_and_spends_its_steps() {
        let steps = Cell::new(1_000);
        let pattern = Pattern::regex(&".*".repeat(40).replace(".*", ".*a")).unwrap();
        assert!(!pattern.matches(&"a".repeat(39), &steps));
        assert_eq!(steps.get(), 0);
    }
}
