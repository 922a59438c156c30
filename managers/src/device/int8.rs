//! Checkpoints in 8 bits: about a quarter of the bytes of a float32 state, for a bounded error.
//!
//! A state is `[heads, head_dim, d_state]`. Values are scaled symmetrically per (head, state channel), with the scale
//! reduced over `head_dim`: channels of a recurrent state differ by orders of magnitude, values within one do not.

use thiserror::Error;

/// The shape of one layer's recurrent state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StateShape {
    /// Heads.
    pub(super) heads: usize,
    /// Values per head.
    pub(super) head_dim: usize,
    /// Channels per value.
    pub(super) d_state: usize,
}

impl StateShape {
    /// Elements of the state.
    pub(super) const fn elements(self) -> usize {
        self.heads.saturating_mul(self.head_dim).saturating_mul(self.d_state)
    }

    /// Bytes of the state in 8 bits: one per element and a float32 scale per head and channel.
    pub(super) const fn int8_bytes(self) -> usize {
        self.elements().saturating_add(self.heads.saturating_mul(self.d_state).saturating_mul(4))
    }
}

/// A state in 8 bits.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Int8State {
    shape: StateShape,
    values: Vec<i8>,
    scales: Vec<f32>,
}

/// A state that cannot be quantised, or bytes that hold none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Int8Error {
    /// The number of elements, or of bytes, is not that of the shape.
    #[error("a state of {expected} elements, found {found}")]
    Elements {
        /// Of the shape.
        expected: usize,
        /// Given.
        found: usize,
    },
    /// An element is infinite or not a number: no scale fits it.
    #[error("element {index} of the state is not finite")]
    NotFinite {
        /// Its place.
        index: usize,
    },
    /// What was read is no state that was written: its scale is negative, infinite or not a number.
    #[error("scale {index} of the state is none; what was read is no state in 8 bits")]
    NoScale {
        /// Its place.
        index: usize,
    },
}

impl Int8State {
    /// Quantises a state. No element is off by more than half the scale of its channel.
    ///
    /// # Errors
    /// Another number of elements than the shape has, or one that is not finite.
    pub(super) fn quantise(shape: StateShape, state: &[f32]) -> Result<Self, Int8Error> {
        if state.len() != shape.elements() {
            return Err(Int8Error::Elements { expected: shape.elements(), found: state.len() });
        }
        if let Some(index) = state.iter().position(|x| !x.is_finite()) {
            return Err(Int8Error::NotFinite { index });
        }
        let mut scales = vec![0.0_f32; shape.heads * shape.d_state];
        for (i, x) in state.iter().enumerate() {
            let largest = &mut scales[shape.channel(i)];
            *largest = largest.max(x.abs());
        }
        scales.iter_mut().for_each(|largest| *largest = scale_for(*largest));
        let quantised = |(i, x): (usize, &f32)| match scales[shape.channel(i)] {
            0.0 => 0,
            scale => (x / scale).round() as i8,
        };
        let values = state.iter().enumerate().map(quantised).collect();
        Ok(Self { shape, values, scales })
    }

    /// The state again, for a live slot.
    pub(super) fn dequantise(&self) -> Vec<f32> {
        // 127 times a scale that was rounded up may exceed the largest number.
        let restored =
            |(i, &q): (usize, &i8)| (f32::from(q) * self.scales[self.shape.channel(i)]).clamp(f32::MIN, f32::MAX);
        self.values.iter().enumerate().map(restored).collect()
    }

    /// Writes it as plans lay it out: the values, then the scales, little-endian. `bytes` are
    /// [`StateShape::int8_bytes`].
    ///
    /// # Panics
    /// If there are fewer.
    pub(super) fn write(&self, bytes: &mut [u8]) {
        let (values, scales) = bytes.split_at_mut(self.values.len());
        values.iter_mut().zip(&self.values).for_each(|(byte, value)| *byte = value.cast_unsigned());
        for (bytes, scale) in scales.chunks_exact_mut(4).zip(&self.scales) {
            bytes.copy_from_slice(&scale.to_le_bytes());
        }
    }

    /// Reads what [`Int8State::write`] wrote.
    ///
    /// # Errors
    /// Another number of bytes, or scales that are none: memory that nothing was written to, or something else.
    pub(super) fn read(shape: StateShape, bytes: &[u8]) -> Result<Self, Int8Error> {
        if bytes.len() != shape.int8_bytes() {
            return Err(Int8Error::Elements { expected: shape.int8_bytes(), found: bytes.len() });
        }
        let (values, scales) = bytes.split_at(shape.elements());
        let values = values.iter().map(|byte| byte.cast_signed()).collect();
        let scales = scales.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let scales: Vec<f32> = scales.collect();
        if let Some(index) = scales.iter().position(|scale| !(scale.is_finite() && scale.is_sign_positive())) {
            return Err(Int8Error::NoScale { index });
        }
        Ok(Self { shape, values, scales })
    }

    /// The scale of each head and channel.
    #[cfg(test)]
    pub(super) fn scales(&self) -> &[f32] {
        &self.scales
    }
}

/// The least scale with which 127 steps reach as far as the largest value of a channel. Where numbers are as small as
/// they get, a scale that was rounded down would cut that value off.
fn scale_for(largest: f32) -> f32 {
    let scale = largest / 127.0;
    if (largest / scale).round() > 127.0 { scale.next_up() } else { scale }
}

impl StateShape {
    /// The scale of an element.
    fn channel(self, element: usize) -> usize {
        element / (self.head_dim * self.d_state) * self.d_state + element % self.d_state
    }
}
