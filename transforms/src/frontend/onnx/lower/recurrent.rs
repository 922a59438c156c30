//! Ops that keep a state of one size: linear attention, convolutions, state updates.

use cacheplan_handlers::DType;

use super::{Lowering, Result};
use crate::graph::{Attribute, Name, Op};
use crate::model::StatePart;
use crate::onnx::{EdgeConvolution, EdgeScan, NodeProto};

impl<'a> Lowering<'a> {
    /// query, key, value, past_state, decay, beta; the state [B, heads, key channels, value channels] tells all
    /// dimensions.
    pub(super) fn linear_attention(&mut self, node: &'a NodeProto) -> Result<()> {
        let state = self.state_at(node, 3)?;
        let [heads, k_dim, v_dim] = self.sizes(node, state, [1, 2, 3])?;
        let layer = self.layer(node, Some(state), None)?;
        let (key, value) = (node.at(1).unwrap_or(state), node.at(2).unwrap_or(state));
        let key = self.reshaped(layer, key, "linear_attn.key", &[heads, k_dim]);
        let value = self.reshaped(layer, value, "linear_attn.value", &[heads, v_dim]);
        let op = Op::new(Name::new(Some(layer), "linear_attn"), Op::LINEAR_ATTENTION);
        let mut op = op.input("key", key).input("value", value);
        if let Some(decay) = node.at(4) {
            let size = self.lookup.size(decay, 2);
            let rest: &[u64] = match size {
                Some(size) if size == heads => &[heads],
                Some(size) if size == heads * k_dim => &[heads, k_dim],
                Some(size) => {
                    let reason = format!("its decay has {size} channels; {heads} or {} were expected", heads * k_dim);
                    return Err(self.refuse(node, reason));
                }
                None => {
                    let what = format!("layer {layer}: decay of linear attention");
                    self.note(what, "per channel".into(), format!("`{decay}` does not tell its channels"), true);
                    &[heads, k_dim]
                }
            };
            op = op.input("decay", self.reshaped(layer, decay, "linear_attn.decay", rest));
        }
        if let Some(beta) = node.at(5) {
            op = op.input("beta", self.reshaped(layer, beta, "linear_attn.beta", &[heads]));
        }
        self.bind(state, layer, StatePart::Recurrence);
        let op = self.with_state_dtype(op, state);
        self.stateful(node, op, layer, "linear_attention");
        Ok(())
    }

    /// x, weight [channels, 1, d_conv], bias, state, …; the channels are axis `channel_axis` of x.
    pub(super) fn causal_conv(
        &mut self,
        node: &'a NodeProto,
        channel_axis: usize,
        state_at: usize,
        stated: Option<EdgeConvolution>,
    ) -> Result<()> {
        let state = self.state_at(node, state_at)?;
        let (Some(x), Some(weight)) = (node.at(0), node.at(1)) else {
            return Err(self.refuse(node, "it needs an input and a weight".to_owned()));
        };
        let [channels, d_conv] = self.sizes(node, weight, [0, 2])?;
        let fits = stated.map_or(Ok(()), |stated| stated.fits(channels, d_conv));
        fits.map_err(|error| self.refuse(node, error.to_string()))?;
        if self.lookup.size(x, channel_axis).is_some_and(|found| found != channels) {
            return Err(self.refuse(node, format!("its weight has {channels} channels, its input another number")));
        }
        let layer = self.layer(node, Some(state), None)?;
        if let Some(columns) = self.lookup.size(state, 2).filter(|&columns| columns + 1 != d_conv) {
            let value = format!("{columns} columns in the export, {} in the cache", d_conv.saturating_sub(1));
            self.note(state.to_owned(), value, format!("d_conv {d_conv}: one column less carries all there is"), false);
        }
        let x = self.reshaped(layer, x, "mamba.xbc", &[channels]);
        let dtype = self.lookup.value(weight).and_then(|value| value.dtype).unwrap_or_else(|| self.dtype());
        let name = Name::new(Some(layer), "mamba.conv1d.weight");
        let weight = self.graph.add_parameter(name, &[channels, d_conv], dtype);
        self.bind(state, layer, StatePart::Convolution);
        let op = Op::new(Name::new(Some(layer), "mamba.conv1d"), Op::CAUSAL_CONV).input("x", x).input("weight", weight);
        let id = self.stateful(node, op, layer, "conv");
        self.convolutions.insert(layer, (id, channels));
        Ok(())
    }

    /// x, A, B, C, D, dt, dt_bias, state, context_lengths; x and B tell the dimensions, attributes must agree.
    pub(super) fn update_ssm_state(&mut self, node: &'a NodeProto, stated: EdgeScan) -> Result<()> {
        if node.input.len() != 9 || node.output.len() != 2 {
            let found = format!("it has {} inputs and {} outputs", node.input.len(), node.output.len());
            return Err(self.refuse(node, format!("{found}; 9 and 2 were expected")));
        }
        let state = self.state_at(node, 7)?;
        let input = |position| node.at(position).unwrap_or("");
        for (position, wanted) in [(1, DType::F32), (8, DType::Int32)] {
            let found = self.lookup.value(input(position)).and_then(|value| value.dtype);
            if found != Some(wanted) {
                let found = found.map_or_else(|| "of another type".to_owned(), |found| found.to_string());
                return Err(self.refuse(node, format!("input {position} is {found}; {wanted} was expected")));
            }
        }
        let last_two = |name: &str| {
            let rank = self.lookup.value(name).map_or(0, |value| value.shape.len());
            (rank >= 3)
                .then(|| [rank - 2, rank - 1])
                .ok_or_else(|| self.refuse(node, format!("`{name}` has {rank} axes")))
        };
        let [heads, head_dim] = self.sizes(node, input(0), last_two(input(0))?)?;
        let [groups, d_state] = self.sizes(node, input(2), last_two(input(2))?)?;
        let fits = stated.fits(heads, head_dim, d_state, groups);
        fits.map_err(|error| self.refuse(node, error.to_string()))?;
        if self.sizes(node, state, [1, 2, 3])? != [heads, head_dim, d_state] {
            return Err(
                self.refuse(node, format!("the state `{state}` is not [batch, {heads}, {head_dim}, {d_state}]"))
            );
        }
        let layer = self.layer(node, Some(state), None)?;
        let x = self.reshaped(layer, node.at(0).unwrap_or(state), "mamba.x", &[heads, head_dim]);
        let b = self.reshaped(layer, node.at(2).unwrap_or(state), "mamba.b", &[groups, d_state]);
        self.bind(state, layer, StatePart::Recurrence);
        let op = Op::new(Name::new(Some(layer), "mamba"), Op::SSD).input("x", x).input("b", b);
        self.divide_convolution(layer, [heads * head_dim, groups * d_state]);
        let op = self.with_state_dtype(op, state);
        self.stateful(node, op, layer, "mamba");
        self.kinds.insert(layer, "mamba");
        Ok(())
    }

    /// Now that the recurrence is known, so are the sections of the convolution that feeds it. One of other channels is
    /// right by itself: who places both says whether they go together.
    pub(super) fn divide_convolution(&mut self, layer: u32, [inner, shared]: [u64; 2]) {
        let Some(&(id, channels)) = self.convolutions.get(&layer) else { return };
        if inner.checked_add(shared.saturating_mul(2)) == Some(channels) {
            let sections = Attribute::Numbers(vec![inner, shared, shared]);
            self.graph.op_mut(id).attributes.push((Attribute::SECTIONS.into(), sections));
        }
    }
}
