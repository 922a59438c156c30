//! State that an export carries from step to step: a graph input and the output that takes its place.

use std::collections::HashMap;

use super::lookup::Lookup;

/// No model has as many layers as this.
pub(super) const MAX_LAYER: u32 = 10_000;

/// An input and its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State<'a> {
    pub(super) input: &'a str,
    pub(super) output: &'a str,
    /// The layer that the name tells.
    pub(super) layer: Option<u32>,
}

/// All of them, found by their inputs.
pub(super) struct States<'a> {
    list: Vec<State<'a>>,
    by_input: HashMap<&'a str, usize>,
}

impl<'a> States<'a> {
    pub(super) fn pair(lookup: &Lookup<'a>) -> Self {
        let list = pair(lookup);
        let by_input = list.iter().enumerate().map(|(index, state)| (state.input, index)).collect();
        Self { list, by_input }
    }

    /// The state that comes in under this name.
    pub(super) fn of(&self, input: &str) -> Option<&State<'a>> {
        self.by_input.get(input).map(|&index| &self.list[index])
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, State<'a>> {
        self.list.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// Pairs inputs and outputs whose names differ only in the words for before and after.
fn pair<'a>(lookup: &Lookup<'a>) -> Vec<State<'a>> {
    let outputs: HashMap<Vec<&str>, &str> =
        lookup.graph.output.iter().map(|output| (stem(&output.name), output.name.as_str())).collect();
    let inputs = lookup.graph.input.iter().filter(|input| lookup.value(&input.name).is_some_and(|v| v.shape.len() > 2));
    inputs
        .filter_map(|input| {
            let stem = stem(&input.name);
            let output = outputs.get(&stem)?;
            let layer = stem.iter().find_map(|word| word.parse().ok());
            Some(State { input: input.name.as_str(), output, layer })
        })
        .collect()
}

/// A name without the words that tell before from after.
fn stem(name: &str) -> Vec<&str> {
    const PREFIXES: [(&str, &str); 3] = [("past_key_values", ""), ("present_key_values", ""), ("past.", "")];
    let bare = PREFIXES.iter().find_map(|(prefix, _)| name.strip_prefix(prefix)).unwrap_or(name);
    let words = bare.split(['.', '_', '/', ':']);
    words.filter(|word| !matches!(*word, "" | "past" | "present" | "new" | "out" | "in" | "next" | "updated")).collect()
}

/// The name of the values that belong to keys of that name.
pub(super) fn key_to_value(name: &str) -> Option<String> {
    let swap = [("key", "value"), ("_k_", "_v_"), (".k", ".v")].into_iter().find_map(|(key, value)| {
        let (before, after) = name.rsplit_once(key)?;
        Some(format!("{before}{value}{after}"))
    });
    swap.or_else(|| name.strip_suffix("_k").map(|stem| format!("{stem}_v")))
}

/// The number after `layers`, `layer`, `blocks` or `h` in a name such as `/model/layers.5/attn/MatMul`.
pub(super) fn layer_in(name: &str) -> Option<u32> {
    let mut words = name.split(['.', '_', '/']);
    words.find(|word| matches!(*word, "layers" | "layer" | "blocks" | "h" | "l"))?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("past_key_values.5.key", "present.5.key")]
    #[case("past_key_1", "present_key_1")]
    #[case("conv_state_0", "conv_state_0_out")]
    #[case("past_k", "new_k")]
    #[case("past_key_values.3.value", "present_key_values.3.value")]
    #[case("past_conv.2", "present_conv.2")]
    fn before_and_after_have_one_stem(#[case] before: &str, #[case] after: &str) {
        assert_eq!(stem(before), stem(after));
    }

    #[test]
    fn different_things_have_different_stems() {
        assert_ne!(stem("past_key_1"), stem("present_value_1"));
        assert_ne!(stem("past_key_1"), stem("present_key_2"));
    }
}
