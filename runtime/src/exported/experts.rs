//! Routers and experts as standard operators.

use cacheplan_kernels::Routing;
use cacheplan_transforms::onnx::TensorProto;

use super::write::{Writer, int};

/// The experts that a router chose.
pub(crate) struct Chosen {
    /// Their numbers, `[batch, tokens, per_token]`.
    numbers: String,
    /// What each counts, in the same shape.
    shares: String,
    /// A one where a choice is the expert, `[batch, tokens, per_token, experts]`.
    ones: String,
    experts: usize,
    per_token: usize,
}

/// The projections of all experts.
pub(crate) struct Stack {
    /// `[experts, inputs, outputs]`.
    pub(crate) weight: String,
    /// `[experts, 1, outputs]`.
    pub(crate) bias: Option<String>,
}

impl Writer {
    /// The choice among experts by `logits` `[batch, tokens, experts]`; `correction` `[experts]` is added to the scores for
    /// the choice alone, and the shares of the chosen are multiplied by `scales` `[experts]`. In f32.
    pub(crate) fn route(&mut self, routing: &Routing, logits: &str, [correction, scales]: [Option<&str>; 2]) -> Chosen {
        let Routing {
            experts,
            experts_per_token: per_token,
            groups,
            top_groups,
            best_of_group,
            softmax,
            normalise,
            scale,
        } = *routing;
        let logits = self.wide(logits);
        let scores = if softmax {
            self.node_with("Softmax", &[&logits], vec![int("axis", -1)])
        } else {
            self.node("Sigmoid", &[&logits])
        };
        let mut choice = correction.map_or(scores.clone(), |correction| self.node("Add", &[&scores, correction]));
        if top_groups < groups {
            choice = self.best_groups(&choice, [groups, top_groups], [experts / groups, best_of_group]);
        }
        let [_, numbers] = self.top(&choice, per_token);
        let ones = self.ones(&numbers, experts);
        let apart = self.unsqueeze(&scores, &[2]);
        let own = self.node("Mul", &[&ones, &apart]);
        let mut shares = self.sum(&own, &[-1], false);
        if normalise {
            let (sum, little) = (self.sum(&shares, &[-1], true), self.wide_number(1e-20));
            let sum = self.node("Add", &[&sum, &little]);
            shares = self.node("Div", &[&shares, &sum]);
        }
        if scale != 1.0 {
            let scale = self.wide_number(scale as f32);
            shares = self.node("Mul", &[&shares, &scale]);
        }
        if let Some(scales) = scales {
            let scales = self.node_with("Gather", &[scales, &numbers], vec![int("axis", 0)]);
            shares = self.node("Mul", &[&shares, &scales]);
        }
        Chosen { numbers, shares, ones, experts, per_token }
    }

    /// The choice with the experts of all but the best groups out of reach. A group is worth some of its best experts.
    fn best_groups(
        &mut self,
        choice: &str,
        [groups, top_groups]: [usize; 2],
        [per_group, best_of_group]: [usize; 2],
    ) -> String {
        let grouped = self.reshape(choice, &[0, 0, groups as i64, per_group as i64]);
        let [best, _] = self.top(&grouped, per_group.min(best_of_group));
        let worth = self.sum(&best, &[-1], false);
        let [_, best] = self.top(&worth, top_groups);
        let ones = self.ones(&best, groups);
        let considered = self.sum(&ones, &[2], false);
        let nothing = self.wide_number(0.0);
        let considered = self.node("Greater", &[&considered, &nothing]);
        let considered = self.unsqueeze(&considered, &[3]);
        let out_of_reach = self.wide_number(f32::MIN);
        let choice = self.node("Where", &[&considered, &grouped, &out_of_reach]);
        self.reshape(&choice, &[0, 0, (groups * per_group) as i64])
    }

    /// The largest `count` of each row, the earlier of equal ones first, and where they stand.
    fn top(&mut self, x: &str, count: usize) -> [String; 2] {
        let count = self.ints(&[count as i64]);
        self.nodes("", "TopK", &[x, &count], vec![int("axis", -1), int("largest", 1), int("sorted", 1)])
    }

    /// A one where a number `[batch, tokens, …]` is the place on a new last axis, as f32.
    fn ones(&mut self, numbers: &str, places: usize) -> String {
        let numbers = self.unsqueeze(numbers, &[-1]);
        let places = self.ints(&(0..places as i64).collect::<Vec<_>>());
        let same = self.node("Equal", &[&numbers, &places]);
        self.node_with("Cast", &[&same], vec![int("to", TensorProto::FLOAT.into())])
    }

    /// What the chosen experts make of `x` `[batch, tokens, inputs]`, by their shares: products by two stacks, with `inner`
    /// in between.
    ///
    /// Few rows have the weights of the experts that they chose gathered. Of more rows every expert computes all, and what
    /// nobody chose counts nothing: that is more work, but rows need not be sorted by their experts.
    pub(crate) fn experts<E>(
        &mut self,
        x: &str,
        chosen: &Chosen,
        [inward, down]: [&Stack; 2],
        inner: impl FnOnce(&mut Self, &str) -> Result<String, E>,
    ) -> Result<String, E> {
        let Chosen { numbers, shares, ones, experts, per_token } = chosen;
        let few = self.rows().is_some_and(|rows| rows * per_token <= *experts);
        let of_rows = few.then_some(numbers.as_str());
        let (apart, counts, axes) = if few {
            (self.unsqueeze(x, &[2, 3]), self.unsqueeze(shares, &[3, 4]), [2, 3].as_slice())
        } else {
            let each = self.unsqueeze(shares, &[3]);
            let each = self.node("Mul", &[ones, &each]);
            let each = self.sum(&each, &[2], false);
            let by_expert = self.transpose(&each, &[0, 2, 1]);
            (self.unsqueeze(x, &[1]), self.unsqueeze(&by_expert, &[3]), [1].as_slice())
        };
        let y = self.by_stack(&apart, inward, of_rows);
        let y = inner(self, &y)?;
        let y = self.by_stack(&y, down, of_rows);
        let counts = self.narrow(&counts);
        let y = self.node("Mul", &[&y, &counts]);
        Ok(self.sum(&y, axes, false))
    }

    /// A product by each matrix of a stack, or by those that rows chose.
    fn by_stack(&mut self, x: &str, stack: &Stack, chosen: Option<&str>) -> String {
        let mut of = |part: &str| match chosen {
            Some(chosen) => self.node_with("Gather", &[part, chosen], vec![int("axis", 0)]),
            None => part.to_owned(),
        };
        let (weight, bias) = (of(&stack.weight), stack.bias.as_deref().map(&mut of));
        let y = self.node("MatMul", &[x, &weight]);
        bias.map_or(y.clone(), |bias| self.node("Add", &[&y, &bias]))
    }
}
