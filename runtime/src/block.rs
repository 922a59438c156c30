//! One block of a decoder: a mixer with its norms and its residual.

use cacheplan_kernels::Rows;
use candle_core::Tensor;

use crate::error::Result;
use crate::exported::Writer;
use crate::layers::{Mixer, RmsNorm, Streams};
use crate::step::Step;

/// `residual_scale · x + output_scale · post_norm(mixer(norm(x)))`, or what several streams make of input and output.
#[derive(Debug)]
pub(crate) struct Block {
    /// Absent for mixers that normalise by themselves.
    pub(crate) norm: Option<RmsNorm>,
    pub(crate) mixer: Box<dyn Mixer>,
    pub(crate) post_norm: Option<RmsNorm>,
    pub(crate) output_scale: f64,
    pub(crate) residual_scale: f64,
    /// Whether the mixer's normalised input takes the place of `x` in the sum.
    pub(crate) residual_is_normed: bool,
    /// How the mixer meets several residual streams, where there are several; then scales are 1.
    pub(crate) streams: Option<Box<dyn Streams>>,
}

impl Block {
    /// `x + mixer(norm(x))`.
    pub(crate) fn new(norm: RmsNorm, mixer: impl Mixer + 'static) -> Self {
        Self::boxed(norm, Box::new(mixer))
    }

    /// The same for a mixer of whatever kind.
    pub(crate) fn boxed(norm: RmsNorm, mixer: Box<dyn Mixer>) -> Self {
        Self { norm: Some(norm), ..Self::bare(mixer) }
    }

    /// `x + mixer(x)`.
    pub(crate) fn without_norm(mixer: impl Mixer + 'static) -> Self {
        Self::bare(Box::new(mixer))
    }

    fn bare(mixer: Box<dyn Mixer>) -> Self {
        Self {
            norm: None,
            mixer,
            post_norm: None,
            output_scale: 1.0,
            residual_scale: 1.0,
            residual_is_normed: false,
            streams: None,
        }
    }

    /// The same among several residual streams.
    pub(crate) fn among(self, streams: impl Streams + 'static) -> Self {
        Self { streams: Some(Box::new(streams)), ..self }
    }

    pub(crate) fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let on = step.on();
        let (x, back) = match &self.streams {
            Some(streams) => {
                let (read, back) = streams.read(on, x)?;
                (read, Some(back))
            }
            None => (x.clone(), None),
        };
        let normed = match &self.norm {
            Some(norm) => norm.forward(on, &x)?,
            None => x.clone(),
        };
        let mut y = self.mixer.forward(&normed, step)?;
        if let Some(norm) = &self.post_norm {
            y = norm.forward(on, &y)?;
        }
        if let Some(back) = back {
            return Ok(back.with(&y)?);
        }
        let residual = if self.residual_is_normed { normed } else { x };
        Ok(Rows(&residual).weighted_sum(on, self.residual_scale as f32, &y, self.output_scale as f32)?)
    }

    pub(crate) fn trace(&self, writer: &mut Writer, x: &str) -> Result<String> {
        let normed = match &self.norm {
            Some(norm) => norm.trace(writer, x)?,
            None => x.to_owned(),
        };
        let mut y = self.mixer.trace(writer, &normed)?;
        if let Some(norm) = &self.post_norm {
            y = norm.trace(writer, &y)?;
        }
        let residual = if self.residual_is_normed { normed.as_str() } else { x };
        let (residual, y) = (writer.scaled(residual, self.residual_scale), writer.scaled(&y, self.output_scale));
        Ok(writer.node("Add", &[&residual, &y]))
    }
}
