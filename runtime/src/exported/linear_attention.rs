//! Recurrences over a matrix of state for each head, as ONNX's own operator for them.

use cacheplan_transforms::onnx::{AttributeProto, TensorProto};

use super::write::{Writer, int};

/// The version of the standard operators that has it.
const OPSET: i64 = 27;

/// What a state becomes at each token: `exp(decay) · state + key ⊗ value`, or with `beta` by the delta rule.
pub(crate) struct Recurrence {
    /// The absolute layer whose state it is.
    pub(crate) layer: u32,
    /// Queries and keys, each `[batch, tokens, heads · key_dim]`.
    pub(crate) qk: [String; 2],
    /// Values, `[batch, tokens, heads · value_dim]`.
    pub(crate) v: String,
    pub(crate) decay: Decay,
    /// `[batch, tokens, heads]`: how much the delta rule writes.
    pub(crate) beta: Option<String>,
    pub(crate) heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    /// Factor on what is read out.
    pub(crate) scale: f32,
}

/// How much of a state is left, as logarithms.
pub(crate) enum Decay {
    /// The same at every token, `[heads]`.
    Fixed(Vec<f32>),
    /// `[batch, tokens, heads]`.
    PerHead(String),
    /// `[batch, tokens, heads · key_dim]`.
    PerChannel(String),
}

impl Writer {
    /// `[batch, tokens, heads · value_dim]`. Tokens that do not count change no state.
    pub(crate) fn recurrence(&mut self, recurrence: Recurrence) -> String {
        let Recurrence { layer, qk: [q, k], mut v, decay, mut beta, heads, key_dim, value_dim, scale } = recurrence;
        let counts = self.counting_tokens(&q);
        let (decay, channels) = match decay {
            Decay::Fixed(decay) => (self.data_floats(&decay, &[heads]), heads),
            Decay::PerHead(decay) => (decay, heads),
            Decay::PerChannel(decay) => (decay, heads * key_dim),
        };
        let decay = self.node("Mul", &[&decay, &counts]);
        let written = beta.as_mut().unwrap_or(&mut v);
        *written = self.node("Mul", &[written, &counts]);
        let (batch, tokens) = (Some(self.batch()), self.tokens());
        self.state_shape(&decay, &[batch, tokens, Some(channels)]);
        let state = [batch, Some(heads), Some(key_dim), Some(value_dim)];
        let name = format!("ssm_state_{layer}");
        let before = self.data_input(&name, &state);
        let mut inputs = vec![q.as_str(), &k, &v, &before, &decay];
        inputs.extend(beta.as_deref());
        let rule = if beta.is_some() { "gated_delta" } else { "gated" };
        let attributes = vec![
            int("q_num_heads", heads as i64),
            int("kv_num_heads", heads as i64),
            AttributeProto { name: "scale".to_owned(), f: scale, r#type: 1, ..AttributeProto::default() },
            AttributeProto { name: "update_rule".to_owned(), s: rule.into(), r#type: 3, ..AttributeProto::default() },
        ];
        self.need_opset(OPSET);
        let [y, after] = self.nodes("", "LinearAttention", &inputs, attributes);
        self.output(&after, &format!("{name}_out"), &state);
        y
    }

    /// A one for each token of `x` that counts, `[batch, tokens, 1]`.
    fn counting_tokens(&mut self, x: &str) -> String {
        let lengths = self.lengths();
        let all = self.tokens_of(x);
        let places = self.places(&all);
        let counted = self.counted(&lengths, &all);
        let counted = self.unsqueeze(&counted, &[1]);
        let counts = self.node("Less", &[&places, &counted]);
        let to = self.data_type().into();
        let counts = self.node_with("Cast", &[&counts], vec![int("to", to)]);
        self.unsqueeze(&counts, &[2])
    }

    /// How many tokens there are in `x` `[batch, tokens, …]`, `[1]`.
    pub(super) fn tokens_of(&mut self, x: &str) -> String {
        self.node_with("Shape", &[x], vec![int("start", 1), int("end", 2)])
    }

    /// The numbers from 0 up to a length `[1]`.
    pub(super) fn places(&mut self, length: &str) -> String {
        let (zero, one, scalar) = (self.whole(0), self.whole(1), self.ints(&[0]));
        let length = self.node("Squeeze", &[length, &scalar]);
        self.node("Range", &[&zero, &length, &one])
    }

    /// The tokens of each sequence that count, `[batch]`. One token counts whatever is said: runtimes give a decoding step
    /// the length of the whole context.
    pub(super) fn counted(&mut self, lengths: &str, tokens: &str) -> String {
        let (zero, one) = (self.ints(&[0]), self.ints(&[1]));
        let lengths = self.node_with("Cast", &[lengths], vec![int("to", TensorProto::INT64.into())]);
        let positive = self.node("Max", &[&lengths, &zero]);
        let there = self.node("Min", &[&positive, tokens]);
        let decodes = self.node("Equal", &[tokens, &one]);
        self.node("Where", &[&decodes, &one, &there])
    }

    /// Each row of the last axis over its length, as the keys of delta rules are.
    pub(crate) fn unit(&mut self, x: &str) -> String {
        let x = self.wide(x);
        let squares = self.node("Mul", &[&x, &x]);
        let (sum, little) = (self.sum(&squares, &[-1], true), self.wide_number(1e-6));
        let sum = self.node("Add", &[&sum, &little]);
        let root = self.node("Sqrt", &[&sum]);
        let x = self.node("Div", &[&x, &root]);
        self.narrow(&x)
    }

    /// `[batch, tokens, heads, size]` with each head so many times, one behind the other, as `[batch, tokens, channels]`.
    pub(crate) fn repeated(&mut self, x: &str, [heads, size, times]: [usize; 3]) -> String {
        let apart = self.reshape(x, &[0, 0, heads as i64, 1, size as i64]);
        let shape = self.ints(&[1, 1, 1, times as i64, 1]);
        let each = self.node("Expand", &[&apart, &shape]);
        self.reshape(&each, &[0, 0, (heads * times * size) as i64])
    }
}
