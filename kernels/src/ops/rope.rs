//! Rotary position embedding: its frequencies, and the cosines and sines of a step.

use crate::backend::Run;
use crate::error::{KernelError, Result};
use crate::numbers::{Numbers, StepLists};
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
        if !inverse_frequencies.iter().chain([&attention_factor]).all(|number| number.is_finite()) {
            let reason = format!("theta {theta} and {scaling:?} give frequencies that are infinite or no numbers");
            return Err(KernelError::Argument { op: OP, reason });
        }
        Ok(Self { inverse_frequencies, attention_factor, layout: RopeLayout::Neox })
    }

    /// The same with element `2 i` rotated with `2 i + 1`, as in GPT-J and DeepSeek.
    #[must_use]
    pub fn interleaved(self) -> Self {
        Self { layout: RopeLayout::Interleaved, ..self }
    }

    /// Whether neighbours are rotated together.
    pub fn is_interleaved(&self) -> bool {
        self.layout == RopeLayout::Interleaved
    }

    /// Elements of a head that are rotated.
    pub fn rotary_dim(&self) -> usize {
        2 * self.inverse_frequencies.len()
    }

    /// The cosines and sines of `tokens` positions: those that the step has, or `own`, made for this call.
    pub(crate) fn table<'a>(
        &self,
        on: &Run<'_>,
        positions: &Positions<'a>,
        tokens: usize,
        head_dim: usize,
        own: &'a mut Option<Angles>,
    ) -> Result<RopeTable<'a>> {
        if self.rotary_dim() > head_dim {
            let reason = format!("{} of {head_dim} elements rotated", self.rotary_dim());
            return Err(KernelError::Argument { op: OP, reason });
        }
        if positions.len() != tokens {
            let reason = format!("{} positions for {tokens} tokens", positions.len());
            return Err(KernelError::Argument { op: OP, reason });
        }
        Ok(positions.table_of(self).unwrap_or_else(|| {
            on.note_host_read();
            own.insert(self.angles(positions)).table()
        }))
    }

    /// The same, whatever the heads.
    pub(crate) fn angles(&self, positions: &[u32]) -> Angles {
        let tokens = positions.len();
        let half = self.inverse_frequencies.len();
        let (mut cos, mut sin) = SPARE.take();
        cos.resize(tokens * half, 0.0);
        sin.resize(tokens * half, 0.0);
        let rows = cos.par_chunks_mut(half).zip(sin.par_chunks_mut(half)).with_min_len(16);
        rows.enumerate().for_each(|(token, (cos, sin))| {
            for (i, frequency) in self.inverse_frequencies.iter().enumerate() {
                let angle = positions[token] as f32 * frequency;
                cos[i] = angle.cos() * self.attention_factor;
                sin[i] = angle.sin() * self.attention_factor;
            }
        });
        Angles { cos, sin, words: [None; 2], half, layout: self.layout }
    }
}

thread_local! {
    /// What the last angles of this thread lay in; kept, so that a decode step allocates nothing.
    static SPARE: RefCell<(Vec<f32>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// The cosines and sines of a step's tokens.
#[derive(Debug)]
pub(crate) struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
    /// Where each begins in the buffer of the step.
    words: [Option<usize>; 2],
    half: usize,
    layout: RopeLayout,
}

impl Angles {
    /// As ops read them.
    pub(crate) fn table(&self) -> RopeTable<'_> {
        let (cos, sin) = (Numbers::at(&self.cos, self.words[0]), Numbers::at(&self.sin, self.words[1]));
        RopeTable { cos, sin, half: self.half, layout: self.layout }
    }
}

impl Drop for Angles {
    fn drop(&mut self) {
        SPARE.set((std::mem::take(&mut self.cos), std::mem::take(&mut self.sin)));
    }
}

/// Rotations of the tokens of one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeTable<'a> {
    /// `[total_tokens, half]`.
    pub(crate) cos: Numbers<'a, f32>,
    /// `[total_tokens, half]`.
    pub(crate) sin: Numbers<'a, f32>,
    /// Number of rotated pairs.
    pub(crate) half: usize,
    pub(crate) layout: RopeLayout,
}

/// What the layers of a model make of a step's positions, each embedding once.
#[derive(Debug)]
pub struct Rotations(Vec<(Rope, Angles)>);

impl Rotations {
    /// Computes the angles of a step's tokens.
    pub fn new<'a>(positions: &[u32], ropes: impl IntoIterator<Item = &'a Rope>) -> Self {
        let mut made: Vec<(Rope, Angles)> = Vec::new();
        for rope in ropes {
            if made.iter().all(|(known, _)| known != rope) {
                made.push((rope.clone(), rope.angles(positions)));
            }
        }
        Self(made)
    }

    /// Adds the positions and their rotations to the lists of the step.
    pub fn list<'a>(&'a mut self, positions: &'a [u32], lists: &mut StepLists) -> Positions<'a> {
        let positions = lists.add(positions);
        for (_, angles) in &mut self.0 {
            angles.words = [&angles.cos, &angles.sin].map(|list| lists.add(list).place().0);
        }
        Positions { positions, rotations: &self.0 }
    }
}

/// The positions of a step's tokens, with the rotations that the step has of them.
#[derive(Clone, Copy, Debug)]
pub struct Positions<'a> {
    positions: Numbers<'a, u32>,
    rotations: &'a [(Rope, Angles)],
}

impl<'a> Positions<'a> {
    /// The positions alone.
    pub fn numbers(&self) -> Numbers<'a, u32> {
        self.positions
    }

    fn table_of(&self, rope: &Rope) -> Option<RopeTable<'a>> {
        self.rotations.iter().find(|(known, _)| known == rope).map(|(_, angles)| angles.table())
    }
}

impl Deref for Positions<'_> {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.positions
    }
}

impl<'a, N: Into<Numbers<'a, u32>>> From<N> for Positions<'a> {
    fn from(positions: N) -> Self {
        Self { positions: positions.into(), rotations: &[] }
    }
}
