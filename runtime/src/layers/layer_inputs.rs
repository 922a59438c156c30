//! What every layer takes of a step's tokens beside the residual stream: an embedding of its own for each token, mixed with
//! a projection of the model's.

use std::f64::consts::FRAC_1_SQRT_2;

use cacheplan_kernels::{Numbers, Run};
use candle_core::Tensor;

use super::{Activation, Linear, Mixer, RmsNorm};
use crate::error::Result;
use crate::exported::{Writer, int, refuse};
use crate::step::Step;
use crate::weights::{Matrix, Scope};

/// The dimensions of [`LayerInputs`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerInputsShape {
    /// Tokens that have such embeddings.
    pub(crate) vocab_size: usize,
    /// Channels of each layer's.
    pub(crate) channels: usize,
    /// The epsilon of their norm.
    pub(crate) eps: f64,
}

/// `(norm(projection(embedded) / √hidden) + √channels · table[token]) / √2` for every layer.
#[derive(Debug)]
pub(crate) struct LayerInputs {
    /// The embeddings of all layers beside each other.
    table: Matrix,
    projection: Linear,
    norm: RmsNorm,
    layers: usize,
    channels: usize,
    projection_scale: f64,
}

impl LayerInputs {
    /// Reads `embed_tokens_per_layer`, `per_layer_model_projection` and `per_layer_projection_norm`.
    pub(crate) fn load(weights: &Scope<'_>, hidden: usize, layers: usize, shape: LayerInputsShape) -> Result<Self> {
        let LayerInputsShape { vocab_size, channels, eps } = shape;
        let all = layers * channels;
        Ok(Self {
            table: weights.enter("embed_tokens_per_layer").product("weight", [vocab_size, all])?,
            projection: Linear::load(&weights.enter("per_layer_model_projection"), hidden, all, false)?,
            norm: RmsNorm::load(&weights.enter("per_layer_projection_norm"), channels, eps)?,
            layers,
            channels,
            projection_scale: (hidden as f64).sqrt().recip(),
        })
    }

    /// Those of a step's tokens, whose embeddings are `embedded` `[tokens, hidden]`: `[tokens, layers, channels]`.
    pub(crate) fn forward(&self, on: &Run<'_>, tokens: Numbers<'_, u32>, embedded: &Tensor) -> Result<Tensor> {
        let by_layer = (embedded.dim(0)?, self.layers, self.channels);
        let own = (self.table.embed(on, tokens)?.reshape(by_layer)? * self.own_scale())?;
        let mixed = (self.projection.forward(on, embedded)? * self.projection_scale)?.reshape(by_layer)?;
        Ok(((self.norm.forward(on, &mixed)? + own)? * FRAC_1_SQRT_2)?)
    }

    /// The same as nodes of a graph.
    pub(crate) fn trace(&self, writer: &mut Writer, embedded: &str) -> Result<()> {
        let by_layer = [0, 0, self.layers as i64, self.channels as i64];
        let table = writer.weight(&self.table.computed()?)?;
        let own = writer.node_with("Gather", &[&table, "input_ids"], vec![int("axis", 0)]);
        let own = writer.reshape(&own, &by_layer);
        let own = writer.scaled(&own, self.own_scale());
        let mixed = self.projection.trace(writer, embedded)?;
        let mixed = writer.scaled(&mixed, self.projection_scale);
        let mixed = writer.reshape(&mixed, &by_layer);
        let mixed = self.norm.trace(writer, &mixed)?;
        let sum = writer.node("Add", &[&mixed, &own]);
        let inputs = writer.scaled(&sum, FRAC_1_SQRT_2);
        writer.set_layer_inputs(&inputs);
        Ok(())
    }

    /// Factor on the embeddings of the table.
    fn own_scale(&self) -> f64 {
        (self.channels as f64).sqrt()
    }
}

/// `projection(act(gate(x)) · input)`, where `input` is the layer's among [`LayerInputs`].
#[derive(Debug)]
pub(crate) struct LayerInput {
    layer: usize,
    gate: Linear,
    activation: Activation,
    projection: Linear,
}

impl LayerInput {
    /// Reads `per_layer_input_gate` and `per_layer_projection` of absolute layer `layer`.
    pub(crate) fn load(
        weights: &Scope<'_>,
        layer: u32,
        [hidden, channels]: [usize; 2],
        activation: Activation,
    ) -> Result<Self> {
        Ok(Self {
            layer: layer as usize,
            gate: Linear::load(&weights.enter("per_layer_input_gate"), hidden, channels, false)?,
            activation,
            projection: Linear::load(&weights.enter("per_layer_projection"), channels, hidden, false)?,
        })
    }
}

impl Mixer for LayerInput {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let on = step.on();
        let input = step.layer_input(self.layer)?;
        let gated = (self.activation.forward(&self.gate.forward(on, x)?)? * input)?;
        Ok(self.projection.forward(on, &gated)?)
    }

    fn trace(&self, writer: &mut Writer, x: &str) -> Result<String> {
        let inputs = writer.layer_inputs().ok_or_else(|| refuse("a layer's input", "the model has none"))?.to_owned();
        let layer = writer.whole(self.layer as i64);
        let input = writer.node_with("Gather", &[&inputs, &layer], vec![int("axis", 2)]);
        let gate = self.gate.trace(writer, x)?;
        let gate = self.activation.trace(writer, &gate)?;
        let gated = writer.node("Mul", &[&gate, &input]);
        self.projection.trace(writer, &gated)
    }
}
