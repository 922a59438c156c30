//! Rotary position embedding: its frequencies, and the cosines and sines of a step.

use crate::error::{KernelError, Result};
use rayon::prelude::*;
use std::cell::RefCell;
use std::f32::consts::TAU;
use std::ops::Deref;

const OP: &str = "rope";

/// Which elements of a head form a rotated pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RopeLayout {
    /// Element `i` with `i + rotary_dim / 2` (GPT-NeoX, Llama).
    Neox,
    /// Element `2 i` with `2 i + 1` (GPT-J, DeepSeek).
    Interleaved,
}

/// How the base frequencies are changed for longer contexts.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All divided by the factor.
    Linear(f32),
    /// Llama 3: long wavelengths are divided, short ones kept, those between blended.
    Llama3 {
        /// What long wavelengths are divided by.
        factor: f32,
        /// `original_max_position / low_freq_factor` is the shortest long wavelength.
        low_freq_factor: f32,
        /// `original_max_position / high_freq_factor` is the longest short wavelength.
        high_freq_factor: f32,
        /// The context that the model was first trained on.
        original_max_position: usize,
    },
    /// YaRN: as Llama 3, blended by rotations over the original context, with scaled logits.
    Yarn {
        /// What slow frequencies are divided by.
        factor: f32,
        /// The context that the model was first trained on.
        original_max_position: usize,
        /// Rotations above which a frequency is kept.
        beta_fast: f32,
        /// Rotations below which a frequency is divided.
        beta_slow: f32,
        /// Whether the bounds of the blend are rounded outwards to whole dimensions.
        truncate: bool,
        /// Factor on cos and sin; `0.1 ln(factor) + 1` where the config states none.
        attention_factor: Option<f32>,
    },
    /// LongRoPE: one divisor per frequency, as the config lists them for this context length.
    PerFrequency {
        /// `[rotary_dim / 2]` divisors.
        divisors: Vec<f32>,
        /// Factor on cos and sin.
        attention_factor: f32,
    },
}

/// A layer's rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    inverse_frequencies: Vec<f32>,
    attention_factor: f32,
    layout: RopeLayout,
    /// For each frequency the position axis it follows; all 0 but for multimodal embeddings.
    axes: Vec<usize>,
}

impl Rope {
    /// The embedding of the first `rotary_dim` elements of each head; an odd number is rounded up after the frequencies
    /// were made for it.
    ///
    /// Element `i` is rotated with `i + rotary_dim / 2`, as in GPT-NeoX and Llama.
    pub fn new(theta: f32, rotary_dim: usize, scaling: &RopeScaling) -> Result<Self> {
        let is_odd = !rotary_dim.is_multiple_of(2);
        if rotary_dim == 0 || (is_odd && matches!(scaling, RopeScaling::Yarn { .. })) {
            let reason = format!("rotary_dim {rotary_dim} is not positive, or odd where YaRN blends frequencies");
            return Err(KernelError::Argument { op: OP, reason });
        }
        let half = rotary_dim.div_ceil(2);
        let base: Vec<f32> = (0..half).map(|i| 1.0 / theta.powf((2 * i) as f32 / rotary_dim as f32)).collect();
        let (inverse_frequencies, attention_factor) = match scaling {
            RopeScaling::None => (base, 1.0),
            RopeScaling::Linear(factor) => (base.iter().map(|f| f / factor).collect(), 1.0),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
                let context = *original_max_position as f32;
                let scale = |f: f32| {
                    let wavelength = TAU / f;
                    if wavelength < context / high_freq_factor {
                        f
                    } else if wavelength > context / low_freq_factor {
                        f / factor
                    } else {
                        let keep = (context / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                        (1.0 - keep) * f / factor + keep * f
                    }
                };
                (base.into_iter().map(scale).collect(), 1.0)
            }
            RopeScaling::Yarn { factor, original_max_position, beta_fast, beta_slow, truncate, attention_factor } => {
                // The dimension whose frequency makes this many rotations over the original context.
                let dimension = |rotations: f32| {
                    rotary_dim as f32 * (*original_max_position as f32 / (rotations * TAU)).ln() / (2.0 * theta.ln())
                };
                let (mut low, mut high) = (dimension(*beta_fast), dimension(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                low = low.max(0.0);
                high = high.min((rotary_dim - 1) as f32);
                if low == high {
                    high += 0.001;
                }
                let blend = |(i, f): (usize, f32)| {
                    let divide = ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
                    f / factor * divide + f * (1.0 - divide)
                };
                let default = if *factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 };
                (base.into_iter().enumerate().map(blend).collect(), attention_factor.unwrap_or(default))
            }
            RopeScaling::PerFrequency { divisors, attention_factor } => {
                if divisors.len() != half {
                    return Err(KernelError::Argument {
                        op: OP,
                        reason: format!("{} divisors for {half} frequencies", divisors.len()),
                    });
                }
                let scaled = base.iter().zip(divisors).map(|(f, d)| f / d).collect();
                (scaled, *attention_factor)
            }
        };
        Ok(Self {
            axes: vec![0; inverse_frequencies.len()],
            inverse_frequencies,
            attention_factor,
            layout: RopeLayout::Neox,
        })
    }

    /// The same with element `2 i` rotated with `2 i + 1`, as in GPT-J and DeepSeek.
    #[must_use]
    pub fn interleaved(self) -> Self {
        Self { layout: RopeLayout::Interleaved, ..self }
    }

    /// Makes frequencies follow several position axes: `sections[a]` of them follow axis `a`.
    ///
    /// Sections are consecutive (Qwen2-VL), or the axes take turns while their sections last and axis 0 takes
    /// the rest (`interleaved`, Qwen3-VL and Qwen3.5).
    pub fn with_mrope(mut self, sections: &[usize], interleaved: bool) -> Result<Self> {
        let half = self.inverse_frequencies.len();
        if sections.iter().sum::<usize>() != half {
            return Err(KernelError::Argument {
                op: OP,
                reason: format!("mrope sections {sections:?} do not sum to {half} frequencies"),
            });
        }
        let count = sections.len();
        self.axes = if interleaved {
            (0..half).map(|i| if i < sections[i % count] * count { i % count } else { 0 }).collect()
        } else {
            let axis = |(axis, &len)| std::iter::repeat_n(axis, len);
            sections.iter().enumerate().flat_map(axis).collect()
        };
        Ok(self)
    }

    /// Elements of a head that are rotated.
    pub fn rotary_dim(&self) -> usize {
        2 * self.inverse_frequencies.len()
    }

    /// The cosines and sines of `tokens` positions.
    pub(crate) fn table(&self, positions: &[u32], tokens: usize, head_dim: usize) -> Result<Angles> {
        if self.rotary_dim() > head_dim {
            let reason = format!("{} of {head_dim} elements rotated", self.rotary_dim());
            return Err(KernelError::Argument { op: OP, reason });
        }
        #[cfg(any(test, feature = "launches"))]
        if let Some(table) = crate::cuda::rotations(self, positions) {
            return Ok(Angles::Lent(table));
        }
        self.angles(positions, tokens).map(Angles::Own)
    }

    /// The same, whatever the heads.
    pub(crate) fn angles(&self, positions: &[u32], tokens: usize) -> Result<RopeTable> {
        let axes = 1 + self.axes.iter().copied().max().unwrap_or(0);
        if positions.len() != axes * tokens {
            let reason = format!("{} positions for {tokens} tokens on {axes} axes", positions.len());
            return Err(KernelError::Argument { op: OP, reason });
        }
        let half = self.inverse_frequencies.len();
        let (mut cos, mut sin) = SPARE.take();
        cos.resize(tokens * half, 0.0);
        sin.resize(tokens * half, 0.0);
        let rows = cos.par_chunks_mut(half).zip(sin.par_chunks_mut(half)).with_min_len(16);
        rows.enumerate().for_each(|(token, (cos, sin))| {
            for (i, (frequency, axis)) in self.inverse_frequencies.iter().zip(&self.axes).enumerate() {
                let angle = positions[axis * tokens + token] as f32 * frequency;
                cos[i] = angle.cos() * self.attention_factor;
                sin[i] = angle.sin() * self.attention_factor;
            }
        });
        Ok(RopeTable { cos, sin, half, layout: self.layout })
    }
}

thread_local! {
    /// What the last table of this thread lay in; kept, so that a decode step allocates nothing.
    static SPARE: RefCell<(Vec<f32>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

impl Drop for RopeTable {
    fn drop(&mut self) {
        SPARE.set((std::mem::take(&mut self.cos), std::mem::take(&mut self.sin)));
    }
}

/// Rotations of the tokens of one step, made for one call or for all of the step.
pub(crate) enum Angles {
    Own(RopeTable),
    #[cfg(any(test, feature = "launches"))]
    Lent(std::sync::Arc<RopeTable>),
}

impl Deref for Angles {
    type Target = RopeTable;

    fn deref(&self) -> &RopeTable {
        match self {
            Self::Own(table) => table,
            #[cfg(any(test, feature = "launches"))]
            Self::Lent(table) => table,
        }
    }
}

/// Rotations of the tokens of one step.
#[derive(Debug)]
pub(crate) struct RopeTable {
    /// `[total_tokens, half]`.
    pub(crate) cos: Vec<f32>,
    /// `[total_tokens, half]`.
    pub(crate) sin: Vec<f32>,
    /// Number of rotated pairs.
    pub(crate) half: usize,
    pub(crate) layout: RopeLayout,
}
