//! What operands hold.

use crate::stored::BlockFormat;
use crate::{KernelError, StateBatch, StoredMatrix};
use candle_core::{DType, Device, Result, Tensor};

/// Makes operands.
pub enum Data {
    /// Numbers between -1 and 1, from the state of a generator, and poison in what nobody owns.
    Random(u64),
    /// Such numbers alone, as they lie in memory that is an operand's own.
    Dense(u64),
    /// Zeros, where who executes brings numbers of his own.
    Blank,
}

impl Data {
    pub fn random(seed: u64) -> Self {
        Self::Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn tensor(&mut self, shape: &[usize], dtype: DType) -> Result<Tensor> {
        let (Self::Random(state) | Self::Dense(state)) = self else {
            return Tensor::zeros(shape, dtype, &Device::Cpu);
        };
        // Integers of 8 bits lie in a pool as bytes, all of which are numbers.
        let number = |unit: f32| if dtype == DType::U8 { 128.0 + 127.9 * unit } else { unit };
        let numbers: Vec<f32> = (0..shape.iter().product::<usize>()).map(|_| number(unit(state))).collect();
        Tensor::from_vec(numbers, shape, &Device::Cpu)?.to_dtype(dtype)
    }

    /// A matrix of blocks, whose numbers are finite.
    pub(super) fn stored(
        &mut self,
        format: BlockFormat,
        rows: usize,
        columns: usize,
    ) -> std::result::Result<StoredMatrix, KernelError> {
        let len = rows * (columns / format.elements() * format.bytes());
        let bytes = match self {
            Self::Blank => vec![0; len],
            Self::Random(state) | Self::Dense(state) => {
                let mut bytes: Vec<u8> = (0..len.div_ceil(4)).flat_map(|_| next(state).to_le_bytes()).collect();
                bytes.truncate(len);
                // Without the highest bit of an exponent a float is small; a power of two is a byte of its own.
                bytes.iter_mut().for_each(|byte| *byte &= 0xbf);
                if format == BlockFormat::Mxfp4 {
                    bytes.iter_mut().step_by(format.bytes()).for_each(|exponent| *exponent = 120 + (*exponent & 7));
                }
                bytes
            }
        };
        StoredMatrix::new(bytes.into(), format, rows, columns)
    }

    /// Whether something lies beside what operands own.
    pub(super) fn is_poisoned(&self) -> bool {
        matches!(self, Self::Random(_))
    }

    /// As [`tensor`](Self::tensor), between two numbers.
    pub(super) fn between(&mut self, low: f32, high: f32, shape: &[usize], dtype: DType) -> Result<Tensor> {
        let unit = self.tensor(shape, DType::F32)?;
        let (half, middle) = (f64::from(high - low) / 2.0, f64::from(high + low) / 2.0);
        match self {
            Self::Blank => unit.to_dtype(dtype),
            Self::Random(_) | Self::Dense(_) => unit.affine(half, middle)?.to_dtype(dtype),
        }
    }

    /// The rows of a step's tokens, `[tokens, width]`: as a projection leaves them, part of wider rows, with poison in
    /// those of padding.
    pub(super) fn rows(&mut self, of: &Sequences, width: usize, dtype: DType) -> Result<Tensor> {
        self.rows_between(-1.0, 1.0, of, width, dtype)
    }

    pub(super) fn rows_between(
        &mut self,
        low: f32,
        high: f32,
        of: &Sequences,
        width: usize,
        dtype: DType,
    ) -> Result<Tensor> {
        // As many elements as are a multiple of 16 bytes in every format.
        const BESIDE: usize = 8;
        if !self.is_poisoned() {
            return self.between(low, high, &[of.tokens(), width], dtype);
        }
        let wide = self.between(low, high, &[of.tokens(), width + BESIDE], DType::F32)?;
        let mut numbers: Vec<f32> = wide.flatten_all()?.to_vec1()?;
        for row in of.padding_rows() {
            let row = &mut numbers[row * (width + BESIDE)..][..width + BESIDE];
            row.iter_mut().enumerate().for_each(|(at, value)| *value = if at % 2 == 0 { f32::NAN } else { 1e3 });
        }
        Tensor::from_vec(numbers, wide.dims(), &Device::Cpu)?.to_dtype(dtype)?.narrow(1, BESIDE, width)
    }

    /// A pool of rows, with poison in all that `owned` does not name: rows, and in each so many elements from one on.
    pub(super) fn pool(
        &mut self,
        [rows, elements]: [usize; 2],
        owned: &[usize],
        [from, count]: [usize; 2],
        dtype: DType,
    ) -> Result<Tensor> {
        let Self::Random(state) = self else { return self.tensor(&[rows, elements], dtype) };
        let mut numbers = vec![f32::NAN; rows * elements];
        for row in owned {
            numbers[row * elements + from..][..count].iter_mut().for_each(|number| *number = unit(state));
        }
        Tensor::from_vec(numbers, (rows, elements), &Device::Cpu)?.to_dtype(dtype)
    }
}

/// Uniform in `-1..1`.
fn unit(state: &mut u64) -> f32 {
    (next(state) >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// 32 bits, by xorshift64*.
fn next(state: &mut u64) -> u32 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
}

/// The sequences of a step.
#[derive(Clone, Debug)]
pub struct Sequences {
    /// `[batch + 1]` rows of their tokens.
    pub cu_seqlens: Vec<u32>,
    /// `[batch]` slots; -1 is padding.
    pub slots: Vec<i32>,
    /// `[batch]` tokens that each has with those of the step; 0 is padding.
    pub contexts: Vec<u32>,
}

impl Sequences {
    /// As many sequences with as many tokens each, at the end of a context.
    pub fn even(batch: usize, tokens: usize, context: usize) -> Self {
        Self {
            cu_seqlens: (0..=batch).map(|i| (i * tokens) as u32).collect(),
            slots: (0..batch as i32).collect(),
            contexts: vec![context.max(tokens) as u32; batch],
        }
    }

    /// Sequences of these tokens and contexts, with slots out of order; padding, that has tokens, is the third.
    pub fn ragged(of: &[(usize, usize)]) -> Self {
        let mut of = of.to_vec();
        of.insert(2.min(of.len()), (3, 0));
        let mut cu_seqlens = vec![0];
        for (tokens, _) in &of {
            cu_seqlens.push(cu_seqlens[cu_seqlens.len() - 1] + *tokens as u32);
        }
        let slot = |(i, (_, context)): (usize, &(usize, usize))| if *context == 0 { -1 } else { (of.len() - i) as i32 };
        Self {
            cu_seqlens,
            slots: of.iter().enumerate().map(slot).collect(),
            contexts: of.iter().map(|(_, context)| *context as u32).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn tokens(&self) -> usize {
        self.cu_seqlens.last().map_or(0, |&end| end as usize)
    }

    pub(super) fn batch(&self) -> StateBatch<'_> {
        StateBatch::new(&self.cu_seqlens, &self.slots)
    }

    /// The slots that have a sequence.
    pub(super) fn owned(&self) -> Vec<usize> {
        self.slots.iter().filter_map(|&slot| usize::try_from(slot).ok()).collect()
    }

    /// The rows of padding.
    fn padding_rows(&self) -> impl Iterator<Item = usize> {
        let padding = self.slots.iter().zip(self.cu_seqlens.windows(2)).filter(|(slot, _)| **slot < 0);
        padding.flat_map(|(_, rows)| rows[0] as usize..rows[1] as usize)
    }

    /// The most tokens that one has in this step, padding aside.
    pub(super) fn longest(&self) -> usize {
        let rows = self.cu_seqlens.windows(2).zip(&self.slots).filter(|(_, slot)| **slot >= 0);
        rows.map(|(rows, _)| (rows[1] - rows[0]) as usize).max().unwrap_or(0)
    }
}
