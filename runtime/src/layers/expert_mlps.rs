//! The MLPs of a layer's experts: each by itself, and where ops are launches side by side, with the same weights.

use cacheplan_kernels::{Backend, Run};
use candle_core::Tensor;

use super::linear::LinearStack;
use super::mlp::Inner;
use super::{Activation, Linear, Mlp, MlpShape};
use crate::error::Result;
use crate::exported::{Chosen, Writer, refuse};
use crate::weights::Scope;

/// Rows of an expert, on average, up to which each of them reads its weights by itself.
///
/// Then nothing is asked of the host, so that a step can be recorded, and the rows of an expert find its weights in the
/// second-level cache, which gives a few times what memory does. More rows want a matrix product. An estimate.
const MOST_ROWS_OF_AN_EXPERT: usize = 4;

/// MLPs of one shape.
#[derive(Debug)]
pub(crate) struct ExpertMlps {
    /// Views of the stack, where there is one.
    each: Vec<Mlp>,
    stack: Option<Stack>,
}

/// The projections of all of them.
#[derive(Debug)]
struct Stack {
    inward: LinearStack,
    inner: Inner,
    down: LinearStack,
}

impl ExpertMlps {
    /// So many experts. Where they are stacked no more than one lies beside the stack while they are read.
    pub(crate) fn load<E: From<candle_core::Error>>(
        on: &Backend,
        count: usize,
        read: impl Fn(usize) -> Result<Mlp, E>,
    ) -> Result<Self, E> {
        let (mut each, mut stack) = (Vec::with_capacity(count), None);
        for number in 0..count {
            let mut mlp = read(number)?;
            if number == 0 && on.launches() {
                stack = Stack::like(&mlp, count)?;
            }
            match stack.as_ref().map(|stack| stack.take(number, &mlp)).transpose()?.flatten() {
                Some(view) => mlp = view,
                None => stack = None,
            }
            each.push(mlp);
        }
        Ok(Self { each, stack })
    }

    /// Reads so many gated experts: each by itself with its projections under `names`, or all of them stacked.
    pub(crate) fn read(weights: &Scope<'_>, count: usize, names: [&str; 3], expert: MlpShape) -> Result<Self> {
        if !weights.stores("gate_up_proj") {
            return Self::load(weights.backend(), count, |i| Mlp::load_named(&weights.enter(i), names, expert));
        }
        let MlpShape { hidden, intermediate, activation, .. } = expert;
        let gate_up = weights.matrix("gate_up_proj", (count, 2 * intermediate, hidden))?;
        let down = weights.matrix("down_proj", (count, hidden, intermediate))?;
        Ok(Self::fused(weights.backend(), gate_up, down, activation)?)
    }

    /// Gated experts of `gate_up` `[count, 2 · intermediate, hidden]`, the gate first, and `down`
    /// `[count, hidden, intermediate]`.
    pub(crate) fn fused(
        on: &Backend,
        gate_up: Tensor,
        down: Tensor,
        activation: Activation,
    ) -> candle_core::Result<Self> {
        let launched = on.launches() && gate_up.dtype() == down.dtype();
        let (inward, down) = (LinearStack::of(gate_up), LinearStack::of(down));
        let mlp = |number| Ok(Mlp::fused(inward.get(number)?, down.get(number)?, activation));
        let each = (0..inward.count()).map(mlp).collect::<candle_core::Result<_>>()?;
        Ok(Self { each, stack: launched.then_some(Stack { inward, inner: Inner::Gated(activation), down }) })
    }

    /// What the chosen experts make of `x`, as nodes of a graph.
    pub(super) fn written(&self, writer: &mut Writer, x: &str, chosen: &Chosen) -> Result<String> {
        let first = self.each.first().ok_or_else(|| refuse("experts", "there are none"))?;
        let inward = Linear::stack(writer, self.each.iter().map(|mlp| &mlp.inward))?;
        let down = Linear::stack(writer, self.each.iter().map(|mlp| &mlp.down))?;
        let width = first.inward.outputs();
        writer.experts(x, chosen, [&inward, &down], |writer, y| first.inner.written(writer, y, width))
    }

    /// Each by itself.
    pub(super) fn each(&self) -> &[Mlp] {
        &self.each
    }

    /// What the experts `chosen` `[rows, per_row]` make of each row, summed by `shares`; none where each is better asked
    /// for all of its rows.
    pub(super) fn summed(
        &self,
        on: &Run<'_>,
        x: &Tensor,
        chosen: &Tensor,
        shares: &Tensor,
    ) -> candle_core::Result<Option<Tensor>> {
        match &self.stack {
            Some(stack) if chosen.elem_count() <= MOST_ROWS_OF_AN_EXPERT * self.each.len() => {
                let inner = stack.inner.forward(on, &stack.inward.forward(on, x, chosen)?)?;
                Ok(Some(stack.down.summed(on, &inner, chosen, shares)?))
            }
            _ => Ok(None),
        }
    }
}

impl Stack {
    /// Room for as many like this one.
    fn like(mlp: &Mlp, count: usize) -> candle_core::Result<Option<Self>> {
        let stacks = (LinearStack::like(&mlp.inward, count)?, LinearStack::like(&mlp.down, count)?);
        let (Some(inward), Some(down)) = stacks else { return Ok(None) };
        Ok(Some(Self { inward, inner: mlp.inner, down }))
    }

    /// Takes over an expert as that of the number; none if it is unlike the others.
    fn take(&self, number: usize, mlp: &Mlp) -> candle_core::Result<Option<Mlp>> {
        let projections = (self.inward.take(number, &mlp.inward)?, self.down.take(number, &mlp.down)?);
        let ((Some(inward), Some(down)), true) = (projections, mlp.inner == self.inner) else { return Ok(None) };
        Ok(Some(Mlp { inward, inner: self.inner, down }))
    }
}
